// Package lifecycle makes, starts, stops, changes and ends workspaces, one operation on each
// at a time, and brings what people said about them and what exists together after a crash.
//
// It must not run commands for anybody, and it must not decide who may do what: the gate does.
package lifecycle

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/bucket"
	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/gate"
	"github.com/carrel-dev/carrel/internal/service/archiver"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/state/store"
)

// Config holds the dependencies of New. Gate, Runtimes, Store, Prefix, Limits and Log are
// required.
type Config struct {
	Gate     *gate.Gate
	Runtimes runtime.ByBoundary
	Store    *store.Store
	// Prefix starts derived names; it has passed id.ParsePrefix.
	Prefix string
	// Limits are those of a workspace that asks for none.
	Limits workspace.Limits
	// Idle is how long a workspace may run with nothing in it, unless it says otherwise;
	// 0 is without an end.
	Idle time.Duration
	// Allow is what workspaces may be made with, and Profiles what they can ask for by name.
	Allow     []workspace.Opening
	Profiles  map[string]Profile
	Admission Admission
	// KeepHomes is how long homes of destroyed workspaces are kept, 0 without an end.
	KeepHomes time.Duration
	// Placeholders keeps placeholders of secrets in files of workspaces.
	Placeholders Placeholders
	// Archiver fills new homes from the skeleton of a profile.
	Archiver *archiver.Archiver
	// Ways are the ways out of what runs. Optional: without them no workspace reaches anything.
	Ways Ways
	// Bindings give workspaces the secrets of their owners. Optional: without them none uses one.
	Bindings Bindings
	// Models let workspaces use models. Optional: without them none does.
	Models Models
	// Keeps says how a workspace is kept that has lived its time: paused, stopped, or not at all, which is "". Optional: then none is.
	Keeps func(ctx context.Context, name id.Workspace) (workspace.State, error)
	Log   *slog.Logger
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

// Lifecycle is the life of all workspaces. Its methods may be called from any goroutine.
type Lifecycle struct {
	cfg Config

	slots    slots
	requests requests
	using    using

	mu sync.Mutex
	// real is what the runtimes last said of each workspace.
	real map[id.Workspace]workspace.Real
	// proved is whether all that is required of a running workspace was verified, where
	// that is known.
	proved map[id.Workspace]bool
	// refused are the workspaces that the runtime would not end, which takes a person to mend.
	refused map[id.Workspace]bool
	// doubtful are those of which it is not known what an operation has changed: the runtime went away.
	doubtful map[id.Workspace]bool

	// admission is held from a look at what lives or runs to the change of it.
	admission sync.Mutex
	starting  map[id.Workspace]workspace.Kept
	created   *bucket.Many[string] // by owner
}

// New returns the life of the workspaces in the store. Recover is called before anything else.
func New(cfg Config) *Lifecycle {
	return &Lifecycle{
		cfg: cfg, slots: newSlots(), using: newUsing(), real: map[id.Workspace]workspace.Real{}, proved: map[id.Workspace]bool{},
		refused: map[id.Workspace]bool{}, doubtful: map[id.Workspace]bool{}, starting: map[id.Workspace]workspace.Kept{},
		created: bucket.NewMany[string](maxPaced),
	}
}

// find returns the living workspace that ref names: by its derived name first, since a key may
// have the form of one.
func (l *Lifecycle) find(ref string) (workspace.Kept, bool) {
	if w, ok := l.cfg.Store.ByName(id.Workspace(ref)); ok {
		return w, true
	}
	return l.cfg.Store.ByKey(id.Key(ref))
}

// Find returns the workspace that ref, a key or a name, means. not_found: there is none.
func (l *Lifecycle) Find(ref string) (operation.Target, error) {
	w, ok := l.find(ref)
	if !ok {
		return operation.Target{}, fmt.Errorf("cannot find workspace %q: there is none with this key or name; \"carrel ls\" lists them: %w",
			ref, errdefs.ErrNotFound)
	}
	return targetOf(w), nil
}

// FindMade is Find, and says when the workspace was made.
func (l *Lifecycle) FindMade(ref string) (on operation.Target, made time.Time, err error) {
	if on, err = l.Find(ref); err != nil {
		return on, made, err
	}
	w, err := l.Living(on.Name)
	return on, w.CreatedAt, err
}

// Target returns the living workspace with that name, false if there is none.
func (l *Lifecycle) Target(name id.Workspace) (operation.Target, bool) {
	w, ok := l.cfg.Store.ByName(name)
	return targetOf(w), ok
}

func targetOf(w workspace.Kept) operation.Target {
	return operation.Target{Kind: operation.Workspace, Name: w.Name, Key: w.Key, Owner: w.Owner, Boundary: w.Boundary, Root: w.Root}
}

// Living returns what is kept of a workspace. not_found: it was destroyed meanwhile.
func (l *Lifecycle) Living(name id.Workspace) (workspace.Kept, error) {
	w, ok := l.cfg.Store.ByName(name)
	if !ok {
		return w, fmt.Errorf("cannot find workspace %s: it was destroyed meanwhile: %w", name, errdefs.ErrNotFound)
	}
	return w, nil
}

// living returns a workspace as it is now.
func (l *Lifecycle) living(name id.Workspace) (workspace.Workspace, error) {
	w, err := l.Living(name)
	return l.join(w), err
}

// writable returns the destinations of the mounts into which a workspace's commands may write.
func (l *Lifecycle) writable(name id.Workspace) []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return workspace.Writable(l.real[name].Mounts)
}

