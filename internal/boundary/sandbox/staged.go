package sandbox

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
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

// stagedTree makes an overlay of two detached mounts, and closes them: lower is shown, and what is written goes to stage.
func stagedTree(lower, stage int) (tree int, err error) {
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
	tree, err = Fresh(overlayType, harmless, "lowerdir", fd(shown[0]), "upperdir", fd(written[0]), "workdir", fd(written[1]), stagedSuper, "")
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENODEV) {
		err = fmt.Errorf("the kernel makes no staged copy of it (%w): that needs Linux 5.11, and carrel's state on ext4, XFS, Btrfs or, "+
			"from Linux 6.6, tmpfs; mount it without :staged: %w", err, errdefs.ErrFailedPrecondition)
	}
	return tree, err
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
