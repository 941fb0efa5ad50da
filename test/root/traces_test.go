package root_test

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/test/userdb"
)

// traces lists what the host still has of a workspace that is destroyed and purged. The
// ledger and the record remember it; nothing else may.
func traces(t testing.TB, d *desk) []string {
	t.Helper()
	var left []string
	found := func(format string, a ...any) { left = append(left, fmt.Sprintf(format, a...)) }
	ids := []string{fmt.Sprint(d.ExecutorUID), fmt.Sprint(d.UID), fmt.Sprint(d.AgentUID)}

	all, err := filepath.Glob("/proc/[0-9]*/status")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range all {
		text, _ := os.ReadFile(name) // it may have ended
		for line := range strings.Lines(string(text)) {
			f := strings.Fields(line)
			if len(f) > 1 && slices.Contains([]string{"Uid:", "Gid:", "Groups:"}, f[0]) &&
				slices.ContainsFunc(f[1:], func(n string) bool { return slices.Contains(ids, n) }) {
				found("process %s: %s", filepath.Base(filepath.Dir(name)), strings.TrimSpace(line))
			}
		}
	}
	for _, db := range []string{"passwd", "group", "shadow", "gshadow", "subuid", "subgid"} {
		text, err := os.ReadFile("/etc/" + db)
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			f := strings.Split(strings.TrimSpace(line), ":")
			if f[0] == d.Name || slices.Contains(f[1:min(len(f), 4)], ids[1]) {
				found("%s: %s", db, strings.TrimSpace(line))
			}
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, d.Name) {
			found("mount: %s", strings.TrimSpace(line))
		}
	}
	sockets, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(sockets)) {
		if strings.Contains(line, d.Name) {
			found("socket: %s", strings.TrimSpace(line))
		}
	}
	for _, root := range []string{d.h.data, d.h.run, "/sys/fs/cgroup", "/var/mail", "/var/spool/cron", "/run/user"} {
		err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
			if err != nil {
				return nil // it went away, or there is none
			}
			if strings.Contains(e.Name(), d.Name) {
				found("file: %s", path)
			}
			if st, ok := statOf(path); ok && slices.Contains(ids, fmt.Sprint(st.Uid)) {
				found("file: %s belongs to %d", path, st.Uid)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return left
}

func statOf(path string) (st unix.Stat_t, ok bool) { return st, unix.Lstat(path, &st) == nil }

// Each kind of trace is planted once, to see that it would be found.
func TestTracesAreFound(t *testing.T) {
	h := newHostFor(t)
	d := h.desk(t)
	d.sh(t, "mkdir -p a/b; echo x > a/b/c; echo x > /tmp/c")
	if alive := traces(t, d); len(alive) < 5 {
		t.Errorf("of a workspace that runs only this is found: %q", alive)
	}
	// Those of this instance: another test's may go at any moment.
	groups, err := filepath.Glob("/sys/fs/cgroup/*/carrel-*/" + d.Name)
	if v2, _ := filepath.Glob("/sys/fs/cgroup/carrel-*/" + d.Name); len(v2) > 0 {
		groups = v2
	}
	if err != nil || len(groups) == 0 {
		t.Fatalf("no control groups: %v", err)
	}
	h.carrel(t, "destroy", "--purge", d.Key)
	if left := traces(t, d); len(left) > 0 {
		t.Fatalf("left without being planted: %q", left)
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for what, plant := range map[string]func(t *testing.T) (undo func()){
		"process": func(t *testing.T) func() {
			c := exec.CommandContext(t.Context(), "sleep", "1000")
			c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: d.UID, Gid: d.UID}}
			must(c.Start())
			return func() { _ = c.Process.Kill(); _ = c.Wait() }
		},
		"executor": func(t *testing.T) func() {
			c := exec.CommandContext(t.Context(), "sleep", "1000")
			c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 61998, Gid: d.ExecutorUID}}
			must(c.Start())
			return func() { _ = c.Process.Kill(); _ = c.Wait() }
		},
		"user": func(t *testing.T) func() {
			must(userdb.Run(t.Context(), "/usr/sbin/useradd", "-M", "-U", "-u", strconv.Itoa(int(d.UID)), "-d", "/nonexistent", d.Name))
			return func() { must(userdb.Run(context.WithoutCancel(t.Context()), "/usr/sbin/userdel", d.Name)) }
		},
		"group": func(t *testing.T) func() {
			must(userdb.Run(t.Context(), "/usr/sbin/groupadd", d.Name))
			return func() { must(userdb.Run(context.WithoutCancel(t.Context()), "/usr/sbin/groupdel", d.Name)) }
		},
		"home": func(*testing.T) func() {
			must(os.Mkdir(d.Home, 0o700))
			return func() { must(os.Remove(d.Home)) }
		},
		"file of its uid": func(*testing.T) func() {
			path := d.h.data + "/homes/somebody"
			must(os.WriteFile(path, nil, 0o600))
			must(os.Chown(path, int(d.UID), 0))
			return func() { must(os.Remove(path)) }
		},
		"mount": func(*testing.T) func() {
			path := filepath.Join(base, d.Name)
			must(os.Mkdir(path, 0o700))
			must(unix.Mount("none", path, "tmpfs", 0, "size=4k"))
			return func() { must(unix.Unmount(path, 0)); must(os.Remove(path)) }
		},
		"control group": func(*testing.T) func() {
			path := groups[0]
			must(os.Mkdir(path, 0o755))
			return func() { must(os.Remove(path)) }
		},
		"socket": func(*testing.T) func() {
			fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			must(err)
			path := d.h.run + "/x/" + d.Name + ".sock"
			must(unix.Bind(fd, &unix.SockaddrUnix{Name: path}))
			return func() { must(unix.Close(fd)); must(os.Remove(path)) }
		},
	} {
		undo := plant(t)
		if left := traces(t, d); len(left) == 0 {
			t.Errorf("%s: not found", what)
		}
		undo()
	}
	if left := traces(t, d); len(left) > 0 {
		t.Errorf("left after the planting: %q", left)
	}
}

