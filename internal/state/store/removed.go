package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// Destroyed returns the workspace with that name or key that was destroyed last, if that
// was at since or after, and where its home was kept, "" if it was not.
func (s *Store) Destroyed(ctx context.Context, ref string, since time.Time) (w Workspace, retained string, ok bool, err error) {
	give, err := s.turn(ctx)
	if err != nil {
		return w, "", false, fmt.Errorf("cannot look for workspace %q among those destroyed: %w", ref, err)
	}
	defer give()
	err = s.db.QueryRowContext(ctx, `SELECT name, key, owner, retained FROM workspaces
		WHERE phase = 'destroyed' AND (name = ? OR key = ?) AND changed_ns >= ? ORDER BY changed_ns DESC LIMIT 1`, ref, ref,
		nanos(since)).Scan(&w.Name, &w.Key, &w.Owner, &retained)
	if errors.Is(err, sql.ErrNoRows) {
		return w, "", false, nil
	}
	if err != nil {
		return w, "", false, fmt.Errorf("cannot look for workspace %q among those destroyed: %w", ref, err)
	}
	w.Phase = workspace.Destroyed
	return w, retained, true, nil
}

// Retained returns the homes that were kept of destroyed workspaces, the newest first.
func (s *Store) Retained(ctx context.Context) ([]workspace.Retained, error) {
	give, err := s.turn(ctx)
	if err != nil {
		return nil, fmt.Errorf("cannot read which homes were kept: %w", err)
	}
	defer give()
	rows, err := s.db.QueryContext(ctx, `SELECT name, key, owner, boundary, root, retained, changed_ns FROM workspaces
			WHERE phase = 'destroyed' AND retained <> '' ORDER BY changed_ns DESC`)
	if err != nil {
		return nil, fmt.Errorf("cannot read which homes were kept: %w", err)
	}
	defer rows.Close()
	var all []workspace.Retained
	for rows.Next() {
		var r workspace.Retained
		var changed int64
		if err := rows.Scan(&r.Workspace, &r.Key, &r.Owner, &r.Boundary, &r.Root, &r.Home, &changed); err != nil {
			return nil, fmt.Errorf("cannot read which homes were kept: %w", err)
		}
		r.DestroyedAtMS = changed / int64(time.Millisecond)
		all = append(all, r)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("cannot read which homes were kept: %w", err)
	}
	return all, nil
}

// ForgetRetained notes that the home of a destroyed workspace is no longer kept.
func (s *Store) ForgetRetained(ctx context.Context, name id.Workspace) error {
	if err := s.change(ctx, `UPDATE workspaces SET retained = '' WHERE name = ? AND phase = 'destroyed'`, name); err != nil {
		return fmt.Errorf("cannot note that the home of %s is gone: %w", name, err)
	}
	return nil
}

// Kept returns the workspace with that name or key that was destroyed last and whose home was kept, and where.
func (s *Store) Kept(ctx context.Context, ref string) (w Workspace, retained string, err error) {
	wrap := func(err error) (Workspace, string, error) {
		return w, "", fmt.Errorf("cannot look for workspace %q among those destroyed: %w", ref, err)
	}
	give, err := s.turn(ctx)
	if err != nil {
		return wrap(err)
	}
	defer give()
	w, err = scanWorkspace(s.db.QueryRowContext(ctx, `SELECT `+workspaceColumns+`, retained
		FROM workspaces WHERE phase = 'destroyed' AND retained <> '' AND (name = ?1 OR key = ?1) ORDER BY changed_ns DESC LIMIT 1`, ref).Scan,
		&retained)
	if errors.Is(err, sql.ErrNoRows) {
		return wrap(fmt.Errorf("no home is kept of one with this key or name; \"carrel ls --retained\" lists those that are: %w",
			errdefs.ErrNotFound))
	}
	if err != nil {
		return wrap(err)
	}
	return w, retained, nil
}

// Revive makes a workspace that Kept returned a living one again, in the phase destroying: what breaks off is
// finished as a destroy. already_exists: its key has another workspace.
func (s *Store) Revive(ctx context.Context, w Workspace, may func() error) error {
	give, err := s.turn(ctx)
	if err != nil {
		return fmt.Errorf("cannot bring workspace %s back: %w", w.Name, err)
	}
	defer give()
	if err := may(); err != nil {
		return err
	}
	w.Phase, w.Purge = workspace.Destroying, false
	n, err := s.execCounted(ctx, `UPDATE workspaces SET phase = ?, purge = 0, expires_ns = ?, changed_ns = ?
		WHERE name = ? AND phase = 'destroyed' AND retained <> ''`, w.Phase, nanos(w.Expires), s.stamp(), w.Name)
	switch {
	case conflict(err):
		return fmt.Errorf("cannot bring workspace %s back: its key %q has another workspace: %w", w.Name, w.Key, errdefs.ErrAlreadyExists)
	case err == nil && n == 0:
		err = fmt.Errorf("its home is no longer kept: %w", errdefs.ErrNotFound)
	}
	if err != nil {
		return fmt.Errorf("cannot bring workspace %s back: %w", w.Name, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.byName[w.Name], s.byKey[w.Key] = w, w.Name
	return nil
}
