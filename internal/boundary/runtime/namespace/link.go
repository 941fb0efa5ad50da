package namespace

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/linux/peercred"
	"github.com/carrel-dev/carrel/internal/wire/brokerapi"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
	"github.com/carrel-dev/carrel/internal/wire/jsonrpc"
)

// link is the pair of connections to the executor of one workspace. Commands are started
// through spawn, and the executor hangs up the attached ones when spawn ends. Everything else
// goes through conn, which is answered whatever is being started. If one ends, both do.
type link struct {
	r    *Runtime
	name id.Workspace
	// executor is what it was made for.
	executor brokerapi.Executor
	// ready is closed once spawn and conn, or err, are set.
	ready chan struct{}
	spawn *jsonrpc.Conn
	conn  *jsonrpc.Conn
	err   error
	// greeted is the time of the handshake in Unix nanoseconds; 0 before.
	greeted atomic.Int64
	// stopping: we end the connection ourselves.
	stopping atomic.Bool
	// past is closed when the connections have ended.
	past chan struct{}

	mu    sync.Mutex
	procs map[id.Command]*process
	gone  error // set when the connection ended
	// silent is when the executor was found to answer nothing; zero while it answers. awake is
	// closed when it answers again, or has ended.
	silent time.Time
	awake  chan struct{}
}

// link returns the link to an executor and makes it if there is none. Concurrent callers share
// one attempt. An executor that is known to be silent is not waited for.
func (r *Runtime) link(ctx context.Context, name id.Workspace) (*link, error) {
	for {
		r.mu.Lock()
		if r.closed {
			r.mu.Unlock()
			return nil, fmt.Errorf("cannot reach workspace %s: %w", name, errClosed)
		}
		l := r.links[name]
		if l == nil {
			k := r.known[name]
			l = &link{
				r: r, name: name, executor: k.executor, ready: make(chan struct{}), past: make(chan struct{}),
				procs: make(map[id.Command]*process),
			}
			r.links[name] = l
			r.lost.Go(func() { l.open(k) })
		}
		r.mu.Unlock()
		select {
		case <-l.ready:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		switch {
		case l.err != nil && l.executor != r.of(name).executor: // that one did not answer, and there is another
			r.drop(l)
			continue
		case l.err != nil:
			return nil, l.err
		case l.over() != nil:
			r.drop(l)
			continue
		}
		return l, l.answers()
	}
}

// drop removes l from the table if it is still there.
func (r *Runtime) drop(l *link) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.links[l.name] == l {
		delete(r.links, l.name)
	}
}

// open connects and greets, within patience. What is silent stays in the table, so that nobody
// else waits for it.
func (l *link) open(k known) {
	ctx, cancel := l.patient(l.r.ctx, execapi.MethodHello)
	defer cancel()
	conn, held, err := l.dial(ctx, k, execapi.Control)
	if err == nil {
		// An operation that broke off may have left it held, or not.
		if k.told && held != k.paused {
			_, err = conn.Call(ctx, execapi.MethodHold, execapi.HoldParams{On: k.paused}, nil)
		}
		if err == nil {
			l.spawn, _, err = l.dial(ctx, k, execapi.Spawn)
		}
		if err != nil {
			_ = conn.Close()
		}
	}
	if err = l.judged(err, k.executor); err != nil {
		l.err = err
		if errors.Is(err, runtime.ErrSilent) {
			l.fellSilent()
		} else {
			l.r.drop(l)
		}
		close(l.ready)
		return
	}
	l.conn = conn
	l.greeted.Store(time.Now().UnixNano())
	close(l.ready)
	go func() {
		select {
		case <-l.spawn.Done():
		case <-l.conn.Done():
		}
		cause := l.over()
		l.close()
		l.ended(cause)
	}()
	// Close may have gone through the table before conn was set.
	l.r.mu.Lock()
	closed := l.r.closed
	l.r.mu.Unlock()
	if closed {
		l.stopping.Store(true)
		l.close()
	}
}

// over returns why the link has ended, or nil while it lives.
func (l *link) over() error {
	for _, c := range []*jsonrpc.Conn{l.spawn, l.conn} {
		select {
		case <-c.Done():
			return c.Err()
		default:
		}
	}
	return nil
}

func (l *link) close() {
	_ = l.spawn.Close() // always nil
	_ = l.conn.Close()
}

