package patch

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// Outcome is what became of a change that a crash interrupted.
type Outcome string

// The outcomes.
const (
	// Finished: all files are changed.
	Finished Outcome = "finished"
	// Undone: no file is changed.
	Undone Outcome = "undone"
	// Conflict: other processes changed some of the files meanwhile. Those were left as they are, and the others are as
	// they were before.
	Conflict Outcome = "conflict"
)

// Recovered is what Recover did about one change.
type Recovered struct {
	ID      string
	Outcome Outcome
	// Left says of each file that was left as it is why, and where its old content is.
	Left []string
}

// Recover finishes or undoes what a crash interrupted. dir is the one that Apply was given. It is called before the first
// change after a start; with nothing to do it does nothing. It may be called again after an error.
func Recover(ctx context.Context, dir string) (all []Recovered, err error) {
	s, err := openStore(dir)
	if err != nil {
		return nil, err
	}
	defer s.close()
	pruneKept(s.root, 0, time.Now())
	ids, err := s.ids()
	if err != nil {
		return nil, fmt.Errorf("cannot list the journals in %q: %w", dir, err)
	}
	for _, id := range ids {
		if err := ctx.Err(); err != nil {
			return all, err
		}
		j, err := s.load(id, journalFile)
		if err != nil {
			return all, err
		}
		if j == nil {
			if !s.has(id, recordFile) && !s.has(id, undoneFile) && !s.has(id, conflictFile) {
				if err := s.drop(id); err != nil { // it had not begun, or was all but removed
					return all, fmt.Errorf("cannot remove what is left of %s: %w", id, err)
				}
			}
			continue
		}
		r, err := s.recover(j)
		if err != nil {
			return all, fmt.Errorf("cannot recover %s: %w", id, err)
		}
		all = append(all, r)
	}
	return all, nil
}

func (s *store) recover(j *journal) (r Recovered, err error) {
	t := &txn{s: s, j: j}
	defer t.close()
	r.ID = j.ID
	for _, e := range j.Entries {
		dir, base, err := e.Place.parent()
		if err != nil {
			// Without its directory there is no file. What else is wrong is for a person to see.
			if !errors.Is(err, fs.ErrNotExist) {
				return r, err
			}
			dir = -1
		}
		t.parents, t.bases = append(t.parents, dir), append(t.bases, base)
	}
	if j.State == committing && t.forward() {
		if err := t.seal(); err != nil {
			return r, err
		}
	}
	if j.State == done {
		r.Outcome = Finished
		return r, t.finish()
	}
	r.Outcome = Undone
	if r.Left, err = t.back(); len(r.Left) > 0 {
		r.Outcome = Conflict
	}
	return r, err
}

// progress is how far the exchange of one name is.
type progress int

const (
	other   progress = iota // neither: another process was there
	waiting                 // before the exchange
	changed                 // after it
)

func (t *txn) progress(i int) progress {
	e := &t.j.Entries[i]
	at, temp := look(t.parents[i], t.bases[i]), look(t.parents[i], e.Temp)
	isOld := func(s seen) bool { return !s.absent && s.digest == e.Old }
	isNew := func(s seen) bool { return !s.absent && s.digest == e.New && e.After != nil && s.ino == e.After.Ino }
	switch e.Action {
	case create:
		switch {
		case at.absent && isNew(temp):
			return waiting
		case isNew(at) && temp.absent:
			return changed
		}
	case replace:
		switch {
		case isNew(at) && isOld(temp):
			return changed
		case isOld(at) && isNew(temp):
			return waiting
		}
	case remove:
		switch {
		case isOld(at) && temp.absent:
			return waiting
		case at.absent && isOld(temp):
			return changed
		}
	}
	return other
}

// forward exchanges what is not exchanged yet, and reports whether everything is.
func (t *txn) forward() bool {
	all := make([]progress, len(t.j.Entries))
	for i := range all {
		if all[i] = t.progress(i); all[i] == other {
			return false
		}
	}
	for i, p := range all {
		if p == waiting && t.exchange(i) != nil {
			return false
		}
	}
	return true
}

