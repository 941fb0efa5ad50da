package crash_test

import (
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func created(t *testing.T, h *host, key string) { t.Helper(); h.carrel(t, "create", key) }

// reaching has a way out, and stoppedReaching is to have one.
func reaching(t *testing.T, h *host, key string) {
	t.Helper()
	h.carrel(t, "create", "--allow", "a.example", key)
}

func stoppedReaching(t *testing.T, h *host, key string) {
	t.Helper()
	reaching(t, h, key)
	h.carrel(t, "stop", key)
}

func stopped(t *testing.T, h *host, key string) {
	t.Helper()
	h.carrel(t, "create", "--no-start", key)
	h.carrel(t, "exec", key, "--", "/bin/sh", "-c", "echo kept > file")
	h.carrel(t, "stop", key)
}

// deep has a home that goes further down than one walk does.
func deep(t *testing.T, h *host, key string) {
	t.Helper()
	stopped(t, h, key)
	h.carrel(t, "exec", key, "--", "/bin/sh", "-c", "mkdir -p "+strings.Repeat("d/", 200))
	h.carrel(t, "stop", key)
}

func paused(t *testing.T, h *host, key string) {
	t.Helper()
	h.carrel(t, "create", key)
	h.carrel(t, "pause", key)
}

// putAway has an archive, and no workspace.
func putAway(t *testing.T, h *host, key string) {
	t.Helper()
	stopped(t, h, key)
	h.carrel(t, "archive", "create", "--destroy", key)
}

// restored has what was put away.
func restored(t *testing.T, h *host, key string) {
	t.Helper()
	h.carrel(t, "restore", key)
	if out := h.carrel(t, "exec", key, "--", "cat", "file"); out != "kept\n" {
		t.Errorf("in what was put away is %q", out)
	}
}

// ended was destroyed, and its home is kept.
func ended(t *testing.T, h *host, key string) {
	t.Helper()
	stopped(t, h, key)
	h.carrel(t, "destroy", key)
}

// endedDisk has a limit on disk space.
func endedDisk(t *testing.T, h *host, key string) {
	t.Helper()
	stoppedDisk(t, h, key)
	h.carrel(t, "destroy", key)
}

// revived has what was in its home.
func revived(t *testing.T, h *host, key string) {
	t.Helper()
	if out := h.carrel(t, "exec", key, "--", "cat", "file"); out != "kept\n" {
		t.Errorf("in what was brought back is %q", out)
	}
}

// busy has a command that ends only when it must.
func busy(t *testing.T, h *host, key string) {
	t.Helper()
	h.carrel(t, "create", key)
	h.carrel(t, "exec", "--detach", key, "--", "/bin/sh", "-c", "sleep 1000 & sleep 1000")
}

// stoppedDisk and busyDisk have a limit on disk space.
func stoppedDisk(t *testing.T, h *host, key string) {
	t.Helper()
	h.carrel(t, "create", "--no-start", "--disk", "64MiB", key)
	h.carrel(t, "exec", key, "--", "/bin/sh", "-c", "echo kept > file")
	h.carrel(t, "stop", key)
}

func busyDisk(t *testing.T, h *host, key string) {
	t.Helper()
	h.carrel(t, "create", "--disk", "64MiB", key)
	h.carrel(t, "exec", "--detach", key, "--", "/bin/sh", "-c", "while :; do date > file; done")
}

// smallDisk is as an update leaves it that raised the limit: what its image holds is less
// than it may.
func smallDisk(t *testing.T, h *host, key string) {
	t.Helper()
	stoppedDisk(t, h, key)
	file := h.data + "/images/" + h.name(t, key) + ".img"
	until(t, "the end of the mount", func() bool {
		f, err := os.Open(file)
		must(t, err)
		defer f.Close()
		return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil
	})
	system(t, "e2fsck", "-fp", file)
	system(t, "resize2fs", "-f", file, "48M")
	must(t, os.Truncate(file, 48<<20))
}