// join is a workspace as people see it.
func (l *Lifecycle) join(k workspace.Kept) workspace.Workspace {
	l.mu.Lock()
	w := workspace.Join(k, l.real[k.Name])
	l.mu.Unlock()
	if rt := l.cfg.Runtimes[k.Boundary]; rt != nil && w.State.Live() {
		w.Silent = rt.Silent(k.Name)
	}
	return w
}

// show is join with the configured idle time filled in.
func (l *Lifecycle) show(k workspace.Kept) workspace.Workspace {
	w := l.join(k)
	if w.Idle == 0 {
		w.Idle = l.cfg.Idle
	}
	if w.Idle <= 0 {
		w.Idle = workspace.Forever
	}
	return w
}

// showNow is a workspace that an operation has just changed.
func (l *Lifecycle) showNow(name id.Workspace) (workspace.Workspace, error) {
	k, err := l.Living(name)
	if err != nil {
		return workspace.Workspace{}, err
	}
	return l.show(k), nil
}

// Current returns key and state of a workspace; false if it is gone.
func (l *Lifecycle) Current(name id.Workspace) (id.Key, workspace.State, bool) {
	k, ok := l.cfg.Store.ByName(name)
	if !ok {
		return "", "", false
	}
	return k.Key, l.join(k).State, true
}

// States counts the living workspaces by state.
func (l *Lifecycle) States() map[workspace.State]int {
	n := map[workspace.State]int{}
	for _, k := range l.cfg.Store.Workspaces() {
		n[l.join(k).State]++
	}
	return n
}

// Live returns the workspaces that run.
func (l *Lifecycle) Live() []workspace.Workspace {
	return l.Due(func(w *workspace.Workspace) bool { return w.State.Live() })
}

// Due returns the living workspaces for which f is true, in no order.
func (l *Lifecycle) Due(f func(*workspace.Workspace) bool) []workspace.Workspace {
	var due []workspace.Workspace
	for _, k := range l.cfg.Store.Due(func(*workspace.Kept) bool { return true }) {
		if w := l.join(k); f(&w) {
			due = append(due, w)
		}
	}
	return due
}

// note keeps what a runtime said of a workspace.
func (l *Lifecycle) note(name id.Workspace, r workspace.Real) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.real[name] = r
	delete(l.proved, name) // it may have become another: it is proved anew
}

// forget lets go of what is known of a workspace that is gone.
func (l *Lifecycle) forget(name id.Workspace) {
	l.mu.Lock()
	delete(l.real, name)
	delete(l.proved, name)
	delete(l.refused, name)
	delete(l.doubtful, name)
	l.mu.Unlock()
	l.using.forget(name)
	if l.cfg.Models != nil {
		l.cfg.Models.Forget(name)
	}
}

// Refused reports whether the runtime was reached and would not end a workspace when it was to be
// ended last, because of something on the host.
func (l *Lifecycle) Refused(name id.Workspace) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.refused[name]
}

// unended notes why a runtime did not end a workspace.
func (l *Lifecycle) unended(name id.Workspace, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.refused[name] = !errdefs.IsUnavailable(err)
}

// Runtime is the backend of a workspace.
func (l *Lifecycle) Runtime(b workspace.Boundary) (runtime.Runtime, error) {
	return l.cfg.Runtimes.Of(b)
}

// verified reports whether every required control of a running workspace was seen to hold,
// by a report about the boundary and the root that the workspace is kept with.
func (l *Lifecycle) verified(ctx context.Context, k workspace.Kept) (bool, error) {
	l.mu.Lock()
	ok, known := l.proved[k.Name]
	l.mu.Unlock()
	if known {
		return ok, nil
	}
	rt, err := l.Runtime(k.Boundary)
	if err != nil {
		return false, err
	}
	rep, err := rt.Report(ctx, k.Name)
	if err != nil { // and asked again the next time
		return false, fmt.Errorf("cannot run anything in workspace %s: the proof of its isolation cannot be read, without which nothing can be "+
			"judged; if the broker is gone, \"carrel up\" starts it: %w", k.Name, err)
	}
	return l.prove(k, rep), nil
}

// prove notes what the report of a workspace that runs says.
func (l *Lifecycle) prove(k workspace.Kept, rep workspace.Report) bool {
	ok := rep.Err() == nil && rep.Boundary == k.Boundary && rep.Root == k.Root
	l.mu.Lock()
	l.proved[k.Name] = ok
	l.mu.Unlock()
	return ok
}

// Authorise authorises an operation on the workspace that ref names.
func (l *Lifecycle) Authorise(ctx context.Context, p principal.Principal, ref string, op operation.Operation) (*gate.Authorised, error) {
	return l.cfg.Gate.Authorise(ctx, operation.Request{By: p, Op: op}, func() (operation.Target, error) { return l.Find(ref) })
}

// admit admits an operation on the workspace that ref names.
func (l *Lifecycle) admit(ctx context.Context, p principal.Principal, ref string, op operation.Operation) (*gate.Admitted, error) {
	a, err := l.Authorise(ctx, p, ref, op)
	if err != nil {
		return nil, err
	}
	return a.Admit(ctx)
}

// asSystem admits an operation of the daemon's own on a workspace.
func (l *Lifecycle) asSystem(ctx context.Context, k workspace.Kept, op operation.Operation) (*gate.Admitted, error) {
	return l.cfg.Gate.Admit(ctx, operation.Request{By: principal.Self(), Op: op, On: targetOf(k)}, nil)
}

// proof counts a report's controls by state, for the record of a start.
func proof(rep workspace.Report) any {
	n := make(map[workspace.ControlState]int)
	for _, c := range rep.Controls {
		n[c.State]++
	}
	return struct {
		Controls map[workspace.ControlState]int `json:"controls"`
	}{n}
}
