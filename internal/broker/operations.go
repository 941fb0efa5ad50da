package broker

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/brokerapi"
	"github.com/carrel-dev/carrel/internal/id"
	"github.com/carrel-dev/carrel/internal/jsonrpc"
	"github.com/carrel-dev/carrel/internal/workspace"
)

// operation is one row of the closed table.
type operation struct {
	// params is how long the params may be, in bytes.
	params int
	// fds is how many descriptors may come with it.
	fds int
	// before: allowed before hello, and only then.
	before bool
	// states are those of the workspace in which it is allowed; absent is StateAbsent.
	// An operation without is not about one workspace.
	states []workspace.State
	run    func(s *session, ctx context.Context, r *jsonrpc.Request, states []workspace.State) (any, error)
}

// operations is all that the broker can be asked. A request that is not in the table,
// that comes at the wrong time, whose params are too long or not of the expected form,
// ends the connection: the daemon does not do that unless it is confused or compromised.
// docs/protocols/broker.md repeats it for people.
var operations = map[string]operation{
	brokerapi.MethodHello:   {params: 256, before: true, run: (*session).hello},
	brokerapi.MethodCreate:  {params: 16 << 10, fds: 1, states: []workspace.State{absent, workspace.StateCreating, workspace.StateStopped, workspace.StateRunning, workspace.StatePaused, workspace.StateDestroyed}, run: (*session).create},
	brokerapi.MethodStart:   {params: 128, states: []workspace.State{workspace.StateStopped, workspace.StateRunning}, run: (*session).start},
	brokerapi.MethodStop:    {params: 128, states: []workspace.State{workspace.StateStopped, workspace.StateRunning, workspace.StatePaused}, run: (*session).stop},
	brokerapi.MethodDestroy: {params: 128, states: []workspace.State{workspace.StateStopped, workspace.StateRunning, workspace.StatePaused, workspace.StateDestroying, workspace.StateDestroyed}, run: (*session).destroy},
	brokerapi.MethodList:    {params: 128, run: (*session).list},
	brokerapi.MethodReport:  {params: 128, states: live, run: (*session).report},
	brokerapi.MethodPause:   {params: 128, states: live, run: (*session).pause},
	brokerapi.MethodResume:  {params: 128, states: live, run: (*session).resume},
	brokerapi.MethodUpdate:  {params: 512, states: []workspace.State{workspace.StateStopped, workspace.StateRunning, workspace.StatePaused}, run: (*session).update},
	brokerapi.MethodStats:   {params: 128, states: live, run: (*session).stats},
	brokerapi.MethodForget:  {params: 128, run: (*session).forget},

	brokerapi.MethodCountersign: {params: 8 << 10, run: (*session).countersign},
}

// live are the states in which a workspace has an executor.
var live = []workspace.State{workspace.StateRunning, workspace.StatePaused}

// absent is the state of a name that the ledger does not have.
const absent workspace.State = ""

// Limits of a connection. A workspace takes at most 12 KiB of a list, as each path in it
// is bounded by the settings or by workspace.CheckMounts.
const (
	maxRequest  = 20 << 10
	maxReply    = 1 << 20
	maxList     = maxReply/(12<<10) - 1
	maxInFlight = 64
)

// session is one connection of the daemon.
type session struct {
	life    *Lifecycle
	build   string
	sockets string
	greeted atomic.Bool
}

// handle is the one door for requests.
func (s *session) handle(ctx context.Context, r *jsonrpc.Request) (any, error) {
	op, ok := operations[r.Method]
	switch {
	case !ok:
		return nil, jsonrpc.Hangup(jsonrpc.MethodNotFound(r.Method))
	case r.Notification:
		return nil, refuse("cannot accept %s as a notification", r.Method)
	case len(r.Params) > op.params:
		return nil, refuse("cannot accept %s: its params are longer than %d bytes", r.Method, op.params)
	case len(r.FDs) > op.fds:
		return nil, refuse("cannot accept %s: it brings descriptors", r.Method)
	case op.before && !s.greeted.CompareAndSwap(false, true):
		return nil, refuse("cannot accept a second %s", r.Method)
	case !op.before && !s.greeted.Load():
		return nil, refuse("cannot accept %s before %s", r.Method, brokerapi.MethodHello)
	}
	return op.run(s, ctx, r, op.states)
}

