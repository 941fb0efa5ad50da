// Package namespace is the runtime backend for boundary "namespace": it has the
// broker make, start, stop and end workspaces, and talks to the executor of each
// one itself, so that no byte of a command passes the broker.
//
// It must not decide who may do what, keep state of its own beyond connections,
// or start a workspace that it was not told to start.
package namespace

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/spec/permit"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/wire/brokerapi"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

// shutdownTimeout is how long an executor may take to end its commands before
// the broker ends it: the default grace and some.
const shutdownTimeout = execapi.DefaultGraceMS*time.Millisecond + 3*time.Second

// Config holds the dependencies of New.
type Config struct {
	// RuntimeDir holds broker.sock and the executors' sockets; required.
	RuntimeDir string
	// Dial connects to the broker; nil is to broker.sock.
	Dial func(ctx context.Context) (*net.UnixConn, error)
	// Broker, if set, is used instead of the connection to carrel-broker: one in this process, for
	// a user without root. Executor then connects to what it started.
	Broker   Broker
	Executor func(ctx context.Context, name id.Workspace, role execapi.Role) (*net.UnixConn, error)
	// OnLost is called, in a goroutine of its own, when the executor of a
	// workspace went away without having been stopped. Optional.
	OnLost func(name id.Workspace)
	// OnSilent is called when the executor of a workspace has answered nothing for giveUp, again
	// and again until it answers or has ended. Optional.
	OnSilent func(name id.Workspace, since time.Time)
	// OnBroker is called, in a goroutine of its own, when another broker answers than
	// before. Optional.
	OnBroker func()
	// KeepBroker: Close leaves the connection to the broker, for CloseBroker. Optional.
	KeepBroker bool
}

// Runtime is the backend. Its methods may be called from any goroutine.
type Runtime struct {
	cfg    Config
	broker Broker

	mu     sync.Mutex
	links  map[id.Workspace]*link
	known  map[id.Workspace]known
	closed bool
	lost   sync.WaitGroup
	// ctx ends when the runtime is closed.
	ctx context.Context
	end context.CancelCauseFunc
}

var _ runtime.Runtime = (*Runtime)(nil)

var errClosed = fmt.Errorf("the daemon is stopping: %w", errdefs.ErrUnavailable)

// New returns a backend. Connections are made when they are first needed.
func New(cfg Config) *Runtime {
	if cfg.Dial == nil {
		cfg.Dial = func(ctx context.Context) (*net.UnixConn, error) {
			return dial(ctx, filepath.Join(cfg.RuntimeDir, "broker.sock"))
		}
	}
	if cfg.Executor == nil {
		cfg.Executor = func(ctx context.Context, name id.Workspace, _ execapi.Role) (*net.UnixConn, error) {
			return dial(ctx, filepath.Join(cfg.RuntimeDir, "x", string(name)+".sock"))
		}
	}
	own := &client{dial: cfg.Dial}
	r := &Runtime{
		cfg:    cfg,
		broker: cfg.Broker,
		links:  make(map[id.Workspace]*link),
		known:  make(map[id.Workspace]known),
	}
	r.ctx, r.end = context.WithCancelCause(context.Background())
	if r.broker == nil {
		r.broker = own
	}
	own.another = func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if cfg.OnBroker != nil && !r.closed {
			r.lost.Go(cfg.OnBroker)
		}
	}
	return r
}

// Create implements runtime.Runtime.
func (r *Runtime) Create(ctx context.Context, p permit.Permit, plan runtime.Plan) (workspace.Real, workspace.Report, error) {
	name, err := p.Workspace()
	if err != nil {
		return workspace.Real{}, workspace.Report{}, err
	}
	ask := brokerapi.CreateParams{
		Name: name, KeyDigest: plan.KeyDigest, Limits: plan.Limits, Owner: plan.Owner, Allow: plan.Allow, Start: plan.Start,
		Egress: plan.Way.Open, Trust: plan.Way.Trust,
	}
	var grant *os.File
	if plan.Mounts != nil {
		ask.Mounts, grant = plan.Mounts.List, plan.Mounts.Grant
	}
	res, err := r.broker.Create(ctx, ask, grant)
	if err != nil {
		return workspace.Real{}, workspace.Report{}, err
	}
	w := r.seen(res.Workspace)
	if len(res.Report.Controls) == 0 {
		return w, res.Report, nil
	}
	err = res.Report.Err()
	if err == nil {
		_, err = r.link(ctx, name)
	}
	if err != nil { // Start will say what it is about
		w, err = r.changed(r.broker.Stop(ctx, brokerapi.NameParams{Name: name}))
		return w, workspace.Report{}, err
	}
	return w, res.Report, nil
}

