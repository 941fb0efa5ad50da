package gate

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/action"
	"github.com/carrel-dev/carrel/internal/audit"
	"github.com/carrel-dev/carrel/internal/crashpoint"
	"github.com/carrel-dev/carrel/internal/id"
	"github.com/carrel-dev/carrel/internal/principal"
	"github.com/carrel-dev/carrel/internal/workspace"
)

// auditCheckpoint is the kind of events and records about signing the log: one when it
// fails first, and one when it succeeds again.
const auditCheckpoint = "audit.checkpoint"

// tendCheckpoints signs the log at the start, and then whenever there are so many new
// records, or there is one and so much time has passed.
func (g *Gate) tendCheckpoints(ctx context.Context) {
	t := time.NewTicker(g.cfg.CheckpointEvery)
	defer t.Stop()
	for {
		if err := g.checkpoint(ctx); err != nil {
			g.cfg.Log.Error("cannot sign the audit log", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		case <-g.cfg.Audit.Reached(g.cfg.Checkpoints.State().Signed + g.cfg.CheckpointRecords):
			// One that fails leaves the number where it is: the next waits for its time.
			if g.cfg.Checkpoints.State().Err != nil {
				select {
				case <-ctx.Done():
					return
				case <-t.C:
				}
			}
		}
	}
}

// checkpoint signs the log and tells of it if that fails or succeeds for the first time.
func (g *Gate) checkpoint(ctx context.Context) error {
	_, err := g.cfg.Checkpoints.Make(ctx)
	if g.unsigned.Swap(err != nil) == (err != nil) {
		return err
	}
	ev := workspace.Event{
		Time: time.Now(), Owner: principal.Self().String(), Kind: auditCheckpoint, Status: audit.StatusOK, Principal: principal.Self().String(),
		Note: "the audit log is signed again",
	}
	data, _ := json.Marshal(struct { // a string always marshals
		Event string `json:"event"`
	}{auditCheckpoint})
	rec := audit.Record{Type: audit.Lifecycle, Principal: ev.Principal, Status: audit.StatusOK, Data: data}
	if err != nil {
		ev.Status, ev.Error, ev.Note = audit.StatusFailed, clip(err.Error()), ""
		rec.Status, rec.Error, rec.ErrorKind = audit.StatusFailed, ev.Error, kindOf(err)
	}
	seq, aerr := g.record.Append(ctx, rec)
	if aerr != nil {
		g.cfg.Log.Error("cannot record that the audit log is not signed", "error", aerr)
	}
	ev.Intent = seq
	g.events.add(ev)
	return err
}

var errNoCheckpoints = fmt.Errorf("cannot sign the audit log: this daemon was made without checkpoints: %w", errdefs.ErrFailedPrecondition)

// blocked is why no effect may follow now: a required anchor does not take what is signed.
func (g *Gate) blocked() error {
	if g.cfg.Checkpoints == nil {
		return nil
	}
	if err := g.cfg.Checkpoints.Blocked(); err != nil {
		return fmt.Errorf("cannot do anything that is to be recorded: %w", err)
	}
	return nil
}

// Checkpoint says how far the audit log is signed, and signs it first if asked to. It is for
// administrators.
func (g *Gate) Checkpoint(ctx context.Context, p principal.Principal, sign bool) (audit.CheckpointState, error) {
	if err := g.Permit(ctx, p, action.Action{Kind: action.Audit}); err != nil {
		return audit.CheckpointState{}, err
	}
	if g.cfg.Checkpoints == nil {
		return audit.CheckpointState{}, errNoCheckpoints
	}
	if sign {
		if err := g.checkpoint(ctx); err != nil {
			return g.cfg.Checkpoints.State(), err
		}
	}
	return g.cfg.Checkpoints.State(), nil
}

// forgetRecords removes files of the audit log that were kept for their time. The record of it
// is signed before the first goes.
func (g *Gate) forgetRecords(ctx context.Context, now time.Time) error {
	if g.cfg.Checkpoints == nil {
		return nil
	}
	r, err := g.cfg.Checkpoints.PlanRemoval(ctx, g.cfg.KeepAudit, now)
	if r == nil || err != nil {
		return err
	}
	crashpoint.Here("daemon.remove.planned")
	data, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("cannot write down what is removed of the audit log: %w", err)
	}
	seq, err := g.record.Append(ctx, audit.Record{Type: audit.Removed, Trace: id.NewTrace(), Principal: principal.Self().String(), Status: audit.StatusOK, Data: data})
	if err != nil {
		return err
	}
	crashpoint.Here("daemon.remove.recorded")
	// A start must not look for a record that is gone.
	if err := g.mark(ctx, false); err != nil {
		return err
	}
	if err := g.checkpoint(ctx); err != nil {
		return err
	}
	crashpoint.Here("daemon.remove.signed")
	if err := g.cfg.Checkpoints.Remove(r, seq); err != nil {
		return err
	}
	crashpoint.Here("daemon.remove.done")
	g.cfg.Log.Info("files of the audit log were removed that had been kept for their time", "files", len(r.Files), "from", r.From, "to", r.To, "bytes", r.Bytes)
	return nil
}
