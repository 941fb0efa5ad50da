package gate

import (
	"sync"
	"time"

	"github.com/carrel-dev/carrel/internal/approval"
	"github.com/carrel-dev/carrel/internal/id"
)

// approvals are the questions that can still be answered.
type approvals struct {
	// answering is held from the look at a question to its change.
	answering sync.Mutex

	mu   sync.Mutex
	open map[id.Approval]*asking
	// changed are the newest changes, for those who watch.
	changed []id.Approval
	count   int64
	more    chan struct{}

	quit     chan struct{} // closed when nobody is to wait any more
	quitOnce sync.Once
}

// asking is one of them. Its time is counted by a clock that nobody sets: until has a
// monotonic reading.
type asking struct {
	until   time.Time
	waiters int
	done    chan struct{} // closed when it was answered or its time is over
}

func newApprovals() approvals {
	return approvals{open: map[id.Approval]*asking{}, more: make(chan struct{}), quit: make(chan struct{})}
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
	a.count++
	close(a.more)
	a.more = make(chan struct{})
}

// since returns what changed after the nth change, and what is closed at the next. lost says
// that some of it is not known any more.
func (a *approvals) since(n int64) (list []id.Approval, at int64, lost bool, more <-chan struct{}) {
	a.mu.Lock()
	defer a.mu.Unlock()
	first := a.count - int64(len(a.changed))
	lost = n < first
	list = append(list, a.changed[max(n-first, 0):]...)
	return list, a.count, lost, a.more
}

// add opens a question until then, with or without one who waits for it.
func (a *approvals) add(name id.Approval, until time.Time, waiters int) *asking {
	a.mu.Lock()
	defer a.mu.Unlock()
	x := &asking{until: until, waiters: waiters, done: make(chan struct{})}
	a.open[name] = x
	return x
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
	close(x.done)
	return true
}

// now is the time as the deadline of a question has it, whatever was done to the host's
// clock since.
func (a *approvals) now(q approval.Approval) time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	if x := a.open[q.ID]; x != nil {
		return q.Until.Add(-time.Until(x.until))
	}
	return time.Now()
}

// StopAsking ends the waiting for answers: who waits is told to ask again. The questions
// stay.
func (g *Gate) StopAsking() { g.approvals.quitOnce.Do(func() { close(g.approvals.quit) }) }
