package e2b

import (
	"cmp"
	"context"
	"encoding/base64"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/gen/e2b/process"
	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/linux/pollfd"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/surface/authn"
	"github.com/carrel-dev/carrel/internal/wire/errcode"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

// processes serves process.Process.
type processes struct{ *Server }

const (
	// keepAlive is how often a client hears from a stream on which nothing comes.
	keepAlive = 50 * time.Second
	// askAfter is how long a start may take before a client is told a number for it: a person may be asked first.
	askAfter = 5 * time.Second
	// firstWaiting is the first of these numbers. No pid is so high.
	firstWaiting = 1 << 30
)

// user is the error for who wants to be another user than the workspace's.
func user(h http.Header) error {
	text, ok := strings.CutPrefix(h.Get("Authorization"), "Basic ")
	if !ok {
		return nil
	}
	b, err := base64.StdEncoding.DecodeString(text)
	name, _, _ := strings.Cut(string(b), ":")
	if err != nil || !isUser(name) {
		return connect.NewError(connect.CodeUnauthenticated, fmt.Errorf(
			"cannot run this as %q: a workspace has one user and no root; leave the user out, or say \"user\"", name))
	}
	return nil
}

// isUser reports whether a name stands for the user of a workspace.
func isUser(name string) bool { return name == "" || name == "user" }

// params are the command that a request asks for.
func (s processes) params(ctx context.Context, m *process.StartRequest, h http.Header) (execapi.ExecParams, config, error) {
	var e execapi.ExecParams
	p := m.GetProcess()
	if err := user(h); err != nil {
		return e, config{}, err
	}
	if p.GetCmd() == "" {
		return e, config{}, wrong("process.cmd is missing")
	}
	kept, err := s.row(ctx, sandboxOf(ctx))
	if err != nil {
		return e, config{}, err
	}
	// As E2B has them, so that a program inside sees where it is.
	envs := map[string]string{
		"E2B_SANDBOX": "true", "E2B_SANDBOX_ID": sandboxOf(ctx), "E2B_TEMPLATE_ID": cmp.Or(kept.Template, baseTemplate),
	}
	maps.Copy(envs, kept.Envs)
	maps.Copy(envs, p.GetEnvs())
	for _, k := range slices.Sorted(maps.Keys(envs)) {
		e.Env = append(e.Env, k+"="+envs[k])
	}
	e.Argv = append([]string{p.GetCmd()}, p.GetArgs()...)
	if p.Cwd != nil {
		e.Cwd = inside(p.GetCwd())
	}
	e.Stdin, e.Stdout, e.Stderr = execapi.Null, execapi.Pipe, execapi.Pipe
	if m.GetStdin() {
		e.Stdin = execapi.Pipe
	}
	if size := m.GetPty().GetSize(); m.GetPty() != nil {
		e.Rows, e.Cols = window(size)
	}
	if v := h.Get("Connect-Timeout-Ms"); v != "" { // of the command, for it ends with its client's patience and not with its client
		if e.TimeoutMS, err = strconv.ParseInt(v, 10, 64); err != nil || e.TimeoutMS < 0 {
			return e, config{}, wrong("Connect-Timeout-Ms %q is no number of milliseconds", v)
		}
	}
	return e, config{argv: e.Argv, envs: p.GetEnvs(), cwd: p.Cwd}, nil
}

// window is a size that a terminal can have; without one it is the usual.
func window(size *process.PTY_Size) (rows, cols uint16) {
	rows, cols = uint16(min(size.GetRows(), 1000)), uint16(min(size.GetCols(), 1000))
	if rows == 0 || cols == 0 {
		return 24, 80
	}
	return rows, cols
}

// Start implements processconnect.ProcessHandler.
func (s processes) Start(ctx context.Context, req *connect.Request[process.StartRequest],
	stream *connect.ServerStream[process.StartResponse],
) error {
	send := func(e *process.ProcessEvent) error { return stream.Send(&process.StartResponse{Event: e}) }
	e, conf, err := s.params(ctx, req.Msg, req.Header())
	if err != nil {
		return errcode.ToWire(err)
	}
	c, f, told, err := s.start(ctx, req.Msg, e, conf, send)
	if err != nil {
		return errcode.ToWire(err)
	}
	defer c.unfollow(f)
	if !told {
		if err := send(startEvent(c.pid)); err != nil {
			return err
		}
	}
	return errcode.ToWire(follow(ctx, c, f, send))
}

// started is what came of a start.
type started struct {
	cmd  id.Command
	proc runtime.Process
	err  error
}

// start starts a command. If that takes long, because a person is asked, the client gets a number for it, and hears that the
// stream is alive: told says so.
func (s processes) start(ctx context.Context, m *process.StartRequest, e execapi.ExecParams, conf config,
	send func(*process.ProcessEvent) error,
) (c *command, f *follower, told bool, err error) {
	// The deadline is the command's. The start ends with the client, so that nobody is asked about what nobody waits for.
	spawning, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	// A command outlives its client, so what it holds is its owner's and not a request's.
	give, err := s.Door.Descriptors(authn.FromContext(ctx).Owner(), streamsOf(m))
	if err != nil {
		return nil, nil, false, err
	}
	defer func() {
		if err != nil {
			give()
		}
	}()
	leave := context.AfterFunc(ctx, cancel)
	defer leave()
	result := make(chan started, 1)
	go func() {
		var x started
		x.cmd, x.proc, x.err = s.Gate.Spawn(spawning, authn.FromContext(ctx), sandboxOf(ctx), e, m.GetPty() != nil)
		result <- x
	}()
	pid := uint32(0)
	wait := time.NewTimer(askAfter)
	defer wait.Stop()
	var x started
	for done := false; !done; {
		select {
		case x = <-result:
			done = true
		case <-wait.C:
			event := &process.ProcessEvent{Event: &process.ProcessEvent_Keepalive{Keepalive: &process.ProcessEvent_KeepAlive{}}}
			if !told {
				pid, told = firstWaiting+s.waiting.Add(1)%firstWaiting, true
				event = startEvent(pid)
			}
			if err := send(event); err != nil {
				cancel() // what was started meanwhile runs on, as after any client that leaves
			}
			wait.Reset(keepAlive)
		}
	}
	if x.err != nil {
		return nil, nil, told, x.err
	}
	if pid == 0 {
		pid = uint32(x.proc.PID())
	}
	c = &command{
		sandbox: sandboxOf(ctx), cmd: x.cmd, config: conf, tag: m.Tag, pid: pid, pty: m.GetPty() != nil, proc: x.proc,
		give: give, slow: s.Slow, gone: s.goneFor(authn.FromContext(ctx), sandboxOf(ctx)),
	}
	if err = c.assign(x.proc.Files(), m.GetStdin()); err == nil {
		f, err = s.running.add(c)
	}
	if err != nil {
		for _, file := range x.proc.Files() {
			_ = file.Close()
		}
		_ = x.proc.Close()
		return nil, nil, told, err
	}
	return c, f, told, nil
}

// streamsOf is how many descriptors a command has here.
func streamsOf(m *process.StartRequest) int {
	switch {
	case m.GetPty() != nil:
		return 1
	case m.GetStdin():
		return 3
	}
	return 2
}

// goneFor asks whether a sandbox has gone, or goes.
func (s processes) goneFor(p principal.Principal, name string) func() bool {
	return func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		ws, err := s.Gate.Get(ctx, p, name)
		return errdefs.IsNotFound(err) || errdefs.IsPermissionDenied(err) || err == nil && ws.State == workspace.StateDestroying
	}
}