// Start implements runtime.Runtime. It ends with a connection to the executor, so
// that its loss is noticed and the first command does not wait for one.
func (r *Runtime) Start(ctx context.Context, p permit.Permit, out runtime.Way) (workspace.Real, workspace.Report, error) {
	name, err := p.Workspace()
	if err != nil {
		return workspace.Real{}, workspace.Report{}, err
	}
	for again := true; ; again = false {
		res, err := r.broker.Start(ctx, brokerapi.StartParams{Name: name, Egress: out.Open, Trust: out.Trust})
		if err != nil {
			return workspace.Real{}, workspace.Report{}, err
		}
		w := r.seen(res.Workspace)
		if err := res.Report.Err(); err != nil {
			return w, res.Report, err
		}
		_, err = r.link(ctx, name)
		if err == nil {
			return w, res.Report, nil
		}
		err = fmt.Errorf("cannot reach the executor of workspace %s that was just started: %w", name, err)
		if !errors.Is(err, runtime.ErrNotRunning) {
			return w, res.Report, err
		}
		// Nobody listens, so it has ended, now or before the broker has taken note: that is
		// brought to its end, and one more is started.
		if _, stop := r.changed(r.broker.Stop(ctx, brokerapi.NameParams{Name: name})); stop != nil || !again {
			return w, res.Report, errors.Join(err, stop)
		}
	}
}

// Stop implements runtime.Runtime. The executor is asked to end its commands;
// the broker then ends whatever is left.
func (r *Runtime) Stop(ctx context.Context, p permit.Permit) (workspace.Real, error) {
	name, err := p.Workspace()
	if err != nil {
		return workspace.Real{}, err
	}
	r.shutdown(ctx, name)
	return r.changed(r.broker.Stop(ctx, brokerapi.NameParams{Name: name}))
}

// Pause implements runtime.Runtime. What is frozen is held: the executor starts nothing
// new from before its commands are frozen until after they have thawed.
func (r *Runtime) Pause(ctx context.Context, p permit.Permit) (workspace.Real, error) {
	name, err := p.Workspace()
	if err != nil {
		return workspace.Real{}, err
	}
	if err := r.hold(ctx, name, true); err != nil {
		return workspace.Real{}, err
	}
	w, err := r.changed(r.broker.Pause(ctx, brokerapi.NameParams{Name: name}))
	if err == nil {
		return w, nil
	}
	// It may have been frozen, when it was the answer that got lost.
	if _, undo := r.Resume(context.WithoutCancel(ctx), p); undo != nil {
		err = fmt.Errorf("%w; and it could not be let go on, \"carrel resume %s\" does: %w", err, name, undo)
	}
	return workspace.Real{}, err
}

// Resume implements runtime.Runtime.
func (r *Runtime) Resume(ctx context.Context, p permit.Permit) (workspace.Real, error) {
	name, err := p.Workspace()
	if err != nil {
		return workspace.Real{}, err
	}
	w, err := r.changed(r.broker.Resume(ctx, brokerapi.NameParams{Name: name}))
	if err != nil {
		return workspace.Real{}, err
	}
	return w, r.hold(ctx, name, false)
}

// hold has the executor refuse new commands, or no longer.
func (r *Runtime) hold(ctx context.Context, name id.Workspace, on bool) error {
	_, err := r.ask(ctx, name, execapi.MethodHold, execapi.HoldParams{On: on}, nil)
	return err
}

// Limit implements runtime.Runtime.
func (r *Runtime) Limit(ctx context.Context, p permit.Permit, limits workspace.Limits) (workspace.Real, error) {
	name, err := p.Workspace()
	if err != nil {
		return workspace.Real{}, err
	}
	return r.changed(r.broker.Update(ctx, brokerapi.UpdateParams{Name: name, Limits: limits}))
}

// changed takes the broker's answer to an operation that changed a workspace.
func (r *Runtime) changed(w brokerapi.Workspace, err error) (workspace.Real, error) {
	if err != nil {
		return workspace.Real{}, err
	}
	return r.seen(w), nil
}

// Stats implements runtime.Runtime.
func (r *Runtime) Stats(ctx context.Context, name id.Workspace) (workspace.Stats, error) {
	return r.broker.Stats(ctx, brokerapi.NameParams{Name: name})
}

