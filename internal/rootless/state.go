package rootless

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/rootless/copies"
	"github.com/carrel-dev/carrel/internal/rootless/gitdir"
	"github.com/carrel-dev/carrel/internal/rootless/paths"
)

// state is what stays of runs, below $XDG_STATE_HOME/carrel:
//
//	audit/audit.jsonl   the record, one for the user
//	runs/NAME           what a run made outside of its workspace; locked while it lives
//	homes/NAME          homes that were kept
//	git/NAME-0          the git directory of a run that lives, for a repository
//	back/NAME           what the end of a run held back
//	staged/NAME         the staged copies of a run
type state struct {
	dir string
	// mine is the open file of this run, which holds its lock.
	mine *os.File
	note note
	// repos are the git directories of this run, and notes what a person has to know of those and of
	// earlier ones.
	repos []*gitdir.Repo
	notes []string
	// trees are the writable mounts of this run, and copies its staged ones.
	trees  []*tree
	copies []*stagedCopy
	// goesOn is the run whose staged copies this one goes on with, "" for new ones.
	goesOn id.Workspace
	// changes are what was changed in trees.
	changes []Changes
	// kept are those of copies in which something was changed.
	kept []Staged
}

// note is what a run made outside of its workspace.
type note struct {
	Placed []placedName `json:"placed,omitempty"`
	Git    []gitNote    `json:"git,omitempty"`
	// Trees are the writable mounts whose new files the end of the run looks at, and Since when the first was remembered.
	Trees []string  `json:"trees,omitempty"`
	Since time.Time `json:"since,omitzero"`
}

// gitNote is the git directory Dir for the repository Source.
type gitNote struct {
	Source string `json:"source"`
	Dir    string `json:"dir"`
}

func openState() (*state, error) {
	dir, err := paths.State()
	if err != nil {
		return nil, fmt.Errorf("cannot keep the record: %w", err)
	}
	s := &state{dir: dir}
	if err := os.Mkdir(s.runs(), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("cannot keep the record: %w; set XDG_STATE_HOME to a directory that you can write", err)
	}
	return s, nil
}

func (s *state) auditPath() string { return filepath.Join(s.dir, "audit", "audit.jsonl") }
func (s *state) runs() string      { return filepath.Join(s.dir, "runs") }

// alone runs f while no other run looks at or changes the notes.
func (s *state) alone(f func() error) error {
	lock, err := os.OpenFile(filepath.Join(s.runs(), ".lock"), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("cannot lock the notes of runs: %w", err)
	}
	defer lock.Close()
	if err := paths.Flock(lock, unix.LOCK_EX); err != nil {
		return fmt.Errorf("cannot lock the notes of runs: %w", err)
	}
	return f()
}

// register notes that this run lives, and cleans up after those that do not any more, whose
// intents closeBroken closes.
func (s *state) register(name id.Workspace, closeBroken func([]id.Workspace) error) error {
	return s.alone(func() error {
		notes, err := copies.In(s.dir).Sweep(context.Background())
		s.notes = append(s.notes, notes...)
		if err = errors.Join(s.sweep(closeBroken), err); err != nil {
			return fmt.Errorf("cannot clean up after a run that was ended: %w", err)
		}
		return s.claim(name)
	})
}

// claim makes the note of a run, or of what holds the mounts of a workspace, and locks it.
func (s *state) claim(name id.Workspace) error {
	f, err := os.OpenFile(filepath.Join(s.runs(), string(name)), os.O_RDWR|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return fmt.Errorf("cannot note what is made for %s: %w", name, err)
	}
	if err := paths.Flock(f, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return errors.Join(fmt.Errorf("cannot note what is made for %s: %w", name, err), f.Close())
	}
	s.mine = f
	return nil
}

