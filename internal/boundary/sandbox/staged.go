package sandbox

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/linux/thread"
)

// StageUpper and StageWork are what the directory of a staged copy has: what was written, and a place for the overlay's own use.
const (
	StageUpper = "upper"
	StageWork  = "work"
)

// How a staged copy is mounted: by the workspace's own namespace, which may mark what was deleted with attributes of its user alone.
// With those the kernel neither follows redirections nor shares contents (Documentation/filesystems/overlayfs.rst of Linux).
const (
	overlayType = "overlay"
	stagedSuper = "userxattr"
)

var stagedFlags = []string{"nosuid", "nodev"}

// aside is a directory of the host over which the layers of a staged copy are attached, so that they belong to this namespace: the
// kernel takes no others. Nothing reads it any more, and what is mounted on it goes with the host's root.
const aside = "/sys"

// stagedTree makes an overlay of two detached mounts, and closes them: lower is shown, and what is written goes to stage. What the
// overlay makes for its own use is the commands'.
func stagedTree(lower, stage int, work uint32) (tree int, err error) {
	shown, err := layers(lower, ".")
	if err != nil {
		unix.Close(stage)
		return -1, err
	}
	defer unix.Close(shown[0])
	written, err := layers(stage, StageUpper, StageWork)
	if err != nil {
		return -1, err
	}
	defer unix.Close(written[0])
	defer unix.Close(written[1])
	fd := func(fd int) string { return "/proc/self/fd/" + strconv.Itoa(fd) }
	err = thread.Throwaway(func() (err error) {
		if err := actAs(work); err != nil {
			return err
		}
		tree, err = Fresh(overlayType, harmless, "lowerdir", fd(shown[0]), "upperdir", fd(written[0]), "workdir", fd(written[1]), stagedSuper, "")
		return err
	})
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENODEV) {
		err = fmt.Errorf("the kernel makes no staged copy of it (%w): that needs Linux 5.11, and carrel's state on ext4, XFS, Btrfs or, "+
			"from Linux 6.6, tmpfs; mount it without :staged: %w", err, errdefs.ErrFailedPrecondition)
	}
	return tree, err
}

// actAs has this thread make files as an id, and keep its capabilities, of which setfsuid(2) takes those about files.
func actAs(id uint32) error {
	for _, call := range []uintptr{unix.SYS_SETFSGID, unix.SYS_SETFSUID} {
		_, _, _ = unix.RawSyscall(call, uintptr(id), 0, 0) // the result is the id before
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return os.NewSyscallError("capget", err)
	}
	for i := range data {
		data[i].Effective = data[i].Permitted
	}
	return os.NewSyscallError("capset", unix.Capset(&header, &data[0]))
}

// layers attaches a detached mount aside, and opens directories in it.
func layers(tree int, names ...string) (fds []int, err error) {
	if err := Attach(tree, aside); err != nil {
		return nil, err
	}
	top, err := unix.Open(aside, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(top)
	for _, name := range names {
		fd, err := openBelow(top, name, unix.O_DIRECTORY)
		if err != nil {
			for _, fd := range fds {
				unix.Close(fd)
			}
			return nil, fmt.Errorf("cannot open %s of a staged copy: %w", name, err)
		}
		fds = append(fds, fd)
	}
	return fds, nil
}
