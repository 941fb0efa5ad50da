package root_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// host is a carrel of the tests' own.
type host struct {
	data, run, config string
	// env is of every program of carrel's, beside the usual.
	env []string
}

func hostAt(dir, config string) *host {
	return &host{data: dir + "/data", run: dir + "/run", config: config}
}

// newHostWith makes a carrel for one test with settings of its own, which may name files beside
// them in dir. It is not up yet, and gone after the test.
func newHostWith(t *testing.T, settings func(dir string) string) *host {
	t.Helper()
	needRoot(t)
	dir, err := os.MkdirTemp(base, "h")
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	h := hostAt(dir, filepath.Join(dir, "carreld.yaml"))
	if err == nil {
		err = os.WriteFile(h.config, []byte(settings(dir)), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		h.says(t)
		if err := h.down(); err != nil {
			t.Error(err)
		}
	})
	return h
}

// says has the test that failed show what daemon and broker said last.
func (h *host) says(t *testing.T) {
	t.Helper()
	for _, name := range []string{"broker.log", "daemon.log"} {
		b, err := os.ReadFile(filepath.Join(h.data, "log", name))
		if t.Failed() {
			t.Logf("%s (%v):\n%s", name, err, b[max(0, len(b)-4096):])
		}
	}
}

// newHost brings a carrel up below base.
func newHost(base string) (*host, error) {
	dir, err := os.MkdirTemp(base, "h")
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		return nil, err
	}
	h := hostAt(dir, base+"/carreld.yaml")
	return h, h.up()
}

// newHostFor brings up a carrel for one test, for what would disturb the others.
func newHostFor(t *testing.T) *host {
	t.Helper()
	needRoot(t)
	h, err := newHost(base)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		h.says(t)
		if err := h.down(); err != nil {
			t.Error(err)
		}
	})
	return h
}

func (h *host) up() error {
	args := []string{"up", "--detach", "--prefix", "crt", "--config", h.config}
	if r := h.try(nil, "", append(args, h.flags()...)...); r.code != 0 {
		return fmt.Errorf("cannot bring carrel up: %s", r.err)
	}
	return nil
}

// down destroys every workspace and takes the carrel away.
func (h *host) down() error {
	if _, err := os.Stat(h.data + "/up.json"); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	err := h.up() // a test may have ended a part of it
	if names := strings.Fields(h.try(nil, "", "ls", "-q").out); len(names) > 0 {
		if r := h.try(nil, "", append([]string{"destroy", "--purge"}, names...)...); r.code != 0 {
			err = errors.Join(err, fmt.Errorf("cannot destroy %v: %s", names, r.err))
		}
	}
	if r := h.try(nil, "", append([]string{"down", "--purge"}, h.flags()...)...); r.code != 0 {
		err = errors.Join(err, fmt.Errorf("cannot take carrel down: %s", r.err))
	}
	return err
}

func (h *host) flags() []string  { return []string{"--data", h.data, "--runtime-dir", h.run} }
func (h *host) auditLog() string { return h.data + "/daemon/audit/audit.jsonl" }

// readRecord reads the lines of the record, without the zeros behind them.
func (h *host) readRecord() ([]byte, error) {
	b, err := os.ReadFile(h.auditLog())
	return bytes.TrimRight(b, "\x00"), err
}

// result is how a program ended.
type result struct {
	code     int
	out, err string
	took     time.Duration
}

// patience bounds every command and every wait.
const patience = 30 * time.Second

// command is the carrel program, for a user: nil is root.
func (h *host) command(ctx context.Context, who *syscall.Credential, args ...string) *exec.Cmd {
	return h.program(ctx, who, "carrel", args...)
}

// program is command for another program of carrel's.
func (h *host) program(ctx context.Context, who *syscall.Credential, name string, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, filepath.Join(bin, name), args...)
	c.Dir = "/"
	c.Env = append([]string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "CARREL_HOST=unix://" + h.run + "/carrel.sock"}, h.env...)
	c.SysProcAttr = &syscall.SysProcAttr{Credential: who}
	return c
}

func (h *host) try(who *syscall.Credential, stdin string, args ...string) result {
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	return finish(h.command(ctx, who, args...), stdin)
}

// finish runs a program to its end.
func finish(c *exec.Cmd, stdin string) result {
	var out, errs bytes.Buffer
	c.Stdin, c.Stdout, c.Stderr = strings.NewReader(stdin), &out, &errs
	begin := time.Now()
	err := c.Run()
	r := result{c.ProcessState.ExitCode(), out.String(), errs.String(), time.Since(begin)}
	if r.code < 0 {
		r.err += fmt.Sprint(err)
	}
	return r
}

// carrel runs the program as root; it must succeed.
func (h *host) carrel(t testing.TB, args ...string) string {
	t.Helper()
	r := h.try(nil, "", args...)
	if r.code != 0 {
		t.Fatalf("carrel %q: exit code %d\n%s%s", args, r.code, r.out, r.err)
	}
	return r.out
}

// desk is a workspace.
type desk struct {
	h           *host
	Key         string `json:"key"`
	Name        string `json:"name"`
	UID         uint32 `json:"uid"`
	ExecutorUID uint32 `json:"executor_uid"`
	AgentUID    uint32 `json:"agent_uid"`
	Home        string `json:"home"`
	Inside      string `json:"inside_home"`
	State       string `json:"state"`
	ExecutorPID int    `json:"executor_pid"`
}

