package main

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// A directory in which something is mounted, on itself and twice, can be removed, and what is
// mounted there stays.
func TestUnmountBelow(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("skipped: needs root to mount")
	}
	host := t.TempDir()
	if err := os.WriteFile(filepath.Join(host, "kept"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	parent := t.TempDir()
	dir, beside := filepath.Join(parent, "with blank"), filepath.Join(parent, "with blank, beside")
	inner := filepath.Join(dir, "podman", "overlay")
	if err := errors.Join(os.MkdirAll(inner, 0o700), os.Mkdir(beside, 0o700)); err != nil {
		t.Fatal(err)
	}
	for _, m := range [][2]string{{inner, inner}, {host, inner}, {host, beside}} {
		if err := unix.Mount(m[0], m[1], "", unix.MS_BIND, ""); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Unmount(m[1], unix.MNT_DETACH) })
	}
	open, err := os.Open(inner) // somebody is in there
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	if err := unmountBelow(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Error(err)
	}
	for _, path := range []string{filepath.Join(host, "kept"), filepath.Join(beside, "kept")} {
		if _, err := os.Stat(path); err != nil {
			t.Error(err)
		}
	}
}

func TestMountsBelow(t *testing.T) {
	const info = "22 1 0:1 / /a rw - ext4 x rw\n23 22 0:1 / /a/b\\040c rw shared:1 - ext4 x rw\n24 22 0:1 / /ab rw - ext4 x rw\nshort\n25 " +
		"23 0:1 / /a/b\\040c/d rw - tmpfs x rw\n"
	if got := mountsBelow(info, "/a/b c"); !slices.Equal(got, []string{"/a/b c", "/a/b c/d"}) {
		t.Errorf("%q", got)
	}
	if got := mountsBelow(info, "/a"); len(got) != 3 {
		t.Errorf("%q", got)
	}
}
