package launch

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/boundary/sandbox"
	"github.com/carrel-dev/carrel/internal/linux/thread"
)

// Project is one project mount.
type Project struct {
	sandbox.Project
	// Dir is the directory. It stays the caller's.
	Dir *os.File
	// Stage is the directory of a staged copy, with "upper" and "work". It is required with Staged, and stays the caller's.
	Stage *os.File
	// OwnerUID and OwnerGID are whose files the commands' are on the host.
	OwnerUID, OwnerGID uint32
}

// lend makes a detached, idmapped mount of each project and puts it into the spec.
func (in *inheritance) lend(c *Config) error {
	c.Spec.Projects, c.Spec.FDs.Projects, c.Spec.FDs.Stages = nil, nil, nil
	spaces := map[[2]uint32]int{} // user namespaces by the owner they map
	defer func() {
		for _, fd := range spaces {
			unix.Close(fd)
		}
	}()
	for _, p := range c.Projects {
		owner := [2]uint32{p.OwnerUID, p.OwnerGID}
		space, ok := spaces[owner]
		if !ok {
			var err error
			if space, err = mapping(number(c.Binary), p.OwnerUID, p.OwnerGID, c.Spec.IDs.Work); err != nil {
				return fmt.Errorf("cannot mount %s: %w", p.Dir.Name(), err)
			}
			spaces[owner] = space
		}
		tree, err := idmapped(number(p.Dir), space, p.ReadOnly || p.Staged)
		if err != nil {
			return fmt.Errorf("cannot mount %s: %w", p.Dir.Name(), err)
		}
		if p.Staged {
			stage, err := idmapped(number(p.Stage), space, false)
			if err != nil {
				return fmt.Errorf("cannot mount the staged copy of %s: %w", p.Dir.Name(), err)
			}
			c.Spec.FDs.Stages = append(c.Spec.FDs.Stages, in.addOwned(stage))
		}
		c.Spec.FDs.Projects = append(c.Spec.FDs.Projects, in.addOwned(tree))
		c.Spec.Projects = append(c.Spec.Projects, p.Project)
		c.Spec.Seccomp.NoSetID = c.Spec.Seccomp.NoSetID || !p.ReadOnly
	}
	return nil
}

// Mappable reports why a directory could not be a project mount.
func Mappable(binary *os.File, p Project) error {
	space, err := mapping(number(binary), p.OwnerUID, p.OwnerGID, p.OwnerUID)
	if err != nil {
		return fmt.Errorf("cannot mount %s: %w", p.Dir.Name(), err)
	}
	defer unix.Close(space)
	tree, err := idmapped(number(p.Dir), space, p.ReadOnly)
	if err != nil {
		return fmt.Errorf("cannot mount %s: %w", p.Dir.Name(), err)
	}
	return unix.Close(tree)
}

// idmapped is detach with the ids of space. Mounts below the directory are left out: they
// have their own owners and could not all be mapped.
func idmapped(dir, space int, ro bool) (int, error) {
	tree, err := unix.OpenTree(dir, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
	if err != nil {
		return -1, err
	}
	attr := unix.MountAttr{
		Attr_set:    unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_IDMAP,
		Propagation: unix.MS_PRIVATE, Userns_fd: uint64(space),
	}
	if ro {
		attr.Attr_set |= unix.MOUNT_ATTR_RDONLY
	}
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		unix.Close(tree)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EPERM) {
			return -1, fmt.Errorf("its file system cannot show files under other owners (an idmapped mount: %w); "+
				"use a directory on ext4, XFS, Btrfs or tmpfs, and Linux 5.12 or newer (tmpfs: 6.3): %w", err, errdefs.ErrFailedPrecondition)
		}
		return -1, fmt.Errorf("cannot map its owner: %w", err)
	}
	return tree, nil
}

// mapping returns a user namespace that maps one user and group to work and nothing else.
// A namespace is made with a process in it: here one that is stopped by ptrace before its
// first instruction, and ended.
func mapping(binary int, uid, gid, work uint32) (fd int, err error) {
	fd = -1
	err = thread.Throwaway(func() error {
		pid, err := syscall.ForkExec(fmt.Sprintf("/proc/self/fd/%d", binary), []string{"carrel-mapping"}, &syscall.ProcAttr{
			Dir: "/",
			Sys: &syscall.SysProcAttr{
				Cloneflags:  unix.CLONE_NEWUSER,
				UidMappings: []syscall.SysProcIDMap{{ContainerID: int(uid), HostID: int(work), Size: 1}},
				GidMappings: []syscall.SysProcIDMap{{ContainerID: int(gid), HostID: int(work), Size: 1}},
				Ptrace:      true,
				Pdeathsig:   syscall.SIGKILL,
			},
		})
		if err != nil {
			return fmt.Errorf("cannot make the user namespace of its owner: %w%s", err, hint(err))
		}
		// Our child, not waited for: the pid is its own.
		fd, err = unix.Open("/proc/"+strconv.Itoa(pid)+"/ns/user", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		unix.Kill(pid, unix.SIGKILL)
		reapKilled(pid)
		return err
	})
	return fd, err
}

// reapKilled waits for a traced child to end; a stop on its way does not count.
func reapKilled(pid int) {
	for {
		var ws unix.WaitStatus
		_, err := unix.Wait4(pid, &ws, 0, nil)
		if errors.Is(err, unix.EINTR) || err == nil && ws.Stopped() {
			continue
		}
		return
	}
}
