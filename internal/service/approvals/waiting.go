package approvals

import (
	"fmt"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/spec/approval"
)

// waiting are the questions that can still be answered, with who waits for each.
type waiting struct {
	mu   sync.Mutex
	open map[id.Approval]*waiter
	// all, of and by count them: in all, of each owner and by each principal.
	all    tally
	of, by map[string]tally
}

// waiter is an open question.
type waiter struct {
	until     time.Time
	waiters   int
	done      chan struct{} // closed when it was answered or its time is over
	answered  bool          // known once done is closed
	by, owner string
	written   bool
	size      int64
	// part is the digest of the part of a plan that is about some of its files; nil if there is no such part.
	part func(files []string) (digest string, err error)
}

// load is a number of questions, and of the bytes that are kept of them.
type load struct {
	n     int
	bytes int64
}

func (l load) plus(n int, bytes int64) load { return load{l.n + n, l.bytes + int64(n)*bytes} }

// tally counts questions, and those of them that a model or a program wrote.
type tally struct{ all, written load }

func (t tally) plus(n int, w *waiter) tally {
	t.all = t.all.plus(n, w.size)
	if w.written {
		t.written = t.written.plus(n, w.size)
	}
	return t
}

// What may wait for an answer. Nobody's programs can keep another from asking, and no programs
// can keep people from it: of each bound a tenth is for what people typed.
var (
	maxPending            = load{10_000, 256 << 20}
	maxPendingOfOwner     = load{2_000, 64 << 20} // one person's, with all their tokens
	maxPendingByPrincipal = load{1_000, 32 << 20}
)

// over says how a question is more than a bound leaves, "" if it is not.
func (t tally) over(bound load, w *waiter) string {
	has := t.all
	if w.written {
		tenth := load{bound.n - bound.n/10, bound.bytes - bound.bytes/10}
		if t.written.n >= tenth.n || t.written.bytes+w.size > tenth.bytes {
			bound, has = tenth, t.written
		}
	}
	switch {
	case has.n >= bound.n:
		return fmt.Sprintf("%d, of at most %d", has.n, bound.n)
	case has.bytes+w.size > bound.bytes:
		return fmt.Sprintf("%d, which take %d KiB, and this one %d more, of at most %d KiB", has.n, has.bytes>>10, (w.size+1023)>>10,
			bound.bytes>>10)
	}
	return ""
}

func newWaiting() waiting {
	return waiting{open: map[id.Approval]*waiter{}, of: map[string]tally{}, by: map[string]tally{}}
}

// admit opens a new question, of which so many bytes are kept, with its first waiter.
// resource_exhausted: as many wait as may, or as long ones.
func (q *waiting) admit(a *approval.Approval, size int64) (*waiter, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	w := waiterOf(a, size)
	for _, b := range []struct {
		has   tally
		bound load
		whose string
	}{
		{q.by[w.by], maxPendingByPrincipal, "of " + w.by},
		{q.of[w.owner], maxPendingOfOwner, "of " + w.owner + " and their tokens"},
		{q.all, maxPending, "of everybody"},
	} {
		over := b.has.over(b.bound, w)
		if over == "" {
			continue
		}
		if b.bound == maxPending {
			b.whose += q.most()
		}
		kept := ""
		if w.written {
			kept = " for what programs write; a tenth more is kept for what people type"
		}
		return nil, fmt.Errorf("cannot ask a person about it: too many questions %s wait for an answer: %s%s; see them with \"carrel "+
			"approvals list\", answer or deny some (\"carrel approvals deny ID\"), or let their time pass: %w",
			b.whose, over, kept, errdefs.ErrResourceExhausted)
	}
	w.waiters = 1
	q.put(a.ID, w)
	return w, nil
}

// most says who has the most questions, and the most bytes. q.mu is held.
func (q *waiting) most() string {
	var many, long string
	for owner, t := range q.of { // of equal ones the first by name
		if m := q.of[many].all.n; t.all.n > m || t.all.n == m && owner < many {
			many = owner
		}
		if m := q.of[long].all.bytes; t.all.bytes > m || t.all.bytes == m && owner < long {
			long = owner
		}
	}
	return fmt.Sprintf(" (the most, %d, of %s; the longest, %d KiB, of %s)", q.of[many].all.n, many, q.of[long].all.bytes>>10, long)
}

// add opens a question that was asked before, and nobody waits for it.
func (q *waiting) add(a *approval.Approval, size int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.put(a.ID, waiterOf(a, size))
}

func waiterOf(a *approval.Approval, size int64) *waiter {
	return &waiter{until: a.Until, done: make(chan struct{}), by: a.Subject.By, owner: a.Owner, written: a.Written, size: size}
}

// put opens a question. q.mu is held.
func (q *waiting) put(name id.Approval, w *waiter) {
	q.open[name] = w
	q.count(w, 1)
}

// count adds n times a question to the tallies that it is in. q.mu is held.
func (q *waiting) count(w *waiter, n int) {
	q.all = q.all.plus(n, w)
	for _, in := range []struct {
		m    map[string]tally
		name string
	}{{q.by, w.by}, {q.of, w.owner}} {
		if t := in.m[in.name].plus(n, w); t.all.n > 0 {
			in.m[in.name] = t
		} else {
			delete(in.m, in.name)
		}
	}
}

// take makes the caller the one that waits for a question; nil if another does or it is over.
func (q *waiting) take(name id.Approval) *waiter {
	q.mu.Lock()
	defer q.mu.Unlock()
	w := q.open[name]
	if w == nil || w.waiters > 0 {
		return nil
	}
	w.waiters++
	return w
}

func (q *waiting) leave(w *waiter) {
	q.mu.Lock()
	defer q.mu.Unlock()
	w.waiters--
	w.part = nil
}

// offer has a question be answered for some files.
func (q *waiting) offer(w *waiter, part func([]string) (string, error)) {
	q.mu.Lock()
	defer q.mu.Unlock()
	w.part = part
}

// part is what offer has given for a question, nil for nothing.
func (q *waiting) part(name id.Approval) func([]string) (string, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if w := q.open[name]; w != nil {
		return w.part
	}
	return nil
}

// finish ends a question, which was answered or not; false if it has ended before.
func (q *waiting) finish(name id.Approval, answered bool) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	w := q.open[name]
	if w == nil {
		return false
	}
	delete(q.open, name)
	q.count(w, -1)
	w.answered = answered
	close(w.done)
	return true
}

// over returns the questions that nobody waits for and whose time has passed.
func (q *waiting) over(now time.Time) (names []id.Approval) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for name, w := range q.open {
		if w.waiters == 0 && !now.Before(w.until) {
			names = append(names, name)
		}
	}
	return names
}
