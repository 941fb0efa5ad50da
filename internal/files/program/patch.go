package program

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/files/patch"
	"github.com/carrel-dev/carrel/internal/wire/fileapi"
)

const (
	// patchesDir is where what undoes changes to files is kept, in the home.
	patchesDir = ".local/state/carrel/patches"
	// maxPatches and maxPatchFiles bound a listing of changes and of their files.
	maxPatches, maxPatchFiles = 1000, 2000
)

// patch computes a change to files, or makes it. The text of the patch follows the request.
func (s *served) patch() error {
	w := s.req.Change
	if w == nil {
		return fmt.Errorf("cannot change files: the request does not say how: %w", errdefs.ErrInvalidArgument)
	}
	text, err := io.ReadAll(io.LimitReader(&fileapi.Body{Frames: s.frames}, patch.MaxText+1))
	if err != nil {
		return s.explain("read the patch for", "", err)
	}
	dir, err := s.recovered(w.Digest != "")
	if err != nil {
		return err
	}
	unix.Umask(0o022) // as of the commands: new files are made with it
	home := path.Join(s.rootPath, s.req.Home)
	in := patch.Roots{Dir: home, Allow: []string{home, s.rootPath}}
	for _, not := range []string{"/proc", "/sys", "/dev"} { // what the kernel shows as files
		in.Not = append(in.Not, path.Join(s.rootPath, not))
	}
	done, err := patch.Do(s.ctx, dir, in, patch.Wanted{Text: string(text), Modes: w.Modes, Only: w.Only, Digest: w.Digest})
	out := &fileapi.Patched{Digest: done.Digest, Diff: done.Diff, ID: done.ID, Merged: done.Merged, Made: done.Made}
	for _, p := range done.Parts {
		out.Parts = append(out.Parts, fileapi.PatchPart(p))
	}
	s.res.Patched = out
	return err
}

// undo brings back what was there before a change.
func (s *served) undo() error {
	dir, err := s.recovered(false)
	if err != nil {
		return err
	}
	id, err := patch.Undo(s.ctx, dir, s.req.ID)
	if errors.Is(err, fs.ErrNotExist) && !errdefs.IsNotFound(err) {
		err = fmt.Errorf("cannot undo %.40q: there is no record of it: %w", s.req.ID, errdefs.ErrNotFound)
	}
	s.res.Patched = &fileapi.Patched{ID: id}
	return err
}

// patches lists the changes of which backups are kept.
func (s *served) patches() error {
	dir, err := s.recovered(false)
	if err != nil {
		return err
	}
	all, err := patch.Records(dir)
	if errors.Is(err, fs.ErrNotExist) { // the first change makes it
		return nil
	}
	if err != nil {
		return err
	}
	named := 0
	for _, r := range all {
		if named += len(r.Places); len(s.res.Patches) == maxPatches || named > maxPatchFiles {
			s.res.Truncated = true
			break
		}
		p := fileapi.PatchRecord{ID: r.ID, State: fileapi.PatchDone, Undoes: r.Undoes, Files: r.Places}
		switch {
		case r.Conflict:
			p.State = fileapi.PatchConflict
		case r.Undone:
			p.State = fileapi.PatchUndone
		}
		s.res.Patches = append(s.res.Patches, p)
	}
	return nil
}

// recovered finishes or takes back what an earlier process left half done, and returns the directory of changes. It need not
// be there unless it is made.
func (s *served) recovered(make bool) (dir string, err error) {
	dir = path.Join(s.rootPath, s.req.Home, patchesDir)
	if make {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return "", fmt.Errorf("cannot make the directory for changes to files: %w", err)
		}
	}
	found, err := filepath.EvalSymlinks(dir)
	if errors.Is(err, fs.ErrNotExist) && !make {
		return dir, nil
	}
	if err != nil {
		return "", fmt.Errorf("cannot use the directory for changes to files: %w", err)
	}
	all, err := patch.Recover(context.WithoutCancel(s.ctx), found)
	for _, r := range all {
		text := r.ID + " was " + map[patch.Outcome]string{
			patch.Finished: "finished", patch.Undone: "taken back", patch.Conflict: "taken back in part",
		}[r.Outcome]
		if len(r.Left) > 0 {
			text += ": " + strings.Join(r.Left, "; ")
		}
		s.res.Recovered = append(s.res.Recovered, text)
	}
	return found, err
}
