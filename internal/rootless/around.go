package rootless

import (
	"errors"
	"fmt"
	"path"
	"slices"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox"
)

// Around is what is done about a writable mount of a daemon's workspace before and after, with the rights of its user: what
// programs of the host act on is found before, and what is new of that is moved aside, and the rest said, at the end.
type Around struct {
	s    *state
	name id.Workspace
}

// Before looks at writable directories of the caller's before a workspace has them. held are for each the paths that the broker is to
// hold, and notes what a person should know.
func Before(name id.Workspace, sources []string) (a *Around, held [][]string, notes []string, err error) {
	s, err := openState()
	if err != nil { // a caller without a home, as a service: the names at the top are held all the same
		note := fmt.Sprintf("%v; so nothing below the top of what is mounted is held, and its end is not looked at", err)
		return nil, make([][]string, len(sources)), []string{note}, nil
	}
	if err := s.alone(func() error { return errors.Join(s.forget(name), s.claim(name)) }); err != nil {
		return nil, nil, nil, err
	}
	a = &Around{s, name}
	for _, source := range sources {
		list, err := a.before(source, sources)
		if err != nil {
			a.Leave()
			return nil, nil, nil, fmt.Errorf("cannot look at %s: %w", source, err)
		}
		held = append(held, list)
	}
	notes, s.notes = s.notes, nil
	return a, held, notes, nil
}

func (a *Around) before(source string, writable []string) (held []string, err error) {
	dir, err := openDir(source)
	if err != nil {
		return nil, nil //nolint:nilerr // nor can it be mounted, and that says why
	}
	defer dir.Close()
	asked := askGit(source, writable)
	t, err := a.s.remember(dir, false)
	if err != nil {
		return nil, err
	}
	absent := 0
	for _, l := range a.s.leadsOf(t, asked) {
		for _, p := range places(l.Path, source) {
			switch {
			case slices.Contains(held, p.rel) || sandbox.IsProtected(p.rel):
			case p.absent:
				absent++
			case len(held) >= sandbox.MaxHeld:
				a.s.tell("%s: there are more places in it than can be held; %s (%s) is not", source, p.rel, l.By)
				return outermost(held), nil
			default:
				held = append(held, path.Clean(p.rel))
			}
		}
	}
	if absent > 0 {
		a.s.tell("%s: %d places to which the host's git is led are not there, and cannot be held in a workspace of a daemon", source, absent)
	}
	return outermost(held), nil
}

// After says what was changed, and moves aside what is new and acted on. Nothing of the workspace may run any more.
func (a *Around) After() (notes []string, err error) {
	err = a.s.look(a.name)
	a.Leave()
	return a.s.notes, err
}

// Leave lets go of the directories and does nothing about them.
func (a *Around) Leave() {
	if a == nil {
		return
	}
	for _, t := range a.s.trees {
		_ = t.dir.Close()
	}
	a.s.trees = nil
	a.s.close()
}
