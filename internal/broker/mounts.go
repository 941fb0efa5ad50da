package broker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/brokerapi"
	"github.com/carrel-dev/carrel/internal/grant"
	"github.com/carrel-dev/carrel/internal/sandbox"
	"github.com/carrel-dev/carrel/internal/sandbox/launch"
	"github.com/carrel-dev/carrel/internal/thread"
	"github.com/carrel-dev/carrel/internal/workspace"
)

// Whatever is done to a source may hang: behind it may be a file system of its user's that
// never answers. So it is done aside, and is given up on when it takes too long; what
// hangs keeps its place, and when all are taken no more is tried.
const (
	aside        = 16
	asideTimeout = 5 * time.Second
)

// sideways runs call within its time. What call returns late is given to drop.
func sideways[T any](ctx context.Context, places chan struct{}, call func() (T, error), drop func(T)) (T, error) {
	type result struct {
		v   T
		err error
	}
	var none T
	select {
	case places <- struct{}{}:
	default:
		return none, fmt.Errorf("cannot look at the directory: %d file systems do not answer; see to them, and try again: %w", cap(places), errdefs.ErrUnavailable)
	}
	done := make(chan result, 1)
	go func() {
		defer func() { <-places }()
		v, err := call()
		done <- result{v, err}
	}()
	ctx, cancel := context.WithTimeout(ctx, asideTimeout)
	defer cancel()
	select {
	case r := <-done:
		return r.v, r.err
	case <-ctx.Done():
		go func() { drop((<-done).v) }()
		return none, fmt.Errorf("cannot look at the directory: its file system does not answer; see to it, and try again: %w", errdefs.ErrUnavailable)
	}
}

// TakeMounts is part of Effects.
func (h *Host) TakeMounts(ctx context.Context, p brokerapi.CreateParams, file *os.File) ([]Mount, error) {
	return sideways(ctx, h.aside, func() ([]Mount, error) {
		return TakeGrant(p, file, h.judge)
	}, func([]Mount) {})
}

// TakeGrant reads the grant in file, once, sees that it is about the mounts that p asks for, and
// has judge decide on each, which is given the mount, who granted it and its open directory.
func TakeGrant(
	p brokerapi.CreateParams, file *os.File, judge func(workspace.Mount, grant.Cred, *os.File) (Mount, error),
) ([]Mount, error) {
	m, who, dirs, err := grant.Take(file)
	if err != nil {
		return nil, err
	}
	defer closeFiles(dirs...)
	switch {
	case m.KeyDigest != p.KeyDigest:
		return nil, fmt.Errorf("cannot mount directories: they were granted to a workspace with another key: %w", errdefs.ErrPermissionDenied)
	case !slices.Equal(m.Mounts, p.Mounts):
		return nil, fmt.Errorf("cannot mount directories: other mounts were granted than are asked for: %w", errdefs.ErrPermissionDenied)
	}
	if err := workspace.CheckMounts(m.Mounts); err != nil {
		return nil, err
	}
	mounts := make([]Mount, len(dirs))
	for i, d := range dirs {
		if mounts[i], err = judge(m.Mounts[i].AtHome("/home/"+string(p.Name)), who, d); err != nil {
			return nil, err
		}
	}
	return mounts, nil
}

