package rootless_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/carrel-dev/carrel/internal/state/audit"
)

var signals = []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP}

// signalled starts carrel, sends it a signal when ready returns, and returns its exit code as a shell has it.
func (u *user) signalled(program string, s syscall.Signal, ready func(), args ...string) (code int, said string, took time.Duration) {
	u.t.Helper()
	var stderr bytes.Buffer
	c := u.command("project", program, append([]string{"run"}, args...)...)
	c.Stderr = &stderr
	if err := c.Start(); err != nil {
		u.t.Fatal(err)
	}
	ready()
	sent := time.Now()
	_ = c.Process.Signal(s)
	err := c.Wait()
	if err == nil {
		return 0, stderr.String(), time.Since(sent)
	}
	w := c.ProcessState.Sys().(syscall.WaitStatus)
	if w.Signaled() { // before carrel caught any
		return 128 + int(w.Signal()), stderr.String(), time.Since(sent)
	}
	return w.ExitStatus(), stderr.String(), time.Since(sent)
}

func (u *user) groups() string {
	u.t.Helper()
	return finish(exec.CommandContext(u.t.Context(), "find", "/sys/fs/cgroup", "-type", "d", "-uid", strconv.Itoa(int(u.id))), "").out
}

// nothingLeft checks that no run is left.
func (u *user) nothingLeft(what, groups string) {
	u.t.Helper()
	if left := u.processes(); os.Geteuid() == 0 && len(left) > 0 {
		u.t.Errorf("%s: processes %v are left", what, left)
	}
	if after := u.groups(); after != groups {
		u.t.Errorf("%s: groups are left: %s", what, after)
	}
	const list = "ls -A project; cd .local/state/carrel 2>/dev/null && { ls runs; ls -A homes git 2>/dev/null | grep run-; }"
	if got := u.sh(list).out; got != ".git\n" {
		u.t.Errorf("%s: left: %q", what, got)
	}
}

// A signal ends a start that hangs at once, and the record says so.
func TestSignalEndsStart(t *testing.T) {
	u := newUser(t)
	dir, err := os.MkdirTemp("/var/tmp", "carrel-rootless-hangs")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := errors.Join(os.Chmod(dir, 0o755), os.CopyFS(filepath.Join(dir, "bin"), os.DirFS(programs)),
		os.WriteFile(filepath.Join(dir, "bin/carrel-executor"), []byte("#!/bin/sh\nexec sleep 600\n"), 0o755)); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "bin/carrel")
	groups := u.groups()
	for i, s := range signals {
		intents := func() bool {
			b, _ := os.ReadFile(filepath.Join(u.home, ".local/state/carrel/audit/audit.jsonl"))
			return bytes.Count(b, []byte("\n")) > 2*i
		}
		code, said, took := u.signalled(program, s, func() { until(t, "the intent", intents) }, "--here", "--keep", "--", "true")
		if code != 128+int(s) || took > 5*time.Second || !strings.Contains(said, "carrel: nothing was run: "+s.String()) {
			t.Errorf("%v: %d after %v: %s", s, code, took, said)
		}
		u.nothingLeft(s.String(), groups)
		all := u.records()
		last := all[len(all)-1]
		if last.Type != audit.Outcome || last.Status != audit.StatusFailed || last.ErrorKind != "canceled" || !strings.Contains(last.Error, s.String()) {
			t.Errorf("%v: recorded as %+v", s, last)
		}
	}
}

// A signal that comes at any moment ends the run as it would the command, and nothing is left.
func TestSignalAtAnyMoment(t *testing.T) {
	u := newUser(t)
	carrel := filepath.Join(programs, "carrel")
	began := time.Now()
	if r := u.run("--here", "--", "true"); r.code != 0 {
		t.Fatalf("%+v", r)
	}
	start := time.Since(began)
	groups := u.groups()
	rounds := 60
	if testing.Short() {
		rounds = 12
	}
	// One that this process ignores, as nohup has it, the command ignores too, and then goes on as it should.
	ending := slices.DeleteFunc(slices.Clone(signals), func(s syscall.Signal) bool { return signal.Ignored(s) })
	canceled := 0
	for i := range rounds {
		s := ending[i%len(ending)]
		delay := rand.N(start + start/4)
		code, said, took := u.signalled(carrel, s, func() { time.Sleep(delay) }, "--here", "--keep", "--", "sleep", "600") //nolint:forbidigo // any moment
		what := fmt.Sprintf("%v after %v", s, delay)
		if code != 128+int(s) || took > 2*time.Second {
			t.Errorf("%s: %d after %v: %s", what, code, took, said)
		}
		if strings.Contains(said, "nothing was run") {
			canceled++
		}
		if home, kept := strings.CutPrefix(said, "carrel: the home is kept in "); kept {
			os.RemoveAll(strings.TrimSpace(home)) // the command had started
		}
		u.nothingLeft(what, groups)
	}
	open := map[int64]bool{}
	for _, r := range u.records() {
		if r.Type == audit.Intent {
			open[r.Seq] = true
		}
		delete(open, r.Intent)
		if r.Type == audit.Outcome && r.Status != audit.StatusOK && r.ErrorKind != "canceled" {
			t.Errorf("recorded as %+v", r)
		}
	}
	if len(open) > 0 {
		t.Errorf("intents without an outcome: %v", open)
	}
	if canceled == 0 {
		t.Error("no start was canceled")
	}
	t.Logf("%d of %d were canceled before the command had started", canceled, rounds)
}