// assign gives the far ends their roles, in the order that runtime.Process states.
func (c *command) assign(files []*os.File, stdin bool) error {
	if err := pollfd.OpenAll(files); err != nil {
		return err
	}
	switch {
	case c.pty && len(files) == 1:
		c.stdin, c.out = files[0], files
	case !c.pty && stdin && len(files) == 3:
		c.stdin, c.out = files[0], files[1:]
	case !c.pty && !stdin && len(files) == 2:
		c.out = files
	default:
		return fmt.Errorf("cannot use the streams of %s: there are %d: %w", c.cmd, len(files), errdefs.ErrInternal)
	}
	return nil
}

func startEvent(pid uint32) *process.ProcessEvent {
	return &process.ProcessEvent{Event: &process.ProcessEvent_Start{Start: &process.ProcessEvent_StartEvent{Pid: pid}}}
}

// follow sends what happens to a command until it ends or its client goes.
func follow(ctx context.Context, c *command, f *follower, send func(*process.ProcessEvent) error) error {
	alive := time.NewTicker(keepAlive)
	defer alive.Stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-f.gone:
			return fmt.Errorf("cannot go on with %s: this client took more than %v to read; it runs on, connect to it again: %w", c.cmd, c.slow,
				errdefs.ErrUnavailable)
		case <-alive.C:
			if err := send(&process.ProcessEvent{Event: &process.ProcessEvent_Keepalive{Keepalive: &process.ProcessEvent_KeepAlive{}}}); err != nil {
				return err
			}
		case e, ok := <-f.events:
			switch {
			case !ok:
				return nil
			case e.end == nil:
				if err := send(dataEvent(e)); err != nil {
					return err
				}
			case e.end.err != nil:
				return fmt.Errorf("cannot tell how %s ended: %w", c.cmd, e.end.err)
			default:
				return send(endEvent(e.end.status))
			}
		}
	}
}

