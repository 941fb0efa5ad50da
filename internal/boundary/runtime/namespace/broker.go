package namespace

import (
	"context"
	"os"

	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/wire/brokerapi"
)

// Broker makes, starts and ends workspaces. Package brokerapi has what each operation is asked
// and answers. Every one may be repeated.
//
// Three implement it: the connection to carrel-broker, the broker of one user's own daemon
// (package rootless/userbroker), and the starter of "carrel run" without root (package rootless).
type Broker interface {
	// Create is given the far end of package mountgrant's socket if there are mounts. It stays the
	// caller's.
	Create(ctx context.Context, p brokerapi.CreateParams, grant *os.File) (brokerapi.StartResult, error)
	Start(ctx context.Context, p brokerapi.StartParams) (brokerapi.StartResult, error)
	Stop(ctx context.Context, p brokerapi.NameParams) (brokerapi.Workspace, error)
	Destroy(ctx context.Context, p brokerapi.DestroyParams) (brokerapi.Workspace, error)
	Pause(ctx context.Context, p brokerapi.NameParams) (brokerapi.Workspace, error)
	Resume(ctx context.Context, p brokerapi.NameParams) (brokerapi.Workspace, error)
	Update(ctx context.Context, p brokerapi.UpdateParams) (brokerapi.Workspace, error)
	List(ctx context.Context, p brokerapi.ListParams) (brokerapi.ListResult, error)
	Report(ctx context.Context, p brokerapi.NameParams) (workspace.Report, error)
	Stats(ctx context.Context, p brokerapi.NameParams) (workspace.Stats, error)
	Forget(ctx context.Context, p brokerapi.ForgetParams) error
	Revive(ctx context.Context, p brokerapi.ForgetParams) (brokerapi.Workspace, error)
	Countersign(ctx context.Context, p brokerapi.CountersignParams) (brokerapi.CountersignResult, error)
	// Egress returns the control socket of a fresh carrel-egress. It is the caller's to close.
	Egress(ctx context.Context, p brokerapi.NameParams) (*os.File, error)
	// Mended is as in runtime.Runtime.
	Mended(ctx context.Context) (start string, list []workspace.Mended, err error)
	Close() error
}

// Unserved returns a Broker to embed in one that serves only some operations. It refuses the others
// with an error of kind not_implemented; instead says why, and what serves them.
func Unserved(instead string) Broker { return &client{instead: instead} }
