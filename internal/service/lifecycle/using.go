package lifecycle

import (
	"sync"
	"time"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// using is when each workspace was used last.
type using struct {
	mu    *sync.Mutex
	last  map[id.Workspace]time.Time
	began time.Time // the earliest time that is known
}

func newUsing() using {
	return using{new(sync.Mutex), map[id.Workspace]time.Time{}, time.Now()}
}

func (u using) note(name id.Workspace) {
	u.mu.Lock()
	u.last[name] = time.Now()
	u.mu.Unlock()
}

func (u using) forget(name id.Workspace) {
	u.mu.Lock()
	delete(u.last, name)
	u.mu.Unlock()
}

// unusedFor reports whether a workspace was not used for so long.
func (u using) unusedFor(name id.Workspace, limit time.Duration, now time.Time) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return now.Sub(u.last[name]) > limit && now.Sub(u.began) > limit
}

// Touch notes that a workspace is in use.
func (l *Lifecycle) Touch(name id.Workspace) { l.using.note(name) }

// Idle reports whether a workspace that runs has not been used for its time. Whether
// something runs in it is another question.
func (l *Lifecycle) Idle(w *workspace.Workspace, now time.Time) bool {
	limit := w.Idle
	if limit == 0 {
		limit = l.cfg.Idle
	}
	return limit > 0 && w.State == workspace.StateRunning && l.using.unusedFor(w.Name, limit, now)
}
