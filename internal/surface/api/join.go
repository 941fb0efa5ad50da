package api

import (
	"context"
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

// checkSession checks what a detached command says of a session.
func checkSession(name string, terminal, record bool) error {
	switch {
	case name == "" && record:
		return invalid("record", "only a session is recorded", "give session a name, or leave record out")
	case name == "":
		return nil
	case !terminal:
		return invalid("terminal", "a session has a terminal", "give its size, 0 by 0 if that is not known")
	}
	return execapi.CheckSession(name)
}

// sizeTo is the size of a session's terminal, nil for another command.
func sizeTo(rows, cols int) *carrelv1.WindowSize {
	if rows == 0 {
		return nil
	}
	return &carrelv1.WindowSize{Rows: uint32(rows), Cols: uint32(cols)}
}

// member is a client that has joined a session, whose bytes the daemon carries. The session goes on without it.
type member struct {
	server *Server
	ref    string
	cmd    id.Command
	number int
	types  bool
	// f is a socket of the executor, on which the terminal is drawn, and what is written is typed.
	f *os.File
}

// join joins a session. The caller must call leave.
func (s *Server) join(ctx context.Context, ref string, cmd id.Command, size *window, readOnly bool) (*member, error) {
	o := execapi.OutputParams{ID: cmd, Follow: true, Join: true}
	if size != nil {
		o.Rows, o.Cols = size.Rows, size.Cols
	}
	res, files, err := s.gate.Output(ctx, authn.FromContext(ctx), ref, o, !readOnly)
	if err != nil {
		return nil, err
	}
	defer closeAll(files)
	if len(files) != 1 || res.Client == 0 {
		return nil, fmt.Errorf("cannot join session %s: its executor sent %d descriptors and client %d; it may be of another release: stop and "+
			"start the workspace: %w", cmd, len(files), res.Client, errdefs.ErrInternal)
	}
	f, err := pollfd.Open(files[0])
	if err != nil {
		return nil, err
	}
	return &member{server: s, ref: ref, cmd: cmd, number: res.Client, types: !readOnly, f: f}, nil
}

// resize says that the client's window has another size, which is for those who type: it changes what the others see.
func (m *member) resize(ctx context.Context, size *window) error {
	if !m.types || size == nil {
		return invalid("resize", "this client joined read-only, or gives no size", "join again with the size of the window")
	}
	return m.server.gate.Resize(ctx, authn.FromContext(ctx), m.ref,
		execapi.ResizeParams{ID: m.cmd, Rows: size.Rows, Cols: size.Cols, Client: m.number})
}

// input types what a client sends. From one who looks on it is refused.
func (m *member) input(b []byte) error {
	if !m.types {
		return invalid("stdin", "this client joined read-only", "join again without read_only to type")
	}
	if _, err := m.f.Write(b); err != nil {
		return fmt.Errorf("cannot type into session %s: %w: %w", m.cmd, err, errdefs.ErrUnavailable)
	}
	return nil
}

func (m *member) leave() { m.f.Close() }

// Join carries a session's terminal over a stream. A client that does not read is drawn for when it does.
func (s commands) Join(ctx context.Context, stream *connect.BidiStream[carrelv1.JoinRequest, carrelv1.JoinResponse]) error {
	defer stopReading(ctx) // as of Stream
	return errcode.ToWire(s.joinStream(ctx, stream))
}

func (s commands) joinStream(ctx context.Context, stream *connect.BidiStream[carrelv1.JoinRequest, carrelv1.JoinResponse]) error {
	first, err := stream.Receive()
	if errors.Is(err, io.EOF) || err == nil && first.GetStart() == nil {
		return invalid("start", "the first message is not a start", "send one that says the workspace and the session's command")
	}
	if err != nil {
		return err
	}
	start := first.GetStart()
	ref, cmd, err := parseCommand(start.GetWorkspace(), start.GetCommandId())
	if err != nil {
		return err
	}
	size, err := windowFrom(start.GetSize())
	if err != nil {
		return err
	}
	m, err := s.join(ctx, ref, cmd, size, start.GetReadOnly())
	if err != nil {
		return err
	}
	defer m.leave()
	defer s.untilClosing(ctx, m.leave)()
	if err := stream.Send(&carrelv1.JoinResponse{Message: &carrelv1.JoinResponse_Client{Client: int32(m.number)}}); err != nil {
		return err
	}
	received := make(chan error, 1)
	go func() {
		err := m.receive(ctx, stream)
		m.leave() // which ends the pump
		received <- err
	}()
	err = pump(m.f, func(b []byte) error {
		if err := proceed(ctx); err != nil {
			return err
		}
		return stream.Send(&carrelv1.JoinResponse{Message: &carrelv1.JoinResponse_Stdout{Stdout: b}})
	})
	select {
	case why := <-received:
		return errors.Join(ended(ctx), why)
	default:
	}
	m.leave()
	stopReading(ctx)
	if why := ended(ctx); why != nil {
		return why
	}
	if s.follows.Err() != nil {
		return fmt.Errorf("cannot show session %s any longer: the daemon is stopping; the session goes on, join it again: %w", cmd,
			errdefs.ErrUnavailable)
	}
	if err != nil {
		return fmt.Errorf("cannot read session %s: %w: %w", cmd, err, errdefs.ErrUnavailable)
	}
	if status := s.statusOf(ctx, ref, cmd); status != nil {
		return stream.Send(&carrelv1.JoinResponse{Message: &carrelv1.JoinResponse_Exited{Exited: status}})
	}
	return nil
}

// receive carries out what the client sends until it sends no more, which is its leaving.
func (m *member) receive(ctx context.Context, stream *connect.BidiStream[carrelv1.JoinRequest, carrelv1.JoinResponse]) error {
	for {
		req, err := stream.Receive()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = ended(ctx)
		}
		if err != nil {
			return err
		}
		switch v := req.GetMessage().(type) {
		case *carrelv1.JoinRequest_Stdin:
			err = m.input(v.Stdin)
		case *carrelv1.JoinRequest_Resize:
			var size *window
			if size, err = windowFrom(v.Resize); err == nil {
				err = m.resize(ctx, size)
			}
		default:
			err = invalid("message", "it is a second start or empty", "send stdin or resize after the start")
		}
		if err != nil {
			return err
		}
	}
}
