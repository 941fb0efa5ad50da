package archives

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/crashpoint"
	"github.com/carrel-dev/carrel/internal/gate"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/spec/permit"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// authorise authorises an operation on the archive that ref names, and returns the archive.
func (s *Archives) authorise(ctx context.Context, p principal.Principal, op operation.Name, ref string) (workspace.Archive, error) {
	var found workspace.Archive
	_, err := s.cfg.Gate.Authorise(ctx, operation.Request{By: p, Op: operation.OnArchive(op, ref)}, func() (t operation.Target, err error) {
		if found, err = s.cfg.Store.Archive(ctx, ref); err != nil {
			return t, err
		}
		return targetOf(found), nil
	})
	return found, err
}

// admit admits an operation on the archive that ref names, by its id.
func (s *Archives) admit(
	ctx context.Context, p principal.Principal, op operation.Name, ref string,
) (*gate.Admitted, workspace.Archive, error) {
	found, err := s.authorise(ctx, p, op, ref)
	if err != nil {
		return nil, found, err
	}
	a, err := s.cfg.Gate.Admit(ctx, operation.Request{By: p, Op: operation.OnArchive(op, found.ID), On: targetOf(found)}, nil)
	return a, found, err
}

// ListArchives returns the archives that p reaches, the newest first.
func (s *Archives) ListArchives(ctx context.Context, p principal.Principal) ([]workspace.Archive, error) {
	if err := s.may(ctx, p, operation.Simple(operation.ListArchives)); err != nil {
		return nil, err
	}
	all, err := s.cfg.Store.Archives(ctx)
	own := all[:0]
	for _, a := range all {
		if operation.Reaches(p, targetOf(a)) {
			own = append(own, s.shown(a))
		}
	}
	return own, err
}

// ReadArchive writes the file of an archive to out.
func (s *Archives) ReadArchive(ctx context.Context, p principal.Principal, ref string, out io.Writer) (workspace.Archive, error) {
	a, found, err := s.admit(ctx, p, operation.ReadArchive, ref)
	if err != nil {
		return found, err
	}
	return s.shown(found), a.Do(ctx, func(context.Context, permit.Permit) (any, error) {
		f, err := s.cfg.Files.Open(found.ID)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		sum := newDigest()
		if _, err := io.CopyBuffer(struct{ io.Writer }{out}, io.TeeReader(f, sum), make([]byte, 256<<10)); err != nil {
			return nil, fmt.Errorf("cannot read archive %s: %w", found.ID, err)
		}
		if is := sum.text(); is != found.SHA256 {
			return nil, fmt.Errorf("cannot trust archive %s: its file was changed since it was written: its SHA-256 is %s and was %s: %w",
				found.ID, is, found.SHA256, errdefs.ErrDataLoss)
		}
		return nil, nil
	})
}

// RemoveArchive removes an archive for good.
func (s *Archives) RemoveArchive(ctx context.Context, p principal.Principal, ref string) error {
	a, found, err := s.admit(ctx, p, operation.RemoveArchive, ref)
	if err != nil {
		return err
	}
	// The archive is forgotten before its file goes: a file that nobody knows of is removed at
	// the next start.
	return a.Do(ctx, func(ctx context.Context, _ permit.Permit) (any, error) {
		was, err := s.cfg.Store.RemoveArchive(ctx, found.ID)
		if err != nil {
			return nil, err
		}
		crashpoint.Here("daemon.archive.forgotten")
		if err := s.cfg.Files.Remove(found.ID); err != nil {
			return nil, err
		}
		if was { // and nobody else removed it at the same time
			s.shelf.remove(found)
		}
		return nil, nil
	})
}

// Recover brings files and what is known of them together after a crash.
func (s *Archives) Recover(ctx context.Context) error {
	if s.cfg.Files == nil {
		return nil
	}
	known, err := s.cfg.Store.Archives(ctx)
	if err != nil {
		return err
	}
	s.shelf.add(known...)
	files, err := s.cfg.Files.IDs()
	if err != nil {
		return err
	}
	has := make(map[string]bool, len(known))
	for _, a := range known {
		has[a.ID] = true
	}
	for _, f := range files {
		if has[f] {
			delete(has, f)
			continue
		}
		s.cfg.Log.Warn("removing an archive that was not acknowledged, or was being removed", "archive", f)
		if err := s.cfg.Files.Remove(f); err != nil {
			return err
		}
	}
	for missing := range has {
		s.cfg.Log.Error("the file of an archive is gone", "archive", missing)
	}
	return nil
}

// shown is an archive as people see it: with its end, if there is one.
func (s *Archives) shown(a workspace.Archive) workspace.Archive {
	if s.cfg.Keep > 0 {
		a.Expires = a.CreatedAt.Add(s.cfg.Keep)
	}
	return a
}

// Forget removes archives that have been kept for their time. What cannot be removed does not keep
// the rest.
func (s *Archives) Forget(ctx context.Context, now time.Time) error {
	if s.cfg.Keep <= 0 {
		return nil
	}
	all, err := s.cfg.Store.Archives(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, a := range all {
		if now.After(s.shown(a).Expires) && ctx.Err() == nil {
			errs = append(errs, s.RemoveArchive(ctx, principal.Self(), a.ID))
		}
	}
	return errors.Join(errs...)
}