// others reads the notes of the other runs, and finds those that have ended.
func (s *state) others() (all map[id.Workspace]note, dead []id.Workspace, err error) {
	list, err := os.ReadDir(s.runs())
	if err != nil {
		return nil, nil, err
	}
	all = map[id.Workspace]note{}
	for _, e := range list {
		name := id.Workspace(e.Name())
		if !id.IsWorkspace(e.Name()) || s.mine != nil && filepath.Base(s.mine.Name()) == e.Name() {
			continue
		}
		path := filepath.Join(s.runs(), e.Name())
		f, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW, 0)
		if errors.Is(err, os.ErrNotExist) {
			continue // it has just ended
		}
		if err != nil {
			return nil, nil, err
		}
		var n note
		b, err := io.ReadAll(f) // its own, as the name may go at any time
		if err == nil && len(b) > 0 {
			err = json.Unmarshal(b, &n)
		}
		over := err == nil && paths.Flock(f, unix.LOCK_SH|unix.LOCK_NB) == nil
		_, gone := os.Lstat(path)
		f.Close()
		if errors.Is(gone, os.ErrNotExist) {
			continue // it ended well while this looked
		}
		if over {
			dead = append(dead, name)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w; remove it, and the empty directories that it names", path, err)
		}
		all[name] = n
	}
	return all, dead, nil
}

// sweep removes what runs that were killed left, and closes their intents.
func (s *state) sweep(closeBroken func([]id.Workspace) error) error {
	all, dead, err := s.others()
	if err != nil || len(dead) == 0 {
		return err
	}
	if err := closeBroken(dead); err != nil {
		return err
	}
	for _, name := range dead {
		for _, p := range all[name].Placed {
			if !sharedName(all, name, p) {
				p.remove()
			}
		}
		for _, g := range all[name].Git {
			said, err := gitdir.Rescue(context.Background(), g.Source, g.Dir, name)
			if err != nil {
				said = err.Error()
			}
			if said != "" {
				s.notes = append(s.notes, said)
			}
		}
		for _, dir := range all[name].Trees {
			s.lookAfterKill(dir, name, all[name].Since)
		}
		delete(all, name)
		if err := os.Remove(filepath.Join(s.runs(), string(name))); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

// write replaces the note of this run, durably where it names what has to be removed. Others read it under the lock of
// alone, which its caller has. It is one call, so that a run that is killed leaves one note or the other.
func (s *state) write() error {
	b, err := json.Marshal(s.note)
	if err != nil {
		return err
	}
	before, err := s.mine.Stat()
	if err != nil {
		return err
	}
	if more := int(before.Size()) - len(b); more > 0 {
		b = append(b, bytes.Repeat([]byte(" "), more)...)
	}
	if _, err := s.mine.WriteAt(b, 0); err != nil {
		return err
	}
	return s.mine.Sync()
}

// unplace removes the directories that this run placed, once nothing of it runs.
func (s *state) unplace(id.Workspace) error {
	if len(s.note.Placed) == 0 {
		return nil
	}
	return s.alone(func() error {
		all, _, err := s.others()
		if err != nil {
			return fmt.Errorf("cannot remove the empty directories that protected names: %w", err)
		}
		for _, p := range s.note.Placed {
			if !sharedName(all, "", p) {
				p.remove()
			}
		}
		// Before another looks: what two leave to each other would stay.
		s.note.Placed = nil
		return s.write()
	})
}

// close forgets the run.
func (s *state) close() {
	if s.mine == nil {
		return
	}
	_ = os.Remove(s.mine.Name()) // what is left is removed by the next run
	s.mine.Close()
}

// makeHome makes a home that stays.
func (s *state) makeHome(name id.Workspace) (*os.File, error) {
	path := filepath.Join(s.dir, "homes", string(name))
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("cannot make a home: %w", err)
	}
	return openDir(path)
}

func sharedName(all map[id.Workspace]note, but id.Workspace, p placedName) bool {
	for name, n := range all {
		if name != but && slices.Contains(n.Placed, p) {
			return true
		}
	}
	return false
}
