package machine_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/test/vm/job"
	"github.com/carrel-dev/carrel/test/vm/machine"
)

// double is a stand-in for QEMU that runs a script in its place.
func double(t *testing.T, script string) machine.Config {
	t.Helper()
	dir := t.TempDir()
	c := machine.Config{QEMU: filepath.Join(dir, "qemu"), Dir: dir, CPUs: 1, MemoryMiB: 1}
	if err := os.WriteFile(c.QEMU, []byte("#!/bin/sh\n"+script), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, machine.Console), []byte("line\r\nKernel panic - not syncing\r\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	return c
}

func TestRun(t *testing.T) {
	for _, c := range []struct{ name, script, want string }{
		{"done", `echo '{"kind":"boot"}'; echo '{"kind":"done"}'`, ""},
		{"panic", `echo '{"kind":"boot"}'`, "the guest ended before its plan did"},
		{"no boot", ``, "the guest ended before its plan did"},
		{"qemu fails", `echo 'no such machine' >&2; exit 1`, "exit status 1: no such machine"},
		{"fails after done", `echo '{"kind":"done"}'; exit 3`, "exit status 3"},
		{"garbage", `echo 'boot'; exec sleep 1000`, `cannot read an event of the guest`},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got []job.Kind
			err := machine.Run(t.Context(), double(t, c.script), func(e job.Event) { got = append(got, e.Kind) })
			switch {
			case c.want == "" && (err != nil || len(got) != 2):
				t.Errorf("%v, events %v", err, got)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
				t.Errorf("got %v, want %q", err, c.want)
			case c.want != "" && !strings.Contains(err.Error(), "    Kernel panic - not syncing"):
				t.Errorf("the error does not show the console: %v", err)
			}
		})
	}
}

// TestRunEndsQEMU: when the time is over nothing of it is left, and the error says why.
func TestRunEndsQEMU(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	late := errors.New("it is late")
	pid := 0
	err := machine.Run(ctx, double(t, `echo '{"kind":"boot","text":"'$$'"}'; exec sleep 1000`), func(e job.Event) {
		pid, _ = strconv.Atoi(e.Text)
		cancel(late)
	})
	if !errors.Is(err, late) {
		t.Errorf("got %v", err)
	}
	if pid == 0 || !errors.Is(unix.Kill(pid, 0), unix.ESRCH) {
		t.Errorf("process %d still runs", pid)
	}
}

// TestPort: QEMU must not see the end of its stdin before it ends itself.
func TestPort(t *testing.T) {
	err := machine.Run(t.Context(), double(t, `timeout 0.3 cat >/dev/null; [ $? = 124 ] && echo '{"kind":"done"}'`), func(job.Event) {})
	if err != nil {
		t.Error(err)
	}
}

// TestNewc checks against the layout of buffer-format.rst.
func TestNewc(t *testing.T) {
	b := string(machine.Newc("init", []byte("hello")))
	const header = 110
	if len(b)%4 != 0 || !strings.HasPrefix(b, "070701") {
		t.Fatalf("%d bytes: %q", len(b), b)
	}
	field := func(n int) string { return b[6+8*n : 14+8*n] }
	for n, want := range map[int]string{1: "000081a4", 6: "00000005", 11: "00000005"} {
		if got := field(n); got != want {
			t.Errorf("field %d is %s, want %s", n, got, want)
		}
	}
	body := header + len("init\x00")
	body += -body & 3
	if got := b[header:body]; strings.TrimRight(got, "\x00") != "init" {
		t.Errorf("the name is %q", got)
	}
	if got := b[body : body+8]; got != "hello\x00\x00\x00" {
		t.Errorf("the body is %q", got)
	}
	if !strings.Contains(b[body+8:], "TRAILER!!!\x00") {
		t.Error("there is no trailer")
	}
}

func TestModuleThatIsMissing(t *testing.T) {
	if _, err := machine.ModuleFiles(t.TempDir(), []string{"virtio-blk"}); err == nil || !strings.Contains(err.Error(), "virtio-blk") {
		t.Errorf("got %v", err)
	}
}

// TestDeadline: the cause of a deadline is what a person reads.
func TestDeadline(t *testing.T) {
	ctx, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, errors.New("it took longer than 50ms"))
	defer cancel()
	err := machine.Run(ctx, double(t, `exec sleep 1000`), func(job.Event) {})
	if err == nil || !strings.Contains(err.Error(), "it took longer than 50ms") {
		t.Errorf("got %v", err)
	}
}
