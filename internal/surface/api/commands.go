package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"connectrpc.com/connect"
	"github.com/containerd/errdefs"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/linux/pollfd"
	"github.com/carrel-dev/carrel/internal/surface/authn"
	"github.com/carrel-dev/carrel/internal/wire/errcode"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

type commands struct{ *Server }

func (s commands) Exec(ctx context.Context, req *request[carrelv1.ExecRequest]) (*response[carrelv1.ExecResponse], error) {
	m := req.Msg
	ref, e, err := execParams(m.GetWorkspace(), m.GetCommand())
	if err != nil {
		return nil, errcode.ToWire(err)
	}
	e.Stdin, e.Stdout, e.Stderr = execapi.Null, execapi.Capture, execapi.Capture
	if n := len(m.GetStdin()); n > execapi.MaxCapture {
		return nil, errcode.ToWire(invalid("stdin", fmt.Sprintf("it is %d bytes long, at most %d are allowed", n, execapi.MaxCapture),
			"use Stream, which has no such limit"))
	} else if n > 0 {
		e.Stdin, e.StdinData = execapi.Capture, m.GetStdin()
	}
	if m.GetDiscardOutput() {
		e.Stdout, e.Stderr = execapi.Null, execapi.Null
	}
	e.OutputLimit = execapi.MaxCapture
	command, res, err := s.gate.Run(ctx, authn.FromContext(ctx), ref, e)
	if why := ended(ctx); why != nil {
		err = why
	}
	if err != nil {
		return nil, errcode.ToWire(err)
	}
	return connect.NewResponse(&carrelv1.ExecResponse{
		CommandId: string(command), Status: statusTo(res.Status), Stdout: res.Stdout, Stderr: res.Stderr,
		StdoutLost: res.StdoutLost, StderrLost: res.StderrLost,
	}), nil
}

func (s commands) Detach(ctx context.Context, req *request[carrelv1.DetachRequest]) (*response[carrelv1.DetachResponse], error) {
	command, err := s.detach(ctx, req.Msg)
	if err != nil {
		return nil, errcode.ToWire(err)
	}
	return connect.NewResponse(&carrelv1.DetachResponse{CommandId: string(command)}), nil
}

func (s commands) detach(ctx context.Context, m *carrelv1.DetachRequest) (id.Command, error) {
	ref, e, err := execParams(m.GetWorkspace(), m.GetCommand())
	if err != nil {
		return "", err
	}
	if err := between("output_limit", m.GetOutputLimit(), 0, execapi.MaxOutput, "0 is the default"); err != nil {
		return "", err
	}
	window, err := windowFrom(m.GetTerminal())
	if err != nil {
		return "", err
	}
	if err := checkSession(m.GetSession(), window != nil, m.GetRecord()); err != nil {
		return "", err
	}
	e.Stdin, e.Stdout, e.Stderr = execapi.Null, execapi.Capture, execapi.Capture
	e.Detach, e.OutputLimit, e.Session, e.Record = true, m.GetOutputLimit(), m.GetSession(), m.GetRecord()
	if window != nil {
		e.Rows, e.Cols = window.Rows, window.Cols
	}
	return s.gate.Detach(ctx, authn.FromContext(ctx), ref, e, window != nil)
}

func (s commands) Explain(ctx context.Context, req *request[carrelv1.ExplainRequest]) (*response[carrelv1.ExplainResponse], error) {
	ref, e, err := execParams(req.Msg.GetWorkspace(), req.Msg.GetCommand())
	if err != nil {
		return nil, errcode.ToWire(err)
	}
	d, verified, assumed, err := s.gate.Explain(ctx, authn.FromContext(ctx), ref, e)
	if err != nil {
		return nil, errcode.ToWire(err)
	}
	text, err := json.Marshal(d)
	if err != nil {
		return nil, errcode.ToWire(err)
	}
	return connect.NewResponse(&carrelv1.ExplainResponse{Decision: text, Verified: verified, Assumed: assumed}), nil
}

