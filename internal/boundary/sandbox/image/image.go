// Package image mounts file systems of a fixed size that lie in files of the host. The content
// cannot outgrow the file. The host's mount table does not show the mounts, and the loop device
// goes with the last mount.
//
// It must not make or name the files, nor know who owns them.
package image

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/base/crashpoint"
	"github.com/carrel-dev/carrel/internal/linux/thread"
)

// Block is the block size in bytes of the file systems, and of the devices under them:
// what every device of a host can read and write directly.
const Block = 4096

const (
	loopControl = "/dev/loop-control"
	// resizeFS is EXT4_IOC_RESIZE_FS of linux/fs/ext4/ext4.h: _IOW('f', 16, __u64).
	resizeFS = 1<<30 | 8<<16 | 'f'<<8 | 16
	// again is the pause between tries for a device or a lock that is being released.
	again = 5 * time.Millisecond
)

// Ready reports what this host lacks to mount images.
func Ready() error {
	f, err := os.OpenFile(loopControl, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("cannot use loop devices: %w; modprobe loop, and keep /dev/loop-control: %w", err, errdefs.ErrFailedPrecondition)
	}
	_ = f.Close()
	// To open it makes the kernel load the module.
	fs, err := unix.Fsopen("ext4", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return fmt.Errorf("cannot use ext4: %w; modprobe ext4, or use a kernel with CONFIG_EXT4_FS: %w", err, errdefs.ErrFailedPrecondition)
	}
	return unix.Close(fs)
}

// Grows reports why the kernel would not let this process make a file system larger.
func Grows() error {
	b, err := os.ReadFile("/proc/thread-self/status")
	if err != nil {
		return fmt.Errorf("cannot see this process's capabilities: %w", err)
	}
	_, rest, _ := strings.Cut(string(b), "\nCapEff:")
	set, err := strconv.ParseUint(strings.TrimSpace(strings.SplitN(rest, "\n", 2)[0]), 16, 64)
	if err != nil {
		return fmt.Errorf("cannot see this process's capabilities: %w", err)
	}
	if set&(1<<unix.CAP_SYS_RESOURCE) == 0 {
		return fmt.Errorf("cannot make a file system larger: the broker has no CAP_SYS_RESOURCE; give it to carrel-broker (in a container: "+
			"--cap-add SYS_RESOURCE): %w", errdefs.ErrFailedPrecondition)
	}
	return nil
}

// Mounted are detached mounts of directories of one image.
type Mounted struct {
	// Trees are the directories, in the order in which they were asked for.
	Trees []*os.File
	// Device is the number of the loop device.
	Device uint64
}

// Close closes the mounts. The device goes with the last copy that others have of them.
func (m *Mounted) Close() {
	for _, t := range m.Trees {
		_ = t.Close()
	}
}

// Mount mounts the image f, calls prepare with its root directory, and returns the named
// directories below it as mounts without set-uid programs and devices. If the file is larger than its
// file system, the file system grows. at is a directory of the host, which the mount covers for this
// call alone.
//
// The image is locked for as long as it is mounted, so that it is never mounted twice: the lock
// belongs to the open file, which the device holds. Mount waits until ctx ends for an earlier mount
// that is being removed.
func Mount(ctx context.Context, f *os.File, at string, prepare func(root *os.File) error, dirs ...string) (*Mounted, error) {
	if err := lock(ctx, f); err != nil {
		return nil, err
	}
	size, err := blocks(f)
	if err != nil {
		return nil, err
	}
	m := &Mounted{}
	loop, err := attach(ctx, f)
	if err != nil {
		return nil, err
	}
	crashpoint.Here("broker.image.attached")
	// It is cleared once it is neither open nor mounted, even if this process is killed.
	defer loop.Close()
	var st unix.Stat_t
	if err := control(loop, func(fd int) error { return unix.Fstat(fd, &st) }); err != nil {
		return nil, err
	}
	m.Device = st.Rdev
	// A directory can be split off a mount in the mount namespace that it is attached in
	// only: one of a thread's own, that ends with it.
	err = thread.Throwaway(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			return fmt.Errorf("cannot make a mount namespace: %w", err)
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return fmt.Errorf("cannot make mounts private: %w", err)
		}
		root, err := mountAt(loop.Name(), at)
		if err != nil {
			return err
		}
		defer root.Close()
		crashpoint.Here("broker.image.mounted")
		if size.file > size.fs {
			if err := grow(root, size.file); err != nil {
				return err
			}
			crashpoint.Here("broker.image.grown")
		}
		if err := prepare(root); err != nil {
			return err
		}
		crashpoint.Here("broker.image.prepared")
		for _, d := range dirs {
			t, err := split(root, d)
			if err != nil {
				return fmt.Errorf("cannot split %s off: %w", d, err)
			}
			m.Trees = append(m.Trees, t)
		}
		crashpoint.Here("broker.image.split")
		return nil
	})
	if err != nil {
		m.Close()
		return nil, err
	}
	return m, nil
}

