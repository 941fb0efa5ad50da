package rootless

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/base/termtext"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox"
	"github.com/carrel-dev/carrel/internal/files/changed"
	"github.com/carrel-dev/carrel/internal/linux/wholefile"
)

// watched is, for a workspace of a daemon, since when its commands may write which directories of the caller's.
type watched struct {
	Sources []string  `json:"sources"`
	Since   time.Time `json:"since"`
}

// Changes are what was changed in a directory.
type Changes struct {
	Source string
	List   []changed.Finding
	// Missed counts what was not looked at: too many, too deep or closed.
	Missed int
}

// Text says it to a person, in few lines.
func (c Changes) Text() []string {
	lines := changed.Text(c.List, termtext.Visible)
	if c.Missed > 0 {
		lines = append(lines, fmt.Sprintf("%d files or directories were not looked at: too many, too deep or closed", c.Missed))
	}
	return lines
}

func (s *state) watchedPath(name id.Workspace) string {
	return filepath.Join(s.dir, "watched", string(name)+".json")
}

// Watch notes the directories that Before looked at as those of a workspace, for ChangesOf.
func (a *Around) Watch(name id.Workspace) error {
	if a == nil || len(a.s.trees) == 0 {
		return nil
	}
	w := watched{Since: a.s.trees[0].since}
	for _, t := range a.s.trees {
		w.Sources = append(w.Sources, t.dir.Name())
	}
	b, err := json.Marshal(w)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(a.s.watchedPath(name)), 0o700)
	}
	if err == nil {
		err = wholefile.Put(a.s.watchedPath(name), b)
	}
	if err != nil {
		return fmt.Errorf("cannot note what %s may write: %w", name, err)
	}
	return nil
}

// Watches reports whether any workspace is noted.
func Watches() bool {
	s, err := openState()
	if err != nil {
		return false
	}
	list, err := os.ReadDir(filepath.Dir(s.watchedPath("")))
	return err == nil && len(list) > 0
}

// Unwatch forgets a workspace.
func Unwatch(name id.Workspace) {
	if s, err := openState(); err == nil && id.IsWorkspace(string(name)) {
		_ = os.Remove(s.watchedPath(name)) // one that is left says what is still true
	}
}

// ChangesOf says what was changed in the directories of the caller's that a workspace of a daemon may write, since it was made. There
// being none is no error.
func ChangesOf(ctx context.Context, name id.Workspace) (all []Changes, err error) {
	s, err := openState()
	if err != nil {
		return nil, err
	}
	if !id.IsWorkspace(string(name)) {
		return nil, nil
	}
	b, err := os.ReadFile(s.watchedPath(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var w watched
	if err == nil {
		err = json.Unmarshal(b, &w)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read what %s may write: %w", name, err)
	}
	ctx, cancel := context.WithTimeout(ctx, endTime)
	defer cancel()
	for _, source := range w.Sources {
		dir, err := openDir(source)
		if err != nil {
			return nil, fmt.Errorf("cannot look at what %s changed: %w", name, err)
		}
		t := &tree{dir: dir}
		found, err := changed.Walk(ctx, dir, changed.Options{Since: w.Since, Skip: func(p string) bool { return p == sandbox.GitName }})
		_ = dir.Close()
		if err != nil {
			return nil, fmt.Errorf("cannot look at what %s changed in %s: %w", name, source, err)
		}
		all = append(all, Changes{source, changed.Classify(found.Changed, t.reads), found.More + len(found.Unread)})
	}
	return all, nil
}
