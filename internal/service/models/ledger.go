package models

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/crashpoint"
	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/spec/budget"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/state/store"
)

// Sums is where sums are kept: store.Store.
type Sums interface {
	KeepModelSums(ctx context.Context, all []store.ModelSum) error
	ModelSums(ctx context.Context, subjects []string) (map[string]json.RawMessage, error)
	ModelSubjects(ctx context.Context, prefix string) ([]string, error)
	PruneModelSums(ctx context.Context) error
}

const (
	// lateness is how old sums on disk are at most, beside the time of a write: what a kill of the daemon loses of tokens.
	lateness = time.Second
	// writeWithin bounds a write that nobody waits for.
	writeWithin = 30 * time.Second
	// mostAhead is how many requests are reserved on disk at once, and partAhead of what is left the largest part: a kill of
	// the daemon counts as many that were not made.
	mostAhead, partAhead = 32, 16
)

// subject is what is counted for, with its limits. Each is counted for today and in all, as two.
type subject struct {
	key       string
	workspace id.Workspace // "" for one that is none
	limits    budget.Limits
}

// kept is an account on disk.
type kept struct {
	budget.Account
	// Ahead are requests that may have been granted since.
	Ahead int64 `json:"ahead,omitempty"`
}

// ledger is a budget.Book that outlives the process.
//
//	reserve ── counted in the book ──▶ granted, if so many are reserved on disk already
//	                │ else                ▲
//	                └─▶ one write reserves the next ones, for all that wait
//
// A request of a subject whose requests are limited is granted only once the disk has it. What else is counted is there a
// second later.
type ledger struct {
	sums Sums
	log  *slog.Logger
	now  func() time.Time
	turn chan struct{} // held by who writes

	mu     sync.Mutex // of what follows; held over a change of the book and a look at it
	book   *budget.Book
	of     map[string]subject
	onDisk map[string]ceiling
	dirty  map[string]bool
	next   *flight // a write that has not begun
	armed  bool
	closed bool
}

// ceiling is up to how many requests of a day are granted without another write.
type ceiling struct{ day, requests int64 }

// flight is a write that several wait for. err is set when done is closed.
type flight struct {
	done chan struct{}
	err  error
}

func newLedger(sums Sums, now func() time.Time, log *slog.Logger) *ledger {
	book, err := budget.New(nil, nil)
	if err != nil {
		panic("models: " + err.Error()) // nothing is not refused
	}
	return &ledger{
		sums: sums, log: log, now: now, turn: make(chan struct{}, 1), book: book, of: map[string]subject{}, onDisk: map[string]ceiling{},
		dirty: map[string]bool{},
	}
}

// reserve counts one request for all subjects and returns once that outlives the daemon; or refuses it. A *budget.Refused
// is that of a limit. Another error is of kind unavailable.
func (l *ledger) reserve(ctx context.Context, model string, subjects []subject) (*budget.Reservation, error) {
	if err := l.load(ctx, subjects); err != nil {
		return nil, fmt.Errorf("the budget cannot be read: %w: %w", err, errdefs.ErrUnavailable)
	}
	r, wait, err := l.count(model, subjects)
	if err != nil || !wait {
		return r, err
	}
	if err := l.durable(ctx); err != nil {
		r.Cancel()
		l.log.Warn("a request to a model was refused, because it cannot be counted", "error", err)
		return nil, fmt.Errorf("the request cannot be counted now: %w", errdefs.ErrUnavailable)
	}
	crashpoint.Here("daemon.model.reserved")
	return r, nil
}

// count counts a request, and reports whether that has to be written before it is granted.
func (l *ledger) count(model string, subjects []subject) (r *budget.Reservation, wait bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	keys := make([]string, 0, len(subjects))
	for _, s := range subjects {
		if err := l.book.Set(s.key, s.limits); err != nil {
			return nil, false, err
		}
		l.of[s.key] = s
		keys = append(keys, s.key)
	}
	if r, err = l.book.Reserve(now, model, keys...); err != nil {
		return nil, false, err
	}
	for _, s := range subjects {
		used, on := l.book.Used(now, s.key), l.onDisk[s.key]
		wait = wait || s.limits.Requests > 0 && (used.Day != on.day || used.Requests > on.requests)
	}
	l.changed(keys...)
	return r, wait, nil
}

// spend counts what a request has used.
func (l *ledger) spend(r *budget.Reservation, u budget.Usage, subjects []subject) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r.Spend(l.now(), u)
	for _, s := range subjects {
		l.changed(s.key)
	}
}

// price has these prices hold.
func (l *ledger) price(p budget.Prices) error { return l.book.Price(p) }

// changed notes that subjects are to be written. l.mu is held.
func (l *ledger) changed(keys ...string) {
	for _, key := range keys {
		if _, known := l.of[key]; known {
			l.dirty[key] = true
		}
	}
	if l.armed || l.closed {
		return
	}
	l.armed = true
	time.AfterFunc(lateness, func() {
		l.mu.Lock()
		l.armed = false
		pending := len(l.dirty) > 0
		l.mu.Unlock()
		if !pending {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), writeWithin)
		defer cancel()
		if err := l.durable(ctx); err != nil {
			l.log.Error("cannot keep what was used of models; it is tried again", "error", err)
		}
	})
}

