package namespace

import (
	"context"
	"fmt"
	"os"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/brokerapi"
	"github.com/carrel-dev/carrel/internal/workspace"
)

// Broker makes, starts and ends workspaces. Package brokerapi has what each operation is asked
// and answers. Every one may be repeated.
//
// Three implement it: the connection to carrel-broker, the broker of one user's own daemon
// (package rootless/userbroker), and the starter of "carrel run" without root (package rootless).
type Broker interface {
	// Create is given the far end of package grant's socket if there are mounts. It stays the
	// caller's.
	Create(ctx context.Context, p brokerapi.CreateParams, grant *os.File) (brokerapi.StartResult, error)
	Start(ctx context.Context, p brokerapi.NameParams) (brokerapi.StartResult, error)
	Stop(ctx context.Context, p brokerapi.NameParams) (brokerapi.Workspace, error)
	Destroy(ctx context.Context, p brokerapi.DestroyParams) (brokerapi.Workspace, error)
	Pause(ctx context.Context, p brokerapi.NameParams) (brokerapi.Workspace, error)
	Resume(ctx context.Context, p brokerapi.NameParams) (brokerapi.Workspace, error)
	Update(ctx context.Context, p brokerapi.UpdateParams) (brokerapi.Workspace, error)
	List(ctx context.Context, p brokerapi.ListParams) (brokerapi.ListResult, error)
	Report(ctx context.Context, p brokerapi.NameParams) (workspace.Report, error)
	Stats(ctx context.Context, p brokerapi.NameParams) (workspace.Stats, error)
	Forget(ctx context.Context, p brokerapi.ForgetParams) error
	Countersign(ctx context.Context, p brokerapi.CountersignParams) (brokerapi.CountersignResult, error)
	// Mended is as in runtime.Runtime.
	Mended(ctx context.Context) (start string, list []workspace.Mended, err error)
	Close() error
}

// Unserved is embedded by a Broker that serves only some operations: it refuses all others.
type Unserved struct {
	// Instead says why, and what serves them.
	Instead string
}

var _ Broker = Unserved{}

func (u Unserved) refuse(method string) error {
	return fmt.Errorf("cannot %s: %s: %w", method, u.Instead, errdefs.ErrNotImplemented)
}

// Create implements Broker.
func (u Unserved) Create(context.Context, brokerapi.CreateParams, *os.File) (brokerapi.StartResult, error) {
	return brokerapi.StartResult{}, u.refuse(brokerapi.MethodCreate)
}

// Start implements Broker.
func (u Unserved) Start(context.Context, brokerapi.NameParams) (brokerapi.StartResult, error) {
	return brokerapi.StartResult{}, u.refuse(brokerapi.MethodStart)
}

// Stop implements Broker.
func (u Unserved) Stop(context.Context, brokerapi.NameParams) (brokerapi.Workspace, error) {
	return brokerapi.Workspace{}, u.refuse(brokerapi.MethodStop)
}

// Destroy implements Broker.
func (u Unserved) Destroy(context.Context, brokerapi.DestroyParams) (brokerapi.Workspace, error) {
	return brokerapi.Workspace{}, u.refuse(brokerapi.MethodDestroy)
}

// Pause implements Broker.
func (u Unserved) Pause(context.Context, brokerapi.NameParams) (brokerapi.Workspace, error) {
	return brokerapi.Workspace{}, u.refuse(brokerapi.MethodPause)
}

// Resume implements Broker.
func (u Unserved) Resume(context.Context, brokerapi.NameParams) (brokerapi.Workspace, error) {
	return brokerapi.Workspace{}, u.refuse(brokerapi.MethodResume)
}

// Update implements Broker.
func (u Unserved) Update(context.Context, brokerapi.UpdateParams) (brokerapi.Workspace, error) {
	return brokerapi.Workspace{}, u.refuse(brokerapi.MethodUpdate)
}

// List implements Broker.
func (u Unserved) List(context.Context, brokerapi.ListParams) (brokerapi.ListResult, error) {
	return brokerapi.ListResult{}, u.refuse(brokerapi.MethodList)
}

// Report implements Broker.
func (u Unserved) Report(context.Context, brokerapi.NameParams) (workspace.Report, error) {
	return workspace.Report{}, u.refuse(brokerapi.MethodReport)
}

// Stats implements Broker.
func (u Unserved) Stats(context.Context, brokerapi.NameParams) (workspace.Stats, error) {
	return workspace.UnknownStats, u.refuse(brokerapi.MethodStats)
}

// Forget implements Broker.
func (u Unserved) Forget(context.Context, brokerapi.ForgetParams) error {
	return u.refuse(brokerapi.MethodForget)
}

// Countersign implements Broker.
func (u Unserved) Countersign(context.Context, brokerapi.CountersignParams) (brokerapi.CountersignResult, error) {
	return brokerapi.CountersignResult{}, u.refuse(brokerapi.MethodCountersign)
}

// Mended implements Broker: nothing was to be put right.
func (u Unserved) Mended(context.Context) (start string, list []workspace.Mended, err error) {
	return "", nil, nil
}

// Close implements Broker.
func (u Unserved) Close() error { return nil }