// Free returns once the image f is neither mounted nor attached to a device, and keeps it so until f
// is closed. The kernel detaches it some time after its last user has ended; Free waits until ctx ends.
func Free(ctx context.Context, f *os.File) error { return lock(ctx, f) }

func lock(ctx context.Context, f *os.File) error {
	for {
		err := control(f, func(fd int) error { return unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) })
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return fmt.Errorf("cannot lock %s: %w", f.Name(), err)
		}
		if !pause(ctx) {
			return fmt.Errorf("cannot use %s: it is mounted still, or attached to a loop device; \"losetup -j %[1]s\" says to "+
				"which. A frozen file system stays until it is thawed: mount that device, "+
				"fsfreeze --unfreeze and umount it: %w", f.Name(), errdefs.ErrUnavailable)
		}
	}
}

// pause waits a little and reports whether ctx goes on.
func pause(ctx context.Context) bool {
	t := time.NewTimer(again)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// sizes are in blocks.
type sizes struct{ file, fs uint64 }

// blocks reads how large the file and its file system are: s_blocks_count of ext4's
// superblock, which is 1024 bytes into it.
func blocks(f *os.File) (sizes, error) {
	var sb [1024]byte
	st, err := f.Stat()
	if err == nil {
		_, err = f.ReadAt(sb[:], 1024)
	}
	if err != nil {
		return sizes{}, fmt.Errorf("cannot read %s: %w", f.Name(), err)
	}
	le := binary.LittleEndian
	const magic, lo, hi, logBlock = 0x38, 0x4, 0x150, 0x18
	if le.Uint16(sb[magic:]) != 0xef53 || le.Uint32(sb[logBlock:]) != 2 {
		return sizes{}, fmt.Errorf("cannot mount %s: it holds no ext4 of %d-byte blocks; "+
			"restore it from a backup, or destroy the workspace: %w", f.Name(), Block, errdefs.ErrDataLoss)
	}
	return sizes{file: uint64(st.Size()) / Block, fs: uint64(le.Uint32(sb[lo:])) | uint64(le.Uint32(sb[hi:]))<<32}, nil
}

// attach puts a loop device on f.
func attach(ctx context.Context, f *os.File) (*os.File, error) {
	ctl, err := os.OpenFile(loopControl, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot use loop devices: %w", err)
	}
	defer ctl.Close()
	// The second try is for a file system without direct I/O.
	flags := uint32(unix.LO_FLAGS_AUTOCLEAR | unix.LO_FLAGS_DIRECT_IO)
	for {
		var n int
		err := control(ctl, func(fd int) (err error) {
			n, err = unix.IoctlRetInt(fd, unix.LOOP_CTL_GET_FREE)
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("cannot find a free loop device: %w", err)
		}
		loop, err := open(n)
		if err == nil {
			err = control(loop, func(fd int) error {
				return control(f, func(file int) error {
					c := unix.LoopConfig{Fd: uint32(file), Size: Block, Info: unix.LoopInfo64{Flags: flags}}
					copy(c.Info.File_name[:len(c.Info.File_name)-1], f.Name())
					return unix.IoctlLoopConfigure(fd, &c)
				})
			})
			if err == nil {
				return loop, nil
			}
			_ = loop.Close()
		}
		switch {
		case errors.Is(err, unix.EINVAL) && flags&unix.LO_FLAGS_DIRECT_IO != 0:
			flags &^= unix.LO_FLAGS_DIRECT_IO
		// Another process was faster, or its file under /dev does not exist yet.
		case errors.Is(err, unix.EBUSY) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENXIO):
			if !pause(ctx) {
				return nil, fmt.Errorf("cannot attach %s to a loop device: %w", f.Name(), err)
			}
		default:
			return nil, fmt.Errorf("cannot attach %s to a loop device: %w", f.Name(), err)
		}
	}
}

// open opens loop device n, and checks that it is that device.
func open(n int) (*os.File, error) {
	const major = 7
	path := "/dev/loop" + strconv.Itoa(n)
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFBLK || unix.Major(st.Rdev) != major ||
		unix.Minor(st.Rdev) != uint32(n) {
		unix.Close(fd)
		return nil, errors.Join(err, fmt.Errorf("%s is not block device %d:%d; remove it and mount devtmpfs on /dev: %w",
			path, major, n, errdefs.ErrFailedPrecondition))
	}
	return os.NewFile(uintptr(fd), path), nil
}

// mountAt mounts the ext4 on a device, and opens its root.
func mountAt(device, at string) (*os.File, error) {
	fs, err := unix.Fsopen("ext4", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("cannot use ext4: %w", err)
	}
	defer unix.Close(fs)
	for _, o := range []struct{ key, value string }{
		{"source", device},
		{"errors", "remount-ro"},
		{"discard", ""}, // what is removed inside is given back to the host
	} {
		if o.value == "" {
			err = unix.FsconfigSetFlag(fs, o.key)
		} else {
			err = unix.FsconfigSetString(fs, o.key, o.value)
		}
		if err != nil {
			return nil, fmt.Errorf("cannot set option %s of ext4: %w", o.key, err)
		}
	}
	if err := unix.FsconfigCreate(fs); err != nil {
		return nil, fmt.Errorf("cannot mount the image on %s: %w", device, err)
	}
	m, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV)
	if err != nil {
		return nil, fmt.Errorf("cannot mount the image on %s: %w", device, err)
	}
	defer unix.Close(m)
	if err := unix.MoveMount(m, "", unix.AT_FDCWD, at, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return nil, fmt.Errorf("cannot mount the image on %s: %w", device, err)
	}
	fd, err := unix.Openat(m, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot open the image on %s: %w", device, err)
	}
	return os.NewFile(uintptr(fd), "the image on "+device), nil
}

