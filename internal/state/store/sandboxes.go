package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/carrel-dev/carrel/internal/base/id"
)

// SetSandbox keeps what a workspace has for clients of E2B, JSON, until the workspace goes.
func (s *Store) SetSandbox(ctx context.Context, name id.Workspace, text string) error {
	err := s.change(ctx, `INSERT INTO sandboxes (name, text) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET text = excluded.text`, name, text)
	if err != nil {
		return fmt.Errorf("cannot keep what %s has as a sandbox: %w", name, err)
	}
	return nil
}

// Sandbox returns what SetSandbox kept, "" if that is nothing.
func (s *Store) Sandbox(ctx context.Context, name id.Workspace) (text string, err error) {
	err = s.inTurn(ctx, func() error {
		return s.db.QueryRowContext(ctx, `SELECT text FROM sandboxes WHERE name = ?`, name).Scan(&text)
	})
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return "", fmt.Errorf("cannot read what %s has as a sandbox: %w", name, err)
	}
	return text, nil
}
