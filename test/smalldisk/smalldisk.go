// Package smalldisk gives tests a file system that is soon full.
//
// It must not fill one that it did not make.
package smalldisk

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

const name = "carrel-test-small-disk"

// Mount mounts a tmpfs of a size, as in "16m", until the test ends, and returns its directory. Without root
// the test is skipped.
func Mount(t testing.TB, size string) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("skipped: needs root to mount a small tmpfs")
	}
	dir := filepath.Join(t.TempDir(), name)
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(name, dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=700,size="+size); err != nil {
		t.Skipf("skipped: cannot mount a tmpfs here: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}