func dataEvent(e event) *process.ProcessEvent {
	d := &process.ProcessEvent_DataEvent{}
	switch e.stream {
	case 0:
		d.Output = &process.ProcessEvent_DataEvent_Stdout{Stdout: e.data}
	case 1:
		d.Output = &process.ProcessEvent_DataEvent_Stderr{Stderr: e.data}
	default:
		d.Output = &process.ProcessEvent_DataEvent_Pty{Pty: e.data}
	}
	return &process.ProcessEvent{Event: &process.ProcessEvent_Data{Data: d}}
}

// endEvent has the code and the words of Go's os.ProcessState, as E2B's own daemon does.
func endEvent(st execapi.Status) *process.ProcessEvent {
	end := &process.ProcessEvent_EndEvent{ExitCode: int32(st.Code), Exited: st.Signal == 0, Status: fmt.Sprintf("exit status %d", st.Code)}
	if st.Signal != 0 {
		end.ExitCode, end.Status = -1, "signal: "+unix.Signal(st.Signal).String()
	}
	why := end.Status
	switch {
	case st.TimedOut:
		why += ": it ran out of its time"
	case st.OOM:
		why += ": the workspace ran out of memory"
	}
	if end.ExitCode != 0 {
		end.Error = &why
	}
	return &process.ProcessEvent{Event: &process.ProcessEvent_End{End: end}}
}

// find returns the command that a selector names.
func (s processes) find(ctx context.Context, sel *process.ProcessSelector) (*command, error) {
	for _, c := range s.running.list(sandboxOf(ctx)) {
		switch v := sel.GetSelector().(type) {
		case *process.ProcessSelector_Pid:
			if c.pid == v.Pid {
				return c, nil
			}
		case *process.ProcessSelector_Tag:
			if c.tag != nil && *c.tag == v.Tag {
				return c, nil
			}
		default:
			return nil, wrong("it names no process: give a pid or a tag")
		}
	}
	return nil, notFound("no such process runs that was started here")
}

// may is an error unless the caller may run commands in the sandbox, which it reaches: see Server.served. What is done over
// held descriptors passes no gate.
func may(ctx context.Context) error {
	if authn.FromContext(ctx).Can(principal.Run) {
		return nil
	}
	return fmt.Errorf("cannot use the processes of %s: that takes the permission to run commands: %w", sandboxOf(ctx),
		errdefs.ErrPermissionDenied)
}

// one finds a command for a caller who may run others beside it.
func (s processes) one(ctx context.Context, sel *process.ProcessSelector) (*command, error) {
	if err := may(ctx); err != nil {
		return nil, err
	}
	return s.find(ctx, sel)
}

// Connect implements processconnect.ProcessHandler.
func (s processes) Connect(ctx context.Context, req *connect.Request[process.ConnectRequest],
	stream *connect.ServerStream[process.ConnectResponse],
) error {
	c, err := s.one(ctx, req.Msg.GetProcess())
	if err != nil {
		return errcode.ToWire(err)
	}
	f := c.follow()
	if f == nil {
		return errcode.ToWire(fmt.Errorf("cannot follow %s: %d clients do, the most there may be: %w", c.cmd, maxFollowers,
			errdefs.ErrResourceExhausted))
	}
	defer c.unfollow(f)
	send := func(e *process.ProcessEvent) error { return stream.Send(&process.ConnectResponse{Event: e}) }
	if err := send(startEvent(c.pid)); err != nil {
		return err
	}
	return errcode.ToWire(follow(ctx, c, f, send))
}