func (s commands) ListCommands(ctx context.Context,
	req *request[carrelv1.ListCommandsRequest],
) (*response[carrelv1.ListCommandsResponse], error) {
	ref, err := parseRef(req.Msg.GetWorkspace())
	if err != nil {
		return nil, errcode.ToWire(err)
	}
	list, err := s.gate.ListCommands(ctx, authn.FromContext(ctx), ref)
	if err != nil {
		return nil, errcode.ToWire(err)
	}
	out := &carrelv1.ListCommandsResponse{Commands: make([]*carrelv1.CommandInfo, 0, len(list))}
	for _, c := range list {
		out.Commands = append(out.Commands, &carrelv1.CommandInfo{
			CommandId:     string(c.ID),
			Pid:           int64(c.PID),
			Argv:          c.Argv,
			Detached:      c.Detached,
			Terminal:      c.TTY,
			StartedUnixNs: c.StartedNS,
			Processes:     int32(c.Processes),
			Status:        statusTo(c.Status),
			Session:       c.Session,
			Clients:       int32(c.Clients),
			Size:          sizeTo(c.Rows, c.Cols),
			Recorded:      c.Record,
		})
	}
	return connect.NewResponse(out), nil
}

// parseCommand reads what names a command.
func parseCommand(workspace, command string) (ref string, cmd id.Command, err error) {
	if ref, err = parseRef(workspace); err == nil {
		cmd, err = id.ParseCommand(command)
	}
	return ref, cmd, err
}

