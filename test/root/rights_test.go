package root_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// status is a field of /proc/PID/status.
func status(t testing.TB, pid int, field string) string {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if v, ok := strings.CutPrefix(line, field+":"); ok {
			return strings.Join(strings.Fields(v), " ")
		}
	}
	return ""
}

// What an attacker has who has taken the daemon over: its uid, no capability, and of
// the broker's nothing but the socket.
func TestADaemonThatWasTakenOver(t *testing.T) {
	needRoot(t)
	d := shared.desk(t)
	d.sh(t, "echo secret-of-a-workspace > file; chmod 644 file")
	pid, broker := shared.part(t, "daemon"), shared.part(t, "broker")
	for field, want := range map[string]string{
		"CapInh": "0000000000000000", "CapPrm": "0000000000000000", "CapEff": "0000000000000000", "CapBnd": "0000000000000000",
		"CapAmb": "0000000000000000", "NoNewPrivs": "1", "Groups": "",
	} {
		if got := status(t, pid, field); got != want {
			t.Errorf("%s of the daemon: %q, want %q", field, got, want)
		}
	}
	ids := strings.Fields(status(t, pid, "Uid") + " " + status(t, pid, "Gid"))
	uid, err := strconv.ParseUint(ids[0], 10, 32)
	if err != nil || uid == 0 || len(ids) != 8 {
		t.Fatalf("ids %q: %v", ids, err)
	}
	gid, err := strconv.ParseUint(ids[4], 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	script := fmt.Sprintf(`try() { if ( eval "$2" ) >/dev/null 2>&1; then echo "REACHED $1 ok"; else echo "denied $1 refused"; fi; }
		try "read a home" "cat %[1]s/file"
		try "list a home" "ls %[1]s"
		try "list the homes" "ls %[2]s/homes"
		try "read the ledger" "cat %[2]s/broker/ledger.jsonl"
		try "write the ledger" "echo >> %[2]s/broker/ledger.jsonl"
		try "write the settings" "echo >> %[2]s/broker.json"
		try "replace the settings" "rm -f %[2]s/broker.json"
		try "make a file beside the data" "touch %[2]s/x"
		try "read the logs" "ls %[2]s/log"
		try "replace the broker's socket" "rm -f %[3]s/broker.sock"
		try "make a socket" "touch %[3]s/x.sock"
		try "make an executor's socket" "touch %[3]s/x/crt-00000000.sock"
		try "remove an executor's socket" "rm -f %[3]s/x/%[4]s.sock"
		try "rename the directory of sockets" "mv %[3]s/x %[3]s/y"
		try "kill the broker" "kill -9 %[5]d"
		try "stop the broker" "kill -STOP %[5]d"
		try "read the broker's memory" "head -c 1 /proc/%[5]d/mem"
		try "read the broker's descriptors" "ls -l /proc/%[5]d/fd/"
		try "kill an executor" "kill -9 %[6]d"
		try "read an executor's root" "ls /proc/%[6]d/root/"
		try "enter a workspace" "nsenter -t %[6]d -a true"
		try "read shadow" "cat /etc/shadow"
		try "write a control group" "find /sys/fs/cgroup -path '*/carrel*' -name '*.max' -writable | grep ."
		try "join a control group" "find /sys/fs/cgroup -path '*/carrel*' -name cgroup.procs -writable | grep ."
		try "add a user" "/usr/sbin/useradd crt-forged"
		try "change the executor's program" "echo >> %[7]s/carrel-executor"
		try "own-record" "test -r %[2]s/daemon/audit/audit.jsonl"
		echo end`, d.Home, shared.data, shared.run, d.Name, broker, d.ExecutorPID, bin)
	c := exec.CommandContext(t.Context(), "/bin/bash", "-c", script)
	c.Dir = "/"
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid), Groups: []uint32{}}}
	out, err := c.Output()
	if err != nil || !strings.Contains(string(out), "end\n") {
		t.Fatalf("%v: %s", err, out)
	}
	judge(t, 26, []string{"own-record"}, string(out))
	d.well(t)
}