// grow makes the kernel extend the mounted file system, in transactions: after a crash it is
// intact and is extended the next time.
func grow(root *os.File, to uint64) error {
	err := control(root, func(fd int) error {
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), resizeFS, uintptr(unsafe.Pointer(&to))); errno != 0 {
			return errno
		}
		return nil
	})
	if errors.Is(err, unix.EPERM) && Grows() != nil {
		return nil // it holds less than it may, and goes on so
	}
	if err != nil {
		return fmt.Errorf("cannot make %s larger: %w", root.Name(), err)
	}
	return nil
}

// split makes a private mount of a directory.
func split(root *os.File, dir string) (*os.File, error) {
	var tree int
	err := control(root, func(fd int) (err error) {
		tree, err = unix.OpenTree(fd, dir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_SYMLINK_NOFOLLOW)
		return err
	})
	if err != nil {
		return nil, err
	}
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV, Propagation: unix.MS_PRIVATE}
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		unix.Close(tree)
		return nil, err
	}
	return os.NewFile(uintptr(tree), dir), nil
}

// control runs a call on f's descriptor without changing its mode.
func control(f *os.File, call func(fd int) error) error {
	rc, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	if err := rc.Control(func(fd uintptr) { inner = call(int(fd)) }); err != nil {
		return err
	}
	return inner
}
