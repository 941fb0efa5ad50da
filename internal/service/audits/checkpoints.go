package audits

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/carrel-dev/carrel/internal/base/crashpoint"
	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/state/audit"
	"github.com/carrel-dev/carrel/internal/state/record"
)

// signing is the kind of events and records about signing the log: one when it fails first,
// and one when it succeeds again.
const signing = "audit.checkpoint"

// Sign signs the log at the start, and then whenever there are so many new records, or there
// is one and so much time has passed, until ctx ends.
func (a *Auditing) Sign(ctx context.Context) {
	if a.cfg.Checkpoints == nil {
		return
	}
	t := time.NewTicker(a.cfg.Every)
	defer t.Stop()
	for {
		if err := a.checkpoint(ctx); err != nil {
			a.cfg.Log.Error("cannot sign the audit log", "error", err)
		}
		// A checkpoint that fails leaves the number where it is: the next waits for its time.
		enough := a.cfg.Audit.Reached(a.cfg.Checkpoints.State().Signed + a.cfg.After)
		if a.cfg.Checkpoints.State().Err != nil {
			enough = nil
		}
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		case <-enough:
		}
	}
}

// checkpoint signs the log and tells of it if that fails or succeeds for the first time.
func (a *Auditing) checkpoint(ctx context.Context) error {
	_, err := a.cfg.Checkpoints.Make(ctx)
	if a.unsigned.Swap(err != nil) == (err != nil) {
		return err
	}
	self := principal.Self().String()
	ev := workspace.Event{
		Time: time.Now(), Owner: self, Kind: signing, Status: audit.StatusOK, Principal: self,
		Note: "the audit log is signed again",
	}
	data, _ := json.Marshal(struct { // a string always marshals
		Event string `json:"event"`
	}{signing})
	rec := audit.Record{Type: audit.Lifecycle, Principal: self, Status: audit.StatusOK, Data: data}
	if err != nil {
		ev.Status, ev.Error, ev.Note = audit.StatusFailed, record.Clip(err.Error()), ""
		rec.Status, rec.Error, rec.ErrorKind = audit.StatusFailed, ev.Error, record.KindOf(err)
	}
	seq, aerr := a.cfg.Records.Append(ctx, rec)
	if aerr != nil {
		a.cfg.Log.Error("cannot record that the audit log is not signed", "error", aerr)
	}
	ev.Intent = seq
	a.cfg.Events.Add(ev)
	return err
}

// Forget removes files of the audit log that were kept for their time. The record of it is
// signed before the first goes.
func (a *Auditing) Forget(ctx context.Context, now time.Time) error {
	if a.cfg.Checkpoints == nil {
		return nil
	}
	r, err := a.cfg.Checkpoints.PlanRemoval(ctx, a.cfg.Keep, now)
	if r == nil || err != nil {
		return err
	}
	crashpoint.Here("daemon.remove.planned")
	data, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("cannot write down what is removed of the audit log: %w", err)
	}
	seq, err := a.cfg.Records.Append(ctx, audit.Record{
		Type: audit.Removed, Trace: id.NewTrace(), Principal: principal.Self().String(), Status: audit.StatusOK, Data: data,
	})
	if err != nil {
		return err
	}
	crashpoint.Here("daemon.remove.recorded")
	// A start must not look for a record that is gone.
	if err := a.Mark(ctx); err != nil {
		return err
	}
	if err := a.checkpoint(ctx); err != nil {
		return err
	}
	crashpoint.Here("daemon.remove.signed")
	if err := a.cfg.Checkpoints.Remove(r, seq); err != nil {
		return err
	}
	crashpoint.Here("daemon.remove.done")
	a.cfg.Log.Info("files of the audit log were removed that had been kept for their time",
		"files", len(r.Files), "from", r.From, "to", r.To, "bytes", r.Bytes)
	return nil
}
