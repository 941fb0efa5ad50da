package api

import (
	"context"

	"connectrpc.com/connect"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/policy/rules"
	"github.com/carrel-dev/carrel/internal/spec/approval"
	"github.com/carrel-dev/carrel/internal/surface/authn"
	"github.com/carrel-dev/carrel/internal/wire/errcode"
)

type approvals struct{ *Server }

// Sizes of a page.
const (
	usualPage = 100
	mostPage  = 500
)

func (s approvals) ListApprovals(ctx context.Context,
	req *request[carrelv1.ListApprovalsRequest],
) (*response[carrelv1.ListApprovalsResponse], error) {
	m := req.Msg
	if err := between("page_size", int64(m.GetPageSize()), 0, mostPage, "0 is the default"); err != nil {
		return nil, errcode.ToWire(err)
	}
	f := approval.Filter{
		State: approval.State(m.GetState()), Workspace: m.GetWorkspace(), Requester: m.GetRequester(),
		After: m.GetPageToken(), Limit: int(m.GetPageSize()),
	}
	if f.Limit == 0 {
		f.Limit = usualPage
	}
	if f.Workspace != "" {
		ref, err := parseRef(f.Workspace)
		if err != nil {
			return nil, errcode.ToWire(err)
		}
		f.Workspace = ref
	}
	list, next, err := s.gate.Approvals(ctx, authn.FromContext(ctx), f)
	if err != nil {
		return nil, errcode.ToWire(err)
	}
	out := &carrelv1.ListApprovalsResponse{NextPageToken: next}
	for i := range list {
		list[i].Decision.Segments = nil
		out.Approvals = append(out.Approvals, approvalTo(&list[i]))
	}
	return connect.NewResponse(out), nil
}

func (s approvals) GetApproval(ctx context.Context,
	req *request[carrelv1.GetApprovalRequest],
) (*response[carrelv1.GetApprovalResponse], error) {
	name, err := id.ParseApproval(req.Msg.GetId())
	if err != nil {
		return nil, errcode.ToWire(err)
	}
	a, err := s.gate.Approval(ctx, authn.FromContext(ctx), name)
	if err != nil {
		return nil, errcode.ToWire(err)
	}
	return connect.NewResponse(&carrelv1.GetApprovalResponse{Approval: approvalTo(&a)}), nil
}

func (s approvals) AnswerApproval(ctx context.Context,
	req *request[carrelv1.AnswerApprovalRequest],
) (*response[carrelv1.AnswerApprovalResponse], error) {
	m := req.Msg
	name, err := id.ParseApproval(m.GetId())
	if err != nil {
		return nil, errcode.ToWire(err)
	}
	a, err := s.gate.Answer(ctx, authn.FromContext(ctx), name, approval.Kind(m.GetKind()), m.GetReason(), m.GetTerminal(),
		m.GetFiles()...)
	if err != nil {
		return nil, errcode.ToWire(err)
	}
	return connect.NewResponse(&carrelv1.AnswerApprovalResponse{Approval: approvalTo(&a)}), nil
}

func (s approvals) WatchApprovals(ctx context.Context, _ *request[carrelv1.WatchApprovalsRequest],
	stream *connect.ServerStream[carrelv1.WatchApprovalsResponse],
) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer s.untilClosing(ctx, cancel)()
	err := s.gate.WatchApprovals(ctx, authn.FromContext(ctx), func(a *approval.View) error {
		if a == nil {
			return send(ctx, stream, &carrelv1.WatchApprovalsResponse{CaughtUp: true})
		}
		return send(ctx, stream, &carrelv1.WatchApprovalsResponse{Approval: approvalTo(a)})
	})
	if why := ended(ctx); why != nil || ctx.Err() != nil {
		return errcode.ToWire(why) // it has no other end
	}
	return errcode.ToWire(err)
}

