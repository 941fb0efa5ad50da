package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/boundary/sandbox/selfcheck"
	"github.com/carrel-dev/carrel/internal/spec/hostfiles"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// protected are the names at the top of a writable project mount that stay read-only, because programs of the host run what
// is there, or are told by it to run something. What a command left there would be run on the host, by a user who enters the
// directory, as that user. docs/hostfiles.md has the list with the readers.
//
// The kernel can protect only a name that exists. So for some names that are absent the broker makes an empty directory, and
// removes it when the workspace stops.
//
// All of .git is one of them, and not its hooks and config alone: git also takes its configuration from where .git/commondir
// points, and runs in each directory that the index calls a submodule. docs/decisions/0005-project-mounts.md has more.
var protected = hostfiles.Protected

// IsProtected reports whether a path relative to a project mount is a protected name at its top.
func IsProtected(rel string) bool {
	return slices.ContainsFunc(protected(), func(p hostfiles.TopName) bool { return p.Name == rel && !p.Home })
}

// ProtectedIn looks for the protected names in the directory that is open at dir: those that are
// there, and those that are not and must be placed. home says that it is a home.
func ProtectedIn(dir int, home bool) (present, absent []string, err error) {
	if repository(dir, "") {
		return nil, nil, fmt.Errorf("it is a git repository without a work tree, in which the host's git runs what a command writes into "+
			"config and hooks; mount it read-only (:ro), or a clone of it: %w", errdefs.ErrFailedPrecondition)
	}
	for _, p := range protected() {
		if p.Home && !home {
			continue
		}
		var st unix.Stat_t
		err := unix.Fstatat(dir, p.Name, &st, unix.AT_SYMLINK_NOFOLLOW)
		switch {
		case err == nil:
			present = append(present, p.Name)
		case !errors.Is(err, unix.ENOENT):
			return nil, nil, fmt.Errorf("cannot look at %s: %w", p.Name, err)
		case places(p.Absent, dir, home):
			absent = append(absent, p.Name)
		}
	}
	return present, absent, nil
}

// places reports whether a name that is absent in the directory dir is placed there.
func places(when hostfiles.When, dir int, home bool) bool {
	switch when {
	case hostfiles.Always:
		return true
	case hostfiles.InHome:
		return home
	case hostfiles.NoRepository:
		return !repository(dir, GitName+"/")
	default:
		return false
	}
}

// repository reports whether git takes what is at a prefix in the directory dir for a repository. A file .git
// leads to one.
func repository(dir int, at string) bool {
	var st unix.Stat_t
	err := unix.Fstatat(dir, strings.TrimSuffix(at, "/"), &st, unix.AT_SYMLINK_NOFOLLOW)
	if err == nil && st.Mode&unix.S_IFMT == unix.S_IFREG {
		return true
	}
	for _, name := range []string{"HEAD", "objects", "refs"} {
		if unix.Faccessat(dir, at+name, unix.F_OK, unix.AT_SYMLINK_NOFOLLOW) != nil {
			return false
		}
	}
	return true
}

// Project is one project mount of a Spec; its detached mount is at the same place of
// FDs.Projects.
type Project struct {
	// Destination is an absolute path inside.
	Destination string `json:"destination"`
	ReadOnly    bool   `json:"read_only"`
	// Staged: what is written there goes to a directory of its own, and the mount's stays as it is. Nothing in it is held.
	Staged bool `json:"staged,omitempty"`
	// Own: it covers .git of a project mount with a git directory of the workspace's own, and nothing in it
	// is protected.
	Own bool `json:"own,omitempty"`
	// Pinned are the names at its top that must be read-only, each there already. Other protected
	// names that exist become read-only too, except those of a home.
	Pinned []string `json:"pinned,omitempty"`
	// Held are paths below it, without links on the way, that must be read-only, each there already. The directories on
	// the way to each become mounts, so that they cannot be renamed.
	Held []string `json:"held,omitempty"`
}

// GitName is the name of a repository's git directory.
const GitName = ".git"

// maxPinned bounds Project.Pinned. A home can have every protected name, of which there are more than 200.
const maxPinned = 512

// MaxHeld bounds Project.Held.
const MaxHeld = 256

