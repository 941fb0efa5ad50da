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

// RequestID is the id that a principal gave a request.
type RequestID struct{ Principal, ID string }

// Request is what is known of a request with an id.
type Request struct {
	// Answer is the answer as JSON, "" where it is not known, because the daemon ended meanwhile
	// or what failed had an effect. Then the action is to be taken up.
	Answer string
	// Own names what it acts on, "" if that is not known.
	Own string
	// Began is when it was first asked for; zero if that is now.
	Began time.Time
}

// Begin notes that a request for the action with this digest was asked for, and that it acts on
// own, "" if that is not known yet; or returns what is known of it if it was asked for before.
// already_exists: the id was used for another action.
func (s *Store) Begin(ctx context.Context, r RequestID, digest, own string) (was Request, err error) {
	fail := func(err error) (Request, error) {
		return Request{}, fmt.Errorf("cannot note request %q: %w", r.ID, err)
	}
	give, err := s.turn(ctx)
	if err != nil {
		return fail(err)
	}
	defer give()
	var before string
	var began int64
	err = s.db.QueryRowContext(ctx, `SELECT digest, answer, own, began_ns FROM requests WHERE principal = ? AND id = ?`, r.Principal,
		r.ID).Scan(&before, &was.Answer, &was.Own, &began)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		if err := s.exec(ctx, `DELETE FROM requests WHERE began_ns < ?`, s.clock().Add(-keepRequests).UnixNano()); err != nil {
			return fail(err)
		}
		if err := s.exec(ctx, `INSERT INTO requests (principal, id, digest, own, began_ns) VALUES (?, ?, ?, ?, ?)`, r.Principal, r.ID,
			digest, own, s.stamp()); err != nil {
			return fail(err)
		}
		return Request{Own: own}, nil
	case err != nil:
		return fail(err)
	case before != digest:
		return fail(fmt.Errorf("it was used for another action; choose another id: %w", errdefs.ErrAlreadyExists))
	}
	was.Began = timeOf(began)
	return was, nil
}

// Answer keeps the answer to a request that was noted, as JSON. A request that failed without an
// effect is to be forgotten with Forget, so that it can be asked again.
func (s *Store) Answer(ctx context.Context, r RequestID, answer string) error {
	if err := s.change(ctx, `UPDATE requests SET answer = ? WHERE principal = ? AND id = ?`, answer, r.Principal, r.ID); err != nil {
		return fmt.Errorf("cannot keep the answer to request %q: %w", r.ID, err)
	}
	return nil
}

// Forget makes an id free again, unless it has an answer.
func (s *Store) Forget(ctx context.Context, r RequestID) error {
	if err := s.change(ctx, `DELETE FROM requests WHERE principal = ? AND id = ? AND answer = ''`, r.Principal, r.ID); err != nil {
		return fmt.Errorf("cannot forget request %q: %w", r.ID, err)
	}
	return nil
}
