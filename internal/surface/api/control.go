package api

import (
	"context"
	"math"
	"time"

	"connectrpc.com/connect"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/surface/authn"
	"github.com/carrel-dev/carrel/internal/wire/errcode"
)

func (s workspaces) Revive(ctx context.Context, req *request[carrelv1.ReviveRequest]) (*response[carrelv1.ReviveResponse], error) {
	w, err := s.one(ctx, req.Msg.GetWorkspace(), s.gate.Revive)
	if err != nil {
		return nil, errcode.ToWire(err)
	}
	return connect.NewResponse(&carrelv1.ReviveResponse{Workspace: w}), nil
}

func (s workspaces) Pause(ctx context.Context, req *request[carrelv1.PauseRequest]) (*response[carrelv1.PauseResponse], error) {
	w, err := s.one(ctx, req.Msg.GetWorkspace(), s.gate.Pause)
	if err != nil {
		return nil, errcode.ToWire(err)
	}
	return connect.NewResponse(&carrelv1.PauseResponse{Workspace: w}), nil
}

func (s workspaces) Resume(ctx context.Context, req *request[carrelv1.ResumeRequest]) (*response[carrelv1.ResumeResponse], error) {
	w, err := s.one(ctx, req.Msg.GetWorkspace(), s.gate.Resume)
	if err != nil {
		return nil, errcode.ToWire(err)
	}
	return connect.NewResponse(&carrelv1.ResumeResponse{Workspace: w}), nil
}

func (s workspaces) Update(ctx context.Context, req *request[carrelv1.UpdateRequest]) (*response[carrelv1.UpdateResponse], error) {
	m := req.Msg
	ref, err := parseRef(m.GetWorkspace())
	if err != nil {
		return nil, errcode.ToWire(err)
	}
	c := workspace.Change{
		Limits: limitsFrom(m.GetLimits()), TTL: duration(m.GetTtlMs()), Idle: duration(m.GetIdleTimeoutMs()), Request: m.GetRequestId(),
		Reach: workspace.ReachChange{
			Allow: m.GetReachAllow(), Ask: m.GetReachAsk(), Deny: m.GetReachDeny(), Remove: m.GetReachRemove(),
		},
		Secrets: workspace.SecretsChange{Add: m.GetSecrets(), Remove: m.GetSecretsRemove(), Templates: m.GetSecretTemplates()},
		Models:  workspace.ModelsChange{Add: modelUsesFrom(m.GetModels()), Remove: m.GetModelsRemove()},
	}
	if c.Secrets.Files, err = workspace.ParseSecretFiles(m.GetSecretFiles()); err != nil {
		return nil, errcode.ToWire(err)
	}
	c.Secrets.Add = workspace.SecretNamesOf(c.Secrets.Add, c.Secrets.Files)
	if c.Models.Budget, err = modelBudgetFrom(m.GetModelBudget()); err != nil {
		return nil, errcode.ToWire(err)
	}
	if err := c.Limits.OrDefault().Validate(); err != nil {
		return nil, errcode.ToWire(err)
	}
	if m.GetKey() != "" {
		if c.Key, err = id.ParseKey(m.GetKey()); err != nil {
			return nil, errcode.ToWire(err)
		}
	}
	w, err := s.gate.Update(ctx, authn.FromContext(ctx), ref, c)
	if err != nil {
		return nil, errcode.ToWire(err)
	}
	return connect.NewResponse(&carrelv1.UpdateResponse{Workspace: workspaceTo(w)}), nil
}

func (s workspaces) Stats(ctx context.Context, req *request[carrelv1.StatsRequest]) (*response[carrelv1.StatsResponse], error) {
	refs, err := parseRefs(req.Msg.GetWorkspaces())
	if err != nil {
		return nil, errcode.ToWire(err)
	}
	list, err := s.gate.Stats(ctx, authn.FromContext(ctx), refs)
	if err != nil {
		return nil, errcode.ToWire(err)
	}
	out := &carrelv1.StatsResponse{Usage: make([]*carrelv1.Usage, 0, len(list)), UnixNs: time.Now().UnixNano()}
	for _, u := range list {
		out.Usage = append(out.Usage, &carrelv1.Usage{
			Name: string(u.Name), Key: string(u.Key), State: string(u.State), Limits: limitsTo(u.Limits),
			MemoryBytes: u.MemoryBytes, MemoryPeakBytes: u.MemoryPeakBytes, Pids: u.Pids, CpuUs: u.CPUMicros, OomKills: u.OOMKills,
			ReadBytes: u.ReadBytes, WrittenBytes: u.WrittenBytes, DiskBytes: u.DiskBytes,
		})
	}
	return connect.NewResponse(out), nil
}

