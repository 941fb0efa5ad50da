// Package userbroker stands where the broker does for the daemon of an ordinary user: it makes,
// starts and ends that user's workspaces with the user's own rights.
//
// The life of a workspace, its ledger and what is finished or undone after a crash are those
// of package broker; what differs is what is done to the host, in Host. It must not hold
// isolation of its own: package launch starts the same executor and judges it by the same
// table.
package userbroker

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/broker"
	"github.com/carrel-dev/carrel/internal/brokerapi"
	"github.com/carrel-dev/carrel/internal/execapi"
	"github.com/carrel-dev/carrel/internal/id"
	"github.com/carrel-dev/carrel/internal/runtime/namespace"
	"github.com/carrel-dev/carrel/internal/workspace"
)

// Config is that of Open. All of it is required.
type Config struct {
	// State is the directory that survives a restart, the caller's alone.
	State string
	// Executor is the path of carrel-executor.
	Executor string
	// MaxWorkspaces bounds how many there may be.
	MaxWorkspaces int
	Log           *slog.Logger
}

// Numbers of workspaces. The ledger gives each three, never again, as it does ids; here they
// tell only one workspace from a later one of the same name.
const (
	firstNumber = 1
	numbers     = 1<<31 - 1
)

// Broker is a namespace.Broker. Its methods may be called from any goroutine.
type Broker struct {
	life *broker.Lifecycle
	host *host
}

var _ namespace.Broker = (*Broker)(nil)

// Open opens the ledger and finishes or undoes what a crash left. Executors of an earlier
// process have ended with it.
func Open(ctx context.Context, cfg Config) (*Broker, error) {
	h, err := openHost(ctx, cfg)
	if err != nil {
		return nil, err
	}
	dir, err := os.Open(filepath.Join(cfg.State, ledgerDir))
	if err != nil {
		return nil, fmt.Errorf("cannot open the ledger: %w", err)
	}
	ledger, err := broker.OpenLedger(dir)
	if err != nil {
		return nil, err
	}
	d := &Broker{host: h, life: broker.NewLifecycle(broker.Settings{
		UIDFirst: firstNumber, UIDCount: numbers, MaxWorkspaces: cfg.MaxWorkspaces,
	}, ledger, h, cfg.Log)}
	if err := d.life.Recover(ctx); err != nil {
		_ = d.life.Close()
		return nil, err
	}
	return d, nil
}

// Close ends every executor, and with it what runs in its workspace, and lets go of the
// ledger, in which those workspaces are stopped.
func (d *Broker) Close() {
	for _, e := range d.life.List() {
		if slices.Contains(live, e.State) {
			// What cannot be ended in order ends with this process.
			_, _ = d.life.Stop(context.Background(), e.Name, live...)
		}
	}
	_ = d.life.Close() // what was to be kept is synced
}

// Executor is the Executor of namespace.Config: a connection that the executor was started
// with.
func (d *Broker) Executor(_ context.Context, name id.Workspace, role execapi.Role) (*net.UnixConn, error) {
	return d.host.connect(name, role)
}

// Mended implements namespace.Broker.
func (d *Broker) Mended(context.Context) (string, []workspace.Mended, error) {
	start, list := d.life.Mended()
	return start, list, nil
}

// States in which an operation is allowed, as in the broker's table.
var (
	absent  workspace.State
	idle    = []workspace.State{workspace.StateStopped, workspace.StateRunning}
	live    = []workspace.State{workspace.StateRunning, workspace.StatePaused}
	still   = append([]workspace.State{workspace.StatePaused}, idle...)
	present = append([]workspace.State{workspace.StateDestroying, workspace.StateDestroyed}, still...)
	fresh   = append([]workspace.State{absent, workspace.StateCreating, workspace.StateDestroyed}, still...)
)

