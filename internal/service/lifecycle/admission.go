package lifecycle

import (
	"cmp"
	"fmt"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/bucket"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// Admission bounds what may live and run at once. Zero fields bound nothing.
type Admission struct {
	// Workspaces is the most that may live, PerOwner those of one owner: an administrator may
	// make more.
	Workspaces, PerOwner int
	// Hourly is how many one owner may create in an hour, once PerOwner were created at once: each
	// spends ids that are never used again, and who creates and destroys without end would
	// spend what the broker grants all owners together.
	Hourly int
	// Running is the most that may run at once.
	Running int
	// Memory is the most that the limits of those that run may add up to, in bytes, and
	// OwnerMemory that of one owner. The kernel holds them together below a ceiling of
	// its own, where they would begin to take it from each other.
	Memory, OwnerMemory int64
}

// mayLive refuses a workspace that would be one too many. l.admission is held.
func (l *Lifecycle) mayLive(by principal.Principal, w workspace.Kept) error {
	all, own := 0, 0
	l.cfg.Store.Each(func(o *workspace.Kept) {
		all++
		if o.Owner == w.Owner {
			own++
		}
	})
	switch a := l.cfg.Admission; {
	case a.Workspaces > 0 && all >= a.Workspaces:
		return fmt.Errorf("cannot create workspace %q: there are %d, the most there may be; destroy some, or raise max_workspaces: %w",
			w.Key, all, errdefs.ErrResourceExhausted)
	case a.PerOwner > 0 && own >= a.PerOwner && !by.Can(principal.Any):
		return fmt.Errorf("cannot create workspace %q: %s has %d, the most that one owner may have; destroy some (\"carrel ls\"), or have an "+
			"administrator raise max_workspaces_per_owner in carreld.yaml: %w",
			w.Key, w.Owner, own, errdefs.ErrResourceExhausted)
	}
	if l.cfg.Admission.Hourly > 0 && !by.Can(principal.Any) {
		return l.paced(w, time.Now())
	}
	return nil
}

// maxPaced bounds the owners whose pace is remembered. The others share one.
const maxPaced = 4096

// paced takes one of what an owner may create, or refuses. l.admission is held.
func (l *Lifecycle) paced(w workspace.Kept, now time.Time) error {
	a := l.cfg.Admission
	bound := bucket.Bound{Burst: cmp.Or(a.PerOwner, a.Workspaces, 1), Every: time.Hour / time.Duration(a.Hourly)}
	if wait := l.created.Take(w.Owner, bound, now); wait > 0 {
		return fmt.Errorf("cannot create workspace %q: %s created %d at once or %d an hour, as many as one owner may; try again in %v, or have "+
			"an administrator raise max_creates_per_hour in carreld.yaml: %w",
			w.Key, w.Owner, bound.Burst, a.Hourly, wait.Truncate(time.Second)+time.Second, errdefs.ErrResourceExhausted)
	}
	return nil
}

// Room reserves what a workspace that is to run takes, until the function returned is called;
// by then its state says that it runs.
func (l *Lifecycle) Room(w workspace.Kept) (leave func(), err error) {
	l.admission.Lock()
	defer l.admission.Unlock()
	running, memory, own := 0, int64(0), int64(0)
	count := func(o *workspace.Kept) {
		running++
		memory += o.Limits.MemoryBytes
		if o.Owner == w.Owner {
			own += o.Limits.MemoryBytes
		}
	}
	for _, o := range l.Live() {
		if _, starts := l.starting[o.Name]; !starts {
			count(&o.Kept)
		}
	}
	for _, o := range l.starting {
		if o.Name != w.Name { // a create that starts once more what did not start
			count(&o)
		}
	}
	refuse := func(why string, v ...any) (func(), error) {
		return nil, fmt.Errorf("cannot start workspace %s: "+why+": %w", append(append([]any{w.Name}, v...), errdefs.ErrResourceExhausted)...)
	}
	need := w.Limits.MemoryBytes
	switch a := l.cfg.Admission; {
	case a.Running > 0 && running >= a.Running:
		return refuse("%d run, the most that may at once; stop some, or raise max_running", running)
	case a.Memory > 0 && memory+need > a.Memory:
		return refuse("its limit of %d MiB and those of the %d that run would add up to %d MiB, above the %d MiB of max_running_memory; "+
			"stop some, or lower limits",
			need>>20, running, (memory+need)>>20, a.Memory>>20)
	case a.OwnerMemory > 0 && own+need > a.OwnerMemory:
		return refuse("its limit of %d MiB and those of what %s runs would add up to %d MiB, above the %d MiB of "+
			"max_running_memory_per_owner; stop some, or lower limits",
			need>>20, w.Owner, (own+need)>>20, a.OwnerMemory>>20)
	}
	l.starting[w.Name] = w
	return func() {
		l.admission.Lock()
		defer l.admission.Unlock()
		delete(l.starting, w.Name)
	}, nil
}
