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
	size      int64
}

// load is a number of questions, and of the bytes that are kept of them.
type load struct {
	n     int
	bytes int64
}

func (l load) plus(n int, bytes int64) load { return load{l.n + n, l.bytes + int64(n)*bytes} }

// tally counts questions, and those of them that a model or a program wrote.
type tally struct{ all, written load }

func (t tally) plus(n int, x *asking) tally {
	t.all = t.all.plus(n, x.size)
	if x.written {
		t.written = t.written.plus(n, x.size)
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

// keepAnswered bounds what is kept of the questions about one owner's workspaces that are over,
// in bytes: the oldest go first.
const keepAnswered = 64 << 20

// over says how a question is more than a bound leaves, "" if it is not.
func (t tally) over(bound load, x *asking) string {
	has := t.all
	if x.written {
		tenth := load{bound.n - bound.n/10, bound.bytes - bound.bytes/10}
		if t.written.n >= tenth.n || t.written.bytes+x.size > tenth.bytes {
			bound, has = tenth, t.written
		}
	}
	switch {
	case has.n >= bound.n:
		return fmt.Sprintf("%d, of at most %d", has.n, bound.n)
	case has.bytes+x.size > bound.bytes:
		return fmt.Sprintf("%d, which take %d KiB, and this one %d more, of at most %d KiB", has.n, has.bytes>>10, (x.size+1023)>>10, bound.bytes>>10)
	}
	return ""
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

// admit opens a new question, of which so many bytes are kept, with one who waits for it.
// resource_exhausted: as many wait as there may, or as long ones.
func (a *approvals) admit(q *approval.Approval, size int64) (*asking, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	x := askingOf(q, size)
	for _, b := range []struct {
		has   tally
		bound load
		whose string
	}{
		{a.by[x.by], maxPendingByPrincipal, "of " + x.by},
		{a.of[x.owner], maxPendingOfOwner, "of " + x.owner + " and their tokens"},
		{a.all, maxPending, "of everybody"},
	} {
		over := b.has.over(b.bound, x)
		if over == "" {
			continue
		}
		if b.bound == maxPending {
			b.whose += a.most()
		}
		kept := ""
		if x.written {
			kept = " for what programs write; a tenth more is kept for what people type"
		}
		return nil, fmt.Errorf("cannot ask a person about it: too many questions %s wait for an answer: %s%s; see them with \"carrel approvals list\", answer or deny some (\"carrel approvals deny ID\"), or let their time pass: %w",
			b.whose, over, kept, errdefs.ErrResourceExhausted)
	}
	x.waiters = 1
	a.put(q.ID, x)
	return x, nil
}

// most says who has the most questions, and the most bytes. a.mu is held.
func (a *approvals) most() string {
	var many, long string
	for owner, t := range a.of { // of equal ones the first by name
		if m := a.of[many].all.n; t.all.n > m || t.all.n == m && owner < many {
			many = owner
		}
		if m := a.of[long].all.bytes; t.all.bytes > m || t.all.bytes == m && owner < long {
			long = owner
		}
	}
	return fmt.Sprintf(" (the most, %d, of %s; the longest, %d KiB, of %s)", a.of[many].all.n, many, a.of[long].all.bytes>>10, long)
}

// add opens a question that was asked before, and nobody waits for it.
func (a *approvals) add(q *approval.Approval, size int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.put(q.ID, askingOf(q, size))
}

func askingOf(q *approval.Approval, size int64) *asking {
	return &asking{until: q.Until, done: make(chan struct{}), by: q.Subject.By, owner: q.Owner, written: q.Written, size: size}
}

// put opens a question. a.mu is held.
func (a *approvals) put(name id.Approval, x *asking) {
	a.open[name] = x
	a.count(x, 1)
}

// count adds n times a question to the tallies that it is in. a.mu is held.
func (a *approvals) count(x *asking, n int) {
	a.all = a.all.plus(n, x)
	for _, in := range []struct {
		m    map[string]tally
		name string
	}{{a.by, x.by}, {a.of, x.owner}} {
		if t := in.m[in.name].plus(n, x); t.all.n > 0 {
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