// load reads subjects that the book does not know yet.
func (l *ledger) load(ctx context.Context, subjects []subject) error {
	var unknown []string
	l.mu.Lock()
	for _, s := range subjects {
		if !l.book.Knows(s.key) {
			unknown = append(unknown, s.key)
		}
	}
	l.mu.Unlock()
	if len(unknown) == 0 {
		return nil
	}
	rows, err := l.sums.ModelSums(asSelf(ctx), unknown)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, key := range unknown {
		was, there := rows[key]
		if !there || l.book.Knows(key) { // another call has loaded it, and counted since
			continue
		}
		a, err := read(was)
		if err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
		if err := l.book.Load(key, a); err != nil {
			return err
		}
	}
	return nil
}

// read returns an account with all requests that may have been granted.
func read(row json.RawMessage) (budget.Account, error) {
	var k kept
	err := json.Unmarshal(row, &k)
	k.Requests += max(k.Ahead, 0)
	return k.Account, err
}

// durable returns once everything that was counted before the call is on disk.
func (l *ledger) durable(ctx context.Context) error {
	l.mu.Lock()
	f := l.next
	if f == nil {
		f = &flight{done: make(chan struct{})}
		l.next = f
		go l.write(f) //nolint:gosec // it is for all that wait, and outlives who began it
	}
	l.mu.Unlock()
	select {
	case <-f.done:
		return f.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// write writes what changed. Who comes meanwhile waits for the next write.
func (l *ledger) write(f *flight) {
	l.turn <- struct{}{}
	defer func() { <-l.turn }()
	defer close(f.done)
	l.mu.Lock()
	l.next = nil
	dirty := l.dirty
	l.dirty = map[string]bool{}
	rows, next := l.rows(dirty)
	l.mu.Unlock()
	ctx, cancel := context.WithTimeout(asSelf(context.Background()), writeWithin)
	defer cancel()
	f.err = l.sums.KeepModelSums(ctx, rows)
	l.mu.Lock()
	defer l.mu.Unlock()
	if f.err != nil {
		for key := range dirty {
			l.changed(key)
		}
		return
	}
	maps.Copy(l.onDisk, next)
}

// rows are what is written of subjects, and up to where requests are granted then. l.mu is held.
func (l *ledger) rows(keys map[string]bool) (rows []store.ModelSum, next map[string]ceiling) {
	now := l.now()
	next = map[string]ceiling{}
	for key := range keys {
		s := l.of[key]
		k := kept{Account: l.book.Used(now, key)}
		if s.limits.Requests > 0 && !l.closed {
			k.Ahead = min(max(s.limits.Requests-k.Requests, 0)/partAhead, mostAhead)
		}
		text, _ := json.Marshal(k) // texts and numbers always marshal
		rows = append(rows, store.ModelSum{Subject: key, Workspace: s.workspace, Sums: text})
		next[key] = ceiling{k.Day, k.Requests + k.Ahead}
	}
	return rows, next
}

// look returns what subjects have used, also of those that were not asked about since the daemon's start.
func (l *ledger) look(ctx context.Context, keys []string) (map[string]budget.Account, error) {
	all := map[string]budget.Account{}
	var unknown []string
	l.mu.Lock()
	now := l.now()
	for _, key := range keys {
		if l.book.Knows(key) {
			all[key] = l.book.Used(now, key)
		} else {
			unknown = append(unknown, key)
		}
	}
	l.mu.Unlock()
	if len(unknown) == 0 {
		return all, nil
	}
	rows, err := l.sums.ModelSums(ctx, unknown)
	if err != nil {
		return nil, err
	}
	for key, row := range rows {
		a, err := read(row)
		if err != nil {
			return nil, fmt.Errorf("cannot read what was used of models by %s: %w", key, err)
		}
		if a.Day == 0 || a.Day >= now.Unix()/(24*60*60) {
			all[key] = a
		}
	}
	return all, nil
}

// subjects are those that begin with a text, in their order.
func (l *ledger) subjects(ctx context.Context, prefix string) ([]string, error) {
	all, err := l.sums.ModelSubjects(ctx, prefix)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	for key := range l.of { // what is not on disk yet
		if strings.HasPrefix(key, prefix) {
			all = append(all, key)
		}
	}
	l.mu.Unlock()
	slices.Sort(all)
	return slices.Compact(all), nil
}

// forget writes subjects and lets go of them.
func (l *ledger) forget(keys ...string) error {
	l.mu.Lock()
	known := false
	for _, key := range keys {
		known = known || l.book.Knows(key)
	}
	l.mu.Unlock()
	if !known {
		return nil
	}
	ctx, cancel := context.WithTimeout(asSelf(context.Background()), writeWithin)
	defer cancel()
	if err := l.durable(ctx); err != nil {
		return err
	}
	l.mu.Lock()
	for _, key := range keys {
		if !l.dirty[key] { // it was used since
			l.book.Forget(key)
			delete(l.of, key)
			delete(l.onDisk, key)
		}
	}
	l.mu.Unlock()
	return l.sums.PruneModelSums(ctx)
}

// close writes everything, with nothing reserved ahead. Nothing is reserved after it.
func (l *ledger) close(ctx context.Context) error {
	l.mu.Lock()
	l.closed = true
	for key, on := range l.onDisk {
		if l.book.Used(l.now(), key).Requests != on.requests {
			l.dirty[key] = true
		}
	}
	dirty := len(l.dirty) > 0
	l.mu.Unlock()
	if !dirty {
		return nil
	}
	return l.durable(ctx)
}

// asSelf is for the daemon's own turn at the database.
func asSelf(ctx context.Context) context.Context { return principal.NewContext(ctx, principal.Self()) }
