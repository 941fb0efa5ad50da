package executor

import (
	"context"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/wire/execapi"
	"github.com/carrel-dev/carrel/internal/wire/jsonrpc"
)

// peer is one connection of the daemon. Attached commands belong to the connection that
// started them and are hung up when it ends.
type peer struct {
	e    *Executor
	conn *jsonrpc.Conn
	// onLoop: handlers run on the loop's thread.
	onLoop bool
	// ready is closed once conn is set.
	ready chan struct{}
	hello atomic.Bool
}

type handler func(p *peer, r *jsonrpc.Request) (any, []*os.File, error)

// with decodes the params of a method for f.
func with[T any](f func(p *peer, r *jsonrpc.Request, in *T) (any, []*os.File, error)) handler {
	return func(p *peer, r *jsonrpc.Request) (any, []*os.File, error) {
		var in T
		if err := r.Decode(&in); err != nil {
			return nil, nil, err
		}
		return f(p, r, &in)
	}
}

// methods is the closed table of what an executor does. deadline bounds the handling of one
// request. exec has none: the command's own timeout and the life of the connection bound it.
var methods = map[string]struct {
	deadline time.Duration
	handle   handler
}{
	execapi.MethodHello:         {5 * time.Second, with((*peer).greet)},
	execapi.MethodPing:          {0, (*peer).ping},
	execapi.MethodExec:          {0, with((*peer).exec)},
	execapi.MethodSpawnTerminal: {0, with((*peer).spawnTerminal)},
	execapi.MethodResize:        {5 * time.Second, with((*peer).resize)},
	execapi.MethodAttach:        {10 * time.Second, with((*peer).attach)},
	execapi.MethodLogs:          {10 * time.Second, with((*peer).logs)},
	execapi.MethodStopTask:      {10 * time.Second, with((*peer).stopTask)},
	execapi.MethodList:          {10 * time.Second, (*peer).list},
	execapi.MethodHold:          {10 * time.Second, with((*peer).hold)},
	execapi.MethodDial:          {0, with((*peer).dial)}, // it has its own, which says what did not answer
	execapi.MethodListen:        {5 * time.Second, with((*peer).listen)},
	execapi.MethodShutdown:      {2 * time.Minute, (*peer).shutdown},
}

// inline: the reader answers a ping itself, without a goroutine and a timer.
func inline(method string) bool { return method == execapi.MethodPing }

func timeout(method string) time.Duration { return methods[method].deadline }

func (p *peer) handle(_ context.Context, _ *jsonrpc.Conn, r *jsonrpc.Request) (any, []*os.File, error) {
	<-p.ready
	m, ok := methods[r.Method]
	if !ok {
		return nil, nil, jsonrpc.MethodNotFound(r.Method)
	}
	if !p.hello.Load() && r.Method != execapi.MethodHello {
		p.conn.Close()
		return nil, nil, fmt.Errorf("cannot serve %s before hello: %w", r.Method, errdefs.ErrFailedPrecondition)
	}
	return m.handle(p, r)
}

// closed hangs up the commands that were attached through this connection.
func (p *peer) closed() {
	e := p.e
	e.mu.Lock()
	delete(e.peers, p)
	if (e.closing || e.mortal) && len(e.peers) == 0 {
		e.cancel()
	}
	var attached []*command
	for _, c := range e.commands {
		if c.peer == p && !c.detached {
			attached = append(attached, c)
		}
	}
	e.mu.Unlock()
	for _, c := range attached {
		c.hangup()
	}
}

func (p *peer) greet(_ *jsonrpc.Request, in *execapi.HelloParams) (any, []*os.File, error) {
	v := min(in.Version, execapi.Version)
	if v < execapi.MinVersion || v < in.MinVersion {
		return nil, nil, fmt.Errorf("cannot agree on a version: the daemon speaks %d to %d, this executor %d to %d; "+
			"stop and start the workspace: %w",
			in.MinVersion, in.Version, execapi.MinVersion, execapi.Version, errdefs.ErrFailedPrecondition)
	}
	p.hello.Store(true)
	return execapi.HelloResult{Version: v, Build: p.e.build, Workspace: p.e.spec.Name, Held: p.e.holding.Load()}, nil, nil
}

func (p *peer) ping(*jsonrpc.Request) (any, []*os.File, error) {
	return struct{}{}, nil, nil
}

func (p *peer) exec(r *jsonrpc.Request, in *execapi.ExecParams) (any, []*os.File, error) {
	return p.start(r, in, false)
}

func (p *peer) spawnTerminal(r *jsonrpc.Request, in *execapi.ExecParams) (any, []*os.File, error) {
	return p.start(r, in, true)
}

