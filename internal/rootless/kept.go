package rootless

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/rootless/paths"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/state/config"
)

// kept is a directory that no mount may show: whoever reaches what is in it acts as the user, outside
// of every workspace.
type kept struct {
	path, what, remedy string
	// readOnly: a mount that cannot be written may show it.
	readOnly bool
}

// keptPlaces returns what is kept from mounts. Not each of them need exist.
func keptPlaces() ([]kept, error) {
	at, err := paths.Find()
	if err != nil {
		return nil, err
	}
	const beside = "mount a directory beside it"
	all := []kept{
		{path: at.State, what: "carrel's own record is kept in", remedy: beside + ", or set XDG_STATE_HOME to another"},
		{path: filepath.Dir(at.Config), what: "the settings and rules of your carrel are in", remedy: "mount it read-only (:ro)", readOnly: true},
		// The system's daemon takes commands from whoever has the user's id too.
		{path: config.DefaultRuntimeDir, what: "the socket of the system's carrel is in", remedy: beside},
	}
	for _, s := range at.Sockets() {
		all = append(all, kept{path: filepath.Dir(s), what: "the socket of your carrel is in", remedy: beside})
	}
	if self, err := os.Executable(); err == nil {
		all = append(all, kept{
			path: filepath.Dir(self), what: "the programs of your carrel are in",
			remedy: "mount it read-only (:ro), or install them elsewhere", readOnly: true,
		})
	}
	return all, nil
}

// file identifies a directory whatever its path is.
type file struct{ device, inode uint64 }

// CheckSource refuses the open source of a mount if it is kept, lies in a directory that is, or holds one.
func CheckSource(m workspace.Mount, dir *os.File) error {
	if m.AsRoot {
		return fmt.Errorf("cannot mount %s with :root: only root can; leave it out, and the files are yours: %w",
			m.Source, errdefs.ErrPermissionDenied)
	}
	places, err := keptPlaces()
	if err != nil {
		return fmt.Errorf("cannot mount %s: %w", m.Source, err)
	}
	var above []file
	if err := withFD(dir, func(fd int) (err error) { above, err = ancestors(fd); return err }); err != nil {
		return fmt.Errorf("cannot mount %s: cannot tell where it lies: %w", m.Source, err)
	}
	for _, k := range places {
		if k.readOnly && m.ReadOnly {
			continue
		}
		if refused, err := k.meets(above); err != nil || refused {
			err = errors.Join(err, errdefs.ErrInvalidArgument)
			return fmt.Errorf("cannot mount %s: %s %s, and a command that reaches it is out of its workspace; %s: %w",
				m.Source, k.what, k.path, k.remedy, err)
		}
	}
	return nil
}

// meets reports whether a directory is k, lies in it or holds it. above is that directory and those that it
// lies in.
func (k kept) meets(above []file) (bool, error) {
	path, err := existing(k.path)
	if err != nil {
		return true, err
	}
	fd, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return true, &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	over, err := ancestors(fd)
	if err != nil {
		return true, err
	}
	if slices.Contains(over, above[0]) {
		return true, nil
	}
	if real, _ := filepath.EvalSymlinks(k.path); real != path {
		return false, nil // there is no such directory yet, so nothing lies in it
	}
	return slices.Contains(above, over[0]), nil
}

// existing returns the innermost directory on the way to path that there is, without symbolic links.
func existing(path string) (string, error) {
	for {
		real, err := filepath.EvalSymlinks(path)
		if !errors.Is(err, os.ErrNotExist) {
			return real, err
		}
		path = filepath.Dir(path)
	}
}

// maxDepth bounds how deep a directory lies that can be mounted.
const maxDepth = 1024

// ancestors returns a directory and all that it lies in, inwards out. Bind mounts give a directory several
// paths, and one identity.
func ancestors(fd int) ([]file, error) {
	at, err := unix.Openat(fd, ".", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("openat", err)
	}
	defer func() { unix.Close(at) }()
	var all []file
	for range maxDepth {
		var st unix.Stat_t
		if err := unix.Fstat(at, &st); err != nil {
			return nil, os.NewSyscallError("fstat", err)
		}
		here := file{st.Dev, st.Ino}
		if len(all) > 0 && all[len(all)-1] == here {
			return all, nil // the root is its own parent
		}
		all = append(all, here)
		up, err := unix.Openat(at, "..", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, os.NewSyscallError("openat", err)
		}
		unix.Close(at)
		at = up
	}
	return nil, fmt.Errorf("it lies deeper than %d directories: %w", maxDepth, errdefs.ErrInvalidArgument)
}
