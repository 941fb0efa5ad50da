package lifecycle

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/crashpoint"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/state/store"
)

// Attempt is an attempt at an operation that a client asks for under an id of its own.
type Attempt struct {
	// Own names what the operation acts on: the thing itself and not a key, which may mean
	// another thing by the time that the operation is asked for again. "" where it is not known.
	Own string
	// Began is when an earlier attempt began that has no answer: it may have had the effect. Zero:
	// there was none.
	Began time.Time

	// by is the request, nil for one without an id.
	by   []store.RequestID
	kept bool
}

// Keep says that an attempt which fails has had an effect, or may have: the id stays with what it
// acts on, and who asks again goes on there.
func (a *Attempt) Keep() { a.kept = true }

// requests are the attempts under way, one for each id.
type requests struct {
	mu   sync.Mutex
	open map[store.RequestID]*underAttempt
}

// underAttempt is an attempt under way. Its result is read once done is closed.
type underAttempt struct {
	digest string
	done   chan struct{}
	answer any
	err    error
	// left: it failed and its caller had gone, so that its error is nobody else's.
	left bool
}

// claim makes an attempt the one under way; if there is one already, claim returns that one.
func (r *requests) claim(id store.RequestID, digest string) (u *underAttempt, claimed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if u := r.open[id]; u != nil {
		return u, false
	}
	if r.open == nil {
		r.open = map[store.RequestID]*underAttempt{}
	}
	u = &underAttempt{digest: digest, done: make(chan struct{}), err: errUnfinished}
	r.open[id] = u
	return u, true
}

func (r *requests) release(id store.RequestID, u *underAttempt) {
	r.mu.Lock()
	delete(r.open, id)
	r.mu.Unlock()
	close(u.done)
}

// Once carries out an operation that a client asks for under an id of its own. The client may
// repeat it when it does not know whether it was heard, and gets the answer of the first time.
// One attempt is made at a time: who asks meanwhile waits, and has its result. An attempt takes up
// what an earlier one began that has no answer. own names what the operation acts on, "" where
// that is not known before; the attempt has what the first one said.
//
// An answer is not judged here: whoever asks again may not reach any more what it names. Without
// an id, f is just called.
func Once[T any](ctx context.Context, l *Lifecycle, p principal.Principal, request string, op operation.Operation, on operation.Target,
	own string, f func(*Attempt) (T, error),
) (T, error) {
	var none T
	if request == "" {
		return f(&Attempt{Own: own})
	}
	canonical, err := operation.Canonical(op, on)
	if err != nil {
		return none, err
	}
	id, digest := store.RequestID{Principal: p.String(), ID: request}, operation.Digest(canonical)
	for {
		u, claimed := l.requests.claim(id, digest)
		if claimed {
			return attempt(ctx, l, id, u, own, f)
		}
		if u.digest != digest {
			return none, fmt.Errorf("cannot note request %q: another action is under way with it; choose another id: %w", request,
				errdefs.ErrAlreadyExists)
		}
		select {
		case <-u.done:
		case <-ctx.Done():
			return none, context.Cause(ctx)
		}
		if u.left {
			continue
		}
		answer, _ := u.answer.(T) // none if it failed
		return answer, u.err
	}
}

// attempt makes the one attempt under way.
func attempt[T any](ctx context.Context, l *Lifecycle, id store.RequestID, u *underAttempt, own string, f func(*Attempt) (T, error),
) (T, error) {
	defer l.requests.release(id, u)
	answer, err := noted(ctx, l, id, u.digest, own, f)
	u.answer, u.err, u.left = answer, err, err != nil && ctx.Err() != nil
	return answer, err
}

// noted carries an operation out between two notes of its request.
func noted[T any](ctx context.Context, l *Lifecycle, id store.RequestID, digest, own string, f func(*Attempt) (T, error),
) (answer T, err error) {
	was, err := l.cfg.Store.Begin(ctx, id, digest, own)
	if err != nil {
		return answer, err
	}
	if was.Answer != "" {
		if err := json.Unmarshal([]byte(was.Answer), &answer); err != nil {
			return answer, fmt.Errorf("cannot read the answer to request %q: %w: %w", id.ID, err, errdefs.ErrDataLoss)
		}
		return answer, nil
	}
	ctx = context.WithoutCancel(ctx) // what was done is noted
	crashpoint.Here("daemon.request.begun")
	a := &Attempt{Own: was.Own, Began: was.Began, by: []store.RequestID{id}}
	answer, err = f(a)
	crashpoint.Here("daemon.request.done")
	if err != nil {
		// What an attempt before this one may have done stays known.
		if a.kept || !was.Began.IsZero() {
			return answer, err
		}
		return answer, errors.Join(err, l.cfg.Store.Forget(ctx, id))
	}
	text, err := json.Marshal(answer)
	if err != nil {
		return answer, fmt.Errorf("cannot keep the answer to request %q: %w", id.ID, err)
	}
	return answer, l.cfg.Store.Answer(ctx, id, string(text))
}
