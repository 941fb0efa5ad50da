package patch

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/base/crashpoint"
)

// commit exchanges the names.
func (t *txn) commit() error {
	for i := range t.j.Entries {
		if err := t.exchange(i); err != nil {
			return fmt.Errorf("cannot change %q: %w", t.j.Entries[i].Name, err)
		}
		crashpoint.Here("cli.patch.exchanged")
	}
	return t.seal()
}

// seal makes the exchange last.
func (t *txn) seal() error {
	if err := t.syncParents(); err != nil {
		return err
	}
	t.j.State = done
	err := t.s.save(t.j)
	crashpoint.Here("cli.patch.sealed")
	return err
}

// exchange gives a file its new content, by one operation on its name. What was there under the name is looked at again
// afterwards, because until then another process could have put something else there: that is put back.
func (t *txn) exchange(i int) error {
	e := &t.j.Entries[i]
	dir, base := t.parents[i], t.bases[i]
	if err := step("exchange " + e.Name); err != nil {
		return err
	}
	var err error
	switch e.Action {
	case create:
		if err = unix.Renameat2(dir, e.Temp, dir, base, unix.RENAME_NOREPLACE); errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("something is there already: %w", errdefs.ErrAlreadyExists)
		}
	case replace:
		err = unix.Renameat2(dir, e.Temp, dir, base, unix.RENAME_EXCHANGE)
	case remove:
		err = unix.Renameat2(dir, base, dir, e.Temp, unix.RENAME_NOREPLACE)
	}
	if err != nil {
		return renameError(err)
	}
	if e.Action == create {
		return nil
	}
	if old := look(dir, e.Temp); old.digest != e.Old {
		flags := uint(unix.RENAME_NOREPLACE)
		if e.Action == replace {
			flags = unix.RENAME_EXCHANGE
		}
		if err := step("put back " + e.Name); err != nil {
			return err
		}
		if err := unix.Renameat2(dir, e.Temp, dir, base, flags); err != nil {
			return fmt.Errorf("it changed meanwhile, and what is there now is called %q: %w", e.Temp, renameError(err))
		}
		return fmt.Errorf("it changed meanwhile; read it again: %w", errdefs.ErrFailedPrecondition)
	}
	return nil
}

func renameError(err error) error {
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) {
		return fmt.Errorf("its file system cannot exchange two names at once, which a safe change needs: %w: %w", err,
			errdefs.ErrNotImplemented)
	}
	return err
}

// seen is what is found under a name. The digest of what cannot be read, and of what is no file, is "".
type seen struct {
	absent bool
	digest string
	ino    uint64
}

func look(dir int, base string) seen {
	if dir < 0 {
		return seen{absent: true}
	}
	c, err := read(dir, base)
	switch {
	case errors.Is(err, errAbsent) || errors.Is(err, fs.ErrNotExist):
		return seen{absent: true}
	case err != nil:
		return seen{}
	}
	return seen{digest: digest(c.bytes), ino: c.meta.Ino}
}

// finish removes what is no longer needed. The record stays.
func (t *txn) finish() error {
	for i := range t.j.Entries {
		if err := t.unlink(i); err != nil {
			return err
		}
	}
	if err := t.syncParents(); err != nil {
		return err
	}
	if err := rmdirs(t.j.Unmade); err != nil {
		return err
	}
	if u := t.j.Undoes; u != "" && t.s.has(u, recordFile) {
		if err := t.s.rename(u, recordFile, undoneFile); err != nil {
			return err
		}
	}
	return t.s.rename(t.j.ID, journalFile, recordFile)
}

// unlink removes the temporary name of an entry.
func (t *txn) unlink(i int) error {
	if t.parents[i] < 0 {
		return nil
	}
	if err := step("unlink " + t.j.Entries[i].Name); err != nil {
		return err
	}
	err := unix.Unlinkat(t.parents[i], t.j.Entries[i].Temp, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// rmdirs removes directories that are empty, the innermost first.
func rmdirs(dirs []place) error {
	for _, d := range slices.Backward(dirs) {
		dir, base, err := d.parent()
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		err = step("rmdir")
		if err == nil {
			err = unix.Unlinkat(dir, base, unix.AT_REMOVEDIR)
			if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST) || errors.Is(err, unix.ENOTDIR) {
				err = nil
			}
		}
		_ = unix.Close(dir)
		if err != nil {
			return err
		}
	}
	return nil
}
