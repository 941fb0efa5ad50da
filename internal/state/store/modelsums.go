package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/carrel-dev/carrel/internal/base/id"
)

// ModelSum is what was used of models by one subject, as package models writes it.
type ModelSum struct {
	Subject string
	// Workspace is that of the subject, "" for none: the sum goes when its home has.
	Workspace id.Workspace
	// Sums is JSON.
	Sums json.RawMessage
}

// KeepModelSums keeps sums in the place of earlier ones of their subjects: all of them, or none.
func (s *Store) KeepModelSums(ctx context.Context, all []ModelSum) error {
	if len(all) == 0 {
		return nil
	}
	give, err := s.turn(ctx)
	if err == nil {
		defer give()
		err = s.inTx(ctx, func(tx *sql.Tx) error {
			for _, x := range all {
				if _, err := tx.ExecContext(ctx, `INSERT INTO model_sums (subject, workspace, sums) VALUES (?, ?, ?)
						ON CONFLICT (subject) DO UPDATE SET workspace = excluded.workspace, sums = excluded.sums`,
					x.Subject, x.Workspace, string(x.Sums)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err != nil {
		return fmt.Errorf("cannot store what was used of models: %w", err)
	}
	return nil
}

// ModelSums returns the sums of these subjects that there are.
func (s *Store) ModelSums(ctx context.Context, subjects []string) (map[string]json.RawMessage, error) {
	all := make(map[string]json.RawMessage, len(subjects))
	err := s.inTurn(ctx, func() error {
		for _, subject := range subjects {
			var sums []byte
			err := s.db.QueryRowContext(ctx, `SELECT sums FROM model_sums WHERE subject = ?`, subject).Scan(&sums)
			if errors.Is(err, sql.ErrNoRows) {
				continue
			}
			if err != nil {
				return err
			}
			all[subject] = sums
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("cannot read what was used of models: %w", err)
	}
	return all, nil
}

// ModelSubjects returns the subjects that begin with a text, in their order.
func (s *Store) ModelSubjects(ctx context.Context, prefix string) ([]string, error) {
	all, err := list(ctx, s, func(scan func(...any) error) (subject string, err error) { return subject, scan(&subject) },
		`SELECT subject FROM model_sums WHERE substr(subject, 1, length(?1)) = ?1 ORDER BY subject`, prefix)
	if err != nil {
		return nil, fmt.Errorf("cannot read what was used of models: %w", err)
	}
	return all, nil
}

// PruneModelSums removes the sums of workspaces that are gone with their homes. Those of owners stay.
func (s *Store) PruneModelSums(ctx context.Context) error {
	err := s.change(ctx, `DELETE FROM model_sums WHERE workspace <> '' AND workspace NOT IN
			(SELECT name FROM workspaces WHERE phase <> 'destroyed' OR retained <> '')`)
	if err != nil {
		return fmt.Errorf("cannot remove what was used of models by workspaces that are gone: %w", err)
	}
	return nil
}
