package gate

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/carrel-dev/carrel/internal/action"
	"github.com/carrel-dev/carrel/internal/audit"
	"github.com/carrel-dev/carrel/internal/id"
	"github.com/carrel-dev/carrel/internal/principal"
	"github.com/carrel-dev/carrel/internal/workspace"
)

const (
	// metaBroker is where the store keeps which start of the broker was recorded last.
	metaBroker = "broker_start"
	// brokerMended is the kind of its events and records.
	brokerMended = "broker.mended"
	daemonStart  = "daemon.started"
)

// NoteMended records what the broker put right at its start, once for each start, and tells
// it as events. It is called at the daemon's own start, and when another broker answers.
func (g *Gate) NoteMended(ctx context.Context) error {
	g.mending.Lock()
	defer g.mending.Unlock()
	start, list, err := g.cfg.Runtime.Mended(ctx)
	if err != nil || len(list) == 0 {
		return err
	}
	last, err := g.cfg.Store.Meta(ctx, metaBroker)
	if err != nil || last == start {
		return err
	}
	for _, m := range list {
		seq, err := g.cfg.Audit.Append(ctx, mendedRecord(m))
		if err != nil {
			return err
		}
		g.events.add(g.mendedEvent(m, seq))
	}
	if err := g.cfg.Store.SetMeta(ctx, metaBroker, start); err != nil {
		return err
	}
	g.mu.Lock()
	g.mended = list
	g.mu.Unlock()
	g.cfg.Log.Warn("the broker put things right at its start; \"carrel events --since 1\" and the audit log have them", "count", len(list))
	return nil
}

func mendedRecord(m workspace.Mended) audit.Record {
	data, _ := json.Marshal(struct { // strings always marshal
		Event string               `json:"event"`
		Kind  workspace.MendedKind `json:"kind"`
		Done  string               `json:"done"`
	}{brokerMended, m.Kind, clip(m.Done)})
	rec := audit.Record{Type: audit.Lifecycle, Principal: principal.Self().String(), Status: audit.StatusOK, Data: data}
	if id.IsWorkspace(string(m.Workspace)) {
		rec.Workspace = m.Workspace
	}
	if m.Kind == workspace.NotMended {
		rec.Status = audit.StatusFailed
	}
	return rec
}

// mendedEvent is seen by the owner, if the workspace still has one, and by administrators.
func (g *Gate) mendedEvent(m workspace.Mended, seq int64) workspace.Event {
	ev := workspace.Event{
		Time: time.Now(), Workspace: m.Workspace, Owner: principal.Self().String(), Kind: brokerMended, Status: "ok",
		Note: string(m.Kind) + ": " + clip(m.Done), Principal: principal.Self().String(), Intent: seq,
	}
	if w, ok := g.cfg.Store.ByName(m.Workspace); ok {
		ev.Key, ev.Owner, ev.State = w.Key, w.Owner, w.State
	}
	if m.Kind == workspace.NotMended {
		ev.Status, ev.Error, ev.Note = "failed", clip(m.Done), string(m.Kind)
	}
	return ev
}

// Mended returns what the broker put right at its last start, if that came with or after
// the daemon's. It is for administrators.
func (g *Gate) Mended(ctx context.Context, p principal.Principal) ([]workspace.Mended, error) {
	if err := g.Permit(ctx, p, action.Action{Kind: action.Mended}); err != nil {
		return nil, err
	}
	// The broker may have been started again since it was spoken to last.
	if err := g.NoteMended(ctx); err != nil {
		return nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.mended), nil
}
