package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/crashpoint"
)

// unnoted is the mode of a directory that up has made and not noted yet, or that down
// has struck off and not removed yet: root's, with a sticky bit that nobody sets on what
// only root can enter. Who finds one knows whose it is.
const unnoted = fs.ModeDir | fs.ModeSticky | 0o700

func isUnnoted(path string) bool {
	var st unix.Stat_t
	if unix.Lstat(path, &st) != nil || st.Uid != 0 {
		return false
	}
	return st.Mode&(unix.S_IFMT|0o7777) == unix.S_IFDIR|unix.S_ISVTX|0o700
}

// makeDirs makes path and what is missing above it, as unnoted directories, and returns
// them with those of an up that was cut off. They are to be noted and then opened.
func makeDirs(path string) ([]string, error) {
	var made []string
	for p := path; p != "/"; p = filepath.Dir(p) {
		if _, err := os.Lstat(p); err == nil && !isUnnoted(p) {
			break
		}
		made = append(made, p)
	}
	slices.Reverse(made)
	for _, p := range made {
		if isUnnoted(p) {
			continue
		}
		if err := os.Mkdir(p, unnoted.Perm()|fs.ModeSticky); err != nil {
			return nil, fmt.Errorf("cannot make the directory %s: %w", p, err)
		}
		crashpoint.Here("cli.up.dir-made")
	}
	return made, nil
}

// openDirs gives directories that have been noted the mode that they are to have: path
// its own, those above it that of a directory on the way.
func openDirs(dirs []string, path string, mode fs.FileMode) error {
	for _, p := range dirs {
		m := fs.FileMode(0o755)
		if p == path {
			m = mode
		}
		if err := os.Chmod(p, m); err != nil {
			return fmt.Errorf("cannot make the directory %s: %w", p, err)
		}
	}
	return nil
}

// makePrivate makes a directory of the instance's own, for its owner alone.
func makePrivate(path string) error {
	err := os.Mkdir(path, 0o700)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err == nil {
		err = os.Chmod(path, 0o700) //nolint:gosec // whatever the umask is
	}
	if err != nil {
		return fmt.Errorf("cannot make the directory %s: %w", path, err)
	}
	return nil
}

// sweep removes files that were being written when an up or down was cut off. Nobody
// else writes there under the instance's lock.
func sweep(dir string) error {
	left, err := filepath.Glob(filepath.Join(dir, ".new-*"))
	if err != nil {
		return err
	}
	for _, path := range left {
		if err := remove(path); err != nil {
			return err
		}
	}
	return nil
}

// strikeOff marks the directories that go with the note about them, so that a down that
// is cut off after that can be repeated: the data directory and what up made above it, as
// far as nothing else is in them.
func (i *instance) strikeOff(dirs []string) error {
	holds := []string{filepath.Base(i.stateFile()), "up.lock"}
	for p := i.data; p == i.data || slices.Contains(dirs, p); p = filepath.Dir(p) {
		list, err := os.ReadDir(p)
		if err != nil {
			return fmt.Errorf("cannot look into %s: %w", p, err)
		}
		if slices.ContainsFunc(list, func(e fs.DirEntry) bool { return !slices.Contains(holds, e.Name()) }) {
			return nil
		}
		if err := os.Chmod(p, unnoted.Perm()|fs.ModeSticky); err != nil {
			return fmt.Errorf("cannot strike off %s: %w", p, err)
		}
		holds = []string{filepath.Base(p)}
	}
	return nil
}

// removeUnnoted removes what an up made and had not noted yet, or a down had struck off.
func (i *instance) removeUnnoted() error {
	if err := removeUnnotedAt(i.runtime); err != nil {
		return err
	}
	if !isUnnoted(i.data) {
		return removeUnnotedAt(i.data) // those above it, if it has gone already
	}
	unlock, err := i.lock()
	if err != nil {
		return err
	}
	defer unlock()
	if err := sweep(i.data); err != nil {
		return err
	}
	if err := remove(filepath.Join(i.data, "up.lock")); err != nil {
		return err
	}
	return removeUnnotedAt(i.data)
}

// removeUnnotedAt removes dir and those above it as far as they are unnoted and empty.
func removeUnnotedAt(dir string) error {
	for p := dir; p != "/"; p = filepath.Dir(p) {
		if _, err := os.Lstat(p); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if !isUnnoted(p) {
			return nil
		}
		if gone, err := removeIfEmpty(p); err != nil || !gone {
			return err
		}
	}
	return nil
}
