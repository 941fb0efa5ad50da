package cgroup_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/boundary/sandbox/cgroup"
)

// A workspace reads much and ends. What the kernel keeps of that would keep its removed groups too.
func TestReclaimLeavesLittle(t *testing.T) {
	in := instance(t)
	if !has(in, cgroup.Memory) {
		t.Skip("skipped: this host has no memory controller")
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, make([]byte, 48<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	forgetCache(t, file) // so that who reads it is charged for it
	f, x := launched(t, in)
	t.Setenv("CGROUP_FILE", file)
	c, out := start(t, "read", f.V1Cmd, command(t, f, "c0"))
	line(t, out)
	_ = c.Wait()
	_ = x.Process.Kill()
	_ = x.Wait()
	used := func() int64 {
		st, err := in.Stats(name)
		if err != nil {
			t.Fatal(err)
		}
		return st.MemoryBytes
	}
	before := used()
	begin := time.Now()
	in.Reclaim(t.Context(), name)
	after, took := used(), time.Since(begin)
	t.Logf("of %d KiB that the kernel kept, %d are left after %v", before>>10, after>>10, took)
	if before < 32<<20 {
		t.Fatalf("only %d bytes were kept, so nothing is tried", before)
	}
	if after > 4<<20 {
		t.Errorf("%d bytes are left", after)
	}
	// One step may wait for the disk.
	if took > 5*time.Second {
		t.Errorf("it took %v", took)
	}
}

// forgetCache has the kernel write a file to the disk and drop its pages.
func forgetCache(t *testing.T, path string) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		t.Fatal(err)
	}
}
