package rootless

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/base/crashpoint"
	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox/launch"
	"github.com/carrel-dev/carrel/internal/rootless/copies"
	"github.com/carrel-dev/carrel/internal/rootless/gitdir"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// placedName is an empty directory, or file, that keeps a protected name which was absent.
type placedName struct {
	Source string `json:"source"`
	Device uint64 `json:"device"`
	Inode  uint64 `json:"inode"`
	Name   string `json:"name"`
	File   bool   `json:"file,omitempty"`
}

// remove removes it, unless it is gone or something was put into it.
func (p placedName) remove() {
	dir, err := openDir(p.Source)
	if err != nil {
		return
	}
	defer dir.Close()
	here, err := nameIn(dir, p.Name)
	here.File = p.File
	if err != nil || here != p {
		return
	}
	_ = withFD(dir, func(fd int) error {
		if !p.File {
			return unix.Unlinkat(fd, p.Name, unix.AT_REMOVEDIR)
		}
		var st unix.Stat_t
		err := unix.Fstatat(fd, p.Name, &st, unix.AT_SYMLINK_NOFOLLOW)
		if err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size > 0 {
			return err
		}
		return unix.Unlinkat(fd, p.Name, 0)
	})
}

// nameIn is a name in an open directory.
func nameIn(dir *os.File, name string) (placedName, error) {
	var st unix.Stat_t
	err := withFD(dir, func(fd int) error { return unix.Fstat(fd, &st) })
	return placedName{Source: dir.Name(), Device: st.Dev, Inode: st.Ino, Name: name}, err
}

func withFD(f *os.File, call func(fd int) error) error {
	rc, err := f.SyscallConn()
	if err != nil {
		return err
	}
	cerr := rc.Control(func(fd uintptr) { err = call(int(fd)) })
	return errors.Join(cerr, err)
}