// start starts a command; with Wait the reply follows at its end.
func (p *peer) start(r *jsonrpc.Request, in *execapi.ExecParams, tty bool) (any, []*os.File, error) {
	if err := check(in, tty, len(r.FDs)); err != nil {
		return nil, nil, err
	}
	notify := func(c *command) {
		_ = p.conn.Notify(context.Background(), execapi.MethodExited, execapi.Exited{ID: c.id, Status: c.status})
	}
	switch {
	case in.Detach:
		notify = nil
	case in.Wait:
		r.Params = nil // they may be large, and r is kept until the end
		notify = func(c *command) { c.answer(r) }
	}
	c, far, err := p.e.start(p, in, tty, r.FDs, notify)
	if err != nil {
		return nil, nil, err
	}
	if in.Wait {
		return jsonrpc.Later, nil, nil
	}
	return execapi.ExecResult{PID: c.pid}, far, nil
}

// answer replies to exec with wait.
func (c *command) answer(r *jsonrpc.Request) {
	if c.stdout.large() || c.stderr.large() {
		c.e.largeReply.Lock()
		defer c.e.largeReply.Unlock()
	}
	r.Reply(c.result(), nil, nil)
}

// result is the reply to exec with wait.
func (c *command) result() execapi.ExecResult {
	out := execapi.ExecResult{PID: c.pid, Status: &c.status}
	out.Stdout, out.StdoutLost = c.stdout.taken()
	out.Stderr, out.StderrLost = c.stderr.taken()
	return out
}

func (p *peer) resize(_ *jsonrpc.Request, in *execapi.ResizeParams) (any, []*os.File, error) {
	c, err := p.e.findBegun(in.ID)
	if err != nil {
		return nil, nil, err
	}
	if c.master == nil {
		return nil, nil, fmt.Errorf("cannot resize %s: it has no terminal: %w", in.ID, errdefs.ErrFailedPrecondition)
	}
	if t := p.e.sharedOf(c); t != nil {
		return struct{}{}, nil, t.resize(in)
	}
	return struct{}{}, nil, setSize(c.master, in.Rows, in.Cols)
}

func (p *peer) attach(_ *jsonrpc.Request, in *execapi.OutputParams) (any, []*os.File, error) {
	return p.output(in, true)
}

func (p *peer) logs(_ *jsonrpc.Request, in *execapi.OutputParams) (any, []*os.File, error) {
	return p.output(in, false)
}

func (p *peer) output(in *execapi.OutputParams, attach bool) (any, []*os.File, error) {
	c, err := p.e.findBegun(in.ID)
	if err != nil {
		return nil, nil, err
	}
	if !c.keeps {
		return nil, nil, fmt.Errorf("cannot read the output of %s: it goes to the client that started it; "+
			"only detached commands and tasks that speak on a descriptor keep theirs: %w", in.ID, errdefs.ErrFailedPrecondition)
	}
	out := execapi.OutputResult{TTY: c.tty}
	var far *os.File
	switch {
	case in.Join:
		t := p.e.sharedOf(c)
		if t == nil {
			return nil, nil, fmt.Errorf("cannot join %s: it is no session, or has ended; \"carrel shell --ls\" lists those that are open: %w",
				in.ID, errdefs.ErrFailedPrecondition)
		}
		far, out.Client, err = t.join(attach, in.Rows, in.Cols)
	case attach && c.tty:
		far, out.Lost, err = c.openTerminal()
	default:
		far, out.Lost, err = c.openOutput(in.Follow || attach)
	}
	if err != nil {
		return nil, nil, err
	}
	select {
	case <-c.done:
		out.Status = &c.status
	default:
	}
	return out, []*os.File{far}, nil
}

func (p *peer) stopTask(_ *jsonrpc.Request, in *execapi.StopTaskParams) (any, []*os.File, error) {
	if in.Signal < 0 || in.Signal > 64 || in.GraceMS < 0 || in.GraceMS > execapi.MaxGraceMS {
		return nil, nil, fmt.Errorf("cannot signal %s: signal %d or grace %d ms is out of range: %w",
			in.ID, in.Signal, in.GraceMS, errdefs.ErrInvalidArgument)
	}
	c, err := p.e.find(in.ID)
	if err != nil {
		return nil, nil, err
	}
	switch {
	case in.Hangup:
		c.hangup()
	case in.Signal != 0:
		return struct{}{}, nil, c.signal(unix.Signal(in.Signal))
	default:
		c.end(unix.SIGTERM, grace(in.GraceMS))
	}
	return struct{}{}, nil, nil
}

func (p *peer) list(*jsonrpc.Request) (any, []*os.File, error) {
	return p.e.list(!p.onLoop), nil, nil
}

func (p *peer) hold(_ *jsonrpc.Request, in *execapi.HoldParams) (any, []*os.File, error) {
	p.inLoop(func() { p.e.holding.Store(in.On) })
	return struct{}{}, nil, nil
}

// inLoop runs f on the loop's thread and returns when f has.
func (p *peer) inLoop(f func()) {
	if p.onLoop {
		f()
		return
	}
	p.e.loop.do(f)
}

func (p *peer) shutdown(r *jsonrpc.Request) (any, []*os.File, error) {
	go func() {
		p.e.shutdown()
		r.Reply(struct{}{}, nil, nil)
	}()
	return jsonrpc.Later, nil, nil
}

func grace(ms int64) time.Duration {
	if ms == 0 {
		ms = execapi.DefaultGraceMS
	}
	return time.Duration(ms) * time.Millisecond
}
