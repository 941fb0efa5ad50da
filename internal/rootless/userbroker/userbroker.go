// Package userbroker is the broker of an ordinary user's own daemon: it makes, starts and ends
// that user's workspaces with the user's own rights, in the daemon's process.
//
// The life of a workspace, its ledger and the recovery after a crash are package broker's; what
// differs is what is done to the host, in host. It must not hold isolation of its own: package
// launch starts the same executor and judges it by the same table.
package userbroker

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/broker"
	"github.com/carrel-dev/carrel/internal/boundary/runtime/namespace"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/wire/brokerapi"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

// Config holds the dependencies of Open. All of it is required.
type Config struct {
	// State is the directory that survives a restart, the caller's alone.
	State string
	// Executor and Egress are the paths of carrel-executor and carrel-egress.
	Executor, Egress string
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
	*broker.Lifecycle
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
	b := &Broker{host: h, Lifecycle: broker.NewLifecycle(broker.Settings{
		UIDFirst: firstNumber, UIDCount: numbers, MaxWorkspaces: cfg.MaxWorkspaces,
	}, ledger, h, cfg.Log)}
	if err := b.Recover(ctx); err != nil {
		_ = b.Lifecycle.Close()
		return nil, err
	}
	return b, nil
}

// Close ends every executor, and with it what runs in its workspace, and lets go of the
// ledger, in which its workspaces are stopped.
func (b *Broker) Close() error {
	for _, e := range b.Entries() {
		if e.State == workspace.StateStopped {
			continue
		}
		// What cannot be ended in order ends with this process.
		_, _ = b.Stop(context.Background(), brokerapi.NameParams{Name: e.Name})
	}
	_ = b.Lifecycle.Close() // what was to be kept is synced
	return nil
}

// Create implements namespace.Broker. No connection has checked the form of p.
func (b *Broker) Create(ctx context.Context, p brokerapi.CreateParams, grant *os.File) (brokerapi.StartResult, error) {
	if err := p.Check(); err != nil {
		return brokerapi.StartResult{}, err
	}
	return b.Lifecycle.Create(ctx, p, grant)
}

// Countersign implements namespace.Broker: it signs nothing, for a key that the daemon could use
// would prove nothing against it.
func (b *Broker) Countersign(context.Context, brokerapi.CountersignParams) (brokerapi.CountersignResult, error) {
	return brokerapi.CountersignResult{}, fmt.Errorf("cannot countersign the audit log: a carrel without root has no broker to sign it; "+
		"one that root brought up does: %w", errdefs.ErrNotImplemented)
}

// Executor is the Executor of namespace.Config: a connection that the executor was started
// with.
func (b *Broker) Executor(_ context.Context, name id.Workspace, role execapi.Role) (*net.UnixConn, error) {
	return b.host.connect(name, role)
}