// openDir opens a directory by a path without symbolic links. Its name is that path.
func openDir(path string) (*os.File, error) {
	fd, err := unix.Openat2(unix.AT_FDCWD, path, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// Source opens the directory that a person named and returns its path without symbolic
// links.
func Source(path string) (string, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	switch {
	case errors.Is(err, unix.ENOTDIR):
		return "", fmt.Errorf("cannot mount %s: it is not a directory, and only those can be mounted; name the one that it is in: %w",
			path, errdefs.ErrInvalidArgument)
	case errors.Is(err, unix.ENOENT):
		return "", fmt.Errorf("cannot mount %s: there is no such directory: %w", path, errdefs.ErrNotFound)
	case err != nil:
		return "", fmt.Errorf("cannot mount %s: %w", path, err)
	}
	defer unix.Close(fd)
	real, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
	if err != nil {
		return "", fmt.Errorf("cannot mount %s: %w", path, err)
	}
	return real, nil
}

// openMounts opens the sources and protects the names in them. With git, repositories among them get a git
// directory of the workspace's own.
func (s *state) openMounts(mounts []workspace.Mount, name id.Workspace, git bool) (projects []launch.Project, err error) {
	defer func() {
		if err != nil {
			launch.CloseProjects(projects)
			projects = nil
		}
	}()
	home, _ := os.UserHomeDir()
	var writable []string
	var opened []*os.File
	for _, m := range mounts {
		if !m.ReadOnly {
			writable = append(writable, m.Source)
		}
	}
	for _, m := range mounts {
		dir, err := openDir(m.Source)
		if err != nil {
			return projects, fmt.Errorf("cannot mount %s: %w", m.Source, err)
		}
		projects = append(projects, launch.Project{
			Project: sandbox.Project{Destination: m.AtHome().Destination, ReadOnly: m.ReadOnly}, Dir: dir,
		})
		if err := CheckSource(m, dir); err != nil {
			return projects, err
		}
		if m.ReadOnly {
			continue
		}
		p := &projects[len(projects)-1]
		if m.Staged {
			opened = append(opened, dir)
			if err := apart(opened); err != nil {
				return projects, err
			}
			if m.Stage != "" {
				p.Staged = true
				p.Stage, err = copies.In(s.dir).OpenStage(m.Stage)
			} else {
				projects, err = s.stage(projects, name, writable)
			}
			if err != nil {
				return projects, err
			}
			continue
		}
		asked := askGit(dir.Name(), writable) // it answers while names are looked for
		if err := s.alone(func() (err error) {
			p.Pinned, err = s.pin(dir, m.Source == home)
			return err
		}); err != nil {
			return projects, err
		}
		t, err := s.remember(dir, m.Source == home)
		if err == nil {
			p.Held, err = s.lead(t, asked)
		}
		if err != nil {
			return projects, err
		}
		opened = append(opened, dir)
		if err := apart(opened); err != nil {
			return projects, err
		}
		if git {
			if projects, err = s.openGit(projects, name, writable); err != nil {
				return projects, err
			}
		}
	}
	return projects, nil
}

// openGit gives the last of projects a git directory of the workspace's own, if it is a repository that can
// have one. Where it is, is noted before.
func (s *state) openGit(projects []launch.Project, name id.Workspace, writable []string) ([]launch.Project, error) {
	p := &projects[len(projects)-1]
	n := gitNote{p.Dir.Name(), filepath.Join(s.dir, "git", fmt.Sprintf("%s-%d", name, len(projects)))}
	repo, err := gitdir.Prepare(n.Source, n.Dir, name, writable, func() error {
		s.note.Git = append(s.note.Git, n)
		return s.alone(s.write)
	})
	if repo == nil || err != nil {
		return projects, err
	}
	s.repos = append(s.repos, repo)
	repo.Hold(p.Pinned...)
	repo.Hold(p.Held...)
	// It is covered, and so not read-only.
	p.Pinned = slices.DeleteFunc(p.Pinned, func(name string) bool { return name == sandbox.GitName })
	return showGit(projects, repo)
}

// showGit adds the mounts of a git directory to those of the repository, the last of projects.
func showGit(projects []launch.Project, repo *gitdir.Repo) ([]launch.Project, error) {
	at := projects[len(projects)-1].Destination + "/" + sandbox.GitName
	for _, d := range []struct {
		path string
		sandbox.Project
	}{
		{repo.Own(), sandbox.Project{Destination: at, Own: true}},
		{repo.HostGit(), sandbox.Project{Destination: at + "/" + gitdir.Host, ReadOnly: true}},
	} {
		dir, err := openDir(d.path)
		if err != nil {
			return projects, fmt.Errorf("cannot mount %s: %w", d.path, err)
		}
		projects = append(projects, launch.Project{Project: d.Project, Dir: dir})
	}
	return projects, nil
}

// takeGit takes over what was committed inside, once nothing of the workspace runs. What a person has to know
// is added to notes.
func (s *state) takeGit(ctx context.Context) (err error) {
	for _, r := range s.repos {
		notes, terr := r.Take(ctx)
		s.notes = append(s.notes, notes...)
		if terr != nil {
			s.notes = append(s.notes, terr.Error())
			err = errors.Join(err, terr)
		}
	}
	s.repos = nil
	return err
}

// pin makes the protected names that a writable source must have, and returns all that it has. What it makes is noted before.
func (s *state) pin(dir *os.File, home bool) (pinned []string, err error) {
	others, _, err := s.others()
	if err != nil {
		return nil, err
	}
	var present, absent []string
	err = withFD(dir, func(fd int) (err error) {
		present, absent, err = sandbox.ProtectedIn(fd, home)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("cannot look into %s: %w", dir.Name(), err)
	}
	pinned = append(present, absent...)
	for i, name := range pinned {
		here, err := nameIn(dir, name)
		if err != nil {
			return nil, err
		}
		if i >= len(present) || sharedName(others, "", here) { // what two share stays as long as either runs
			s.note.Placed = append(s.note.Placed, here)
		}
	}
	if len(s.note.Placed) > 0 {
		if err := s.write(); err != nil {
			return nil, fmt.Errorf("cannot note the protected names: %w", err)
		}
	}
	crashpoint.Here("run.begin.noted")
	for _, n := range absent {
		err := withFD(dir, func(fd int) error { return unix.Mkdirat(fd, n, 0o755) })
		crashpoint.Here("run.begin.placed")
		if errors.Is(err, unix.EACCES) || errors.Is(err, unix.EROFS) {
			// Nor can the workspace: it has the same id.
			pinned = slices.DeleteFunc(pinned, func(p string) bool { return p == n })
			continue
		}
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return nil, fmt.Errorf("cannot make %s in %s, so that nothing else can be put there: %w; mount it read-only (:ro)", n, dir.Name(), err)
		}
	}
	return pinned, nil
}
