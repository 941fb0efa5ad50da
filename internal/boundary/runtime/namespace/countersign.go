package namespace

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"
	"golang.org/x/mod/sumdb/tlog"

	"github.com/carrel-dev/carrel/internal/base/checkpoint"
	"github.com/carrel-dev/carrel/internal/wire/brokerapi"
)

// Countersign asks the broker for its signature on a checkpoint of the audit log, with the
// proof that its tree begins with the tree of old records.
func (r *Runtime) Countersign(
	ctx context.Context, next checkpoint.Checkpoint, old int64, proof tlog.TreeProof,
) (checkpoint.Countersigned, error) {
	p := brokerapi.CountersignParams{Origin: next.Origin, Size: next.Size, Root: next.Root.String(), Old: old, Proof: []string{}}
	for _, h := range proof {
		p.Proof = append(p.Proof, h.String())
	}
	res, err := r.broker.Countersign(ctx, p)
	if err != nil {
		return checkpoint.Countersigned{}, err
	}
	c := checkpoint.Countersigned{Key: res.Key, Size: res.Size}
	if res.Note != "" {
		c.Note = []byte(res.Note)
	}
	if c.Root, err = checkpoint.ParseHash(res.Root); err != nil {
		return c, fmt.Errorf("cannot read what the broker signed last: %w: %w", err, errdefs.ErrInternal)
	}
	return c, nil
}
