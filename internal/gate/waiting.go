package gate

import (
	"fmt"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/approval"
	"github.com/carrel-dev/carrel/internal/id"
)

// approvals are the questions that can still be answered.
//
// Their times are by a clock of their own, which nobody sets: see now.
type approvals struct {
	// start is the host's time at the start, or what was known to have come before if that
	// is later; elapsed is how long ago that was.
	start   time.Time
	elapsed func() time.Duration

	// answering is held from the look at a question to its change.
	answering sync.Mutex

	mu   sync.Mutex
	open map[id.Approval]*asking
	// all, of and by count them: in all, of each owner and by each principal.
	all    tally
	of, by map[string]tally
	// changed are the newest changes, for those who watch.
	changed []id.Approval
	changes int64
	more    chan struct{}

	quit     chan struct{} // closed when nobody is to wait any more
	quitOnce sync.Once
}

// asking is one of them.
type asking struct {
	until     time.Time
	waiters   int
	done      chan struct{} // closed when it was answered or its time is over
	by, owner string
	written   bool
}

// tally counts questions, and those of them that a model or a program wrote.
type tally struct{ all, written int }

func (t tally) plus(n int, written bool) tally {
	t.all += n
	if written {
		t.written += n
	}
	return t
}

// How many questions may wait for an answer. Nobody's programs can keep another from asking,
// and no programs can keep people from it: of each bound a tenth is for what people typed.
const (
	maxPending            = 10_000
	maxPendingOfOwner     = 2_000 // one person's, with all their tokens
	maxPendingByPrincipal = 1_000
)

// full reports whether one more is too many.
func (t tally) full(bound int, written bool) bool {
	return t.all >= bound || written && t.written >= bound-bound/10
}

func newApprovals() approvals {
	began := time.Now()
	return approvals{start: began.Round(0), elapsed: func() time.Duration { return time.Since(began) }, open: map[id.Approval]*asking{}, of: map[string]tally{}, by: map[string]tally{}, more: make(chan struct{}), quit: make(chan struct{})}
}

// keepChanges is how many changes those who watch may be behind.
const keepChanges = 4096

func (a *approvals) note(name id.Approval) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.changed) == keepChanges {
		a.changed = append(a.changed[:0], a.changed[keepChanges/2:]...)
	}
	a.changed = append(a.changed, name)
	a.changes++
	close(a.more)
	a.more = make(chan struct{})
}

// since returns what changed after the nth change, and what is closed at the next. lost says
// that some of it is not known any more.
func (a *approvals) since(n int64) (list []id.Approval, at int64, lost bool, more <-chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	first := a.changes - int64(len(a.changed))
	lost = n < first
	list = append(list, a.changed[max(n-first, 0):]...)
	return list, a.changes, lost, a.more
}

// admit opens a new question with one who waits for it. resource_exhausted: as many wait as
// there may.
func (a *approvals) admit(q *approval.Approval) (*asking, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	by, of := a.by[q.Subject.By], a.of[q.Owner]
	if by.full(maxPendingByPrincipal, q.Written) || of.full(maxPendingOfOwner, q.Written) || a.all.full(maxPending, q.Written) {
		return nil, fmt.Errorf("cannot ask a person about it: %d questions wait for an answer, %d of them from %s and %d of %s in all, and there may be %d, %d and %d, a tenth of each kept for what people type; answer some (\"carrel approvals list\") or let their time pass: %w",
			a.all.all, by.all, q.Subject.By, of.all, q.Owner, maxPending, maxPendingByPrincipal, maxPendingOfOwner, errdefs.ErrResourceExhausted)
	}
	return a.put(q, 1), nil
}

// add opens a question that was asked before, and nobody waits for it.
func (a *approvals) add(q *approval.Approval) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.put(q, 0)
}

// put opens a question. a.mu is held.
func (a *approvals) put(q *approval.Approval, waiters int) *asking {
	x := &asking{until: q.Until, waiters: waiters, done: make(chan struct{}), by: q.Subject.By, owner: q.Owner, written: q.Written}
	a.open[q.ID] = x
	a.count(x, 1)
	return x
}

// count adds n to the tallies that a question is in. a.mu is held.
func (a *approvals) count(x *asking, n int) {
	a.all = a.all.plus(n, x.written)
	for _, in := range []struct {
		m    map[string]tally
		name string
	}{{a.by, x.by}, {a.of, x.owner}} {
		if t := in.m[in.name].plus(n, x.written); t.all > 0 {
			in.m[in.name] = t
		} else {
			delete(in.m, in.name)
		}
	}
}

// take makes the caller the one who waits for a question; nil if another does or it is over.
func (a *approvals) take(name id.Approval) *asking {
	a.mu.Lock()
	defer a.mu.Unlock()
	x := a.open[name]
	if x == nil || x.waiters > 0 {
		return nil
	}
	x.waiters++
	return x
}

func (a *approvals) leave(x *asking) {
	a.mu.Lock()
	defer a.mu.Unlock()
	x.waiters--
}

// finish ends a question; false if it has ended before.
func (a *approvals) finish(name id.Approval) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	x := a.open[name]
	if x == nil {
		return false
	}
	delete(a.open, name)
	a.count(x, -1)
	close(x.done)
	return true
}

// now is the time by which questions are asked, answered and over. Setting the host's clock
// while the daemon runs changes nothing about it, so that no question ends early and no answer
// lives longer.
func (a *approvals) now() time.Time { return a.start.Add(a.elapsed()) }

// notBefore has the clock begin at the latest time that is known, if the host's was set back
// while no daemon ran. One that is later than any question can be open was a wrong one.
func (a *approvals) notBefore(known time.Time) {
	if known.After(a.start) && known.Sub(a.start) <= approval.MaxWait {
		a.start = known.Round(0)
	}
}

// StopAsking ends the waiting for answers: who waits is told to ask again. The questions
// stay.
func (g *Gate) StopAsking() { g.approvals.quitOnce.Do(func() { close(g.approvals.quit) }) }