// refuse is the answer to what no daemon in order sends.
func refuse(format string, a ...any) error {
	return jsonrpc.Hangup(fmt.Errorf(format+": %w", append(a, errdefs.ErrInvalidArgument)...))
}

// decode reads params of which every field must be known and every name well-formed.
func decode(r *jsonrpc.Request, v any) error {
	if err := r.Decode(v); err != nil {
		return jsonrpc.Hangup(err)
	}
	return nil
}

func decodeName(r *jsonrpc.Request, v any, name *id.Workspace) error {
	if err := decode(r, v); err != nil {
		return err
	}
	if _, err := id.ParseWorkspace(string(*name)); err != nil {
		return jsonrpc.Hangup(err)
	}
	return nil
}

func (s *session) hello(_ context.Context, r *jsonrpc.Request, _ []workspace.State) (any, error) {
	var p brokerapi.HelloParams
	if err := decode(r, &p); err != nil {
		return nil, err
	}
	if p.Version != brokerapi.Version {
		return nil, jsonrpc.Hangup(fmt.Errorf("cannot serve version %d of the broker's protocol: this carrel-broker speaks %d; install broker and daemon of one release: %w",
			p.Version, brokerapi.Version, errdefs.ErrFailedPrecondition))
	}
	start, mended := s.life.Mended()
	return brokerapi.HelloResult{Version: brokerapi.Version, Build: s.build, ExecutorDir: s.sockets, Start: start, Mended: mended}, nil
}

func (s *session) create(ctx context.Context, r *jsonrpc.Request, states []workspace.State) (any, error) {
	var p brokerapi.CreateParams
	if err := decodeName(r, &p, &p.Name); err != nil {
		return nil, err
	}
	if len(p.KeyDigest) != 64 || !hexDigits(p.KeyDigest) {
		return nil, refuse("cannot accept %q as a key digest", p.KeyDigest)
	}
	limits, err := s.limits(p.Limits)
	if err != nil {
		return nil, err
	}
	if top := s.life.settings.LimitsMax.DiskBytes; top > 0 && limits.DiskBytes == 0 {
		return nil, fmt.Errorf("cannot create %s without a disk limit: this host allows at most %d (limits_max in the broker's settings); give --disk, or set limits.disk: %w", p.Name, top, errdefs.ErrInvalidArgument)
	}
	if (len(p.Mounts) > 0) != (len(r.FDs) == 1) {
		return nil, refuse("cannot accept %s: %d mounts and %d grants", r.Method, len(p.Mounts), len(r.FDs))
	}
	if err := workspace.CheckOpenings(p.Allow, p.Mounts); err != nil {
		return nil, jsonrpc.Hangup(err)
	}
	var g *Grant
	if len(p.Mounts) > 0 {
		g = &Grant{KeyDigest: p.KeyDigest, Asked: p.Mounts, File: r.FDs[0]}
	}
	e, report, err := s.life.Create(ctx, p.Name, Plan{KeyDigest: p.KeyDigest, Limits: limits, Allow: p.Allow, Grant: g, Start: p.Start}, states...)
	return brokerapi.StartResult{Workspace: e.wire(), Report: report}, err
}

// limits fills in the defaults and holds limits against what this host allows.
func (s *session) limits(asked workspace.Limits) (workspace.Limits, error) {
	l := asked.OrDefault()
	if err := l.Validate(); err != nil {
		return l, err
	}
	return l, s.life.settings.allows(l)
}