// desk makes a workspace that is destroyed with the test.
func (h *host) desk(t testing.TB, flags ...string) *desk {
	t.Helper()
	needRoot(t)
	key := "crt " + rand.Text()[:12]
	t.Cleanup(func() {
		if r := h.try(nil, "", "destroy", "--purge", key); r.code != 0 && !strings.Contains(r.err, "there is none with this key") {
			t.Errorf("cannot destroy: %s", r.err)
		}
	})
	h.carrel(t, append(append([]string{"create"}, flags...), key)...)
	return h.look(t, key)
}

// look reads what inspect says of a workspace.
func (h *host) look(t testing.TB, key string) *desk {
	t.Helper()
	d := &desk{h: h}
	if err := json.Unmarshal([]byte(h.carrel(t, "inspect", "-o", "json", key)), d); err != nil {
		t.Fatal(err)
	}
	return d
}

// try runs a command in the workspace.
func (d *desk) try(argv ...string) result {
	return d.h.try(nil, "", append([]string{"exec", d.Key, "--"}, argv...)...)
}

// sh runs a shell script that must succeed.
func (d *desk) sh(t testing.TB, script string) string {
	t.Helper()
	r := d.try("/bin/bash", "-c", script)
	if r.code != 0 {
		t.Fatalf("%s: exit code %d\n%s%s", script, r.code, r.out, r.err)
	}
	return strings.TrimSpace(r.out)
}

// put makes a file in the home.
func (d *desk) put(t testing.TB, name string, content []byte, mode string) {
	t.Helper()
	r := d.h.try(nil, string(content), "exec", "-i", d.Key, "--", "/bin/sh", "-c", `cat > "$1" && chmod "$2" "$1"`, "sh", name, mode)
	if r.code != 0 {
		t.Fatalf("put %s: %s", name, r.err)
	}
}

// detach starts a command that stays.
func (d *desk) detach(t testing.TB, argv ...string) string {
	t.Helper()
	return strings.TrimSpace(d.h.carrel(t, append([]string{"exec", "--detach", d.Key, "--"}, argv...)...))
}

// well sees that the workspace takes commands, and that its executor is the one it was.
func (d *desk) well(t testing.TB) {
	t.Helper()
	if out := d.sh(t, "echo well"); out != "well" {
		t.Errorf("%s is not well: %q", d.Name, out)
	}
	if now := d.h.look(t, d.Key); now.ExecutorPID != d.ExecutorPID {
		t.Errorf("the executor of %s was replaced: pid %d, now %d", d.Name, d.ExecutorPID, now.ExecutorPID)
	}
}

// until asks again until yes says yes: of what other processes do, no word comes.
func until(t testing.TB, what string, yes func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); !yes(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("%s does not come", what)
		}
	}
}

// record holds the fields of a line of the audit log that the tests use.
type record struct {
	Seq       int64  `json:"seq"`
	Type      string `json:"type"`
	Principal string `json:"principal"`
	raw       string
}

// mark remembers where the audit log ends; since returns what came after it.
func (h *host) mark(t testing.TB) int {
	t.Helper()
	b, err := h.readRecord()
	if err != nil {
		t.Fatal(err)
	}
	return len(b)
}

func (h *host) since(t testing.TB, mark int) []record {
	t.Helper()
	b, err := h.readRecord()
	if err != nil {
		t.Fatal(err)
	}
	var all []record
	for line := range strings.Lines(string(b[mark:])) {
		if !strings.HasSuffix(line, "\n") {
			break // it is being written
		}
		var r record
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatal(err)
		}
		r.raw = line
		all = append(all, r)
	}
	return all
}

// settled waits until every intent has its outcome: that is written after the answer.
func (h *host) settled(t testing.TB) {
	t.Helper()
	until(t, "the outcome of every intent", func() bool {
		open := 0
		for _, r := range h.since(t, 0) {
			switch r.Type {
			case "intent":
				open++
			case "outcome":
				open--
			}
		}
		return open == 0
	})
}

// recorded sees that a record with all of these texts came after mark.
func (h *host) recorded(t testing.TB, mark int, texts ...string) {
	t.Helper()
next:
	for _, r := range h.since(t, mark) {
		for _, text := range texts {
			if !strings.Contains(r.raw, text) {
				continue next
			}
		}
		return
	}
	t.Errorf("nothing was recorded with %q, but\n%v", texts, h.since(t, mark))
}

// kill ends a process at once and waits until it has ended.
func kill(t testing.TB, pid int) {
	t.Helper()
	end(t, pid, unix.SIGKILL)
}

// end sends a signal that ends a process, and waits until it has.
func end(t testing.TB, pid int, s unix.Signal) {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.PidfdSendSignal(fd, s, nil, 0); err != nil {
		t.Fatal(err)
	}
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(patience.Milliseconds()))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n != 1 {
			t.Fatalf("process %d does not die: %v", pid, err)
		}
		return
	}
}

// part returns the pid of the broker or the daemon.
func (h *host) part(t testing.TB, name string) int {
	t.Helper()
	b, err := os.ReadFile(h.run + "/" + name + ".pid")
	if err != nil {
		t.Fatal(err)
	}
	var p struct {
		PID int `json:"pid"`
	}
	if err := json.Unmarshal(b, &p); err != nil {
		t.Fatal(err)
	}
	return p.PID
}
