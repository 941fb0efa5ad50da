package staged

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// Outcome is what became of a change that a crash interrupted.
type Outcome string

// The outcomes.
const (
	Finished Outcome = "finished" // everything is changed
	Undone   Outcome = "undone"   // nothing is changed
	// Partly: other processes changed some of the files meanwhile. Those were left as they are, and the others are as they were.
	Partly Outcome = "partly"
)

// Recovered is what Recover did about one change.
type Recovered struct {
	ID      string
	Outcome Outcome
	// Left are the files that were left as they are. What they were is in the directory of the transaction, or beside them.
	Left []Conflict
}

// Recover finishes or undoes what a crash interrupted in the lower directory. It is called before the first change after a
// start; with nothing to do it does nothing. It may be called again after an error.
func Recover(ctx context.Context, lower *os.File, keepDir string) (all []Recovered, err error) {
	t, err := open(ctx, lower, keepDir)
	if err != nil {
		return nil, err
	}
	defer t.close()
	ids, _, err := t.s.ids(ctx)
	if err != nil {
		return nil, err
	}
	// The newest first: it may undo the one before.
	for _, id := range slices.Backward(ids) {
		r, err := t.recover(id)
		if err != nil {
			return all, fmt.Errorf("cannot recover %s: %w", id, err)
		}
		if r.Outcome != "" {
			all = append(all, r)
		}
	}
	return all, nil
}

// CutOff reports whether a change in a directory of journals was cut off, and none is under way.
func CutOff(keepDir string) bool {
	list, err := os.ReadDir(keepDir)
	if err != nil || !slices.ContainsFunc(list, func(e os.DirEntry) bool { return number(e.Name(), idPrefix) > 0 }) {
		return false
	}
	s, err := openStore(keepDir, 0)
	if err != nil {
		return false
	}
	defer s.close()
	return slices.ContainsFunc(list, func(e os.DirEntry) bool { return number(e.Name(), idPrefix) > 0 && s.cutOff(e.Name()) })
}

// cutOff reports whether a transaction is neither done, with nothing left of it to clean up, nor in conflict.
func (s *store) cutOff(id string) bool {
	return !s.has(id, conflictFile) && (!s.has(id, doneFile) || s.has(id, planFile) || s.has(id, madeFile) || s.has(id, commitFile))
}

func (t *txn) recover(id string) (r Recovered, err error) {
	r.ID = id
	switch {
	case !t.s.cutOff(id):
		return r, nil
	case t.s.has(id, doneFile):
		r.Outcome = Finished
		return r, t.s.unlink(id, planFile, madeFile, commitFile)
	}
	t.made, t.marked = t.s.has(id, madeFile), t.s.has(id, commitFile)
	if !t.made && !t.s.has(id, planFile) { // nothing was begun
		r.Outcome = Undone
		return r, t.s.drop(t.ctx, id)
	}
	if err := t.load(id); err != nil {
		return r, err
	}
	if t.marked {
		r.Outcome = Finished
		return r, t.finish()
	}
	r.Outcome = Undone
	if r.Left, err = t.back(); len(r.Left) > 0 {
		r.Outcome = Partly
	}
	return r, err
}

// load reads the newest journal of a transaction. It must be of this lower directory.
func (t *txn) load(id string) error {
	file := planFile
	if t.made {
		file = madeFile
	}
	if t.marked {
		file = commitFile
	}
	j := &journal{}
	if err := t.s.load(id, file, j); err != nil {
		return err
	}
	if j.Dev != t.j.Dev || j.Ino != t.j.Ino {
		return stale("it is of another directory than the one that is given; open that")
	}
	t.j = j
	return nil
}