func hexDigits(s string) bool {
	for _, c := range []byte(s) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

func (s *session) start(ctx context.Context, r *jsonrpc.Request, states []workspace.State) (any, error) {
	var p brokerapi.StartParams
	if err := decodeName(r, &p, &p.Name); err != nil {
		return nil, err
	}
	e, report, err := s.life.Start(ctx, p.Name, states...)
	return brokerapi.StartResult{Workspace: e.wire(), Report: report}, err
}

func (s *session) stop(ctx context.Context, r *jsonrpc.Request, states []workspace.State) (any, error) {
	var p brokerapi.NameParams
	if err := decodeName(r, &p, &p.Name); err != nil {
		return nil, err
	}
	e, err := s.life.Stop(ctx, p.Name, states...)
	return e.wire(), err
}

func (s *session) destroy(ctx context.Context, r *jsonrpc.Request, states []workspace.State) (any, error) {
	var p brokerapi.DestroyParams
	if err := decodeName(r, &p, &p.Name); err != nil {
		return nil, err
	}
	if p.Unused {
		e, err := s.life.Discard(ctx, p.Name, states...)
		return e.wire(), err
	}
	e, err := s.life.Destroy(ctx, p.Name, p.Purge, states...)
	return e.wire(), err
}

func (s *session) list(_ context.Context, r *jsonrpc.Request, _ []workspace.State) (any, error) {
	var p brokerapi.ListParams
	if err := decode(r, &p); err != nil {
		return nil, err
	}
	if p.After != "" && !id.IsWorkspace(string(p.After)) {
		return nil, refuse("cannot accept %q as a workspace name", p.After)
	}
	res := brokerapi.ListResult{Workspaces: []brokerapi.Workspace{}}
	for _, e := range s.life.List() {
		if e.Name <= p.After {
			continue
		}
		if len(res.Workspaces) == maxList {
			res.More = true
			break
		}
		res.Workspaces = append(res.Workspaces, e.wire())
	}
	return res, nil
}

func (s *session) report(_ context.Context, r *jsonrpc.Request, states []workspace.State) (any, error) {
	var p brokerapi.NameParams
	if err := decodeName(r, &p, &p.Name); err != nil {
		return nil, err
	}
	return s.life.Report(p.Name, states...)
}

func (s *session) pause(ctx context.Context, r *jsonrpc.Request, states []workspace.State) (any, error) {
	return s.freeze(ctx, r, true, states)
}

func (s *session) resume(ctx context.Context, r *jsonrpc.Request, states []workspace.State) (any, error) {
	return s.freeze(ctx, r, false, states)
}

func (s *session) freeze(ctx context.Context, r *jsonrpc.Request, frozen bool, states []workspace.State) (any, error) {
	var p brokerapi.NameParams
	if err := decodeName(r, &p, &p.Name); err != nil {
		return nil, err
	}
	e, err := s.life.Freeze(ctx, p.Name, frozen, states...)
	return e.wire(), err
}

func (s *session) update(ctx context.Context, r *jsonrpc.Request, states []workspace.State) (any, error) {
	var p brokerapi.UpdateParams
	if err := decodeName(r, &p, &p.Name); err != nil {
		return nil, err
	}
	limits, err := s.limits(p.Limits)
	if err != nil {
		return nil, err
	}
	e, err := s.life.Update(ctx, p.Name, limits, states...)
	return e.wire(), err
}

func (s *session) stats(_ context.Context, r *jsonrpc.Request, states []workspace.State) (any, error) {
	var p brokerapi.NameParams
	if err := decodeName(r, &p, &p.Name); err != nil {
		return nil, err
	}
	return s.life.Stats(p.Name, states...)
}

func (s *session) forget(ctx context.Context, r *jsonrpc.Request, _ []workspace.State) (any, error) {
	var p brokerapi.ForgetParams
	if err := decodeName(r, &p, &p.Name); err != nil {
		return nil, err
	}
	return struct{}{}, s.life.Forget(ctx, p.Name, p.ID)
}