// Destroy implements runtime.Runtime.
func (r *Runtime) Destroy(ctx context.Context, p permit.Permit, purge bool) (workspace.Real, error) {
	name, err := p.Workspace()
	if err != nil {
		return workspace.Real{}, err
	}
	r.shutdown(ctx, name)
	w, err := r.broker.Destroy(ctx, brokerapi.DestroyParams{Name: name, Purge: purge})
	if err != nil {
		return workspace.Real{}, err
	}
	r.mu.Lock()
	delete(r.known, name)
	r.mu.Unlock()
	return convert(w), nil
}

// Forget implements runtime.Runtime.
func (r *Runtime) Forget(ctx context.Context, p permit.Permit, retained string) error {
	kept, err := keptHome(p, retained)
	if err != nil {
		return err
	}
	return r.broker.Forget(ctx, kept)
}

// Revive implements runtime.Runtime.
func (r *Runtime) Revive(ctx context.Context, p permit.Permit, retained string) (workspace.Real, error) {
	kept, err := keptHome(p, retained)
	if err != nil {
		return workspace.Real{}, err
	}
	return r.changed(r.broker.Revive(ctx, kept))
}

// keptHome is a home that Destroy kept, by its path.
func keptHome(p permit.Permit, retained string) (brokerapi.ForgetParams, error) {
	name, err := p.Workspace()
	if err != nil {
		return brokerapi.ForgetParams{}, err
	}
	base, ok := strings.CutPrefix(filepath.Base(retained), string(name)+".")
	first, err := strconv.ParseUint(base, 10, 32)
	if !ok || err != nil {
		return brokerapi.ForgetParams{}, fmt.Errorf("cannot use the home of %s that was kept at %s: that is no name of one: %w",
			name, retained, errdefs.ErrInvalidArgument)
	}
	return brokerapi.ForgetParams{Name: name, ID: uint32(first)}, nil
}

// Mended implements runtime.Runtime.
func (r *Runtime) Mended(ctx context.Context) (string, []workspace.Mended, error) {
	return r.broker.Mended(ctx)
}

// Discard implements runtime.Runtime.
func (r *Runtime) Discard(ctx context.Context, p permit.Permit) error {
	name, err := p.Workspace()
	if err != nil {
		return err
	}
	if _, err := r.broker.Destroy(ctx, brokerapi.DestroyParams{Name: name, Purge: true, Unused: true}); err != nil {
		return err
	}
	r.mu.Lock()
	delete(r.known, name)
	r.mu.Unlock()
	return nil
}

// shutdown lets the executor end its commands in order. Its failure does not
// matter: the broker does not need the executor's help. One that is silent is not asked.
func (r *Runtime) shutdown(ctx context.Context, name id.Workspace) {
	l, err := r.link(ctx, name)
	if l == nil {
		return
	}
	l.stopping.Store(true)
	if err == nil && !errors.Is(l.ping(), runtime.ErrSilent) {
		ctx, cancel := context.WithTimeout(ctx, shutdownTimeout)
		defer cancel()
		_, _ = l.conn.Call(ctx, execapi.MethodShutdown, struct{}{}, nil)
	}
	// The executor stays until its last connection has closed.
	l.close()
}

// List implements runtime.Runtime. The broker gives as many at once as fit into
// one message.
func (r *Runtime) List(ctx context.Context) (map[id.Workspace]workspace.Real, error) {
	all := map[id.Workspace]workspace.Real{}
	for after := id.Workspace(""); ; {
		res, err := r.broker.List(ctx, brokerapi.ListParams{After: after})
		if err != nil {
			return nil, err
		}
		for _, w := range res.Workspaces {
			all[w.Name] = r.seen(w)
		}
		if !res.More || len(res.Workspaces) == 0 {
			return all, nil
		}
		after = res.Workspaces[len(res.Workspaces)-1].Name
	}
}

// Report implements runtime.Runtime.
func (r *Runtime) Report(ctx context.Context, name id.Workspace) (workspace.Report, error) {
	return r.broker.Report(ctx, brokerapi.NameParams{Name: name})
}

// Close implements runtime.Runtime.
func (r *Runtime) Close() error {
	r.mu.Lock()
	r.closed = true
	r.end(errClosed)
	links := r.links
	r.links = nil
	r.mu.Unlock()
	for _, l := range links {
		l.stopping.Store(true)
		select {
		case <-l.ready:
			if l.err == nil {
				l.close()
			}
		default: // still opening: open sees that we are closed
		}
	}
	var err error
	if !r.cfg.KeepBroker {
		err = r.broker.Close()
	}
	r.lost.Wait()
	return err
}

// CloseBroker closes the broker where Close does not.
func (r *Runtime) CloseBroker() error { return r.broker.Close() }
