// Package files lets clients work on the files of workspaces.
//
// It must not open any path of a workspace itself: it runs a program inside, with the rights of the workspace's
// commands, and what comes from there is bytes that anybody may have written.
package files

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/gate"
	"github.com/carrel-dev/carrel/internal/service/filerun"
	"github.com/carrel-dev/carrel/internal/service/lifecycle"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/spec/permit"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/wire/fileapi"
)

// Config holds the dependencies of New. All but Patience is required.
type Config struct {
	Gate      *gate.Gate
	Lifecycle *lifecycle.Lifecycle
	// Program returns carrel-archive, for Files to close.
	Program func() (*os.File, error)
	// Patience is how long nothing may come or go before the program is ended; 0 is two minutes.
	Patience time.Duration
}

// Files are the files of all workspaces. Its methods may be called from any goroutine.
type Files struct {
	cfg    Config
	runner filerun.Runner
	slots  slots
}

// New returns the files of the workspaces of a lifecycle.
func New(cfg Config) *Files {
	runner := filerun.Runner{Program: cfg.Program, Patience: cfg.Patience}
	return &Files{cfg: cfg, runner: runner, slots: slots{held: map[slot]int{}, change: make(chan struct{})}}
}

// names are the rows that the operations of the program belong to.
var names = map[fileapi.Op]operation.Name{
	fileapi.Read: operation.ReadFile, fileapi.Pack: operation.ReadFile, fileapi.List: operation.ListFiles, fileapi.Stat: operation.ListFiles,
	fileapi.Search: operation.ListFiles, fileapi.Changes: operation.ListFiles, fileapi.Watch: operation.WatchFiles,
	fileapi.Write:  operation.WriteFile,
	fileapi.Unpack: operation.WriteFile, fileapi.Mkdir: operation.MakeDirectory, fileapi.Move: operation.MoveFile,
	fileapi.Remove: operation.RemoveFile, fileapi.Undo: operation.UndoPatch, fileapi.Patches: operation.ListPatches,
}

// Done is what the outcome of a change says.
type Done struct {
	Bytes   int64 `json:"bytes,omitempty"`
	Entries int64 `json:"entries,omitempty"`
	Skipped int64 `json:"skipped,omitempty"`
	// Undo undoes a change to files, or the undoing of one.
	Undo string `json:"undo,omitempty"`
	// Merged are files that had changed since a change was shown, elsewhere, and Made is the digest of what was made.
	Merged []string `json:"merged,omitempty"`
	Made   string   `json:"made,omitempty"`
}

func doneOf(res *fileapi.Result) Done {
	d := Done{Bytes: res.Bytes, Entries: res.Entries, Skipped: res.Skipped}
	if res.Patched != nil {
		d.Undo, d.Made = res.Patched.ID, filerun.Shown(res.Patched.Made)
		for _, f := range res.Patched.Merged {
			d.Merged = append(d.Merged, filerun.Shown(f))
		}
	}
	return d
}

// asked is a request as the table has it.
func asked(r *fileapi.Request) operation.Operation {
	if r.Op == fileapi.Undo {
		return operation.Undoing(r.ID)
	}
	if r.Op == fileapi.Patches {
		return operation.Simple(operation.ListPatches)
	}
	op := operation.OnFile(names[r.Op], r.Path, r.To)
	op.Tree = r.Op == fileapi.Pack || r.Op == fileapi.Unpack
	op.Recursive, op.Search, op.Text = r.Recursive, r.Name, r.Text
	op.Replace = (r.Op == fileapi.Write || r.Op == fileapi.Move) && !r.Keep
	if r.Mode != nil {
		op.Mode = int64(*r.Mode)
	}
	return op
}

