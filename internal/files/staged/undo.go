package staged

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// Undo puts back what the last Apply changed that was not undone: all of it, or nothing if it returns an error. Files that are
// no longer what Apply made are a *ConflictError. An Apply before that one can be undone then, and the one that was undone can
// be made again.
func Undo(ctx context.Context, lower *os.File, keepDir string) (r Result, err error) {
	t, err := begin(ctx, lower, keepDir)
	if err != nil {
		return r, err
	}
	defer t.close()
	was, err := t.last()
	if err != nil {
		return r, err
	}
	t.j.Undoes = was.ID
	conflicts, err := t.reverse(was)
	if err != nil {
		return r, fmt.Errorf("cannot undo %s: %w", was.ID, err)
	}
	if len(conflicts) > 0 {
		return r, &ConflictError{"undo " + was.ID, conflicts}
	}
	t.j.names()
	if r.ID, err = t.run("undo " + was.ID); err == nil {
		for _, o := range t.j.Ops {
			r.Applied = append(r.Applied, string(o.Path))
		}
	}
	return r, err
}

// last reads the last transaction that is done.
func (t *txn) last() (*journal, error) {
	ids, _, err := t.s.ids(t.ctx)
	if err != nil {
		return nil, err
	}
	for _, id := range slices.Backward(ids) {
		if !t.s.has(id, doneFile) {
			continue
		}
		j := &journal{}
		if err := t.s.load(id, doneFile, j); err != nil {
			return nil, err
		}
		if j.Dev != t.j.Dev || j.Ino != t.j.Ino {
			return nil, stale("cannot undo %s: it changed another directory than the one that is given; open that", id)
		}
		return j, nil
	}
	return nil, fmt.Errorf("cannot undo anything: no changes are applied: %w", errdefs.ErrNotFound)
}

// opposite is what undoes an action.
var opposite = map[action]action{create: remove, remove: create, replace: replace, chmod: chmod}

// reverse fills the journal with what undoes another one, and lists what is no longer as that left it.
func (t *txn) reverse(was *journal) (conflicts []Conflict, err error) {
	for i, o := range was.Ops {
		u := &op{Path: o.Path, Do: opposite[o.Do], Old: o.New, nodes: nodesOf(o.Old), Base: o.Base, In: o.In}
		u.from = source{t.s.dir, was.ID + "/" + oldDir + "/" + strconv.Itoa(i)}
		if o.Do == chmod {
			mode := o.Old[0].Stamp.Mode & 0o7777
			u.Old, u.nodes, u.Open, u.Mode = slices.Clone(o.Old), nil, o.Mode, mode
			if os.Geteuid() != 0 {
				u.Open |= 0o700
			}
			u.Old[0].Stamp.Mode = unix.S_IFDIR | o.Mode
		}
		why, err := t.isAsLeft(u)
		if err != nil {
			return nil, err
		}
		if why != "" {
			conflicts = append(conflicts, Conflict{string(o.Path), why})
		}
		t.j.add(u)
	}
	return conflicts, nil
}

// isAsLeft says how something differs from what Apply made, "" if it does not.
func (t *txn) isAsLeft(u *op) (why string, err error) {
	if u.Do == chmod {
		d, is, err := t.dirOf(u)
		if err != nil {
			return "another process changed it", nil
		}
		d.close()
		if is.Mode != u.Old[0].Stamp.Mode {
			return "another process changed its mode", nil
		}
		return "", nil
	}
	d, base, err := t.b.parent(string(u.Path))
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return "the directory that it was in is gone", nil
	}
	if err != nil {
		return "", err
	}
	if u.Do != create {
		return matches(d, base, u.Old, false)
	}
	if _, there, err := d.stat(base); err != nil || there {
		return "something is there now", err
	}
	return "", nil
}

// Forget removes the journals and old contents of what was applied, which can then not be undone.
func Forget(ctx context.Context, keepDir string) error {
	s, err := openStore(keepDir, lockWait)
	if err != nil {
		return err
	}
	defer s.close()
	ids, _, err := s.ids(ctx)
	if err != nil {
		return err
	}
	for _, id := range ids {
		if !s.has(id, doneFile) && !s.has(id, conflictFile) {
			return stale("cannot forget %s: it was not finished; recover it first", id)
		}
		if err := s.drop(ctx, id); err != nil {
			return fmt.Errorf("cannot forget %s: %w", id, err)
		}
	}
	return nil
}

// Last returns the id of what Undo would take back. There being nothing is an error of kind not found.
func Last(ctx context.Context, lower *os.File, keepDir string) (id string, err error) {
	t, err := open(ctx, lower, keepDir)
	if err != nil {
		return "", err
	}
	defer t.close()
	was, err := t.last()
	if err != nil {
		return "", err
	}
	return was.ID, nil
}
