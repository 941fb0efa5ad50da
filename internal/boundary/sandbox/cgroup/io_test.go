package cgroup_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/boundary/sandbox/cgroup"
)

// openBounded makes an instance whose workspaces write 1 MiB a second to the disk of dir, or skips the test.
func openBounded(t *testing.T, dir string) *cgroup.Instance {
	t.Helper()
	in, err := cgroup.Open(cgroup.Config{
		Name: fmt.Sprintf("carrel-test-%d", os.Getpid()), Shared: cgroup.Shared{MemoryBytes: 4 << 30},
		Throughput: cgroup.Throughput{BytesPerSecond: 1 << 20, Path: dir},
	})
	if errdefs.IsFailedPrecondition(err) || errdefs.IsNotImplemented(err) {
		// What is refused leaves nothing.
		t.Skipf("skipped: nothing can hold a throughput here: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Remove(context.Background(), name)
		if err := in.RemoveInstance(); err != nil {
			t.Error(err)
		}
	})
	return in
}

// A command that writes 4 MiB at once takes seconds where 1 MiB a second is allowed, and less elsewhere.
func TestThroughputHolds(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("skipped: control groups need root")
	}
	dir := t.TempDir()
	in := openBounded(t, dir)
	f, x := launched(t, in)
	took := func(tasks []*os.File, group int, file string) time.Duration {
		t.Setenv("CGROUP_FILE", filepath.Join(dir, file))
		c, out := start(t, "write", tasks, group)
		ms, err := strconv.Atoi(line(t, out))
		if err != nil {
			t.Fatal(err)
		}
		_ = c.Wait()
		return time.Duration(ms) * time.Millisecond
	}
	inside := took(f.V1Cmd, command(t, f, "c0"), "inside")
	t.Logf("4 MiB took %v", inside)
	if inside < 2*time.Second {
		t.Errorf("4 MiB took %v", inside)
	}
	said := false
	for _, e := range in.Check(name, x.Process.Pid, limits) {
		t.Log(e)
		if e.Control == "io" && !e.OK {
			t.Errorf("%+v", e)
		}
		said = said || e.Control == "io" && strings.Contains(e.Text, "io.max is ")
	}
	if !said {
		t.Error("no evidence says what bound is in force")
	}
}

func TestDiskOf(t *testing.T) {
	disk, err := cgroup.DiskOf(t.TempDir())
	if errdefs.IsNotImplemented(err) {
		t.Skipf("skipped: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat("/sys/dev/block/" + disk + "/queue"); err != nil {
		t.Errorf("%s is no disk: %v", disk, err)
	}
	if disk, err := cgroup.DiskOf("/proc"); err == nil {
		t.Errorf("/proc is on disk %s", disk)
	}
}

// Where nothing can hold a bound that is asked for, there is no instance.
func TestThroughputIsNotPretended(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("skipped: control groups need root")
	}
	in, err := cgroup.Open(cgroup.Config{
		Name: fmt.Sprintf("carrel-test-%d", os.Getpid()), Shared: cgroup.Shared{MemoryBytes: 4 << 30},
		Throughput: cgroup.Throughput{BytesPerSecond: 1 << 20, Path: "/proc"},
	})
	if err == nil {
		_ = in.RemoveInstance()
		t.Fatal("a bound on the disk of /proc was taken")
	}
	if !strings.Contains(err.Error(), "cannot bound what workspaces read and write") {
		t.Error(err)
	}
	in, err = cgroup.Open(cgroup.Config{Name: fmt.Sprintf("carrel-test-%d", os.Getpid()), Shared: cgroup.Shared{MemoryBytes: 4 << 30}})
	if err != nil {
		t.Fatal(err)
	}
	if err := in.RemoveInstance(); err != nil {
		t.Error(err)
	}
}