// back takes back everything. left says of each file that another process changed why it was left.
func (t *txn) back() (left []string, err error) {
	if t.j.State == preparing && !t.s.has(t.j.ID, journalFile) {
		if _, err := t.s.root.Lstat(t.j.ID); errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		return nil, t.s.drop(t.j.ID)
	}
	if t.j.State != preparing && t.j.State != undoing {
		t.j.State = undoing
		if err := t.s.save(t.j); err != nil {
			return nil, err
		}
	}
	// An entry without a parent was not reached.
	for i := min(len(t.parents), len(t.j.Entries)) - 1; i >= 0; i-- {
		if t.j.State == undoing {
			why, err := t.putBack(i)
			if err != nil {
				return left, err
			}
			if why != "" {
				e := &t.j.Entries[i]
				l := fmt.Sprintf("%q was left as it is: %s", e.Place, why)
				if e.Backup != "" {
					l += fmt.Sprintf("; what it was is in %s/%s", t.j.ID, e.Backup)
				}
				left = append(left, l)
				if temp := look(t.parents[i], t.j.Entries[i].Temp); temp.digest == "" || temp.digest != e.Old {
					continue // nobody has another copy
				}
			}
		}
		if err := t.unlink(i); err != nil {
			return left, err
		}
	}
	if err := t.syncParents(); err != nil {
		return left, err
	}
	if err := rmdirs(t.j.Made); err != nil {
		return left, err
	}
	if len(left) > 0 {
		return left, t.s.rename(t.j.ID, journalFile, conflictFile)
	}
	return left, t.s.drop(t.j.ID)
}

// putBack gives a name what it had before. why says why it was left instead.
func (t *txn) putBack(i int) (why string, err error) {
	e := &t.j.Entries[i]
	dir, base := t.parents[i], t.bases[i]
	if dir < 0 {
		if e.Action == create {
			return "", nil
		}
		return "its directory is gone", nil
	}
	at, temp := look(dir, base), look(dir, e.Temp)
	isNew := func(s seen) bool { return !s.absent && s.digest == e.New && e.After != nil && s.ino == e.After.Ino }
	from, to, flags := base, e.Temp, uint(unix.RENAME_NOREPLACE)
	switch e.Action {
	case create:
		if !isNew(at) {
			if temp.absent && !at.absent {
				return "another process changed it after it was made", nil
			}
			return "", nil
		}
	case replace:
		if !isNew(at) {
			switch {
			case isNew(temp), !at.absent && at.digest == e.Old: // it was not exchanged, or is back
				return "", nil
			case temp.absent || temp.digest == e.Old:
				return "another process changed it", nil
			}
			return "another process changed it, and what it had is called " + e.Temp, nil
		}
		if temp.absent {
			return "what it had is no longer beside it", nil
		}
		// Whatever the new file was exchanged for goes back: the old one, or what another process had put there.
		flags = unix.RENAME_EXCHANGE
	case remove:
		if temp.absent {
			if at.absent {
				return "another process removed it", nil
			}
			return "", nil
		}
		from, to = e.Temp, base
	}
	if err := step("back " + e.Name); err != nil {
		return "", err
	}
	err = unix.Renameat2(dir, from, dir, to, flags)
	if errors.Is(err, unix.EEXIST) {
		return "something else is there, and what it had is called " + e.Temp, nil
	}
	if err != nil {
		return "", renameError(err)
	}
	// What was taken away must be what this change had made.
	if e.Action != remove && !isNew(look(dir, e.Temp)) {
		if err := unix.Renameat2(dir, to, dir, from, flags); err != nil {
			return "", renameError(err)
		}
		return "another process changed it meanwhile", nil
	}
	return "", nil
}

// Record is a change that is kept.
type Record struct {
	ID string
	// Undone says that it was undone, and Undoes which change it undoes.
	Undone bool
	Undoes string
	// Conflict: it was taken back, but for files that other processes had changed.
	Conflict bool
	// Places are the absolute paths of its files.
	Places []string
}

// Records lists the changes of which backups are kept, in the order of their ids, which is none of time.
func Records(dir string) (all []Record, err error) {
	s, err := openStore(dir)
	if err != nil {
		return nil, err
	}
	defer s.close()
	ids, err := s.ids()
	if err != nil {
		return nil, fmt.Errorf("cannot list the journals in %q: %w", dir, err)
	}
	slices.Sort(ids)
	for _, id := range ids {
		for _, name := range []string{recordFile, undoneFile, conflictFile} {
			j, err := s.load(id, name)
			if err != nil {
				return nil, err
			}
			if j == nil {
				continue
			}
			r := Record{ID: id, Undone: name == undoneFile, Conflict: name == conflictFile, Undoes: j.Undoes}
			for _, e := range j.Entries {
				r.Places = append(r.Places, e.Place.String())
			}
			all = append(all, r)
		}
	}
	return all, nil
}

// Forget removes the record and the backups of a change. It can then not be undone.
func Forget(dir, id string) error {
	s, err := openStore(dir)
	if err != nil {
		return err
	}
	defer s.close()
	if !isID(id) {
		return bad("cannot forget %.40q: it is not the id of a change", id)
	}
	if s.has(id, journalFile) {
		return fmt.Errorf("cannot forget %s: it was not finished; recover it first: %w", id, errdefs.ErrFailedPrecondition)
	}
	if _, err := s.root.Lstat(id); err != nil {
		return fmt.Errorf("cannot forget %s: there is no such change: %w", id, errdefs.ErrNotFound)
	}
	if err := s.drop(id); err != nil {
		return fmt.Errorf("cannot forget %s: %w", id, err)
	}
	return nil
}