// buildProjects attaches the project mounts and locks what is protected in them. It must
// come after the home, below which some are.
func buildProjects(s *Spec) error {
	stages := s.FDs.Stages
	for i, p := range s.Projects {
		tree, err := s.FDs.Projects[i], error(nil)
		if p.Staged {
			tree, err = stagedTree(tree, stages[0], s.IDs.Work)
			stages = stages[1:]
		}
		if err == nil {
			err = buildProject(s, p, tree)
		}
		if err != nil {
			return fmt.Errorf("cannot mount %s: %w", p.Destination, err)
		}
	}
	return nil
}

func buildProject(s *Spec, p Project, tree int) error {
	point, err := mountpoint(s, p.Destination)
	if err != nil {
		return err
	}
	defer unix.Close(point)
	if err := attachAt(tree, point); err != nil {
		return err
	}
	if p.ReadOnly || p.Own || p.Staged {
		return nil // all of it is, or nothing
	}
	// point is what is mounted over; its path leads to the mount.
	top, err := unix.Open(at(p.Destination), unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(top)
	for _, e := range protected() {
		pinned := slices.Contains(p.Pinned, e.Name)
		if e.Home && !pinned {
			continue
		}
		err := Lock(top, e.Name, at(canary))
		if errors.Is(err, fs.ErrNotExist) && !pinned {
			continue
		}
		if err != nil {
			return fmt.Errorf("cannot make %s in it read-only: %w", e.Name, err)
		}
	}
	for _, dir := range p.waysToHeld() {
		if err := pinDir(top, dir); err != nil {
			return fmt.Errorf("cannot hold %s in it: %w", dir, err)
		}
	}
	for _, held := range p.Held {
		if err := holdBelow(top, held); err != nil {
			return fmt.Errorf("cannot make %s in it read-only: %w", held, err)
		}
	}
	return nil
}

// waysToHeld are the directories on the way to what is held, outer ones first.
func (p Project) waysToHeld() []string {
	var dirs []string
	for _, held := range p.Held {
		for dir := path.Dir(held); dir != "."; dir = path.Dir(dir) {
			dirs = append(dirs, dir)
		}
	}
	slices.Sort(dirs)
	return slices.Compact(dirs)
}

// openBelow opens a path below a directory, without links on the way or at its end.
func openBelow(top int, rel string, flags uint64) (int, error) {
	return unix.Openat2(top, rel, &unix.OpenHow{
		Flags:   flags | unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
}

// pinDir lays a mount of a directory over itself, as writable as it was: a mountpoint cannot be renamed.
func pinDir(top int, dir string) error {
	fd, err := openBelow(top, dir, unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	tree, err := Clone(fd, "", 0)
	if err != nil {
		return err
	}
	return attachAt(tree, fd)
}

// holdBelow is Lock for a path.
func holdBelow(top int, held string) error {
	dir, err := openBelow(top, path.Dir(held), unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	return Lock(dir, path.Base(held), at(canary))
}

// Lock lays a read-only mount of an entry of the directory top over itself. A mountpoint can be neither
// renamed nor removed from inside, so the name stays what it is. An entry that is neither a
// directory nor a file is hidden behind the file cover, but for a link to a file below top, which is shown as that file.
func Lock(top int, name, cover string) error {
	fd, err := unix.Openat(top, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	var tree int
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR, unix.S_IFREG:
		tree, err = Clone(fd, "", readOnly)
	default:
		tree, err = leadTo(top, name, cover)
	}
	if err != nil {
		return err
	}
	return attachAt(tree, fd)
}

// leadTo is what is shown in the place of an entry that cannot be mounted over itself: the file below top that a link leads to, or
// cover. A directory cannot be mounted over a link.
func leadTo(top int, name, cover string) (int, error) {
	to, err := unix.Openat2(top, name, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return Clone(unix.AT_FDCWD, cover, readOnly)
	}
	defer unix.Close(to)
	var st unix.Stat_t
	if err := unix.Fstat(to, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return Clone(unix.AT_FDCWD, cover, readOnly)
	}
	return Clone(to, "", readOnly)
}

// attachAt puts a detached mount over what is open at point, and closes it.
func attachAt(tree, point int) error {
	defer unix.Close(tree)
	return unix.MoveMount(tree, "", point, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
}

// mountpoint opens the directory at dest in the new root and makes what is missing of it.
// Below the home, where commands may have left anything, it follows no link and what it
// makes is the commands'.
func mountpoint(s *Spec, dest string) (int, error) {
	base, rest := "/", dest[1:]
	if strings.HasPrefix(dest, workspace.Home+"/") {
		base, rest = workspace.Home, dest[len(workspace.Home)+1:]
	}
	dir, err := unix.Open(at(base), unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	for name := range strings.SplitSeq(rest, "/") {
		err := unix.Mkdirat(dir, name, 0o755)
		made := err == nil
		if err != nil && !errors.Is(err, unix.EEXIST) {
			unix.Close(dir)
			return -1, fmt.Errorf("cannot make the directory %s: %w", name, err)
		}
		next, err := unix.Openat2(dir, name, &unix.OpenHow{
			Flags:   unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC,
			Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
		})
		if err == nil && made && base != "/" {
			err = unix.Fchownat(next, "", int(s.IDs.Work), int(s.IDs.Work), unix.AT_EMPTY_PATH)
		}
		unix.Close(dir)
		if err != nil {
			return -1, fmt.Errorf("cannot use %s on the way to it: it must be a directory and no link; "+
				"remove or rename it in the home: %w", name, err)
		}
		dir = next
	}
	return dir, nil
}

// checkProjects tries to write what is read-only in the project mounts, and to make
// set-uid files. The directories belong to a user: an attempt that should fail and succeeds is
// undone.
func (s *stage) checkProjects(m *selfcheck.Memory) []check {
	var list []check
	str := m.String
	const fchmodat2 = 452
	for _, p := range s.spec.Projects {
		if p.ReadOnly {
			list = append(list, makeIn(p.Destination, str(p.Destination+"/.carrel-check"), readOnlyE))
			continue
		}
		if p.Own {
			aside := str(p.Destination + ".carrel-check")
			list = append(list, try(projectMounts, "rename "+p.Destination, []unix.Errno{unix.EBUSY, unix.EXDEV},
				unix.SYS_RENAMEAT2, atFDCWD, str(p.Destination), atFDCWD, aside, 0).
				then(unix.SYS_RENAMEAT2, atFDCWD, aside, atFDCWD, str(p.Destination), 0))
		}
		for i, name := range p.Pinned {
			if i == 2 {
				break // each of them is looked at from outside
			}
			at, aside := str(p.Destination+"/"+name), str(p.Destination+"/.carrel-check")
			list = append(list,
				try(projectMounts, "rename "+name, []unix.Errno{unix.EBUSY, unix.EXDEV}, unix.SYS_RENAMEAT2, atFDCWD, at, atFDCWD, aside, 0).
					then(unix.SYS_RENAMEAT2, atFDCWD, aside, atFDCWD, at, 0),
				makeIn(name, str(p.Destination+"/"+name+"/.carrel-check"), append(slices.Clone(readOnlyE), unix.ENOTDIR)))
		}
	}
	if s.spec.writableProjects() {
		home := str(workspace.Home)
		made := str(workspace.Home + "/.carrel-check")
		list = append(list,
			try(projectMounts, "chmod u+s", byRule, unix.SYS_FCHMODAT, atFDCWD, home, 0o4700),
			try(projectMounts, "chmod g+s by fchmodat2", byRule, fchmodat2, atFDCWD, home, 0o2700, 0),
			try(projectMounts, "chmod u+s with bit 32", byRule, unix.SYS_FCHMODAT, atFDCWD, home, 1<<32|0o4700),
			try(projectMounts, "open with mode u+s", byRule, unix.SYS_OPENAT, atFDCWD, made, unix.O_WRONLY|unix.O_CREAT|unix.O_CLOEXEC, 0o4700),
			try(projectMounts, "mknod with mode u+s", byRule, unix.SYS_MKNODAT, atFDCWD, made, unix.S_IFREG|0o4700, 0),
			try(projectMounts, "openat2", bySeccomp, unix.SYS_OPENAT2, atFDCWD, made, 0, 24))
	}
	return list
}

func makeIn(what string, path uintptr, errnos []unix.Errno) check {
	return try(projectMounts, "mkdir in "+what, errnos, unix.SYS_MKDIRAT, atFDCWD, path, 0o700).
		then(unix.SYS_UNLINKAT, atFDCWD, path, unix.AT_REMOVEDIR)
}
