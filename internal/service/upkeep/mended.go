package upkeep

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/state/audit"
	"github.com/carrel-dev/carrel/internal/state/record"
)

// NoteMended records what the brokers put right at their start, once for each start, and tells
// it as events. It is called at the daemon's own start, and when another broker answers: then what
// was begun with the one before is brought to its end too.
func (u *Upkeep) NoteMended(ctx context.Context) error {
	u.mending.Lock()
	defer u.mending.Unlock()
	for boundary, rt := range u.cfg.Runtimes {
		start, list, err := rt.Mended(ctx)
		if err != nil {
			return err
		}
		if len(list) > 0 {
			if err := u.noteStart(ctx, start, list); err != nil {
				return err
			}
		}
		before, served := u.compared[boundary]
		u.compared[boundary] = start
		if !served || before == start { // the daemon's own start compares them itself
			continue
		}
		finished, err := u.cfg.Lifecycle.Reconcile(ctx)
		if err != nil {
			u.compared[boundary] = before
			return err
		}
		if len(list) == 0 {
			u.mended = nil
		}
		u.mended = append(slices.Clone(u.mended), finished...)
	}
	return nil
}

func (u *Upkeep) noteStart(ctx context.Context, start string, list []workspace.Mended) error {
	last, err := u.cfg.Store.Meta(ctx, metaBroker)
	if err != nil || last == start {
		return err
	}
	for _, m := range list {
		rec, ev := u.mendedAs(m)
		if ev.Intent, err = u.cfg.Records.Append(ctx, rec); err != nil {
			return err
		}
		u.cfg.Events.Add(ev)
	}
	if err := u.cfg.Store.SetMeta(ctx, metaBroker, start); err != nil {
		return err
	}
	u.mended = list
	u.cfg.Log.Warn("the broker put things right at its start; \"carrel events --since 1\" and the audit log have them", "count", len(list))
	return nil
}

// mendedAs is one thing that was put right as a record and as an event, which the owner sees,
// if the workspace still has one, and administrators.
func (u *Upkeep) mendedAs(m workspace.Mended) (audit.Record, workspace.Event) {
	self, done := principal.Self().String(), record.Clip(m.Done)
	data, _ := json.Marshal(struct { // strings always marshal
		Event string               `json:"event"`
		Kind  workspace.MendedKind `json:"kind"`
		Done  string               `json:"done"`
	}{brokerMended, m.Kind, done})
	rec := audit.Record{Type: audit.Lifecycle, Principal: self, Status: audit.StatusOK, Data: data}
	if id.IsWorkspace(string(m.Workspace)) {
		rec.Workspace = m.Workspace
	}
	ev := workspace.Event{
		Time: time.Now(), Workspace: m.Workspace, Owner: self, Kind: brokerMended, Status: audit.StatusOK,
		Note: string(m.Kind) + ": " + done, Principal: self,
	}
	if k, ok := u.cfg.Store.ByName(m.Workspace); ok {
		ev.Owner = k.Owner
		ev.Key, ev.State, _ = u.cfg.Lifecycle.Current(m.Workspace)
	}
	if m.Kind == workspace.NotMended {
		rec.Status = audit.StatusFailed
		ev.Status, ev.Error, ev.Note = audit.StatusFailed, done, string(m.Kind)
	}
	return rec, ev
}

// Mended returns what the broker put right at its last start, if that came with or after the
// daemon's.
func (u *Upkeep) Mended(ctx context.Context, p principal.Principal) ([]workspace.Mended, error) {
	if _, err := u.cfg.Gate.Authorise(ctx, operation.Request{By: p, Op: operation.Simple(operation.Mended)}, nil); err != nil {
		return nil, err
	}
	// The broker may have been started again since it was spoken to last.
	if err := u.NoteMended(ctx); err != nil {
		return nil, err
	}
	u.mending.Lock()
	defer u.mending.Unlock()
	return slices.Clone(u.mended), nil
}
