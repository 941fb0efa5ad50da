package steps

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/carrel-dev/carrel/internal/patch"
	"github.com/carrel-dev/carrel/internal/runtime"
)

// maxDiff bounds what a person is shown of a change, in bytes.
const maxDiff = 32 << 10

// Patches changes files on this machine, as the caller's own user.
type Patches struct {
	// dir has journals and backups.
	dir   string
	roots patch.Roots
}

// OpenPatches finishes or undoes what an earlier process left half done, and returns what changes files below the roots, of
// which relative paths are relative to the first. dir is a directory of the caller's alone; it is made if there is none.
func OpenPatches(ctx context.Context, dir string, roots ...string) (*Patches, error) {
	err := os.MkdirAll(dir, 0o700)
	if err == nil {
		dir, err = filepath.EvalSymlinks(dir)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot make the directory for changes to files: %w", err)
	}
	if _, err := patch.Recover(ctx, dir); err != nil {
		return nil, err
	}
	return &Patches{dir, patch.Roots{Dir: roots[0], Allow: roots}}, nil
}

// Do computes a change, or makes it if it is still exactly the one that was computed.
func (p *Patches) Do(ctx context.Context, x runtime.HostPatch) (out runtime.HostPatched, err error) {
	parsed, err := patch.Parse([]byte(x.Text))
	if err != nil {
		return out, err
	}
	roots := p.roots
	roots.Modes = make(map[string]fs.FileMode, len(x.Modes))
	for name, bits := range x.Modes {
		roots.Modes[name] = fs.FileMode(bits).Perm()
	}
	ready, err := patch.Read(ctx, roots, parsed)
	if err != nil {
		return out, err
	}
	for _, f := range ready.Files() { // what undoes changes is not changed by one
		if p.keeps(f.Place) || p.keeps(f.ToPlace) {
			return out, fmt.Errorf("cannot change %s: it is where changes to files are kept", f.Path)
		}
	}
	out.Digest = ready.Digest()
	if x.Digest == "" {
		if out.Diff = ready.Diff(false); len(out.Diff) > maxDiff {
			return runtime.HostPatched{}, fmt.Errorf("cannot show the change: it takes %d bytes, and at most %d are shown to a person; change less "+
				"at once", len(out.Diff), maxDiff)
		}
		for _, f := range ready.Files() {
			out.Files = append(out.Files, f.Place)
			if f.ToPlace != "" && f.ToPlace != f.Place {
				out.Files = append(out.Files, f.ToPlace)
			}
			for _, r := range f.Risks {
				out.Risks = append(out.Risks, f.Path+": "+r)
			}
		}
		return out, nil
	}
	if out.Digest != x.Digest {
		return out, fmt.Errorf("cannot change the files: one of them has changed since the plan was shown; propose it anew")
	}
	out.ID, err = ready.Apply(ctx, p.dir)
	if err != nil && out.ID != "" { // the files are changed, and the cleaning up has failed
		if _, rerr := patch.Recover(ctx, p.dir); rerr == nil {
			err = nil
		}
	}
	return out, err
}

// keeps reports whether a place is in the directory of journals and backups.
func (p *Patches) keeps(place string) bool {
	rel, err := filepath.Rel(p.dir, place)
	return place != "" && err == nil && filepath.IsLocal(rel)
}

// Undo undoes a change. The id that it returns undoes the undoing.
func Undo(ctx context.Context, dir, id string) (undoing string, err error) {
	return patch.Undo(ctx, dir, id)
}

// Changes lists the changes that can be undone, those that were undone included.
func Changes(dir string) ([]patch.Record, error) { return patch.Records(dir) }
