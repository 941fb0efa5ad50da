package sandbox

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// lend turns the directories that an ordinary user provided into detached mounts, as a broker
// does before the start. A mount can only be copied in the namespace that it belongs to,
// so each directory is opened again by its path, through no symbolic link, and must be the same.
func (s *stage) lend() error {
	fds, work := &s.spec.FDs, strconv.FormatUint(uint64(s.spec.IDs.Work), 10)
	for _, d := range []struct {
		at   *int
		part int64
		mode string
	}{{&fds.Home, 2, "0700"}, {&fds.Tmp, 4, "1777"}, {&fds.VarTmp, 8, "1777"}} {
		var err error
		if *d.at < 0 {
			*d.at, err = Fresh("tmpfs", harmless, "size", strconv.FormatInt(s.spec.TmpfsBytes/d.part, 10), "mode", d.mode, "uid", work, "gid", work)
		} else {
			*d.at, err = detach(*d.at, harmless)
		}
		if err != nil {
			return err
		}
	}
	for i, given := range fds.Stages {
		tree, err := detach(given, harmless)
		if err != nil {
			return fmt.Errorf("cannot mount a staged copy: %w", err)
		}
		fds.Stages[i] = tree
	}
	for i, p := range s.spec.Projects {
		attr := uint64(harmless)
		if p.ReadOnly || p.Staged {
			attr = readOnly
		}
		tree, err := detach(fds.Projects[i], attr)
		if err != nil {
			return fmt.Errorf("cannot mount %s: %w", p.Destination, err)
		}
		fds.Projects[i] = tree
	}
	return nil
}

// detach makes a private mount of the directory that is open at given. Mounts below it are
// left out.
func detach(given int, attr uint64) (int, error) {
	path, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(given))
	if err != nil {
		return -1, err
	}
	dir, err := unix.Openat2(unix.AT_FDCWD, path, &unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return -1, fmt.Errorf("cannot open %s again: %w", path, err)
	}
	defer unix.Close(dir)
	var want, got unix.Stat_t
	if err := errors.Join(unix.Fstat(given, &want), unix.Fstat(dir, &got)); err != nil {
		return -1, err
	}
	if want.Dev != got.Dev || want.Ino != got.Ino {
		return -1, fmt.Errorf("cannot use %s: another directory has been put in its place: %w", path, errdefs.ErrFailedPrecondition)
	}
	tree, err := unix.OpenTree(dir, "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_EMPTY_PATH)
	if errors.Is(err, unix.EINVAL) {
		// The kernel shows nobody without root what another mount covers.
		return -1, fmt.Errorf("cannot use %s: other file systems are mounted in it, and an ordinary user cannot leave them out; "+
			"mount a directory below or beside them: %w", path, errdefs.ErrFailedPrecondition)
	}
	if err != nil {
		return -1, fmt.Errorf("cannot copy the mount of %s: %w", path, err)
	}
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: attr, Propagation: unix.MS_PRIVATE}); err != nil {
		unix.Close(tree)
		return -1, fmt.Errorf("cannot restrict the mount of %s: %w", path, err)
	}
	return tree, nil
}
