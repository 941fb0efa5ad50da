package namespace

import (
	"context"
	"fmt"
	"os"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/wire/brokerapi"
)

// Egress implements runtime.Runtime.
func (r *Runtime) Egress(ctx context.Context, name id.Workspace) (*os.File, error) {
	return r.broker.Egress(ctx, brokerapi.NameParams{Name: name})
}

func (b *client) Egress(ctx context.Context, p brokerapi.NameParams) (*os.File, error) {
	_, files, err := askFiles[struct{}](ctx, b, brokerapi.MethodEgress, p)
	if err == nil && len(files) != 1 {
		err = fmt.Errorf("cannot use the way out of %s: the broker sent %d sockets, not one: %w", p.Name, len(files), errdefs.ErrInternal)
	}
	if err != nil {
		closeAll(files)
		return nil, err
	}
	return files[0], nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}
