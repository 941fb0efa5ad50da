package steps

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/files/patch"
)

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
	done, err := patch.Do(ctx, p.dir, p.roots, patch.Wanted{Text: x.Text, Modes: x.Modes, Only: x.Only, Digest: x.Digest})
	return patched(done), err
}

func patched(done patch.Done) (out runtime.HostPatched) {
	out.Digest, out.Diff, out.ID, out.Merged, out.Made = done.Digest, done.Diff, done.ID, done.Merged, done.Made
	for _, part := range done.Parts {
		out.Files, out.Risks = append(out.Files, part.Files...), append(out.Risks, part.Risks...)
		out.Parts = append(out.Parts, runtime.PatchPart(part))
	}
	return out
}

// Undo undoes a change. The id that it returns undoes the undoing.
func Undo(ctx context.Context, dir, id string) (undoing string, err error) {
	return patch.Undo(ctx, dir, id)
}

// Record is a change that was made, as package patch has it.
type Record = patch.Record

// IsChange reports whether a text is the id of a change.
func IsChange(s string) bool { return patch.IsID(s) }

// Changes lists the changes that can be undone, those that were undone included.
func Changes(dir string) ([]patch.Record, error) { return patch.Records(dir) }
