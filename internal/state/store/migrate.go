package store

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/containerd/errdefs"
)

// migrations holds NNNN_name.sql files, applied in order. Number n brings the
// schema from version n-1 to n; a file that was released is never changed.
//
//go:embed migrations/*.sql
var migrations embed.FS

// migrate applies what is missing, each file in a transaction of its own with
// the new version number (SQLite's user_version) in it.
func migrate(ctx context.Context, db *sql.DB, files fs.FS) error {
	names, err := fs.Glob(files, "migrations/*.sql")
	if err != nil {
		return fmt.Errorf("cannot list the migrations: %w", err)
	}
	var have int
	if err := db.QueryRowContext(ctx, `PRAGMA user_version`).Scan(&have); err != nil {
		return fmt.Errorf("cannot read its schema version: %w", err)
	}
	if have > len(names) {
		return fmt.Errorf("its schema has version %d and this carreld knows up to %d: a newer carreld has written it; run that one, or "+
			"restore a copy from before: %w",
			have, len(names), errdefs.ErrFailedPrecondition)
	}
	for i, name := range names {
		version := i + 1
		if !strings.HasPrefix(name, fmt.Sprintf("migrations/%04d_", version)) {
			return fmt.Errorf("cannot apply migration %s: it stands in the place of number %04d: %w", name, version, errdefs.ErrInternal)
		}
		if version <= have {
			continue
		}
		script, err := fs.ReadFile(files, name)
		if err == nil {
			err = apply(ctx, db, string(script), version)
		}
		if err != nil {
			return fmt.Errorf("cannot apply %s; the database is as it was before it: %w", name, err)
		}
	}
	return nil
}

func apply(ctx context.Context, db *sql.DB, script string, version int) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, script)
	if err == nil {
		_, err = tx.ExecContext(ctx, fmt.Sprintf(`PRAGMA user_version = %d`, version))
	}
	if err != nil {
		return errors.Join(err, tx.Rollback())
	}
	return tx.Commit()
}