// dial connects, checks who answers and greets. held: the executor refuses new commands.
func (l *link) dial(ctx context.Context, k known, role execapi.Role) (conn *jsonrpc.Conn, held bool, err error) {
	c, err := l.r.cfg.Executor(ctx, l.name, role)
	if err != nil {
		if ctx.Err() != nil {
			return nil, false, context.Cause(ctx)
		}
		if errors.Is(err, unix.EAGAIN) { // its queue of connections is full: it lives
			return nil, false, l.unanswered(execapi.MethodHello)
		}
		if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) {
			return nil, false, fmt.Errorf("cannot reach the executor of workspace %s: carreld has as many files open as it may; try again: %w: %w",
				l.name, err, errdefs.ErrResourceExhausted)
		}
		return nil, false, fmt.Errorf("cannot reach the executor of workspace %s (%w): %w", l.name, err, runtime.ErrNotRunning)
	}
	// Only the broker can bind a socket there. The peer's uid is a second check, which does not
	// apply to connections that were made in this process.
	cred, err := peercred.Of(c)
	if err == nil && k.told && l.r.cfg.Broker == nil && cred.UID != k.ids.Executor {
		err = fmt.Errorf("uid %d listens on its socket, and not its own uid %d: %w", cred.UID, k.ids.Executor, errdefs.ErrPermissionDenied)
	}
	if err != nil {
		_ = c.Close()
		return nil, false, fmt.Errorf("cannot trust the executor of workspace %s: %w", l.name, err)
	}
	conn = jsonrpc.New(c, jsonrpc.Config{
		Handler: l.handle, MaxFrame: execapi.MaxFrame, MaxFDs: 3,
		Inline: func(string) bool { return true }, // handle does not block
	})
	var hello execapi.HelloResult
	_, err = conn.Call(ctx, execapi.MethodHello,
		execapi.HelloParams{Version: execapi.Version, MinVersion: execapi.MinVersion, Role: role}, &hello)
	switch {
	case err != nil:
	case hello.Version < execapi.MinVersion || hello.Version > execapi.Version:
		err = fmt.Errorf("it speaks version %d of the protocol, this daemon %d to %d; stop and start the workspace: %w",
			hello.Version, execapi.MinVersion, execapi.Version, errdefs.ErrFailedPrecondition)
	case hello.Workspace != l.name:
		err = fmt.Errorf("it says that it holds workspace %s: %w", hello.Workspace, errdefs.ErrInternal)
	}
	if err != nil {
		_ = conn.Close()
		return nil, false, fmt.Errorf("cannot greet the executor of workspace %s: %w", l.name, err)
	}
	return conn, hello.Held, nil
}

// handle handles the executor's notifications.
func (l *link) handle(_ context.Context, _ *jsonrpc.Conn, req *jsonrpc.Request) (any, []*os.File, error) {
	if req.Method != execapi.MethodExited {
		return nil, nil, jsonrpc.MethodNotFound(req.Method)
	}
	var e execapi.Exited
	if err := req.Decode(&e); err != nil {
		return nil, nil, err
	}
	l.mu.Lock()
	p := l.procs[e.ID]
	delete(l.procs, e.ID)
	l.mu.Unlock()
	if p != nil {
		p.finish(e.Status, nil)
	}
	return nil, nil, nil
}

// ended is called once, when the connections have ended.
func (l *link) ended(cause error) {
	err := l.lostError(cause)
	close(l.past)
	l.mu.Lock()
	l.gone = err
	if l.awake != nil {
		close(l.awake)
		l.awake = nil
	}
	procs := l.procs
	l.procs = nil
	l.mu.Unlock()
	for _, p := range procs {
		p.finish(execapi.Status{}, err)
	}
	l.r.drop(l)
	if l.stopping.Load() || l.r.cfg.OnLost == nil {
		return
	}
	l.r.background(l.reportLost)
}

// reportLost tries to connect again, and reports the executor as lost if that fails. An executor
// that loses a connection within a second counts as lost too.
func (l *link) reportLost() {
	if time.Since(time.Unix(0, l.greeted.Load())) >= time.Second {
		ctx, cancel := context.WithTimeout(context.Background(), endPatience)
		defer cancel()
		if _, err := l.r.link(ctx, l.name); err == nil || errdefs.IsUnavailable(err) {
			return
		}
	}
	l.r.cfg.OnLost(l.name)
}

func (l *link) lostError(cause error) error {
	if l.stopping.Load() {
		return fmt.Errorf("cannot finish the command: workspace %s was stopped, or the daemon is stopping: %w", l.name, errdefs.ErrUnavailable)
	}
	return fmt.Errorf("cannot finish the command: the executor of workspace %s went away (%w) and its processes with it; "+
		"the next command starts it again: %w", l.name, cause, errdefs.ErrUnavailable)
}