func (s workspaces) Watch(ctx context.Context, req *request[carrelv1.WatchRequest],
	stream *connect.ServerStream[carrelv1.WatchResponse],
) error {
	refs, err := parseRefs(req.Msg.GetWorkspaces())
	if err != nil {
		return errcode.ToWire(err)
	}
	if req.Msg.GetAfter() < 0 {
		return errcode.ToWire(invalid("after", "it is negative", "give 0 for what comes"))
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer s.untilClosing(ctx, cancel)()
	// The headers now: who watches must know that it does before anything happens.
	if err := stream.Send(nil); err != nil {
		return err
	}
	err = s.gate.Watch(ctx, authn.FromContext(ctx), refs, req.Msg.GetAfter(), func(ev workspace.Event, lost int64) error {
		return send(ctx, stream, &carrelv1.WatchResponse{Lost: lost, Event: &carrelv1.Event{
			Number: ev.Number, UnixMs: ev.Time.UnixMilli(), Workspace: string(ev.Workspace), Key: string(ev.Key), Kind: ev.Kind,
			State:  string(ev.State),
			Status: ev.Status, Error: ev.Error, Principal: ev.Principal, CommandId: string(ev.Command), Intent: ev.Intent, Note: ev.Note,
		}})
	})
	if why := ended(ctx); why != nil || ctx.Err() != nil {
		return errcode.ToWire(why) // a watch has no other end
	}
	return errcode.ToWire(err)
}

func parseRefs(list []string) ([]string, error) {
	refs := make([]string, 0, len(list))
	for _, s := range list {
		ref, err := parseRef(s)
		if err != nil {
			return nil, err
		}
		refs = append(refs, ref)
	}
	return refs, nil
}

// duration reads milliseconds; -1 is for ever.
func duration(ms int64) time.Duration {
	switch {
	case ms == -1:
		return workspace.Forever
	case ms > math.MaxInt64/int64(time.Millisecond):
		return math.MaxInt64
	case ms < 0: // out of bounds, and so refused
		return -time.Millisecond
	}
	return time.Duration(ms) * time.Millisecond
}

func millis(d time.Duration) int64 {
	if d == workspace.Forever {
		return -1
	}
	return d.Milliseconds()
}

// unixMS is 0 for no time.
func unixMS(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

func limitsTo(l workspace.Limits) *carrelv1.Limits {
	return &carrelv1.Limits{
		MemoryBytes: l.MemoryBytes, SwapBytes: l.SwapBytes, Pids: l.Pids, CpuWeight: l.CPUWeight,
		OpenFiles: l.OpenFiles, DiskBytes: l.DiskBytes,
	}
}

func (s workspaces) ExplainReach(ctx context.Context,
	req *request[carrelv1.ExplainReachRequest],
) (*response[carrelv1.ExplainReachResponse], error) {
	ref, err := parseRef(req.Msg.GetWorkspace())
	if err != nil {
		return nil, errcode.ToWire(err)
	}
	verdicts, err := s.gate.ExplainReach(ctx, authn.FromContext(ctx), ref, req.Msg.GetHosts())
	if err != nil {
		return nil, errcode.ToWire(err)
	}
	out := &carrelv1.ExplainReachResponse{}
	for _, v := range verdicts {
		out.Verdicts = append(out.Verdicts, &carrelv1.ReachVerdict{
			Host: v.Host, Action: v.Action, Rule: v.Rule, Reason: v.Reason, Secrets: v.Secrets,
		})
	}
	return connect.NewResponse(out), nil
}

func (s workspaces) ListConnections(ctx context.Context,
	req *request[carrelv1.ListConnectionsRequest],
) (*response[carrelv1.ListConnectionsResponse], error) {
	ref, err := parseRef(req.Msg.GetWorkspace())
	if err != nil {
		return nil, errcode.ToWire(err)
	}
	c, err := s.gate.Connections(ctx, authn.FromContext(ctx), ref, uint64(max(req.Msg.GetAfter(), 0)))
	if err != nil {
		return nil, errcode.ToWire(err)
	}
	return connect.NewResponse(&carrelv1.ListConnectionsResponse{Open: connectionsTo(c.Open), Ended: connectionsTo(c.Ended)}), nil
}

func connectionsTo(all []workspace.Connection) (out []*carrelv1.Connection) {
	for _, c := range all {
		out = append(out, &carrelv1.Connection{
			Number: int64(c.Number), BeganUnixMs: unixMS(c.Began), DurationMs: c.Duration.Milliseconds(),
			Way: c.Way, Host: c.Host, Port: uint32(c.Port), Address: c.Address, Rule: c.Rule, Secrets: c.Secrets, Requests: c.Requests,
			Refused: c.Refused, SentBytes: c.SentBytes, ReceivedBytes: c.ReceivedBytes, Count: c.Count,
		})
	}
	return out
}
