package api

import (
	"context"
	"fmt"
	"os"

	"connectrpc.com/connect"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/spec/approval"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/surface/authn"
	"github.com/carrel-dev/carrel/internal/wire/errcode"
	"github.com/carrel-dev/carrel/internal/wire/mountgrant"
)

type workspaces struct{ *Server }

func (s workspaces) Create(ctx context.Context, req *request[carrelv1.CreateRequest]) (*response[carrelv1.CreateResponse], error) {
	m := req.Msg
	key, err := id.ParseKey(m.GetKey())
	if err != nil {
		return nil, errcode.ToWire(err)
	}
	allow, err := workspace.ParseOpenings(m.GetAllow())
	if err != nil {
		return nil, errcode.ToWire(err)
	}
	if err := between("approval_wait_ms", m.GetApprovalWaitMs(), 0, approval.MaxWait.Milliseconds(), "0 is not at all"); err != nil {
		return nil, errcode.ToWire(err)
	}
	want := workspace.Wanted{
		Key: key, Profile: m.GetProfile(), Limits: limitsFrom(m.GetLimits()), TTL: duration(m.GetTtlMs()), Idle: duration(m.GetIdleTimeoutMs()),
		NoStart: m.GetNoStart(), OneUse: m.GetOneUse(), Request: m.GetRequestId(), Allow: allow, Wait: duration(m.GetApprovalWaitMs()),
		Reach: workspace.Reach{Allow: m.GetReachAllow(), Ask: m.GetReachAsk(), Deny: m.GetReachDeny()}.Unique(), Secrets: m.GetSecrets(),
		SecretTemplates: m.GetSecretTemplates(), Models: modelUsesFrom(m.GetModels()),
	}
	if want.SecretFiles, err = workspace.ParseSecretFiles(m.GetSecretFiles()); err != nil {
		return nil, errcode.ToWire(err)
	}
	want.Secrets = workspace.SecretNamesOf(want.Secrets, want.SecretFiles)
	if want.ModelBudget, err = modelBudgetFrom(m.GetModelBudget()); err != nil {
		return nil, errcode.ToWire(err)
	}
	grants, err := grantOf(ctx, len(m.GetMounts()))
	if err != nil {
		return nil, errcode.ToWire(err)
	}
	for _, x := range m.GetMounts() {
		want.Mounts = append(want.Mounts, workspace.Mount{
			Source: x.GetSource(), Destination: x.GetDestination(), ReadOnly: x.GetReadOnly(), AsRoot: x.GetAsRoot(),
			Staged: x.GetStaged(), Stage: x.GetStage(),
		})
	}
	w, created, err := s.gate.Create(ctx, authn.FromContext(ctx), want, grants...)
	if err != nil {
		return nil, errcode.ToWire(err)
	}
	return connect.NewResponse(&carrelv1.CreateResponse{Workspace: workspaceTo(w), Created: created}), nil
}

// grantOf is the descriptor that came for mounts. It is passed on unread: who made it, and for
// what, is the broker's to see.
func grantOf(ctx context.Context, mounts int) ([]*os.File, error) {
	c, err := carried(ctx)
	switch {
	case mounts == 0 && (err != nil || len(c.in) == 0):
		return nil, nil
	case err != nil:
		return nil, err
	case mounts == 0 || len(c.in) != 1 || !mountgrant.Is(c.in[0]):
		return nil, invalid("mounts", fmt.Sprintf("there are %d, and %d descriptors for them", mounts, len(c.in)),
			"send one grant with mounts, and none without")
	}
	return c.in, nil
}

func (s workspaces) Get(ctx context.Context, req *request[carrelv1.GetRequest]) (*response[carrelv1.GetResponse], error) {
	w, err := s.one(ctx, req.Msg.GetWorkspace(), s.gate.Get)
	if err != nil {
		return nil, errcode.ToWire(err)
	}
	return connect.NewResponse(&carrelv1.GetResponse{Workspace: w}), nil
}

func (s workspaces) Start(ctx context.Context, req *request[carrelv1.StartRequest]) (*response[carrelv1.StartResponse], error) {
	w, err := s.one(ctx, req.Msg.GetWorkspace(), s.gate.Start)
	if err != nil {
		return nil, errcode.ToWire(err)
	}
	return connect.NewResponse(&carrelv1.StartResponse{Workspace: w}), nil
}

func (s workspaces) Stop(
	ctx context.Context, req *request[carrelv1.StopRequest],
) (*response[carrelv1.StopResponse], error) {
	w, err := s.one(ctx, req.Msg.GetWorkspace(), s.gate.Stop)
	if err != nil {
		return nil, errcode.ToWire(err)
	}
	return connect.NewResponse(&carrelv1.StopResponse{Workspace: w}), nil
}

