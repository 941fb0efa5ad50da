package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/base/id"
)

// IO is the controller of disks. It is used where v2 hands it down beside others, and is in no other hierarchy: blkio of v1 sees
// neither who wrote what is written later nor, on most disks, a weight. Its weight, io.weight or io.bfq.weight, counts where the disk has
// iocost enabled (io.cost.qos) or the scheduler bfq; io.max holds everywhere.
const IO Controller = "io"

// Throughput bounds what each workspace reads, and what it writes, on one disk.
type Throughput struct {
	// BytesPerSecond of each; 0 is no bound.
	BytesPerSecond int64
	// Path is in a file system on the disk.
	Path string
}

// throughput is Throughput with the disk's number, as io.max takes it.
type throughput struct {
	disk  string
	bytes int64
}

func (t throughput) line() string { return fmt.Sprintf("%s rbps=%d wbps=%d", t.disk, t.bytes, t.bytes) }

// setThroughput finds the disk. Where nothing can hold the bound there is no instance.
func (in *Instance) setThroughput(t Throughput) error {
	if t.BytesPerSecond == 0 {
		return nil
	}
	if !in.v2.has(IO) {
		return fmt.Errorf("cannot bound what workspaces read and write: cgroup v2 does not hand down the controller io beside memory or pids; "+
			"echo +io > /sys/fs/cgroup/cgroup.subtree_control, or leave io_bytes_per_second out: %w", errdefs.ErrFailedPrecondition)
	}
	disk, err := DiskOf(t.Path)
	if err != nil {
		return fmt.Errorf("cannot bound what workspaces read and write: %w", err)
	}
	in.throughput = throughput{disk, t.BytesPerSecond}
	return nil
}

// DiskOf returns the number, as "8:0", of the disk that the file system at path is on. A partition is not a disk, and the
// kernel takes disks only.
func DiskOf(path string) (string, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return "", &os.PathError{Op: "stat", Path: path, Err: err}
	}
	number := fmt.Sprintf("%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev))
	dir, err := filepath.EvalSymlinks("/sys/dev/block/" + number)
	if errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("the file system at %s has no disk that the kernel knows by a number (%s), as btrfs, ZFS, overlay and network "+
			"file systems: %w", path, number, errdefs.ErrNotImplemented)
	}
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(dir + "/partition"); err != nil {
		return number, nil
	}
	b, err := os.ReadFile(filepath.Dir(dir) + "/dev")
	return strings.TrimSpace(string(b)), err
}

// throttle puts the bound on a workspace's own group.
func (in *Instance) throttle(name id.Workspace) error {
	if in.throughput.bytes == 0 {
		return nil
	}
	return in.v2.within(string(name), func(own dirFD) error { return own.write("io.max", in.throughput.line()) })
}

// throttled reads the bound back.
func (in *Instance) throttled(own dirFD) (Evidence, bool) {
	if in.throughput.bytes == 0 {
		return Evidence{}, false
	}
	text, err := own.read("io.max")
	if err != nil {
		return Evidence{string(IO), false, err.Error()}, true
	}
	text = strings.TrimSpace(text)
	return Evidence{string(IO), strings.HasPrefix(text, in.throughput.line()+" "), "v2 workspace io.max is " + text}, true
}
