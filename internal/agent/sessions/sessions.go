// Package sessions keeps which task a session of an editor goes on from, so that the editor can be closed and opened again: a
// small file for each session, in a directory of the user's own.
//
// It keeps nothing of what was said: that is the daemon's, which gives it to who may see it.
package sessions

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/linux/wholefile"
)

const (
	// maxKept is how many sessions are kept, the newest: an owner has as many tasks.
	maxKept = 128
	// maxFile bounds the file of one, in bytes.
	maxFile = 4 << 10
	// letters and length are those of an id.
	letters, length = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567", 26
	suffix          = ".json"
)

// Session is where a session is: its newest task, in the workspace of its agent.
type Session struct {
	Workspace string `json:"workspace"`
	Task      string `json:"task"`
}

// NewID returns the id of a new session, which nobody can guess.
func NewID() string { return rand.Text()[:length] }

// Keep keeps a session in a directory, which is made if there is none, and forgets the oldest.
func Keep(dir, id string, s Session) error {
	fail := func(err error) error { return fmt.Errorf("cannot keep the session: %w", err) }
	if !valid(id) {
		return fail(fmt.Errorf("its id %.64q is of another form: %w", id, errdefs.ErrInvalidArgument))
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fail(err)
	}
	b, err := json.Marshal(s)
	if err != nil {
		return fail(err)
	}
	if err := wholefile.Put(filepath.Join(dir, id+suffix), append(b, '\n')); err != nil {
		return fail(err)
	}
	forget(dir)
	return nil
}

// Find returns a session of a directory. not_found: it has none with this id.
func Find(dir, id string) (s Session, err error) {
	unknown := func(why string) error {
		return fmt.Errorf("cannot load the session %.64q: %s; begin a new one: %w", id, why, errdefs.ErrNotFound)
	}
	if !valid(id) {
		return s, unknown("there is none with this id")
	}
	f, err := os.OpenFile(filepath.Join(dir, id+suffix), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return s, unknown("you have none with this id, or it is no longer kept")
	}
	if err != nil {
		return s, fmt.Errorf("cannot load the session: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxFile))
	if err != nil {
		return s, fmt.Errorf("cannot load the session: %w", err)
	}
	if json.Unmarshal(b, &s) != nil || s.Workspace == "" || s.Task == "" {
		return Session{}, unknown("the file in which it is kept is of another form")
	}
	return s, nil
}

func valid(id string) bool { return len(id) == length && strings.Trim(id, letters) == "" }

// forget removes the oldest sessions beyond those that are kept. What cannot be removed stays.
func forget(dir string) {
	all, err := os.ReadDir(dir)
	if err != nil || len(all) <= maxKept {
		return
	}
	type kept struct {
		path string
		at   int64
	}
	var files []kept
	for _, e := range all {
		if fi, err := e.Info(); err == nil && fi.Mode().IsRegular() {
			files = append(files, kept{filepath.Join(dir, e.Name()), fi.ModTime().UnixNano()})
		}
	}
	slices.SortFunc(files, func(a, b kept) int { return int(max(min(b.at-a.at, 1), -1)) })
	for _, f := range files[min(maxKept, len(files)):] {
		_ = os.Remove(f.path)
	}
}