// back takes back everything. left says of each file that another process changed why it was left.
func (t *txn) back() (left []Conflict, err error) {
	id := t.j.ID
	if !t.s.has(id, planFile) {
		return nil, t.s.drop(t.ctx, id)
	}
	// The mark may be on disk though writing it failed. It goes first.
	if t.s.has(id, commitFile) {
		if err := t.s.unlink(id, commitFile); err != nil {
			return nil, err
		}
	}
	for _, o := range slices.Backward(t.j.Ops) {
		why, err := t.backOne(o)
		if err != nil {
			return left, err
		}
		if why != "" {
			left = append(left, Conflict{string(o.Path), why})
		}
	}
	if err := t.closeDirs(); err != nil {
		return left, err
	}
	if err := t.remember(true); err != nil {
		return left, err
	}
	if err := t.restampUndone(); err != nil {
		return left, err
	}
	if err := t.sync(); err != nil {
		return left, err
	}
	if len(left) > 0 {
		if err := t.s.put(id, conflictFile, t.j); err != nil {
			return left, err
		}
		return left, t.s.unlink(id, planFile, madeFile)
	}
	return nil, t.s.drop(t.ctx, id)
}

// backOne takes back one operation and removes what was made for it. why says why it was left instead.
func (t *txn) backOne(o *op) (why string, err error) {
	if o.Do == chmod {
		return "", nil
	}
	d, base, err := t.b.parent(string(o.Path))
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		if t.made && o.Do != create {
			return "the directory that it is in is gone", nil
		}
		return "", nil
	}
	if err != nil {
		return "", err
	}
	if t.made {
		if why, err := t.putBack(d, base, o); why != "" || err != nil {
			return why, err
		}
	}
	_, there, err := d.stat(string(o.Temp))
	if err != nil || !there {
		return "", err
	}
	if err := step("remove " + string(o.Temp)); err != nil {
		return "", err
	}
	return "", removeIn(t.ctx, d, string(o.Temp))
}

// putBack gives a name what it had before, if it was exchanged: that is told by what is there and what is beside it.
func (t *txn) putBack(d folder, base string, o *op) (why string, err error) {
	at, isThere, err := d.stat(base)
	if err != nil {
		return "", err
	}
	temp, isBeside, err := d.stat(string(o.Temp))
	if err != nil {
		return "", err
	}
	isNew := isThere && len(o.New) > 0 && at.is(o.New[0].Stamp)
	isOld := isBeside && len(o.Old) > 0 && temp.is(o.Old[0].Stamp)
	if o.Do == create && !isNew || o.Do != create && !isOld {
		return "", nil // it was not exchanged, or is back
	}
	if isNew {
		why, err := matches(d, base, o.New, true)
		if err != nil {
			return "", err
		}
		if why != "" {
			return why + ", after it was made" + beside(o), nil
		}
	}
	if err := step("back " + string(o.Path)); err != nil {
		return "", err
	}
	flags := uint(unix.RENAME_NOREPLACE)
	switch {
	case o.Do == create:
		err = renameBack(d, base, o)
	case o.Do == replace && isNew:
		flags = unix.RENAME_EXCHANGE
		fallthrough
	default: // also where another process removed what was put there
		err = unix.Renameat2(d.fd, string(o.Temp), d.fd, base, flags)
	}
	if errors.Is(err, unix.EEXIST) {
		return "another process made something there" + beside(o), nil
	}
	return "", err
}

// beside says where the old content is.
func beside(o *op) string {
	if o.Do == create {
		return ""
	}
	return fmt.Sprintf("; what it was is called %q", o.Temp)
}

// closeDirs gives directories the modes that they had.
func (t *txn) closeDirs() error {
	for _, o := range slices.Backward(t.j.Ops) {
		was := uint32(0)
		if o.Do == chmod {
			was = o.Old[0].Stamp.Mode & 0o7777
		}
		if o.Do != chmod || o.Open == was {
			continue
		}
		d, is, err := t.dirOf(o)
		if err != nil {
			continue // it is another one now, which has its own mode
		}
		d.close()
		if is.Mode&0o7777 == o.Open {
			if err := t.setMode(o, o.Open, was); err != nil {
				return err
			}
		}
	}
	return nil
}

// restampUndone notes the new times of what an Undo that was taken back had put away, so that it can be undone again.
func (t *txn) restampUndone() error {
	if t.j.Undoes == "" || !t.s.has(t.j.Undoes, doneFile) {
		return nil
	}
	was := &journal{}
	if err := t.s.load(t.j.Undoes, doneFile, was); err != nil {
		return err
	}
	t.restamp(was)
	return t.s.put(t.j.Undoes, doneFile, was)
}
