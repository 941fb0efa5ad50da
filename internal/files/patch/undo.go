package patch

import (
	"context"
	"fmt"
	"io"
	"path"

	"github.com/containerd/errdefs"
)

// Undo brings back what was there before a change: all files, or none if it returns an error. A file that changed since,
// in its content, owner or permissions, is an error of kind failed precondition. Directories that the change made are
// removed if they are empty. Undo is a change itself: its id undoes the undoing.
func Undo(ctx context.Context, dir, id string) (undoing string, err error) {
	if !isID(id) {
		return "", bad("cannot undo %.40q: it is not the id of a change", id)
	}
	return transact(ctx, dir, func(t *txn) error {
		j, err := t.s.load(id, recordFile)
		if err != nil {
			return err
		}
		if j == nil {
			if t.s.has(id, undoneFile) {
				return fmt.Errorf("cannot undo %s: it was undone before: %w", id, errdefs.ErrFailedPrecondition)
			}
			return fmt.Errorf("cannot undo %s: there is no record of it: %w", id, errdefs.ErrNotFound)
		}
		t.j.Undoes, t.j.Unmade = id, j.Made
		for i := range j.Entries {
			if err := t.reverse(&j.Entries[i], id); err != nil {
				return err
			}
		}
		return nil
	})
}

// reverse adds what undoes an entry.
func (t *txn) reverse(e *entry, id string) error {
	undo := entry{Name: e.Name, Place: e.Place, Old: e.New, New: e.Old}
	it := item{meta: e.Before, keep: e.Before != nil, time: true, before: e.After}
	switch e.Action {
	case create:
		undo.Action = remove
	case replace:
		undo.Action = replace
	case remove:
		undo.Action = create
	}
	if e.Backup != "" {
		f, err := t.s.open(path.Join(id, e.Backup))
		if err != nil {
			return fmt.Errorf("cannot undo %s: the backup of %q cannot be read: %w", id, e.Name, err)
		}
		defer f.Close()
		if it.content, err = io.ReadAll(io.LimitReader(f, MaxSize+1)); err != nil {
			return fmt.Errorf("cannot undo %s: the backup of %q cannot be read: %w", id, e.Name, err)
		}
		if digest(it.content) != e.Old {
			return fmt.Errorf("cannot undo %s: the backup of %q is damaged: %w", id, e.Name, errdefs.ErrDataLoss)
		}
	}
	t.add(undo, it)
	return nil
}