// Wait ends too when the server begins to drain.
func (s commands) Wait(ctx context.Context, req *request[carrelv1.WaitRequest]) (*response[carrelv1.WaitResponse], error) {
	ref, err := parseRef(req.Msg.GetWorkspace())
	var cmd id.Command
	if name := req.Msg.GetCommandId(); err == nil && name != "" {
		cmd, err = id.ParseCommand(name)
	}
	if err != nil {
		return nil, errcode.ToWire(err)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer s.untilClosing(ctx, func() {
		cancel(fmt.Errorf("cannot wait any longer: the daemon is stopping; ask again: %w", errdefs.ErrUnavailable))
	})()
	status, state, err := s.gate.Wait(ctx, authn.FromContext(ctx), ref, cmd)
	if err != nil {
		return nil, errcode.ToWire(err)
	}
	return connect.NewResponse(&carrelv1.WaitResponse{Status: statusTo(status), State: string(state)}), nil
}

func (s commands) Signal(ctx context.Context, req *request[carrelv1.SignalRequest]) (*response[carrelv1.SignalResponse], error) {
	m := req.Msg
	ref, cmd, err := parseCommand(m.GetWorkspace(), m.GetCommandId())
	if err == nil {
		err = checkSignal(int64(m.GetSignal()), m.GetGraceMs())
	}
	if err == nil {
		err = s.gate.Signal(ctx, authn.FromContext(ctx), ref, execapi.StopTaskParams{
			ID: cmd, Signal: int(m.GetSignal()),
			GraceMS: m.GetGraceMs(),
		})
	}
	if err != nil {
		return nil, errcode.ToWire(err)
	}
	return connect.NewResponse(&carrelv1.SignalResponse{}), nil
}

func (s commands) Resize(ctx context.Context, req *request[carrelv1.ResizeRequest]) (*response[carrelv1.ResizeResponse], error) {
	m := req.Msg
	ref, cmd, err := parseCommand(m.GetWorkspace(), m.GetCommandId())
	if err != nil {
		return nil, errcode.ToWire(err)
	}
	size, err := windowFrom(m.GetSize())
	if err == nil && size == nil {
		err = invalid("size", "it is missing", "give rows and columns")
	}
	if err == nil {
		err = s.gate.Resize(ctx, authn.FromContext(ctx), ref, execapi.ResizeParams{
			ID: cmd, Rows: size.Rows, Cols: size.Cols, Client: int(m.GetClient()),
		})
	}
	if err != nil {
		return nil, errcode.ToWire(err)
	}
	return connect.NewResponse(&carrelv1.ResizeResponse{}), nil
}

// Logs sends what is kept and, with follow, what comes. The status is asked for
// again at the end: the command may have ended since the output was opened.
func (s commands) Logs(ctx context.Context, req *request[carrelv1.LogsRequest],
	stream *connect.ServerStream[carrelv1.LogsResponse],
) error {
	ref, cmd, err := parseCommand(req.Msg.GetWorkspace(), req.Msg.GetCommandId())
	if err != nil {
		return errcode.ToWire(err)
	}
	p := authn.FromContext(ctx)
	res, files, err := s.gate.Output(ctx, p, ref, execapi.OutputParams{ID: cmd, Follow: req.Msg.GetFollow()}, false)
	if err != nil {
		return errcode.ToWire(err)
	}
	defer closeAll(files)
	if len(files) != 1 {
		return errcode.ToWire(fmt.Errorf("cannot read the output of %s: the executor sent %d descriptors instead of one: %w", cmd,
			len(files), errdefs.ErrInternal))
	}
	out, err := pollfd.Open(files[0])
	if err != nil {
		return errcode.ToWire(err)
	}
	defer out.Close()
	stop := s.untilClosing(ctx, func() { out.Close() })
	defer stop()

	first := &carrelv1.LogsResponse{Lost: res.Lost}
	piece := func(b []byte) error {
		m := first
		if m == nil {
			m = &carrelv1.LogsResponse{}
		}
		first, m.Data = nil, b
		return send(ctx, stream, m)
	}
	if err := pump(out, piece); err != nil {
		if err := ended(ctx); err != nil {
			return errcode.ToWire(err)
		}
		if ctx.Err() != nil || s.follows.Err() != nil {
			return nil // the client went, or the server does
		}
		return errcode.ToWire(fmt.Errorf("cannot read the output of %s: %w", cmd, err))
	}
	last := first
	if last == nil {
		last = &carrelv1.LogsResponse{}
	}
	last.Status = statusTo(res.Status)
	if last.Status == nil && req.Msg.GetFollow() {
		last.Status = s.statusOf(ctx, ref, cmd)
	}
	return errcode.ToWire(send(ctx, stream, last))
}

// statusOf is how a command ended, or nil if it runs or nobody knows any more.
func (s *Server) statusOf(ctx context.Context, ref string, cmd id.Command) *carrelv1.Status {
	list, err := s.gate.ListCommands(ctx, authn.FromContext(ctx), ref)
	if err != nil {
		return nil
	}
	for _, c := range list {
		if c.ID == cmd {
			return statusTo(c.Status)
		}
	}
	return nil
}

// untilClosing calls f when ctx ends or the server begins to drain. The function
// it returns takes that back.
func (s *Server) untilClosing(ctx context.Context, f func()) func() {
	a := context.AfterFunc(ctx, f)
	b := context.AfterFunc(s.follows, f)
	return func() { a(); b() }
}

// pump reads r to its end and gives every piece to send, which must not keep it.
func pump(r io.Reader, send func([]byte) error) error {
	buf := make([]byte, 32<<10)
	for {
		n, err := r.Read(buf)
		if n > 0 {
			if err := send(buf[:n]); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close() // read ends and ptys: nothing to lose
	}
}

func statusTo(s *execapi.Status) *carrelv1.Status {
	if s == nil {
		return nil
	}
	return &carrelv1.Status{
		Code:          int32(s.Code),
		Signal:        int32(s.Signal),
		TimedOut:      s.TimedOut,
		Oom:           s.OOM,
		Killed:        int32(s.Killed),
		Stuck:         int32(s.Stuck),
		StartedUnixNs: s.StartedNS,
		EndedUnixNs:   s.EndedNS,
		UserUs:        s.UserUS,
		SystemUs:      s.SystemUS,
		MaxRssKib:     s.MaxRSSKiB,
	}
}
