package rootless

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox/launch"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// Protection is what a workspace that stays has made outside of itself while it runs: the empty
// directories that protect names in its mounts. It is recorded like a run, so that
// what both protect stays as long as either runs.
type Protection struct {
	of   *state
	name id.Workspace
}

// NewProtection begins one. What one of the same name left that was cut off is removed.
func NewProtection(name id.Workspace) (*Protection, error) {
	s, err := openState()
	if err != nil {
		return nil, err
	}
	h := &Protection{of: s, name: name}
	return h, s.alone(func() error {
		if err := s.forget(name); err != nil {
			return err
		}
		return s.claim(name)
	})
}

// Open opens the sources and protects the names in them. The caller closes them.
func (h *Protection) Open(mounts []workspace.Mount) ([]launch.Project, error) {
	projects, err := h.of.openMounts(mounts, h.name, false)
	for _, t := range h.of.trees { // what it changes is not looked at
		err = errors.Join(err, t.dir.Close())
	}
	h.of.trees = nil
	return projects, err
}

// Release removes what was made, once nothing of the workspace runs.
func (h *Protection) Release() error {
	err := h.of.unplace(h.name)
	if err == nil {
		h.of.close()
	}
	return err
}

// Abandoned removes the protection of a workspace whose process was ended, and of which
// nothing runs any more. One that there is not is no error.
func Abandoned(name id.Workspace) error {
	s, err := openState()
	if err != nil {
		return err
	}
	return s.alone(func() error { return s.forget(name) })
}

// forget is Abandoned, under the lock.
func (s *state) forget(name id.Workspace) error {
	all, _, err := s.others()
	if err != nil {
		return err
	}
	n, there := all[name]
	if !there {
		return nil
	}
	for _, p := range n.Placed {
		if !sharedName(all, name, p) {
			p.remove()
		}
	}
	if err := os.Remove(filepath.Join(s.runs(), string(name))); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("cannot forget the mounts of %s: %w", name, err)
	}
	return nil
}
