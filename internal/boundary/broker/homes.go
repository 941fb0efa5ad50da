package broker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/base/crashpoint"
	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// temporary are the private directories of a workspace that replace /tmp and /var/tmp.
var temporary = []string{"tmp", "var-tmp"}

// MakeDirs is part of Effects.
func (d *dirs) MakeDirs(name id.Workspace, ids workspace.IDs) error {
	if err := makeOwned(d.homes, string(name), 0o700, ids.Work); err != nil {
		return err
	}
	if err := d.link(name); err != nil {
		return err
	}
	if err := makeOwned(d.tmp, string(name), 0o700, 0); err != nil {
		return err
	}
	t, err := beneath(d.tmp, string(name))
	if err != nil {
		return err
	}
	defer t.Close()
	for _, sub := range temporary {
		if err := makeOwned(t, sub, 0o1777, ids.Work); err != nil {
			return err
		}
	}
	return nil
}

// UnmakeDirs is part of Effects. A home that belongs to someone else was not made by
// MakeDirs and stays.
func (d *dirs) UnmakeDirs(ctx context.Context, name id.Workspace, ids workspace.IDs) error {
	ours, err := d.ownHome(name, ids)
	if err != nil {
		return err
	}
	if ours {
		err := withFD(d.homes, func(fd int) error { return unix.Unlinkat(fd, string(name), unix.AT_REMOVEDIR) })
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("cannot remove the home of %s: %w", name, err)
		}
	}
	return each(func() error { return d.removeImage(name, ids) }, func() error { return d.RemoveTemporary(ctx, name) })
}

// link puts a symbolic link to the home where the settings want one.
func (d *dirs) link(name id.Workspace) error {
	if d.links == nil {
		return nil
	}
	target := d.homes.Name() + "/" + string(name)
	err := withFD(d.links, func(fd int) error { return unix.Symlinkat(target, fd, string(name)) })
	if errors.Is(err, unix.EEXIST) {
		if at, err := d.linked(name); err != nil || at == target {
			return err
		}
		return fmt.Errorf("cannot link %s/%s to the home: something that carrel did not make is there; move it away: %w",
			d.links.Name(), name, errdefs.ErrFailedPrecondition)
	}
	if err != nil {
		return fmt.Errorf("cannot link %s/%s to the home: %w", d.links.Name(), name, err)
	}
	return nil
}

// linked is where the link of name leads, "" if there is none.
func (d *dirs) linked(name id.Workspace) (string, error) {
	var buf [4096]byte
	var n int
	err := withFD(d.links, func(fd int) (err error) {
		n, err = unix.Readlinkat(fd, string(name), buf[:])
		return err
	})
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("cannot read %s/%s: %w", d.links.Name(), name, err)
	}
	return string(buf[:n]), nil
}

// unlink removes the link to the home, and nothing else of that name.
func (d *dirs) unlink(name id.Workspace) error {
	if d.links == nil {
		return nil
	}
	at, err := d.linked(name)
	if err != nil || at != d.homes.Name()+"/"+string(name) {
		return err
	}
	return removeAt(d.links, string(name))
}

// ownHome reports whether name has a home that it owns, or one that was made and not
// yet given to it.
func (d *dirs) ownHome(name id.Workspace, ids workspace.IDs) (bool, error) {
	st, there, err := statAt(d.homes, string(name))
	if err != nil {
		return false, fmt.Errorf("cannot look at the home of %s: %w", name, err)
	}
	return there && st.Mode&unix.S_IFMT == unix.S_IFDIR && (st.Uid == ids.Work || st.Uid == 0), nil
}

// homeThere reports whether name has a home to be kept or removed. Anything else at its
// path is an error: it is neither followed nor removed.
func (d *dirs) homeThere(name id.Workspace, ids workspace.IDs) (bool, error) {
	ours, err := d.ownHome(name, ids)
	if err != nil || ours {
		return ours, err
	}
	path := d.homes.Name() + "/" + string(name)
	if _, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	return false, fmt.Errorf("%s is not the directory that was made for the workspace, and carrel neither follows nor removes it; "+
		"move it away and destroy the workspace again: %w", path, errdefs.ErrFailedPrecondition)
}

// KeepHome is part of Effects. The kept home has the workspace's first id in its name,
// because a name can be used again and an id cannot.
func (d *dirs) KeepHome(name id.Workspace, ids workspace.IDs) (string, error) {
	kept := keptName(name, ids)
	path := d.retained.Name() + "/" + kept
	wrap := func(err error) (string, error) {
		return "", fmt.Errorf("cannot keep the home of %s at %s: %w", name, path, err)
	}
	if _, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) {
		there, err := d.homeThere(name, ids)
		if err != nil {
			return wrap(err)
		}
		if !there {
			if image, err := d.ownImage(name, ids); err != nil || !image {
				return "", err // there is nothing to keep
			}
			err = withFD(d.retained, func(to int) error { return unix.Mkdirat(to, kept, 0o700) })
		} else {
			err = withFD(d.homes, func(from int) error {
				return withFD(d.retained, func(to int) error {
					return unix.Renameat2(from, string(name), to, kept, unix.RENAME_NOREPLACE)
				})
			})
		}
		if errors.Is(err, unix.EXDEV) {
			return wrap(fmt.Errorf("home_root is on another file system than data_dir; destroy with --purge, or move the home away by hand: %w",
				errdefs.ErrFailedPrecondition))
		}
		if err != nil {
			return wrap(immutable(err, d.homes.Name()+"/"+string(name)))
		}
	}
	crashpoint.Here("broker.destroy.home-renamed")
	h, err := beneath(d.retained, kept)
	if err != nil {
		return wrap(err)
	}
	defer h.Close()
	err = withFD(h, func(fd int) error { return errors.Join(unix.Fchown(fd, 0, 0), unix.Fchmod(fd, 0o700)) })
	if err == nil {
		err = d.keepImage(name, ids, h)
	}
	if err != nil {
		return wrap(err)
	}
	return path, nil
}

