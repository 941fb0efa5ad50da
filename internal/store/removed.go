package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/carrel-dev/carrel/internal/id"
	"github.com/carrel-dev/carrel/internal/workspace"
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
