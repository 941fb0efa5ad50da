package store

import (
	"context"
	"slices"
	"sync"

	"github.com/carrel-dev/carrel/internal/spec/principal"
)

// turns is the queue in front of the database, which has one connection. Principals are served in
// rotation, whoever has the most calls waiting, and the calls of one principal in the order in which they
// came. So the calls of one delay those of another by one at most. A principal is an owner with all
// their tokens; the daemon's own work is one principal too. The zero value is ready for use.
type turns struct {
	mu     sync.Mutex
	taken  bool
	holder string // who has the turn
	// waiting are the calls of each principal, and next the principals that have some, in the order in which
	// they are served. The holder is not among those: it gets behind them when it gives the turn back.
	waiting map[string][]chan struct{}
	next    []string
}

// take waits for a turn of who. give ends it, and is called once. The error is that of ctx.
func (t *turns) take(ctx context.Context, who string) (give func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	t.mu.Lock()
	if !t.taken {
		t.taken, t.holder = true, who
		t.mu.Unlock()
		return t.give, nil
	}
	if t.waiting == nil {
		t.waiting = map[string][]chan struct{}{}
	}
	if len(t.waiting[who]) == 0 && who != t.holder {
		t.next = append(t.next, who)
	}
	turn := make(chan struct{})
	t.waiting[who] = append(t.waiting[who], turn)
	t.mu.Unlock()
	select {
	case <-turn:
		return t.give, nil
	case <-ctx.Done():
	}
	if !t.leave(who, turn) { // it came meanwhile
		t.give()
	}
	return nil, ctx.Err()
}

// leave takes a call out of the queue. It is false if the call has had its turn.
func (t *turns) leave(who string, turn chan struct{}) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	calls := t.waiting[who]
	i := slices.Index(calls, turn)
	if i < 0 {
		return false
	}
	if calls = slices.Delete(calls, i, i+1); len(calls) > 0 {
		t.waiting[who] = calls
		return true
	}
	delete(t.waiting, who)
	if i := slices.Index(t.next, who); i >= 0 {
		t.next = slices.Delete(t.next, i, i+1)
	}
	return true
}

// give hands the turn to the next call.
func (t *turns) give() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.waiting[t.holder]) > 0 {
		t.next = append(t.next, t.holder)
	}
	if len(t.next) == 0 {
		t.taken, t.holder = false, ""
		return
	}
	who := t.next[0]
	t.next = slices.Delete(t.next, 0, 1)
	calls := t.waiting[who]
	turn := calls[0]
	if calls = slices.Delete(calls, 0, 1); len(calls) > 0 {
		t.waiting[who] = calls
	} else {
		delete(t.waiting, who)
	}
	t.holder = who
	close(turn)
}

// turn waits until the database is the caller's, who is the principal of ctx. Whoever holds it may change what
// is held in memory too.
func (s *Store) turn(ctx context.Context) (give func(), err error) {
	return s.turns.take(ctx, principal.FromContext(ctx).Owner())
}

// Decode waits for a turn at making what people see of what was read, which takes a processor for long: one does
// that at a time, and the other processors are for who has less to do. Nothing is waited for meanwhile.
func (s *Store) Decode(ctx context.Context) (give func(), err error) {
	return s.decoding.take(ctx, principal.FromContext(ctx).Owner())
}

// inTurn is for what one turn is enough for.
func (s *Store) inTurn(ctx context.Context, f func() error) error {
	give, err := s.turn(ctx)
	if err != nil {
		return err
	}
	defer give()
	return f()
}
