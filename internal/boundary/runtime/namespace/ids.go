package namespace

import (
	"errors"
	"fmt"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/linux/pidfd"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/wire/brokerapi"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

// HasID reports whether an id of the host is that of a workspace that is known here, or in the broker's range: those are of other
// workspaces, of ones that are gone, and of what serves them.
func (r *Runtime) HasID(uid uint32) bool {
	if b, ok := r.broker.(*client); ok && b.inRange(uid) {
		return true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, k := range r.known {
		ids := k.ids
		if ids.Executor > 0 && ids.Executor <= uid && uid <= ids.Agent { // root is no workspace's
			return true
		}
	}
	return false
}

// known is what the broker said last of a workspace, and what a connection to its executor is held to.
type known struct {
	told     bool // false: nothing is known
	ids      workspace.IDs
	executor brokerapi.Executor // its PID is 0 if there is none
	paused   bool
}

// seen notes what the broker says of a workspace.
func (r *Runtime) seen(w brokerapi.Workspace) workspace.Real {
	k := known{told: true, ids: w.IDs, paused: w.State == workspace.StatePaused}
	if w.Executor != nil {
		k.executor = *w.Executor
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.known[w.Name] = k
	return convert(w)
}

// of returns what is known of a workspace.
func (r *Runtime) of(name id.Workspace) known {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.known[name]
}

// judged holds an error of an attempt to reach an executor to what the kernel says of that. A socket that
// refuses, or a connection that breaks, is no proof that it has ended; and one that has ended does not run.
func (l *link) judged(err error, x brokerapi.Executor) error {
	if err == nil || x.PID <= 1 || errors.Is(err, runtime.ErrSilent) {
		return err
	}
	wait := time.Duration(0)
	if errors.Is(err, runtime.ErrNotRunning) || errdefs.IsUnavailable(err) { // it may be on its way out
		wait = patience
	}
	f, lives := pidfd.Open(x.PID, x.StartTime)
	if lives == nil {
		defer f.Close()
		if pidfd.Ended(f, wait) {
			lives = pidfd.ErrEnded
		}
	}
	ended := errors.Is(lives, pidfd.ErrEnded)
	switch {
	case ended && !errors.Is(err, runtime.ErrNotRunning):
		return fmt.Errorf("%v: %w", err, runtime.ErrNotRunning) //nolint:errorlint // its kind is that of a process that lives
	case !ended && errors.Is(err, runtime.ErrNotRunning):
		return fmt.Errorf("%w: %v", l.unanswered(execapi.MethodHello), err) //nolint:errorlint // it is not ended
	}
	return err
}

func convert(w brokerapi.Workspace) workspace.Real {
	out := workspace.Real{
		State: w.State, InForce: w.Limits, User: w.User, IDs: w.IDs, Home: w.Home, Retained: w.Retained, Mounts: w.Mounts, Allow: w.Allow,
		Egress: w.Egress, Trust: w.Trust,
	}
	if w.Executor != nil {
		out.ExecutorPID = w.Executor.PID
	}
	return out
}
