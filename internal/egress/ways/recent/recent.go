// Package recent keeps the newest connections of workspaces in memory, for their owners, who may not read the audit log.
//
// It must not be taken for a record: it forgets, and it is empty after a restart.
package recent

import (
	"sync"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/wire/egressapi"
)

// Bounds of what is kept.
const (
	// Kept is how many connections are kept of a workspace.
	Kept = 64
	// MaxWorkspaces is for how many. The one whose last connection is the oldest is forgotten for another.
	MaxWorkspaces = 512
)

// Entry is a connection that has ended or was refused.
type Entry struct {
	// Number is 1 for the first of a workspace, and one more for each after it.
	Number uint64
	egressapi.Connection
}

// Recent are the newest connections of many workspaces. Its methods may be called from any goroutine. The zero value has
// none.
type Recent struct {
	mu    sync.Mutex // of what follows
	turns uint64
	of    map[id.Workspace]*ring
}

// ring are the newest of one workspace: number n is at n modulo Kept.
type ring struct {
	newest uint64
	turn   uint64 // of Recent, at the last connection
	list   []egressapi.Connection
}

// Add adds a connection.
func (r *Recent) Add(name id.Workspace, c egressapi.Connection) {
	r.mu.Lock()
	defer r.mu.Unlock()
	x := r.of[name]
	if x == nil {
		x = r.ring(name)
	}
	r.turns++
	x.turn = r.turns
	x.newest++
	if len(x.list) < Kept {
		x.list = append(x.list, c)
		return
	}
	x.list[(x.newest-1)%Kept] = c
}

// ring makes room for a workspace.
func (r *Recent) ring(name id.Workspace) *ring {
	if r.of == nil {
		r.of = map[id.Workspace]*ring{}
	}
	if len(r.of) >= MaxWorkspaces {
		var oldest id.Workspace
		for name, x := range r.of {
			if oldest == "" || x.turn < r.of[oldest].turn {
				oldest = name
			}
		}
		delete(r.of, oldest)
	}
	x := &ring{}
	r.of[name] = x
	return x
}

// After returns the connections of a workspace whose number is greater than after, as far as they are kept, the oldest
// first. If after is greater than every number, then the daemon was started anew or the workspace was forgotten since, and
// all that are kept are returned.
func (r *Recent) After(name id.Workspace, after uint64) []Entry {
	r.mu.Lock()
	defer r.mu.Unlock()
	x := r.of[name]
	if x == nil {
		return nil
	}
	if after > x.newest {
		after = 0
	}
	first := max(after, x.newest-uint64(len(x.list))) + 1
	var all []Entry
	for n := first; n <= x.newest; n++ {
		all = append(all, Entry{n, x.list[(n-1)%Kept]})
	}
	return all
}
