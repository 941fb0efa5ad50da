package gate

import (
	"context"
	"fmt"
	"io"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/store"
	"github.com/carrel-dev/carrel/internal/workspace"
)

// Admission bounds what may live and run at once. Zero fields bound nothing.
type Admission struct {
	// Workspaces is the most that may live, PerOwner those of one owner.
	Workspaces, PerOwner int
	// Running is the most that may run at once.
	Running int
	// Memory is the most that the limits of those that run may add up to, in bytes, and
	// OwnerMemory that of one owner. The kernel holds them together below a ceiling of
	// its own, where they would begin to take it from each other.
	Memory, OwnerMemory int64
}

// mayLive refuses a workspace that would be one too many. g.admission is held.
func (g *Gate) mayLive(w store.Workspace) error {
	all, own := 0, 0
	g.cfg.Store.Each(func(o *store.Workspace) {
		all++
		if o.Owner == w.Owner {
			own++
		}
	})
	switch a := g.cfg.Admission; {
	case a.Workspaces > 0 && all >= a.Workspaces:
		return fmt.Errorf("cannot create workspace %q: there are %d, the most there may be; destroy some, or raise max_workspaces: %w", w.Key, all, errdefs.ErrResourceExhausted)
	case a.PerOwner > 0 && own >= a.PerOwner:
		return fmt.Errorf("cannot create workspace %q: %s has %d, the most that one owner may have; destroy some, or raise max_workspaces_per_owner: %w", w.Key, w.Owner, own, errdefs.ErrResourceExhausted)
	}
	return nil
}

// admit makes a place for a workspace that is to run, until the function returned is
// called; by then its state says that it runs.
func (g *Gate) admit(w store.Workspace) (leave func(), err error) {
	g.admission.Lock()
	defer g.admission.Unlock()
	running, memory, own := 0, int64(0), int64(0)
	count := func(o *store.Workspace) {
		running++
		memory += o.Limits.MemoryBytes
		if o.Owner == w.Owner {
			own += o.Limits.MemoryBytes
		}
	}
	g.cfg.Store.Each(func(o *store.Workspace) {
		if _, starts := g.starting[o.Name]; live(o.State) && !starts {
			count(o)
		}
	})
	for _, o := range g.starting {
		if o.Name != w.Name { // a create that starts once more what did not start
			count(&o)
		}
	}
	refuse := func(why string, v ...any) (func(), error) {
		return nil, fmt.Errorf("cannot start workspace %s: "+why+": %w", append(append([]any{w.Name}, v...), errdefs.ErrResourceExhausted)...)
	}
	need := w.Limits.MemoryBytes
	switch a := g.cfg.Admission; {
	case a.Running > 0 && running >= a.Running:
		return refuse("%d run, the most that may at once; stop some, or raise max_running", running)
	case a.Memory > 0 && memory+need > a.Memory:
		return refuse("its limit of %d MiB and those of the %d that run would add up to %d MiB, above the %d MiB of max_running_memory; stop some, or lower limits", need>>20, running, (memory+need)>>20, a.Memory>>20)
	case a.OwnerMemory > 0 && own+need > a.OwnerMemory:
		return refuse("its limit of %d MiB and those of what %s runs would add up to %d MiB, above the %d MiB of max_running_memory_per_owner; stop some, or lower limits", need>>20, w.Owner, (own+need)>>20, a.OwnerMemory>>20)
	}
	g.starting[w.Name] = w
	return func() {
		g.admission.Lock()
		defer g.admission.Unlock()
		delete(g.starting, w.Name)
	}, nil
}

// Profile is a named set of defaults for workspaces.
type Profile struct {
	// Prefix starts the derived names, "" for the configured one.
	Prefix string
	// Limits that are zero are the configured ones.
	Limits workspace.Limits
	Life   workspace.Life
	// Allow is what its workspaces may be made with.
	Allow []workspace.Opening
	// Skeleton, if not nil, opens the archive that a new home is filled from.
	Skeleton func(ctx context.Context) (io.Reader, error)
}
