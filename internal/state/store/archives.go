package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// AddArchive notes an archive whose file is in its place.
func (s *Store) AddArchive(ctx context.Context, a workspace.Archive) error {
	limits, err := json.Marshal(a.Limits)
	reach, rerr := json.Marshal(a.Reach)
	models, merr := json.Marshal(a.Models)
	if err = errors.Join(err, rerr, merr); err == nil {
		err = s.change(ctx, `INSERT INTO archives (id, workspace, key, owner, profile, limits, sha256, size, entries, bytes, created_ns,
				ttl_ns, idle_ns, reach, models)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
			a.ID, a.Workspace, a.Key, a.Owner, a.Profile, string(limits), a.SHA256, a.Size, a.Entries, a.Bytes, a.CreatedAt.UnixNano(),
			a.Life.TTL, a.Life.Idle, string(reach), string(models))
	}
	if err != nil {
		return fmt.Errorf("cannot store archive %s: %w", a.ID, err)
	}
	return nil
}

// RemoveArchive forgets an archive, and reports whether there was one.
func (s *Store) RemoveArchive(ctx context.Context, id string) (was bool, err error) {
	var n int64
	err = s.inTurn(ctx, func() error {
		n, err = s.execCounted(ctx, `DELETE FROM archives WHERE id = ?`, id)
		return err
	})
	if err != nil {
		return false, fmt.Errorf("cannot forget archive %s: %w", id, err)
	}
	return n > 0, nil
}

const archiveColumns = `SELECT id, workspace, key, owner, profile, limits, sha256, size, entries, bytes, created_ns, ttl_ns, idle_ns, reach,
	models FROM archives `

// Archives returns all archives, the newest first.
func (s *Store) Archives(ctx context.Context) ([]workspace.Archive, error) {
	all, err := list(ctx, s, scanArchive, archiveColumns+`ORDER BY created_ns DESC`)
	if err != nil {
		return nil, fmt.Errorf("cannot read the archives: %w", err)
	}
	return all, nil
}

// list returns every row of a query, in its turn.
func list[T any](ctx context.Context, s *Store, scan func(func(...any) error) (T, error), query string, args ...any) (all []T, err error) {
	give, err := s.turn(ctx)
	if err != nil {
		return nil, err
	}
	defer give()
	rows, err := s.db.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		x, err := scan(rows.Scan)
		if err != nil {
			return nil, err
		}
		all = append(all, x)
	}
	return all, rows.Err()
}

// Archive returns the archive that ref names: the one with that id if it has the form of one,
// and else the newest of the workspace with that key or name. An id never falls to a key: when
// the archive is gone, another user's workspace might have it.
func (s *Store) Archive(ctx context.Context, ref string) (workspace.Archive, error) {
	which, none := `WHERE key = ?1 OR workspace = ?1 ORDER BY created_ns DESC LIMIT 1`, "there is none of a workspace with this key or name"
	if id.IsArchive(ref) {
		which, none = `WHERE id = ?1`, "there is none with this id"
	}
	var a workspace.Archive
	err := s.inTurn(ctx, func() (err error) {
		a, err = scanArchive(s.db.QueryRowContext(ctx, archiveColumns+which, ref).Scan)
		return err
	})
	if errors.Is(err, sql.ErrNoRows) {
		return a, fmt.Errorf("cannot find an archive %q: %s; \"carrel archive ls\" lists them: %w", ref, none, errdefs.ErrNotFound)
	}
	if err != nil {
		return a, fmt.Errorf("cannot look for archive %q: %w", ref, err)
	}
	return a, nil
}

func scanArchive(scan func(...any) error) (a workspace.Archive, err error) {
	var limits, reach, models []byte
	var created int64
	if err := scan(&a.ID, &a.Workspace, &a.Key, &a.Owner, &a.Profile, &limits, &a.SHA256, &a.Size, &a.Entries, &a.Bytes,
		&created, &a.Life.TTL, &a.Life.Idle, &reach, &models); err != nil {
		return a, err
	}
	a.CreatedAt = time.Unix(0, created)
	return a, errors.Join(json.Unmarshal(limits, &a.Limits), json.Unmarshal(reach, &a.Reach), json.Unmarshal(models, &a.Models))
}
