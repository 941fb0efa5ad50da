package approvals

import (
	"sync"

	"github.com/carrel-dev/carrel/internal/base/id"
)

// locks are one lock for each question that somebody changes. The zero value is ready for use.
type locks struct {
	mu sync.Mutex
	of map[id.Approval]*lock
}

type lock struct {
	sync.Mutex
	users int
}

// lock waits for the lock of a question, and returns what gives it back.
func (l *locks) lock(name id.Approval) (unlock func()) {
	l.mu.Lock()
	x := l.of[name]
	if x == nil {
		if x = new(lock); l.of == nil {
			l.of = map[id.Approval]*lock{}
		}
		l.of[name] = x
	}
	x.users++
	l.mu.Unlock()
	x.Lock()
	return func() {
		x.Unlock()
		l.mu.Lock()
		defer l.mu.Unlock()
		if x.users--; x.users == 0 {
			delete(l.of, name)
		}
	}
}