// OnFiles carries out a request on files of the workspace that ref names, which is started if it does not run.
//
// Errors: not_found, already_exists, permission_denied (the workspace's own user may not), failed_precondition
// (it is a directory, a device, read-only, paused), resource_exhausted (disk, limits, too many at once),
// invalid_argument, aborted (what was sent was broken off; what was there stays), unavailable.
func (f *Files) OnFiles(
	ctx context.Context, p principal.Principal, ref string, r fileapi.Request, s fileapi.Streams,
) (res fileapi.Result, err error) {
	r.Home = workspace.Home
	if err := r.Validate(); err != nil {
		return res, err
	}
	life := f.cfg.Lifecycle
	if _, ok := names[r.Op]; !ok {
		return res, fmt.Errorf("cannot work on files: %q is for the plans of agents alone: %w", r.Op, errdefs.ErrInvalidArgument)
	}
	authorised, err := life.Authorise(ctx, p, ref, asked(&r))
	if err != nil {
		return res, err
	}
	return f.carryOut(ctx, authorised, &r, s, f.runner.Run)
}

// work is how a request is carried out in a workspace that runs.
type work func(context.Context, runtime.Runtime, permit.Permit, *fileapi.Request, fileapi.Streams) (fileapi.Result, error)

// carryOut carries out a request that may be made.
func (f *Files) carryOut(
	ctx context.Context, authorised *gate.Authorised, r *fileapi.Request, s fileapi.Streams, do work,
) (res fileapi.Result, err error) {
	life := f.cfg.Lifecycle
	if err := life.Ready(ctx, authorised); err != nil {
		return res, err
	}
	a, err := authorised.Admit(ctx)
	if err != nil {
		return res, err
	}
	on := a.Request().On
	if r.Op == fileapi.Changes && r.SinceNS == 0 {
		w, err := life.Living(on.Name)
		if err != nil {
			return res, err
		}
		r.SinceNS = w.CreatedAt.UnixNano()
	}
	rt, err := life.Runtime(on.Boundary)
	if err != nil {
		return res, err
	}
	leave, err := f.slots.enter(ctx, slot{on.Name, r.Op == fileapi.Watch})
	if err != nil {
		return res, err
	}
	defer leave()
	return res, a.Do(ctx, func(ctx context.Context, p permit.Permit) (any, error) {
		res, err = do(ctx, rt, p, r, s)
		if errors.Is(err, runtime.ErrNotRunning) { // nothing was carried out
			if err := life.Again(ctx, authorised); err != nil {
				return nil, err
			}
			res, err = do(ctx, rt, p, r, s)
		}
		return doneOf(&res), err
	})
}

// How many requests of one workspace are carried out at once: each is a process in it, and counts against its
// limits. Others wait for a while.
const (
	atOnce  = 8
	watches = 4
	wait    = 10 * time.Second
)

type slot struct {
	name  id.Workspace
	watch bool
}

// slots are the places that are taken.
type slots struct {
	mu     sync.Mutex
	held   map[slot]int
	change chan struct{} // closed when one is given back
}

// enter takes a place, which leave gives back.
func (s *slots) enter(ctx context.Context, on slot) (leave func(), err error) {
	most := atOnce
	if on.watch {
		most = watches
	}
	deadline := time.NewTimer(wait)
	defer deadline.Stop()
	for {
		s.mu.Lock()
		change := s.change
		if s.held[on] < most {
			s.held[on]++
			s.mu.Unlock()
			return func() { s.leave(on) }, nil
		}
		s.mu.Unlock()
		if on.watch {
			return nil, fmt.Errorf("cannot watch files of workspace %s: %d watches are open, the most there may be; end one of them: %w", on.name,
				watches, errdefs.ErrResourceExhausted)
		}
		select {
		case <-change:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-deadline.C:
			return nil, fmt.Errorf("cannot work on files of workspace %s: %d requests are under way and none ended within %v; try again later: %w",
				on.name, atOnce, wait, errdefs.ErrResourceExhausted)
		}
	}
}

func (s *slots) leave(on slot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held[on]--; s.held[on] == 0 {
		delete(s.held, on)
	}
	close(s.change)
	s.change = make(chan struct{})
}