// What carrel writes can be written by nobody else, and read by nobody who should not;
// nothing of it lies in a directory that everybody may write to.
func TestFilesAndDescriptorsOfCarrel(t *testing.T) {
	h := newHostFor(t)
	d := h.desk(t)
	d.sh(t, "touch file; chmod 666 file")
	// These are for all to enter or to connect to, as this instance is set up.
	open := map[string]fs.FileMode{
		h.data: 0o711, h.run: 0o755, h.run + "/carrel.sock": 0o666, h.data + "/homes": 0o711,
	}
	walk := func(root string) (bad []string) {
		err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if path == d.Home || strings.HasPrefix(path, h.data+"/tmp/") {
				return filepath.SkipDir // the workspace's own
			}
			st, ok := statOf(path)
			if !ok || st.Mode&unix.S_IFMT == unix.S_IFLNK {
				return nil
			}
			if mode := fs.FileMode(st.Mode & 0o777); mode&0o077 != 0 && open[path] != mode && st.Mode&0o007 != 0 {
				bad = append(bad, fmt.Sprintf("%s %o", path, mode))
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return bad
	}
	if bad := append(walk(h.data), walk(h.run)...); len(bad) > 0 {
		t.Errorf("open to others: %q", bad)
	}
	planted := h.data + "/daemon/planted"
	if err := os.WriteFile(planted, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(planted, 0o606); err != nil {
		t.Fatal(err)
	}
	if bad := walk(h.data); len(bad) != 1 {
		t.Errorf("with a file that is open to others: %q", bad)
	}
	for name, pid := range map[string]int{"daemon": h.part(t, "daemon"), "broker": h.part(t, "broker"), "executor": d.ExecutorPID} {
		all, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range all {
			to, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", pid, e.Name()))
			if err != nil {
				continue
			}
			if strings.HasPrefix(to, "/tmp/") || strings.HasPrefix(to, "/etc/") || strings.HasPrefix(to, "/root/") ||
				strings.HasPrefix(to, "/home/") {
				t.Errorf("the %s has %s open", name, to)
			}
			// The executor's control groups are named as they are inside.
			if name == "executor" && strings.HasPrefix(to, "/") && !ofAnExecutor.MatchString(to) {
				t.Errorf("the executor has %s open", to)
			}
		}
	}
}

// ofAnExecutor is what it has open: where a thread joins the group of commands, by which alone nothing else can be reached,
// has the name that it has on the host.
var ofAnExecutor = regexp.MustCompile(
	`^(/|/dev/null|/proc/1/oom_score_adj|/proc/1/net/(sockstat|protocols)|/cmd|/c\d+(/cgroup\.\w+)?|/sys/fs/cgroup/[\w,]+/carrel-\w+/crt-\w+/cmd/tasks)$`)

// An old copy of the record, put back while the daemon is down, is a record that was cut.
func TestAnOldRecordPutBackIsSeen(t *testing.T) {
	h := newHostFor(t)
	d := h.desk(t)
	h.settled(t)
	old, err := h.readRecord()
	if err != nil {
		t.Fatal(err)
	}
	d.sh(t, "true")
	h.settled(t)
	h.carrel(t, append([]string{"down"}, h.flags()...)...)
	whole, err := h.readRecord()
	if err != nil {
		t.Fatal(err)
	}
	if err := writeThrough(h.auditLog(), old); err != nil {
		t.Fatal(err)
	}
	err = h.up()
	r := h.try(nil, "", "audit", "verify")
	t.Logf("up: %v; verify: exit code %d: %s%s", err, r.code, r.out, r.err)
	if err == nil && r.code == 0 {
		t.Error("the record was cut, and nobody says so")
	}
	h.try(nil, "", append([]string{"down"}, h.flags()...)...)
	if err := writeThrough(h.auditLog(), whole); err != nil {
		t.Fatal(err)
	}
	if err := h.up(); err != nil {
		t.Error(err)
	}
}

// An old copy of the record, put in its place under the running daemon: the daemon ends, and the next start says
// what was lost, though nothing but the record knew of it.
func TestAnOldRecordPutUnderTheDaemonIsSeen(t *testing.T) {
	h := newHostFor(t)
	d := h.desk(t)
	d.sh(t, "true")
	h.settled(t)
	old, err := h.readRecord()
	if err != nil {
		t.Fatal(err)
	}
	d.sh(t, "true")
	h.settled(t)
	copied, written := h.data+"/daemon/copy", h.data+"/daemon/written"
	if err := errors.Join(writeAs(h.auditLog(), copied, old), os.Link(h.auditLog(), written)); err != nil {
		t.Fatal(err)
	}
	pid := h.part(t, "daemon")
	if err := os.Rename(copied, h.auditLog()); err != nil {
		t.Fatal(err)
	}
	if r := h.try(nil, "", "audit", "verify"); r.code == 0 {
		t.Errorf("verified while another file was there: %s%s", r.out, r.err)
	}
	until(t, "the daemon's end", func() bool { return errors.Is(unix.Kill(pid, 0), unix.ESRCH) })
	err = h.up()
	t.Logf("up: %v", err)
	if err == nil || !strings.Contains(err.Error(), "its end was cut off") {
		t.Errorf("records were lost, and the next start says %v", err)
	}
	h.try(nil, "", append([]string{"down"}, h.flags()...)...)
	if err := os.Rename(written, h.auditLog()); err != nil {
		t.Fatal(err)
	}
	if err := h.up(); err != nil {
		t.Error(err)
	}
}

// writeAs makes a file with the owner and mode of another.
func writeAs(like, path string, b []byte) error {
	st, ok := statOf(like)
	if !ok {
		return fmt.Errorf("cannot look at %s", like)
	}
	if err := os.WriteFile(path, b, 0o600); err != nil {
		return err
	}
	return os.Chown(path, int(st.Uid), int(st.Gid))
}
