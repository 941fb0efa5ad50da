package root_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// deeper makes directories inside each other below path, far more than a process has descriptors, as
// a command or the daemon could, with a link out at the bottom.
func deeper(t *testing.T, path, out string) {
	t.Helper()
	at, err := unix.Open(path, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	for range 3000 {
		if err == nil {
			err = unix.Mkdirat(at, "d", 0o700)
		}
		if err != nil {
			t.Fatal(err)
		}
		next, err := unix.Openat(at, "d", unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		_ = unix.Close(at)
		at = next
	}
	defer unix.Close(at)
	if err := unix.Symlinkat(out, at, "out"); err != nil {
		t.Fatal(err)
	}
}

// However deep a home or the daemon's own directory is, destroy and down remove it, and nothing else.
func TestDeepTreesAreRemoved(t *testing.T) {
	h := newHostFor(t)
	precious := t.TempDir()
	if err := os.WriteFile(precious+"/file", []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	few := unix.Rlimit{Cur: 256, Max: 256}
	if err := unix.Prlimit(h.part(t, "broker"), unix.RLIMIT_NOFILE, &few, nil); err != nil {
		t.Fatal(err)
	}
	h.carrel(t, "create", "--no-start", "crt deep")
	home := h.look(t, "crt deep").Home
	home = filepath.Join(h.data, "homes", filepath.Base(home))
	deeper(t, home, precious)
	h.carrel(t, "destroy", "--purge", "crt deep")
	if _, err := os.Lstat(home); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the home is still there: %v", err)
	}
	deeper(t, h.data+"/daemon", precious)
	down := h.command(t.Context(), nil, append([]string{"down", "--purge"}, h.flags()...)...)
	limited := exec.CommandContext(t.Context(), "/bin/sh", append([]string{"-c", `ulimit -n 256; exec "$0" "$@"`}, down.Args...)...)
	limited.Env, limited.Dir = down.Env, down.Dir
	if said, err := limited.CombinedOutput(); err != nil {
		t.Errorf("down: %v: %s", err, said)
	}
	if _, err := os.Lstat(h.data); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the data is still there: %v", err)
	}
	if b, err := os.ReadFile(precious + "/file"); string(b) != "kept" {
		t.Errorf("what is outside was changed: %q, %v", b, err)
	}
}
