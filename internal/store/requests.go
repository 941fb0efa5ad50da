package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
)

// keepRequests is how long an id of a request is remembered, by the host's clock: one that
// is set forward by more forgets it earlier.
const keepRequests = 24 * time.Hour

// Begin notes that principal asked under id for the action with this digest. If it was
// asked before, answer is what was answered; it is "" where that is not known, because
// it is under way or the daemon ended meanwhile, and then the action is to be carried
// out: it takes up what was begun, which began then. Of an id that is new, began is zero.
// already_exists: the id was used for another action.
func (s *Store) Begin(ctx context.Context, principal, id, digest string) (answer string, began time.Time, err error) {
	fail := func(err error) (string, time.Time, error) {
		return "", time.Time{}, fmt.Errorf("cannot note request %q: %w", id, err)
	}
	s.change.Lock()
	defer s.change.Unlock()
	var was string
	var first int64
	err = s.db.QueryRowContext(ctx, `SELECT digest, answer, began_ns FROM requests WHERE principal = ? AND id = ?`, principal,
		id).Scan(&was, &answer, &first)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		if err := s.exec(ctx, `DELETE FROM requests WHERE began_ns < ?`, s.clock().Add(-keepRequests).UnixNano()); err != nil {
			return fail(err)
		}
		if err := s.exec(ctx, `INSERT INTO requests (principal, id, digest, began_ns) VALUES (?, ?, ?, ?)`, principal, id, digest,
			s.stamp()); err != nil {
			return fail(err)
		}
		return "", time.Time{}, nil
	case err != nil:
		return fail(err)
	case was != digest:
		return fail(fmt.Errorf("it was used for another action; choose another id: %w", errdefs.ErrAlreadyExists))
	}
	return answer, timeOf(first), nil
}

// Answer keeps the answer to a request that was noted, as JSON. A request that failed is
// to be forgotten with Forget, so that it can be asked again.
func (s *Store) Answer(ctx context.Context, principal, id, answer string) error {
	if err := s.exec(ctx, `UPDATE requests SET answer = ? WHERE principal = ? AND id = ?`, answer, principal, id); err != nil {
		return fmt.Errorf("cannot keep the answer to request %q: %w", id, err)
	}
	return nil
}

// Forget makes an id free again.
func (s *Store) Forget(ctx context.Context, principal, id string) error {
	if err := s.exec(ctx, `DELETE FROM requests WHERE principal = ? AND id = ?`, principal, id); err != nil {
		return fmt.Errorf("cannot forget request %q: %w", id, err)
	}
	return nil
}