// List implements processconnect.ProcessHandler.
func (s processes) List(ctx context.Context, _ *connect.Request[process.ListRequest]) (*connect.Response[process.ListResponse], error) {
	if err := may(ctx); err != nil {
		return nil, errcode.ToWire(err)
	}
	out := &process.ListResponse{}
	for _, c := range s.running.list(sandboxOf(ctx)) {
		if c.over() {
			continue
		}
		out.Processes = append(out.Processes, &process.ProcessInfo{
			Pid: c.pid, Tag: c.tag,
			Config: &process.ProcessConfig{Cmd: c.config.argv[0], Args: c.config.argv[1:], Envs: c.config.envs, Cwd: c.config.cwd},
		})
	}
	return connect.NewResponse(out), nil
}

// Update implements processconnect.ProcessHandler.
func (s processes) Update(ctx context.Context, req *connect.Request[process.UpdateRequest],
) (*connect.Response[process.UpdateResponse], error) {
	c, err := s.one(ctx, req.Msg.GetProcess())
	if err == nil && req.Msg.GetPty() != nil {
		rows, cols := window(req.Msg.GetPty().GetSize())
		err = s.Gate.Resize(ctx, authn.FromContext(ctx), c.sandbox, execapi.ResizeParams{ID: c.cmd, Rows: rows, Cols: cols})
	}
	if err != nil {
		return nil, errcode.ToWire(err)
	}
	return connect.NewResponse(&process.UpdateResponse{}), nil
}

// input is what a message has for a command.
func input(in *process.ProcessInput) []byte {
	if in.GetPty() != nil {
		return in.GetPty()
	}
	return in.GetStdin()
}

// SendInput implements processconnect.ProcessHandler.
func (s processes) SendInput(ctx context.Context, req *connect.Request[process.SendInputRequest],
) (*connect.Response[process.SendInputResponse], error) {
	c, err := s.one(ctx, req.Msg.GetProcess())
	if err == nil {
		err = c.send(input(req.Msg.GetInput()))
	}
	if err != nil {
		return nil, errcode.ToWire(err)
	}
	return connect.NewResponse(&process.SendInputResponse{}), nil
}

// StreamInput implements processconnect.ProcessHandler.
func (s processes) StreamInput(ctx context.Context, stream *connect.ClientStream[process.StreamInputRequest],
) (*connect.Response[process.StreamInputResponse], error) {
	var c *command
	for stream.Receive() {
		var err error
		switch v := stream.Msg().GetEvent().(type) {
		case *process.StreamInputRequest_Start:
			c, err = s.one(ctx, v.Start.GetProcess())
		case *process.StreamInputRequest_Data:
			if c == nil {
				err = wrong("input came before the start that says for which process")
			} else if err = context.Cause(ctx); err == nil {
				err = c.send(input(v.Data.GetInput()))
			}
		}
		if err != nil {
			return nil, errcode.ToWire(err)
		}
	}
	if err := stream.Err(); err != nil {
		return nil, err
	}
	return connect.NewResponse(&process.StreamInputResponse{}), nil
}

// SendSignal implements processconnect.ProcessHandler.
func (s processes) SendSignal(ctx context.Context, req *connect.Request[process.SendSignalRequest],
) (*connect.Response[process.SendSignalResponse], error) {
	signal := int(req.Msg.GetSignal())
	c, err := s.one(ctx, req.Msg.GetProcess())
	if err == nil && signal != int(unix.SIGTERM) && signal != int(unix.SIGKILL) {
		err = wrong("the signal %d is neither SIGTERM nor SIGKILL", signal)
	}
	if err == nil {
		err = s.Gate.Signal(ctx, authn.FromContext(ctx), c.sandbox, execapi.StopTaskParams{ID: c.cmd, Signal: signal})
	}
	if err != nil {
		return nil, errcode.ToWire(err)
	}
	return connect.NewResponse(&process.SendSignalResponse{}), nil
}

// CloseStdin implements processconnect.ProcessHandler.
func (s processes) CloseStdin(ctx context.Context, req *connect.Request[process.CloseStdinRequest],
) (*connect.Response[process.CloseStdinResponse], error) {
	c, err := s.one(ctx, req.Msg.GetProcess())
	if err == nil {
		err = c.closeInput()
	}
	if err != nil {
		return nil, errcode.ToWire(err)
	}
	return connect.NewResponse(&process.CloseStdinResponse{}), nil
}