// judge decides on one mount. The descriptor shows that its caller, confined as that
// process may be, has the directory; what is at the path must be the same one, and open
// to the caller's user, now and at each start.
func (h *Host) judge(asked workspace.Mount, who grant.Cred, d *os.File) (Mount, error) {
	m := Mount{Mount: asked, CallerUID: who.UID, CallerGID: who.GID, OwnerGID: who.GID}
	m.OwnerUID = who.UID
	if who.UID == h.settings.DaemonUID || who.UID >= h.settings.UIDFirst && who.UID-h.settings.UIDFirst < h.settings.UIDCount {
		return m, fmt.Errorf("cannot mount directories for uid %d: it is not a user of carrel but a part of it: %w", who.UID, errdefs.ErrPermissionDenied)
	}
	var st unix.Stat_t
	err := withFD(d, func(fd int) error {
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
		if err == nil && flags&unix.O_PATH != 0 {
			err = fmt.Errorf("what was granted is not open for reading: %w", errdefs.ErrInvalidArgument)
		}
		return errors.Join(err, unix.Fstat(fd, &st))
	})
	if err == nil {
		m.Identity, err = Identify(d, h.bootID)
	}
	if err != nil {
		return m, fmt.Errorf("cannot mount %s: %w", m.Source, err)
	}
	if who.UID == 0 && !m.ReadOnly {
		// Files of root that a workspace writes would be root's.
		if st.Uid == 0 || st.Gid == 0 {
			return m, fmt.Errorf("cannot mount %s for root: a workspace could leave files of root in it; add :ro, or chown the directory to the user and group that the files shall belong to: %w", m.Source, errdefs.ErrPermissionDenied)
		}
		m.OwnerUID, m.OwnerGID = st.Uid, st.Gid
	}
	again, _, err := h.openSource(m)
	if err != nil {
		return m, err
	}
	defer again.Close()
	return m, launch.Mappable(h.binary, launch.Project{Project: sandbox.Project{ReadOnly: m.ReadOnly}, Dir: again, OwnerUID: m.OwnerUID, OwnerGID: m.OwnerGID})
}

// openSource opens the source of m with its caller's rights and sees that it is the
// directory that was granted. home says that it is one of a user of this host.
func (h *Host) openSource(m Mount) (dir *os.File, home bool, err error) {
	caller, err := h.credOf(m.CallerUID, m.CallerGID)
	if err != nil {
		return nil, false, err
	}
	err = caller.as(func() (err error) {
		dir, err = h.openGranted(m)
		return err
	})
	return dir, slices.Contains(caller.homes, m.Source), err
}

// openGranted opens the source on a thread that has its caller's rights.
func (h *Host) openGranted(m Mount) (*os.File, error) {
	wrap := func(why string, err error) (*os.File, error) {
		return nil, fmt.Errorf("cannot mount %s: %s; put the directory back, or destroy the workspace and create it anew: %w", m.Source, why, err)
	}
	fd, err := unix.Openat2(unix.AT_FDCWD, m.Source, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	switch {
	case errors.Is(err, unix.EACCES):
		return wrap(fmt.Sprintf("uid %d may not open it", m.CallerUID), errdefs.ErrPermissionDenied)
	case errors.Is(err, unix.ELOOP):
		return wrap("a symbolic link is on the way to it", errdefs.ErrFailedPrecondition)
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		return wrap("there is no such directory", errdefs.ErrFailedPrecondition)
	case err != nil:
		return wrap(err.Error(), errdefs.ErrFailedPrecondition)
	}
	dir := os.NewFile(uintptr(fd), m.Source)
	if now, err := Identify(dir, h.bootID); err != nil || !now.Is(m.Identity) {
		_ = dir.Close()
		return wrap("another directory is there than the one that was granted", errdefs.ErrFailedPrecondition)
	}
	return dir, nil
}

// openMounts makes the mounts of a workspace ready for a start.
func (h *Host) openMounts(ctx context.Context, e Entry) ([]launch.Project, error) {
	if len(e.Mounts) == 0 {
		return nil, nil
	}
	return sideways(ctx, h.aside, func() (projects []launch.Project, err error) {
		for _, m := range e.Mounts {
			dir, home, err := h.openSource(m)
			if err != nil {
				launch.CloseProjects(projects)
				return nil, err
			}
			p := launch.Project{
				Project: sandbox.Project{Destination: m.Destination, ReadOnly: m.ReadOnly},
				Dir:     dir, OwnerUID: m.OwnerUID, OwnerGID: m.OwnerGID,
			}
			if !m.ReadOnly {
				p.Pinned, err = h.pin(e.Name, m, dir, home)
			}
			projects = append(projects, p)
			if err != nil {
				launch.CloseProjects(projects)
				return nil, err
			}
		}
		return projects, nil
	}, launch.CloseProjects)
}

// cred is what the kernel judges access to files by.
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

// as runs f on a thread that opens and makes files with these rights and no others, and
// that ends with it. With a file system id that is not 0 the kernel takes away the
// capabilities that override modes.
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
