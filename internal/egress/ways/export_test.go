package ways

import "github.com/carrel-dev/carrel/internal/base/id"

// Users is how many operations on a name are under way or wait for their turn.
func (w *Ways) Users(name id.Workspace) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	if x := w.ways[name]; x != nil {
		return x.users
	}
	return 0
}