func (s workspaces) List(
	ctx context.Context, req *request[carrelv1.ListRequest],
) (*response[carrelv1.ListResponse], error) {
	ws, err := s.gate.List(ctx, authn.FromContext(ctx))
	if err != nil {
		return nil, errcode.ToWire(err)
	}
	out := &carrelv1.ListResponse{Workspaces: make([]*carrelv1.Workspace, 0, len(ws))}
	for _, w := range ws {
		out.Workspaces = append(out.Workspaces, workspaceTo(w))
	}
	if !req.Msg.GetRetained() {
		return connect.NewResponse(out), nil
	}
	kept, err := s.gate.Retained(ctx, authn.FromContext(ctx))
	if err != nil {
		return nil, errcode.ToWire(err)
	}
	for _, r := range kept {
		out.Retained = append(out.Retained, &carrelv1.RetainedHome{
			Workspace: string(r.Workspace), Key: string(r.Key), Owner: r.Owner, Home: r.Home, DestroyedUnixMs: r.DestroyedAtMS,
			ExpiresUnixMs: r.ExpiresMS,
		})
	}
	return connect.NewResponse(out), nil
}

func (s workspaces) Destroy(ctx context.Context, req *request[carrelv1.DestroyRequest]) (*response[carrelv1.DestroyResponse], error) {
	ref, err := parseRef(req.Msg.GetWorkspace())
	if err != nil {
		return nil, errcode.ToWire(err)
	}
	retained, err := s.gate.Destroy(ctx, authn.FromContext(ctx), ref, req.Msg.GetPurge(), req.Msg.GetRequestId())
	if err != nil {
		return nil, errcode.ToWire(err)
	}
	return connect.NewResponse(&carrelv1.DestroyResponse{RetainedHome: retained}), nil
}

func limitsFrom(l *carrelv1.Limits) workspace.Limits {
	return workspace.Limits{
		MemoryBytes: l.GetMemoryBytes(),
		SwapBytes:   l.GetSwapBytes(),
		Pids:        l.GetPids(),
		CPUWeight:   l.GetCpuWeight(),
		OpenFiles:   l.GetOpenFiles(),
		DiskBytes:   l.GetDiskBytes(),
	}
}

func workspaceTo(w Workspace) *carrelv1.Workspace {
	controls := make([]*carrelv1.Control, 0, len(w.Controls))
	for _, c := range w.Controls {
		controls = append(controls, &carrelv1.Control{
			Id:        c.ID,
			Requested: c.Requested,
			Required:  c.Required,
			State:     string(c.State),
			Evidence:  c.Evidence,
			Remedy:    c.Remedy,
			Opened:    string(c.Opened),
		})
	}
	mounts := make([]*carrelv1.Mount, 0, len(w.Mounts))
	for _, m := range w.Mounts {
		mounts = append(mounts, &carrelv1.Mount{
			Source: m.Source, Destination: m.Destination, ReadOnly: m.ReadOnly, OwnerUid: m.OwnerUID, AsRoot: m.AsRoot,
			Staged: m.Staged, Stage: m.Stage,
		})
	}
	return &carrelv1.Workspace{
		Mounts:        mounts,
		Allow:         workspace.OpeningNames(w.Allow),
		Name:          string(w.Name),
		Key:           string(w.Key),
		Owner:         w.Owner,
		User:          w.User,
		Uid:           w.IDs.Work,
		ExecutorUid:   w.IDs.Executor,
		AgentUid:      w.IDs.Agent,
		Home:          w.Home,
		InsideHome:    workspace.Home,
		State:         string(w.State),
		Root:          string(w.Root),
		Boundary:      string(w.Boundary),
		Limits:        limitsTo(w.Limits),
		Controls:      controls,
		CreatedUnixMs: w.CreatedAt.UnixMilli(),
		ExecutorPid:   int64(w.ExecutorPID),
		Profile:       w.Profile,
		ExpiresUnixMs: unixMS(w.Expires),
		IdleTimeoutMs: millis(w.Idle),
		SilentUnixMs:  unixMS(w.Silent),
		ReachAllow:    w.Reach.Allow,
		ReachDeny:     w.Reach.Deny,
		ReachAsk:      w.Reach.Ask,
		ReachApproved: w.Reach.Approved,
		Egress:        w.Egress && w.State.Live(),
		Secrets:       w.Secrets.Names(),
		Models:        modelUsesTo(w.Models.Uses),
		ModelBudget:   modelBudgetTo(w.Models.Budget),
		SecretFiles:   w.Secrets.FileTexts(),
		OneUse:        w.OneUse,
	}
}

// one carries out what takes a workspace and returns it as it is then.
func (s workspaces) one(
	ctx context.Context, ref string, do func(context.Context, principal.Principal, string) (Workspace, error),
) (*carrelv1.Workspace, error) {
	ref, err := parseRef(ref)
	if err != nil {
		return nil, err
	}
	w, err := do(ctx, authn.FromContext(ctx), ref)
	if err != nil {
		return nil, err
	}
	return workspaceTo(w), nil
}
