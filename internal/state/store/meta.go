package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
)

// Beside has each change keep what value returns, under name, in the same transaction: what was so
// elsewhere when the change was made. It is called before anything else.
func (s *Store) Beside(name string, value func() string) { s.beside.name, s.beside.value = name, value }

const setMeta = `INSERT INTO meta (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value`

// Meta returns the value kept under name, "" if there is none.
func (s *Store) Meta(ctx context.Context, name string) (string, error) {
	var v string
	err := s.inTurn(ctx, func() error { return s.db.QueryRowContext(ctx, `SELECT value FROM meta WHERE name = ?`, name).Scan(&v) })
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return "", fmt.Errorf("cannot read %s from the database: %w", name, err)
	}
	return v, nil
}

// SetMeta keeps value under name.
func (s *Store) SetMeta(ctx context.Context, name, value string) error {
	err := s.change(ctx, setMeta, name, value)
	if err != nil {
		return fmt.Errorf("cannot keep %s in the database: %w", name, err)
	}
	return nil
}