// explain replaces the bare error of a connection that ended during a call with ctx.
func (l *link) explain(ctx context.Context, err error) error {
	var said *jsonrpc.Error
	if err == nil || errors.As(err, &said) || ctx.Err() != nil || !errdefs.IsUnavailable(err) {
		return err
	}
	cause := l.over()
	if cause == nil {
		cause = io.EOF // it is closing: only replies are still sent
	}
	return l.lostError(cause)
}

// run runs a command to its end.
func (l *link) run(ctx context.Context, p execapi.ExecParams) (execapi.ExecResult, error) {
	// The call outlives ctx: when ctx ends, the command is told to end, and run still waits for
	// its status.
	call, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	stop := context.AfterFunc(ctx, func() {
		l.hangup(call, p.ID)
		t := time.AfterFunc(endPatience, cancel)
		context.AfterFunc(call, func() { t.Stop() })
	})
	defer stop()
	var res execapi.ExecResult
	_, err := l.spawn.Call(call, execapi.MethodExec, p, &res)
	switch {
	case ctx.Err() != nil && err == nil:
		err = fmt.Errorf("cannot wait for command %s: its caller has gone, and it was ended: %w", p.ID, context.Cause(ctx))
	case ctx.Err() != nil && call.Err() != nil:
		err = fmt.Errorf("cannot end command %s: the executor does not answer: %w", p.ID, errdefs.ErrUnavailable)
	}
	return res, l.explain(call, err)
}

// hangup ends a command whose start may still be under way. The two requests may be handled in
// either order, so hangup repeats its request after "not found" until ctx ends.
func (l *link) hangup(ctx context.Context, cmd id.Command) {
	for wait := time.Millisecond; ; wait = min(2*wait, time.Second) {
		_, err := l.conn.Call(ctx, execapi.MethodStopTask, execapi.StopTaskParams{ID: cmd, Hangup: true}, nil)
		if !errdefs.IsNotFound(err) {
			return
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return
		}
	}
}

// abandon ends a command in the background whose caller gave up during its start. If the
// executor is silent, that is done when it answers again.
func (l *link) abandon(cmd id.Command) {
	go func() {
		l.mu.Lock()
		awake := l.awake
		l.mu.Unlock()
		if awake != nil {
			<-awake
		}
		ctx, cancel := context.WithTimeout(context.Background(), startPatience)
		defer cancel()
		l.hangup(ctx, cmd)
	}()
}

func method(tty bool) string {
	if tty {
		return execapi.MethodSpawnTerminal
	}
	return execapi.MethodExec
}

// detach starts a command that belongs to the executor. If ctx ends first, the command is ended,
// because nobody learned of it.
func (l *link) detach(ctx context.Context, p execapi.ExecParams, tty bool) error {
	ctx, cancel := l.starting(ctx)
	defer cancel()
	_, err := l.spawn.Call(ctx, method(tty), p, nil)
	if err != nil && ctx.Err() != nil {
		l.gaveUp(p.ID, err)
	}
	return l.explain(ctx, err)
}

// attach starts an attached command. It enters the command in the table before the call, because
// the notification of its end may come before the reply.
func (l *link) attach(ctx context.Context, p execapi.ExecParams, tty bool, fds []*os.File) (*process, error) {
	proc := &process{link: l, id: p.ID, done: make(chan struct{})}
	l.mu.Lock()
	if l.gone != nil {
		l.mu.Unlock()
		return nil, l.gone
	}
	if l.procs[p.ID] != nil {
		l.mu.Unlock()
		return nil, fmt.Errorf("cannot run the command: id %s is in use: %w", p.ID, errdefs.ErrAlreadyExists)
	}
	l.procs[p.ID] = proc
	l.mu.Unlock()
	ctx, cancel := l.starting(ctx)
	defer cancel()
	var res execapi.ExecResult
	files, err := l.spawn.Call(ctx, method(tty), p, &res, fds...)
	if err != nil {
		l.mu.Lock()
		delete(l.procs, p.ID)
		l.mu.Unlock()
		switch {
		case ctx.Err() != nil:
			l.gaveUp(p.ID, err)
		case jsonrpc.Undelivered(err): // it was started, and nobody has its streams
			l.abandon(p.ID)
		}
		return nil, l.explain(ctx, err)
	}
	proc.pid, proc.files = res.PID, files
	return proc, nil
}
