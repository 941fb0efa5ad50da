package audits

import (
	"bytes"
	"context"
	"fmt"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/checkpoint"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/state/audit"
)

var errNoCheckpoints = fmt.Errorf("cannot sign the audit log: this daemon was made without checkpoints: %w", errdefs.ErrFailedPrecondition)

// MayRead refuses those who may not read the audit log.
func (a *Auditing) MayRead(ctx context.Context, p principal.Principal) error {
	_, err := a.cfg.Gate.Authorise(ctx, operation.Request{By: p, Op: operation.Simple(operation.ReadAudit)}, nil)
	return err
}

// VerifyAudit walks the whole audit log.
func (a *Auditing) VerifyAudit(ctx context.Context, p principal.Principal) (audit.Finding, error) {
	if err := a.MayRead(ctx, p); err != nil {
		return audit.Finding{}, err
	}
	if a.cfg.Checkpoints != nil {
		return a.cfg.Checkpoints.Verify(ctx)
	}
	v, err := a.cfg.Audit.Verify(ctx)
	return v.Finding(), err
}

// ShowAudit passes on the lines of the audit log that f names; see audit.Log.Read.
func (a *Auditing) ShowAudit(ctx context.Context, p principal.Principal, from, n int64, follow bool, f audit.Filter,
	emit func(lines [][]byte) error,
) error {
	if err := a.MayRead(ctx, p); err != nil {
		return err
	}
	if f.Empty() {
		return a.cfg.Audit.Read(ctx, from, n, follow, emit)
	}
	some := func(lines [][]byte) error {
		if lines = f.Lines(lines); len(lines) == 0 {
			return nil
		}
		return emit(lines)
	}
	if n > 0 {
		// The newest that are named stand anywhere: all are read, and so many kept.
		var last [][]byte
		head := a.cfg.Audit.Head().Seq
		if err := a.cfg.Audit.Read(ctx, from, 0, false, func(lines [][]byte) error {
			for _, l := range f.Lines(lines) {
				last = append(last, bytes.Clone(l))
			}
			last = last[max(0, int64(len(last))-n):]
			return nil
		}); err != nil {
			return err
		}
		if len(last) > 0 {
			if err := emit(last); err != nil {
				return err
			}
		}
		if !follow {
			return nil
		}
		from = head + 1
	}
	return a.cfg.Audit.Read(ctx, from, 0, follow, some)
}

// ProveAudit passes on records with their proofs; see audit.Checkpoints.Prove.
func (a *Auditing) ProveAudit(ctx context.Context, p principal.Principal, from, to int64, f audit.Filter,
	emit func([]checkpoint.Proof) error,
) error {
	if err := a.MayRead(ctx, p); err != nil {
		return err
	}
	if a.cfg.Checkpoints == nil {
		return errNoCheckpoints
	}
	return a.cfg.Checkpoints.Prove(ctx, from, to, f, emit)
}

// Checkpoint says how far the audit log is signed, and signs it first if asked to.
func (a *Auditing) Checkpoint(ctx context.Context, p principal.Principal, sign bool) (audit.CheckpointState, error) {
	if err := a.MayRead(ctx, p); err != nil {
		return audit.CheckpointState{}, err
	}
	if a.cfg.Checkpoints == nil {
		return audit.CheckpointState{}, errNoCheckpoints
	}
	if sign {
		if err := a.checkpoint(ctx); err != nil {
			return a.cfg.Checkpoints.State(), err
		}
	}
	return a.cfg.Checkpoints.State(), nil
}