// Call implements namespace.Broker.
func (d *Broker) Call(ctx context.Context, method string, params, result any, fds ...*os.File) error {
	switch p := params.(type) {
	case brokerapi.CreateParams:
		return d.create(ctx, p, result, fds)
	case brokerapi.StartParams:
		return d.started(result, func() (broker.Entry, workspace.Report, error) { return d.life.Start(ctx, p.Name, idle...) })
	case brokerapi.DestroyParams:
		return d.changed(result, func() (broker.Entry, error) {
			if p.Unused {
				return d.life.Discard(ctx, p.Name, present...)
			}
			return d.life.Destroy(ctx, p.Name, p.Purge, present...)
		})
	case brokerapi.UpdateParams:
		limits := p.Limits.OrDefault()
		if err := limits.Validate(); err != nil {
			return err
		}
		return d.changed(result, func() (broker.Entry, error) { return d.life.Update(ctx, p.Name, limits, still...) })
	case brokerapi.ListParams:
		if out, ok := result.(*brokerapi.ListResult); ok {
			for _, e := range d.life.List() {
				if e.Name > p.After {
					out.Workspaces = append(out.Workspaces, d.wire(e))
				}
			}
			return nil
		}
	case brokerapi.ForgetParams:
		return d.life.Forget(ctx, p.Name, p.ID)
	case brokerapi.NameParams:
		return d.named(ctx, method, p.Name, result)
	}
	return fmt.Errorf("cannot %s: a carrel without root does not serve that; one that root brought up does: %w", method, errdefs.ErrNotImplemented)
}

// named carries out what takes a name alone.
func (d *Broker) named(ctx context.Context, method string, name id.Workspace, result any) error {
	switch method {
	case brokerapi.MethodStop:
		return d.changed(result, func() (broker.Entry, error) { return d.life.Stop(ctx, name, still...) })
	case brokerapi.MethodPause:
		return d.changed(result, func() (broker.Entry, error) { return d.life.Freeze(ctx, name, true, live...) })
	case brokerapi.MethodResume:
		return d.changed(result, func() (broker.Entry, error) { return d.life.Freeze(ctx, name, false, live...) })
	case brokerapi.MethodReport:
		if out, ok := result.(*workspace.Report); ok {
			r, err := d.life.Report(name, live...)
			*out = r
			return err
		}
	case brokerapi.MethodStats:
		if out, ok := result.(*workspace.Stats); ok {
			st, err := d.life.Stats(name, live...)
			*out = st
			return err
		}
	}
	return fmt.Errorf("cannot %s %s: a carrel without root does not serve that: %w", method, name, errdefs.ErrNotImplemented)
}

func (d *Broker) create(ctx context.Context, p brokerapi.CreateParams, result any, fds []*os.File) error {
	limits := p.Limits.OrDefault()
	if err := limits.Validate(); err != nil {
		return err
	}
	if err := workspace.CheckOpenings(p.Allow, p.Mounts); err != nil {
		return err
	}
	plan := broker.Plan{KeyDigest: p.KeyDigest, Limits: limits, Allow: p.Allow, Start: p.Start}
	if len(p.Mounts) > 0 {
		if len(fds) != 1 {
			return fmt.Errorf("cannot create %s: %d mounts come with %d grants: %w", p.Name, len(p.Mounts), len(fds), errdefs.ErrInvalidArgument)
		}
		plan.Grant = &broker.Grant{KeyDigest: p.KeyDigest, Asked: p.Mounts, File: fds[0]}
	}
	return d.started(result, func() (broker.Entry, workspace.Report, error) { return d.life.Create(ctx, p.Name, plan, fresh...) })
}

func (d *Broker) started(result any, do func() (broker.Entry, workspace.Report, error)) error {
	out, ok := result.(*brokerapi.StartResult)
	if !ok {
		return errdefs.ErrInternal
	}
	e, report, err := do()
	out.Workspace, out.Report = d.wire(e), report
	return err
}

func (d *Broker) changed(result any, do func() (broker.Entry, error)) error {
	out, ok := result.(*brokerapi.Workspace)
	if !ok {
		return errdefs.ErrInternal
	}
	e, err := do()
	*out = d.wire(e)
	return err
}

// wire is an entry as the broker would send it. The ids are those in force: those of the
// ledger are numbers only.
func (d *Broker) wire(e broker.Entry) brokerapi.Workspace {
	var mounts []workspace.Mount
	for _, m := range e.Mounts {
		mounts = append(mounts, m.Mount)
	}
	return brokerapi.Workspace{
		Mounts: mounts, Name: e.Name, KeyDigest: e.KeyDigest, State: e.State, User: string(e.Name), IDs: d.host.ranges.IDs(),
		Home: e.Home, Limits: e.Limits, Executor: e.Executor, Retained: e.Retained, Allow: e.Allow,
	}
}