func keptName(name id.Workspace, ids workspace.IDs) string {
	return fmt.Sprintf("%s.%d", name, ids.Executor)
}

// TakeHome is part of Effects. The image goes first: until the home is there, KeepHome puts it back.
func (d *dirs) TakeHome(name id.Workspace, ids workspace.IDs) error {
	wrap := func(err error) error {
		return fmt.Errorf("cannot take the home of %s back from %s: %w", name, d.retained.Name(), err)
	}
	kept, err := beneath(d.retained, keptName(name, ids))
	if err != nil {
		return wrap(err)
	}
	defer kept.Close()
	if err := d.takeImage(name, ids, kept); err != nil {
		return wrap(err)
	}
	crashpoint.Here("broker.revive.image-taken")
	err = withFD(d.retained, func(from int) error {
		return withFD(d.homes, func(to int) error {
			return unix.Renameat2(from, keptName(name, ids), to, string(name), unix.RENAME_NOREPLACE)
		})
	})
	if err != nil {
		return wrap(err)
	}
	crashpoint.Here("broker.revive.home-renamed")
	if err := withFD(kept, func(fd int) error { return unix.Fchown(fd, int(ids.Work), int(ids.Work)) }); err != nil {
		return wrap(err)
	}
	return d.MakeDirs(name, ids)
}

// HomeEmpty is part of Effects.
func (d *dirs) HomeEmpty(name id.Workspace, ids workspace.IDs) (bool, error) {
	ours, err := d.homeThere(name, ids)
	if err != nil || !ours {
		return err == nil, err // there is none
	}
	// The home on the host is empty then, whatever is in the image.
	if image, err := d.ownImage(name, ids); err != nil || image {
		return false, err
	}
	h, err := beneath(d.homes, string(name))
	if err != nil {
		return false, fmt.Errorf("cannot look into the home of %s: %w", name, err)
	}
	defer h.Close()
	if _, err = h.ReadDir(1); errors.Is(err, io.EOF) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("cannot look into the home of %s: %w", name, err)
	}
	return false, nil
}

// ForgetHome is part of Effects.
func (d *dirs) ForgetHome(ctx context.Context, name id.Workspace, ids workspace.IDs) error {
	return removeAll(ctx, d.retained, keptName(name, ids))
}

// PurgeHome is part of Effects.
func (d *dirs) PurgeHome(ctx context.Context, name id.Workspace, ids workspace.IDs) error {
	if err := d.removeImage(name, ids); err != nil {
		return err
	}
	there, err := d.homeThere(name, ids)
	if err != nil || !there {
		return err
	}
	return removeAll(ctx, d.homes, string(name))
}

// RemoveTemporary is part of Effects. The link to the home goes too.
func (d *dirs) RemoveTemporary(ctx context.Context, name id.Workspace) error {
	return each(func() error { return d.unlink(name) }, func() error { return removeAll(ctx, d.tmp, string(name)) })
}

// homeFor opens the home for a start, and puts owner and mode right if the mode was
// changed from inside.
func (d *dirs) homeFor(name id.Workspace, ids workspace.IDs) (*os.File, error) {
	h, err := beneath(d.homes, string(name))
	if err != nil {
		return nil, fmt.Errorf("cannot open the home of %s: %w; "+
			"move away what stands there and put back the directory that was made for it: %w", name, err, errdefs.ErrFailedPrecondition)
	}
	err = withFD(h, func(fd int) error {
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return err
		}
		if st.Uid != ids.Work || st.Gid != ids.Work {
			return fmt.Errorf("it belongs to %d:%d and not to %d; chown it back: %w", st.Uid, st.Gid, ids.Work, errdefs.ErrFailedPrecondition)
		}
		if st.Mode&0o7777 != 0o700 {
			return unix.Fchmod(fd, 0o700)
		}
		return nil
	})
	if err != nil {
		_ = h.Close()
		return nil, fmt.Errorf("cannot use the home of %s: %w", name, err)
	}
	return h, nil
}

func (d *dirs) temporaryFor(name id.Workspace) (tmp, varTmp *os.File, err error) {
	t, err := beneath(d.tmp, string(name))
	if err != nil {
		return nil, nil, fmt.Errorf("cannot open the temporary directories of %s: %w", name, err)
	}
	defer t.Close()
	var opened [2]*os.File
	for i, sub := range temporary {
		if opened[i], err = beneath(t, sub); err != nil {
			closeFiles(opened[:]...)
			return nil, nil, fmt.Errorf("cannot open the temporary directories of %s: %w", name, err)
		}
	}
	return opened[0], opened[1], nil
}
