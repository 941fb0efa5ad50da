package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/base/crashpoint"
)

// unnoted is the mode of a directory that up has made and not recorded yet, or that down has
// removed from its record but not from the disk. Root owns it, and it has a sticky bit, which
// nobody else sets on a directory that only root can enter: so it is known to be carrel's.
const unnoted = fs.ModeDir | fs.ModeSticky | 0o700

func isUnnoted(path string) bool {
	var st unix.Stat_t
	if unix.Lstat(path, &st) != nil || st.Uid != 0 {
		return false
	}
	return st.Mode&(unix.S_IFMT|0o7777) == unix.S_IFDIR|unix.S_ISVTX|0o700
}

// makeDirs makes path and the missing directories above it as unnoted directories. It returns
// them, with those of an up that was killed. The caller records them and then opens them.
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

// openDirs gives recorded directories their final mode: path gets mode, and the directories above
// it 0755.
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

// makePrivate makes a directory that only its owner may enter.
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

// sweep removes the temporary files of an up or down that was killed. Under the instance's lock
// nobody else writes there.
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

// strikeOff marks the directories that are removed together with the record of them, so that a
// down that is killed after that can be repeated: the data directory and those that up made
// above it, unless something else is in them.
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
			return fmt.Errorf("cannot forget what up made: %s: %w", p, err)
		}
		holds = []string{filepath.Base(p)}
	}
	return nil
}

// removeUnnoted removes directories that up had not recorded yet, or down had struck off.
func (i *instance) removeUnnoted() error {
	if err := removeUnnotedAt(i.runtime); err != nil {
		return err
	}
	if !isUnnoted(i.data) {
		return removeUnnotedAt(i.data) // if it is gone already, those above it
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

// removeUnnotedAt removes dir and the directories above it while they are unnoted and empty.
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
