package staged

import (
	"context"
	"errors"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// Made lists the paths that Apply made in the lower directory and that were not undone, in the order of ComparePaths. It is for
// Copy.Made, where a copy is applied while its overlay is mounted.
func Made(ctx context.Context, lower *os.File, keepDir string) (paths []string, err error) {
	t, err := open(ctx, lower, keepDir)
	if err != nil {
		return nil, err
	}
	defer t.close()
	ids, _, err := t.s.ids(ctx)
	if err != nil {
		return nil, err
	}
	undone := map[string]bool{}
	for _, id := range slices.Backward(ids) {
		if !t.s.has(id, doneFile) {
			continue
		}
		j := &journal{}
		if err := t.s.load(id, doneFile, j); err != nil {
			return nil, err
		}
		if j.Undoes != "" {
			undone[j.Undoes] = true
			continue
		}
		if undone[id] || j.Dev != t.j.Dev || j.Ino != t.j.Ino {
			continue
		}
		for _, o := range j.Ops {
			if o.Do != create {
				continue
			}
			for _, n := range o.New {
				paths = append(paths, join(string(o.Path), string(n.Rel)))
			}
		}
	}
	slices.SortFunc(paths, ComparePaths)
	return slices.Compact(paths), nil
}

// unmade notes what Apply made and the run has removed since. An overlay that was mounted before the lower directory had it leaves no
// mark for that.
func (w *walker) unmade(paths []string) error {
	if len(paths) == 0 {
		return nil
	}
	found := make(map[string]bool, len(w.found))
	for i := range w.found {
		found[w.found[i].Path] = true
	}
	last := ""
	for _, p := range paths {
		if found[p] || last != "" && isBelow(p, last) {
			continue
		}
		if err := w.count(p); err != nil {
			return err
		}
		dir, base := split(p)
		if there, err := entryAt(w.upper, dir, base); err != nil || there.Type != Absent {
			continue // a directory on the way to it that is none is a change of its own
		}
		was, err := entryAt(w.lower, dir, base)
		if err != nil || was.Type == Absent {
			continue
		}
		last = p
		if err := w.deleted(p, was); err != nil {
			return err
		}
	}
	return nil
}

// entryAt looks at a path below a directory. Where there is no directory for it, it is absent.
func entryAt(top folder, dir, base string) (Entry, error) {
	d, err := top.sub(dir)
	if isNot(err) {
		return Entry{}, nil
	}
	if err != nil {
		return Entry{}, err
	}
	defer d.close()
	return d.entry(base)
}

func isNot(err error) bool {
	return err != nil && (errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR))
}