// Destroyed in every state and in the midst of work, and made again under the same key.
func TestDestroyLeavesNothing(t *testing.T) {
	h := newHostFor(t)
	busy := `mkdir -p deep/$(printf 'd/%.0s' $(seq 40)); touch f{1..200}; chmod -R 000 deep; mkfifo fifo; ln -s / link
		trap '' TERM HUP INT; setsid sh -c "trap '' TERM HUP; (sleep 1000 &) ; sleep 1000" & nohup sleep 1000 & touch ready; sleep 1000`
	var spent []uint32
	for what, prepare := range map[string]func(d *desk){
		"idle":    func(*desk) {},
		"stopped": func(d *desk) { h.carrel(t, "stop", d.Key) },
		"busy": func(d *desk) {
			d.detach(t, "/bin/bash", "-c", busy)
			d.sh(t, "while [ ! -e ready ]; do sleep 0.01; done")
		},
		"bombed": func(d *desk) {
			d.detach(t, "/usr/bin/perl", "-e", "fork while 1")
			until(t, "a full workspace", func() bool { return d.try("true").code != 0 })
		},
		"its executor killed": func(d *desk) { kill(t, d.ExecutorPID) },
	} {
		d := h.desk(t, "--pids", "48")
		prepare(d)
		h.carrel(t, "destroy", "--purge", d.Key)
		for _, left := range traces(t, d) {
			t.Errorf("%s: %s", what, left)
		}
		spent = append(spent, d.ExecutorUID, d.UID, d.AgentUID)

		// Again under the same key: other ids, and nothing of the old files.
		h.carrel(t, "create", d.Key)
		again := h.look(t, d.Key)
		for _, id := range []uint32{again.ExecutorUID, again.UID, again.AgentUID} {
			if slices.Contains(spent, id) {
				t.Errorf("%s: id %d is used again", what, id)
			}
			spent = append(spent, id)
		}
		if out := again.sh(t, "ls -A | grep -v '^[.]'; ls -A /tmp /var/tmp | grep -v : || true"); out != "" {
			t.Errorf("%s: the new one has %q", what, out)
		}
		// Without --purge the home is put aside, where only root comes to it.
		again.sh(t, "echo kept > file")
		retained := strings.TrimSpace(h.carrel(t, "destroy", d.Key))
		if b, err := os.ReadFile(retained + "/file"); err != nil || string(b) != "kept\n" {
			t.Errorf("%s: retained %q: %q, %v", what, retained, b, err)
		}
		if mode := fileMode(t, filepath.Dir(retained)); mode&0o077 != 0 {
			t.Errorf("%s: homes that were put aside lie in a directory of mode %o", what, mode)
		}
		if err := os.RemoveAll(retained); err != nil {
			t.Error(err)
		}
	}
	for _, l := range leftovers(t, h) {
		t.Errorf("left: %s", l)
	}
}
