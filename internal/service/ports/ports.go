// Package ports lets clients outside reach TCP ports of workspaces' loopbacks.
//
//	client ──► surface ──► DialPort: authorised, counted ──► publication: judged, recorded ──► executor connects
//
// It must not decide who may do what, nor look at what is carried. Nothing inside a workspace can ask it for anything.
package ports

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/gate"
	"github.com/carrel-dev/carrel/internal/service/lifecycle"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/spec/permit"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/wire/portconn"
)

// Config holds the dependencies of New. Gate and Lifecycle are required.
type Config struct {
	Gate      *gate.Gate
	Lifecycle *lifecycle.Lifecycle
	// Idle is how long nothing may move on a connection, and Linger how long a port stays open to who connected without
	// publishing it, when the last connection has ended; 0 is the default.
	Idle, Linger time.Duration
}

const (
	defaultIdle   = time.Hour
	defaultLinger = time.Minute
)

// Ports are the ports of all workspaces. Its methods may be called from any goroutine.
type Ports struct {
	cfg Config
	*table
}

// New returns the ports of the workspaces of a lifecycle.
func New(cfg Config) *Ports {
	if cfg.Idle == 0 {
		cfg.Idle = defaultIdle
	}
	if cfg.Linger == 0 {
		cfg.Linger = defaultLinger
	}
	return &Ports{cfg: cfg, table: newTable(cfg.Linger)}
}

// Check says why a number is no port.
func Check(port int) error {
	if port < 1 || port > 65535 {
		return fmt.Errorf("cannot use port %d: a port is from 1 to 65535: %w", port, errdefs.ErrInvalidArgument)
	}
	return nil
}

// PublishPort keeps a port of the workspace that ref names open for p, until release is called or the workspace stops: then held
// has ended, with the reason as its cause. It connects to nothing, so nothing needs to listen yet.
//
// Errors: failed_precondition: the workspace does not run; it is not started, since nothing would listen in it.
func (s *Ports) PublishPort(ctx context.Context, p principal.Principal, ref string, port int) (
	held context.Context, release func(), err error,
) {
	if err := Check(port); err != nil {
		return nil, nil, err
	}
	a, err := s.cfg.Lifecycle.Authorise(ctx, p, ref, operation.OnPort(operation.OpenPort, port))
	if err != nil {
		return nil, nil, err
	}
	x, err := s.open(ctx, p, a, port)
	if err != nil {
		return nil, nil, err
	}
	held, end := context.WithCancelCause(ctx)
	stop := context.AfterFunc(x.ctx, func() { end(context.Cause(x.ctx)) })
	return held, func() {
		stop()
		end(nil)
		s.leave(x, 0)
	}, nil
}

// DialPort connects p to a port of the workspace that ref names. If p has not published it, that is done first, for as long as
// connections come. The connection ends with ctx, with the workspace, and when nothing has moved on it for an hour.
//
// Errors: unavailable: nothing listens there, or the workspace stops. deadline_exceeded: what listens accepts no connection.
// failed_precondition: the workspace does not run. resource_exhausted: too many are open.
func (s *Ports) DialPort(ctx context.Context, p principal.Principal, ref string, port int) (*portconn.Conn, error) {
	if err := Check(port); err != nil {
		return nil, err
	}
	life := s.cfg.Lifecycle
	a, err := life.Authorise(ctx, p, ref, operation.OnPort(operation.ConnectPort, port))
	if err != nil {
		return nil, err
	}
	on := a.On()
	x, err := s.published(ctx, p, on.Name, port)
	if err != nil {
		return nil, err
	}
	done, err := s.enter(on.Name, p.Owner())
	if err != nil {
		s.leave(x, s.linger)
		return nil, err
	}
	fail := func(err error) (*portconn.Conn, error) {
		done()
		s.leave(x, s.linger)
		return nil, err
	}
	admitted, err := a.Admit(ctx)
	if err != nil {
		return fail(err)
	}
	rt, err := life.Runtime(on.Boundary)
	if err != nil {
		return fail(err)
	}
	var raw *net.TCPConn
	err = admitted.Do(ctx, func(ctx context.Context, pm permit.Permit) (any, error) {
		raw, err = rt.Dial(ctx, pm, port)
		return nil, err
	})
	if errors.Is(err, runtime.ErrNotRunning) {
		err = notRunning(on.Name, port, workspace.StateStopped)
	}
	if err != nil {
		return fail(err)
	}
	_ = raw.SetNoDelay(true) // what is typed is not held back
	var stop func() bool
	var c *portconn.Conn
	ready := make(chan struct{})
	c = portconn.New(raw, s.cfg.Idle, func(in, out int64) {
		<-ready
		stop()
		s.remove(x, c, in, out)
		done()
		life.Touch(on.Name)
		s.leave(x, s.linger)
	})
	stop = context.AfterFunc(ctx, func() { c.End(context.Cause(ctx)) })
	err = s.add(x, c)
	close(ready)
	if err != nil {
		c.End(err)
		return nil, err
	}
	return c, nil
}

// open passes the gate for a port that p publishes, unless that is done, and holds it.
func (s *Ports) open(ctx context.Context, p principal.Principal, a *gate.Authorised, port int) (*publication, error) {
	on, life := a.On(), s.cfg.Lifecycle
	return s.hold(ctx, key{p.String(), on.Name, port}, p.Owner(), func(x *publication) error {
		if _, state, _ := life.Current(on.Name); state != workspace.StateRunning {
			return notRunning(on.Name, port, state)
		}
		if _, _, err := life.Seen(ctx, a); err != nil {
			return err
		}
		admitted, err := a.Admit(ctx)
		if err != nil {
			return err
		}
		rt, err := life.Runtime(on.Boundary)
		if err != nil {
			return err
		}
		return admitted.Do(ctx, func(ctx context.Context, _ permit.Permit) (any, error) {
			gone, err := rt.Gone(ctx, on.Name)
			if errors.Is(err, runtime.ErrNotRunning) {
				err = notRunning(on.Name, port, workspace.StateStopped)
			}
			if err != nil {
				return nil, err
			}
			return &gate.Pending{Wait: func() (any, error) {
				select {
				case <-x.ctx.Done():
				case <-gone:
					s.end(x, fmt.Errorf("cannot reach port %d of workspace %s any longer: the workspace was stopped, or its executor went away; "+
						"open the port again when it runs: %w", port, on.Name, errdefs.ErrUnavailable))
				}
				return s.sum(x), nil
			}}, nil
		})
	})
}

// published holds what p has published, or publishes it.
func (s *Ports) published(ctx context.Context, p principal.Principal, name id.Workspace, port int) (*publication, error) {
	if x := s.held(key{p.String(), name, port}); x != nil {
		return x, nil
	}
	a, err := s.cfg.Lifecycle.Authorise(ctx, p, string(name), operation.OnPort(operation.OpenPort, port))
	if err != nil {
		return nil, err
	}
	return s.open(ctx, p, a, port)
}

func notRunning(name id.Workspace, port int, state workspace.State) error {
	if state == workspace.StatePaused {
		return fmt.Errorf("cannot open port %d of workspace %s: it is paused, so nothing answers; let it go on with \"carrel resume %s\": %w",
			port, name, name, errdefs.ErrFailedPrecondition)
	}
	return fmt.Errorf("cannot open port %d of workspace %s: it does not run, so nothing listens in it; start what is to listen, as with "+
		"\"carrel exec -d %s -- python3 -m http.server %d\": %w", port, name, name, port, errdefs.ErrFailedPrecondition)
}
