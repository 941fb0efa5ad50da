package root_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// named reports whether a process, with all its threads, is called so, and calls itself so.
func named(t *testing.T, pid int, name string) {
	t.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/comm", pid))
	if err != nil || len(threads) == 0 {
		t.Fatalf("%s, process %d, has no threads: %v", name, pid, err)
	}
	for _, f := range append(threads, fmt.Sprintf("/proc/%d/comm", pid)) {
		b, err := os.ReadFile(f)
		if err != nil {
			continue // a thread that has ended
		}
		if got := strings.TrimSuffix(string(b), "\n"); got != name {
			t.Errorf("%s is named %q, want %q", f, got, name)
		}
	}
	if first := argument(t, pid); filepath.Base(first) != name {
		t.Errorf("process %d calls itself %q, want %q", pid, first, name)
	}
}

// argument is the first argument of a process, its own name for itself; "" if it has gone.
func argument(t *testing.T, pid int) string {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return ""
	}
	first, _, _ := strings.Cut(string(b), "\x00")
	return first
}

// Every program of carrel's is found by its name on the host, whichever way it was executed.
func TestEveryProgramIsNamed(t *testing.T) {
	h := newHostFor(t)
	d := h.desk(t)
	d.sh(t, "head -c 8M /dev/urandom > noise")
	named(t, h.part(t, "broker"), "carrel-broker")
	named(t, h.part(t, "daemon"), "carreld")
	named(t, d.ExecutorPID, "carrel-executor")

	// An archive that nobody reads stays under way.
	ctx, cancel := context.WithCancel(t.Context())
	c := h.command(ctx, nil, "archive", "create", "--live", "--file", "-", d.Key)
	out, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		cancel()
		_ = c.Wait() // it was killed
	}()
	if _, err := io.ReadFull(out, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	named(t, c.Process.Pid, "carrel")
	until(t, "the archiver", func() bool {
		children, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", d.ExecutorPID))
		for _, f := range children {
			pids, _ := os.ReadFile(f)
			for word := range strings.FieldsSeq(string(pids)) {
				var pid int
				if _, err := fmt.Sscan(word, &pid); err == nil && strings.Contains(argument(t, pid), "archive") {
					named(t, pid, "carrel-archive")
					return true
				}
			}
		}
		return false
	})
}
