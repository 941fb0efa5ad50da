package broker

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/linux/thread"
)

// cred is what decides about access to files.
type cred struct {
	uid, gid uint32
	groups   []uint32
	// homes are all that passwd lists.
	homes []string
}

// credOf reads passwd and group. A user who is in neither has the group that the kernel
// reported, and no others.
func (u *users) credOf(uid, gid uint32) (cred, error) {
	c := cred{uid: uid, gid: gid}
	passwd, err := os.ReadFile(u.etc + "/passwd")
	if err != nil {
		return c, fmt.Errorf("cannot read the users of this host: %w", err)
	}
	group, err := os.ReadFile(u.etc + "/group")
	if err != nil {
		return c, fmt.Errorf("cannot read the groups of this host: %w", err)
	}
	var names []string
	for line := range strings.Lines(string(passwd)) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), ":")
		if len(f) < 6 {
			continue
		}
		c.homes = append(c.homes, f[5])
		if !isID(line, 2, uint64(uid)) {
			continue
		}
		if primary, err := strconv.ParseUint(f[3], 10, 32); err == nil && names == nil {
			// Not the one at the time of the grant, which may have been another of the
			// groups that the user was in then.
			c.gid = uint32(primary)
		}
		names = append(names, f[0])
	}
	for line := range strings.Lines(string(group)) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), ":")
		if len(f) != 4 {
			continue
		}
		g, err := strconv.ParseUint(f[2], 10, 32)
		if err != nil || len(c.groups) == maxGroups {
			continue
		}
		if slices.ContainsFunc(strings.Split(f[3], ","), func(m string) bool { return m != "" && slices.Contains(names, m) }) {
			c.groups = append(c.groups, uint32(g))
		}
	}
	return c, nil
}

// maxGroups is more than anybody is in.
const maxGroups = 1024

// as runs f on a thread that opens and makes files with these rights and no others; the thread
// then ends. With a file system id that is not 0 the kernel drops the capabilities that override
// modes.
func (c cred) as(f func() error) error {
	return thread.Throwaway(func() error {
		var list *uint32
		if len(c.groups) > 0 {
			list = &c.groups[0]
		}
		if err := setGroups(len(c.groups), list); err != nil {
			return fmt.Errorf("cannot take the groups of uid %d: %w", c.uid, err)
		}
		// These two say what was before and never fail; asked with an invalid id they
		// say what is.
		for _, x := range []struct {
			call uintptr
			id   uint32
		}{{unix.SYS_SETFSGID, c.gid}, {unix.SYS_SETFSUID, c.uid}} {
			_, _, _ = unix.RawSyscall(x.call, uintptr(x.id), 0, 0)
			if now, _, _ := unix.RawSyscall(x.call, ^uintptr(0), 0, 0); uint32(now) != x.id {
				return fmt.Errorf("cannot take the rights of uid %d: the kernel keeps id %d: %w", c.uid, now, errdefs.ErrInternal)
			}
		}
		return f()
	})
}

// setGroups sets the supplementary groups of the calling thread alone.
func setGroups(n int, list *uint32) error {
	if _, _, e := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(n), uintptr(unsafe.Pointer(list)), 0); e != 0 {
		return e
	}
	return nil
}
