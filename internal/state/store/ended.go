package store

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/carrel-dev/carrel/internal/base/id"
)

// A question that is over without an answer ends in two steps, so that a crash between them
// leaves it to be seen: EndApproval, or EndOverdue for all at a start, and, once the record has
// it, NoteEnds. What is between the two, with an ended of -1, EndingApprovals lists.

// EndApproval ends a question: nobody can answer it any more. false: it was answered, or has
// ended, before.
func (s *Store) EndApproval(ctx context.Context, name id.Approval) (bool, error) {
	n, err := s.end(ctx, `id = ?`, name)
	if err != nil {
		return false, fmt.Errorf("cannot end approval %s: %w", name, err)
	}
	return n > 0, nil
}

// EndOverdue ends every question that is over at a time, or was asked after it: by a clock
// that was wrong; see approval.Approval.At.
func (s *Store) EndOverdue(ctx context.Context, now time.Time) error {
	if _, err := s.end(ctx, `(until_ns <= ? OR asked_ns > ?)`, now.UnixNano(), now.UnixNano()); err != nil {
		return fmt.Errorf("cannot end the approvals whose time is over: %w", err)
	}
	return nil
}

func (s *Store) end(ctx context.Context, which string, args ...any) (n int64, err error) {
	give, err := s.turn(ctx)
	if err != nil {
		return 0, err
	}
	defer give()
	err = s.inTx(ctx, func(tx *sql.Tx) error {
		//nolint:gosec // which is one of the constants above
		done, err := tx.ExecContext(ctx, `UPDATE approvals SET ended = -1 WHERE state = 'pending' AND ended = 0 AND `+which, args...)
		if err == nil {
			n, err = done.RowsAffected()
		}
		return err
	})
	return n, err
}

// NoteEnds notes where the record has the ends of questions.
func (s *Store) NoteEnds(ctx context.Context, at map[id.Approval]int64) error {
	give, err := s.turn(ctx)
	if err != nil {
		return fmt.Errorf("cannot note that approvals have ended: %w", err)
	}
	defer give()
	err = s.inTx(ctx, func(tx *sql.Tx) error {
		for name, seq := range at {
			if _, err := tx.ExecContext(ctx, `UPDATE approvals SET ended = ? WHERE id = ? AND ended = -1`, seq, name); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("cannot note that approvals have ended: %w", err)
	}
	return nil
}

// EndingNames returns the questions whose end the record is not known to have.
func (s *Store) EndingNames(ctx context.Context) (map[id.Approval]bool, error) {
	fail := func(err error) error { return fmt.Errorf("cannot read the approvals: %w", err) }
	give, err := s.turn(ctx)
	if err != nil {
		return nil, fail(err)
	}
	defer give()
	rows, err := s.db.QueryContext(ctx, `SELECT id FROM approvals WHERE ended = -1`)
	if err != nil {
		return nil, fail(err)
	}
	defer rows.Close()
	names := map[id.Approval]bool{}
	for rows.Next() {
		var name id.Approval
		if err := rows.Scan(&name); err != nil {
			return nil, fail(err)
		}
		names[name] = true
	}
	if err := rows.Err(); err != nil {
		return nil, fail(err)
	}
	return names, nil
}

// EndingApprovals returns up to n of them. What they show may be long.
func (s *Store) EndingApprovals(ctx context.Context, n int) ([]Approval, error) {
	return s.approvals(ctx, `SELECT `+approvalColumns+` FROM approvals WHERE ended = -1 ORDER BY id LIMIT ?`, n)
}
