package ways

import (
	"time"

	"github.com/carrel-dev/carrel/internal/base/id"
)

// Users is how many operations on a name are under way or wait for their turn.
func (w *Ways) Users(name id.Workspace) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	if x := w.ways[name]; x != nil {
		return x.users
	}
	return 0
}

// Pacer is keeper.Config.Pace of a workspace.
func (w *Ways) Pacer(name id.Workspace) func() time.Duration { return w.pacer(name) }