func (s approvals) ListPermissions(ctx context.Context,
	req *request[carrelv1.ListPermissionsRequest],
) (*response[carrelv1.ListPermissionsResponse], error) {
	m := req.Msg
	ref, err := parseAnyRef(m.GetWorkspace())
	if err != nil {
		return nil, errcode.ToWire(err)
	}
	list, err := s.gate.Permissions(ctx, authn.FromContext(ctx), ref, m.GetThread())
	if err != nil {
		return nil, errcode.ToWire(err)
	}
	out := &carrelv1.ListPermissionsResponse{}
	for i := range list {
		out.Permissions = append(out.Permissions, permissionTo(&list[i]))
	}
	return connect.NewResponse(out), nil
}

func permissionTo(p *approval.Permission) *carrelv1.Permission {
	out := &carrelv1.Permission{
		Id: string(p.From), Text: p.String(), Requester: p.Subject.By, Workspace: string(p.Subject.Workspace), Thread: p.Subject.Thread,
		Argv: p.Subject.Argv, Policy: p.Subject.Policy, By: p.By, UnixMs: p.At.UnixMilli(),
	}
	if r := p.Rule; r != nil {
		out.Rule, out.Capabilities, out.Owner = true, r.Capabilities, r.Owner
	}
	return out
}

func (s approvals) AllowCommand(ctx context.Context,
	req *request[carrelv1.AllowCommandRequest],
) (*response[carrelv1.AllowCommandResponse], error) {
	m := req.Msg
	ref, err := parseAnyRef(m.GetWorkspace())
	if err != nil {
		return nil, errcode.ToWire(err)
	}
	p, err := s.gate.AllowCommand(ctx, authn.FromContext(ctx), ref, m.GetArgv(), m.GetEverybody())
	if err != nil {
		return nil, errcode.ToWire(err)
	}
	return connect.NewResponse(&carrelv1.AllowCommandResponse{Permission: permissionTo(&p)}), nil
}

func (s approvals) RevokePermission(ctx context.Context,
	req *request[carrelv1.RevokePermissionRequest],
) (*response[carrelv1.RevokePermissionResponse], error) {
	name, err := id.ParsePermission(req.Msg.GetId())
	if err == nil {
		err = s.gate.RevokePermission(ctx, authn.FromContext(ctx), name)
	}
	if err != nil {
		return nil, errcode.ToWire(err)
	}
	return connect.NewResponse(&carrelv1.RevokePermissionResponse{}), nil
}

func approvalTo(a *approval.View) *carrelv1.Approval {
	d := &a.Decision
	out := &carrelv1.Approval{
		Id: string(a.ID), State: string(a.State), Requester: a.Subject.By, Workspace: string(a.Subject.Workspace), Key: string(a.Key),
		Owner:  a.Owner,
		Thread: a.Subject.Thread, Kind: string(a.Kind), Argv: a.Argv, Cwd: a.Cwd, Env: a.Env, User: a.User, Source: string(a.Source),
		Written: a.Written, OnceOnly: a.Final, Level: d.Level.String(), RiskScore: int32(d.RiskScore), Capabilities: d.Capabilities,
		Rules: d.MatchedRules, Reasons: d.Reasons, Profile: string(d.Profile), Isolation: a.Isolation,
		ActionDigest: a.Subject.Digest, Policy: a.Subject.Policy, Trace: string(a.Trace),
		Host: a.Host, Port: uint32(a.Port), Rule: a.Rule, Files: a.Files,
		AskedUnixMs: a.AskedAt.UnixMilli(), UntilUnixMs: a.Until.UnixMilli(),
	}
	for i := range d.Segments {
		out.Segments = append(out.Segments, segmentTo(&d.Segments[i]))
	}
	if w := a.Answer; w != nil {
		out.Answer = &carrelv1.ApprovalAnswer{Kind: string(w.Kind), Reason: w.Reason, By: w.By, Self: w.Self, UnixMs: w.At.UnixMilli()}
		out.Answer.Files, out.Answer.ActionDigest = w.Files, w.Digest
	}
	return out
}

func segmentTo(s *rules.Segment) *carrelv1.Segment {
	return &carrelv1.Segment{
		Text: s.Text, Program: s.Program, Via: s.Via, Level: s.Level.String(), RiskScore: int32(s.RiskScore),
		Capabilities: s.Capabilities, Rules: s.MatchedRules, Reasons: s.Reasons,
	}
}
