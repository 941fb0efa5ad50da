package broker

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/wire/brokerapi"
	"github.com/carrel-dev/carrel/internal/wire/jsonrpc"
)

// tableRow is one row of the closed table.
type tableRow struct {
	// params is how long the params may be, in bytes.
	params int
	// fds is how many descriptors may come with it.
	fds int
	// before: allowed before hello, and only then.
	before bool
	run    handler
}

type handler func(s *session, ctx context.Context, r *jsonrpc.Request) (any, error)

// closedTable is all that the broker can be asked. A request that is not in the table,
// that comes at the wrong time, whose params are too long or not of the expected form,
// ends the connection: the daemon does not do that unless it is confused or compromised.
// The rules say in which states of a workspace each is allowed.
var closedTable = map[string]tableRow{
	brokerapi.MethodHello:       {params: 256, before: true, run: serveHello},
	brokerapi.MethodCreate:      {params: 16 << 10, fds: 1, run: serveCreate},
	brokerapi.MethodStart:       {params: 8 << 10, run: serve((*Lifecycle).Start)},
	brokerapi.MethodStop:        {params: 128, run: serve((*Lifecycle).Stop)},
	brokerapi.MethodDestroy:     {params: 128, run: serve((*Lifecycle).Destroy)},
	brokerapi.MethodList:        {params: 128, run: serve((*Lifecycle).List)},
	brokerapi.MethodReport:      {params: 128, run: serve((*Lifecycle).Report)},
	brokerapi.MethodPause:       {params: 128, run: serve((*Lifecycle).Pause)},
	brokerapi.MethodResume:      {params: 128, run: serve((*Lifecycle).Resume)},
	brokerapi.MethodUpdate:      {params: 512, run: serve((*Lifecycle).Update)},
	brokerapi.MethodStats:       {params: 128, run: serve((*Lifecycle).Stats)},
	brokerapi.MethodForget:      {params: 128, run: serve(forgetHome)},
	brokerapi.MethodRevive:      {params: 128, run: serve((*Lifecycle).Revive)},
	brokerapi.MethodCountersign: {params: 8 << 10, run: serve((*Lifecycle).Countersign)},
	brokerapi.MethodEgress:      {params: 128, run: serve((*Lifecycle).Egress)},
}

// Limits of a connection. A list that Lifecycle gives fits into a reply.
const (
	maxRequest  = 20 << 10
	maxInFlight = 64
)

// session is one connection of the daemon.
type session struct {
	life    *Lifecycle
	build   string
	sockets string
	// uidFirst and uidCount are the range of ids.
	uidFirst, uidCount uint32
	greeted            atomic.Bool
}

// handle is the one door for requests.
//
// The answer may be a file, which the caller sends instead.
func (s *session) handle(ctx context.Context, r *jsonrpc.Request) (any, error) {
	op, ok := closedTable[r.Method]
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
	return op.run(s, ctx, r)
}

// refuse is the answer to a request that a correct daemon never sends.
func refuse(format string, a ...any) error {
	return jsonrpc.Hangup(fmt.Errorf(format+": %w", append(a, errdefs.ErrInvalidArgument)...))
}

// checked are params whose form is checked before anything is done with them.
type checked interface{ Check() error }

// decode reads params. Every field must be known.
func decode[P checked](r *jsonrpc.Request) (p P, err error) {
	if err = r.Decode(&p); err == nil {
		err = p.Check()
	}
	if err != nil {
		return p, jsonrpc.Hangup(err)
	}
	return p, nil
}

// serve makes the handler of an operation that needs its params and nothing else.
func serve[P checked, R any](do func(*Lifecycle, context.Context, P) (R, error)) handler {
	return func(s *session, ctx context.Context, r *jsonrpc.Request) (any, error) {
		p, err := decode[P](r)
		if err != nil {
			return nil, err
		}
		return do(s.life, ctx, p)
	}
}

func serveHello(s *session, ctx context.Context, r *jsonrpc.Request) (any, error) {
	if _, err := decode[brokerapi.HelloParams](r); err != nil {
		return nil, err
	}
	start, mended, err := s.life.Mended(ctx)
	return brokerapi.HelloResult{
		Version: brokerapi.Version, Build: s.build, ExecutorDir: s.sockets, Start: start, Mended: mended, UIDFirst: s.uidFirst,
		UIDCount: s.uidCount,
	}, err
}

func serveCreate(s *session, ctx context.Context, r *jsonrpc.Request) (any, error) {
	p, err := decode[brokerapi.CreateParams](r)
	if err != nil {
		return nil, err
	}
	if (len(p.Mounts) > 0) != (len(r.FDs) == 1) {
		return nil, refuse("cannot accept %s: %d mounts and %d grants", r.Method, len(p.Mounts), len(r.FDs))
	}
	if len(r.FDs) == 0 {
		return s.life.Create(ctx, p, nil)
	}
	return s.life.Create(ctx, p, r.FDs[0])
}

func forgetHome(l *Lifecycle, ctx context.Context, p brokerapi.ForgetParams) (struct{}, error) {
	return struct{}{}, l.Forget(ctx, p)
}
