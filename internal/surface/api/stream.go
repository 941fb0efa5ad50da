package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"github.com/containerd/errdefs"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/linux/pollfd"
	"github.com/carrel-dev/carrel/internal/surface/authn"
	"github.com/carrel-dev/carrel/internal/wire/errcode"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

// drainTimeout is how long after its command's end a pipe may stay silent and
// open before its reader gives up on it.
const drainTimeout = 2 * time.Second

type bidi = connect.BidiStream[carrelv1.StreamRequest, carrelv1.StreamResponse]

// Stream runs one command whose bytes the daemon carries. Everything is pulled:
// a client that does not read stops the pumps, a full pipe then stops the command,
// and a command that does not read its stdin stops the client.
func (s commands) Stream(ctx context.Context, stream *bidi) error {
	// Nothing that comes is read any more: connect would pass it over until the client ends it.
	defer stopReading(ctx)
	return errcode.ToWire(s.stream(ctx, stream))
}

func (s commands) stream(ctx context.Context, stream *bidi) error {
	start, err := receiveStart(stream)
	if err != nil {
		return err
	}
	p, err := spawnParams(start)
	if err != nil {
		return err
	}
	cmd, proc, err := s.gate.Spawn(ctx, authn.FromContext(ctx), p.ref, p.exec, p.terminal)
	if err != nil {
		return err
	}
	s.attached.add(1)
	defer s.attached.add(-1)
	// The client's going is the command's hanging up, whatever way this returns.
	defer proc.Close()
	files := proc.Files()
	if err := pollfd.OpenAll(files); err != nil {
		return err
	}
	defer closeAll(files)

	x := exchange{stream: stream, gate: s.gate, ref: p.ref, cmd: cmd, refused: func() error { return proceed(ctx) }}
	if err := x.assign(files, p.terminal, start.GetStdin()); err != nil {
		return err
	}
	if err := x.send(&carrelv1.StreamResponse{Message: &carrelv1.StreamResponse_CommandId{CommandId: string(cmd)}}); err != nil {
		return err
	}
	return x.run(ctx, proc)
}

func receiveStart(stream *bidi) (*carrelv1.StreamStart, error) {
	m, err := stream.Receive()
	if errors.Is(err, io.EOF) || err == nil && m.GetStart() == nil {
		return nil, invalid("start", "the first message is not a start", "send one that says the workspace and the command")
	}
	return m.GetStart(), err
}

// exchange is one command and the stream it is tied to.
type exchange struct {
	stream *bidi
	gate   Gate
	ref    string
	cmd    id.Command
	// refused is why nothing more may pass, nil if it may.
	refused func() error

	stdin, stdout, stderr *os.File // nil: there is none
	terminal              bool

	sending sync.Mutex // Connect allows one sender at a time
	ended   atomic.Bool

	stdinClosed bool // the receiver's own
}

// assign gives the far ends their roles, by the order that runtime.Process states.
func (x *exchange) assign(files []*os.File, terminal, stdin bool) error {
	x.terminal = terminal
	want := 2
	switch {
	case terminal:
		want = 1
	case stdin:
		want = 3
	}
	if len(files) != want {
		return fmt.Errorf("cannot use the streams of %s: there are %d instead of %d: %w", x.cmd, len(files), want, errdefs.ErrInternal)
	}
	switch {
	case terminal:
		x.stdin, x.stdout = files[0], files[0]
	case stdin:
		x.stdin, x.stdout, x.stderr = files[0], files[1], files[2]
	default:
		x.stdout, x.stderr = files[0], files[1]
	}
	return nil
}

func (x *exchange) send(m *carrelv1.StreamResponse) error {
	x.sending.Lock()
	defer x.sending.Unlock()
	if err := x.refused(); err != nil {
		return err
	}
	return x.stream.Send(m)
}

func (x *exchange) run(ctx context.Context, proc runtime.Process) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// A pump or a writer that waits must not outlive the exchange.
	defer context.AfterFunc(ctx, func() {
		for _, f := range []*os.File{x.stdin, x.stdout, x.stderr} {
			if f != nil {
				_ = f.SetDeadline(time.Now())
			}
		}
	})()

	received := make(chan struct{})
	go func() {
		defer close(received)
		if err := x.receive(ctx); err != nil {
			cancel(err)
		}
	}()
	defer func() {
		if x.stdin != nil {
			x.stdin.Close() // ends a write that waits
		}
		stopReading(ctx)
		<-received
	}()
	var pumps sync.WaitGroup
	pump := func(f *os.File, wrap func([]byte) *carrelv1.StreamResponse) {
		if f == nil {
			return
		}
		pumps.Go(func() {
			if err := x.pump(f, wrap); err != nil {
				cancel(err)
			}
		})
	}
	pump(x.stdout, func(b []byte) *carrelv1.StreamResponse {
		return &carrelv1.StreamResponse{Message: &carrelv1.StreamResponse_Stdout{Stdout: b}}
	})
	pump(x.stderr, func(b []byte) *carrelv1.StreamResponse {
		return &carrelv1.StreamResponse{Message: &carrelv1.StreamResponse_Stderr{Stderr: b}}
	})
	status, err := proc.Wait(ctx)
	// What the command wrote is in the pipes. From here each must show some of it
	// every drainTimeout, so that an end held open elsewhere ends the exchange.
	x.ended.Store(true)
	for _, f := range []*os.File{x.stdout, x.stderr} {
		if f != nil && ctx.Err() == nil {
			_ = f.SetReadDeadline(time.Now().Add(drainTimeout))
		}
	}
	pumps.Wait()
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	if err != nil {
		return err
	}
	return x.send(&carrelv1.StreamResponse{Message: &carrelv1.StreamResponse_Exited{Exited: statusTo(&status)}})
}

// pump carries one output to the client until it ends.
func (x *exchange) pump(f *os.File, wrap func([]byte) *carrelv1.StreamResponse) error {
	err := pump(f, func(b []byte) error {
		if err := x.send(wrap(b)); err != nil {
			return err
		}
		if x.ended.Load() {
			_ = f.SetReadDeadline(time.Now().Add(drainTimeout))
		}
		return nil
	})
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil // run set it and knows why
	case x.terminal && isHungUp(err):
		return nil // how a terminal's master ends
	default:
		return err
	}
}

// receive carries out what the client sends until it sends no more. A nil error
// leaves the command running: a client may close its sending side.
func (x *exchange) receive(ctx context.Context) error {
	for {
		m, err := x.stream.Receive()
		if errors.Is(err, io.EOF) {
			return x.closeStdin()
		}
		if err == nil {
			err = x.refused()
		}
		if err != nil {
			return err
		}
		if err := x.handle(ctx, m); err != nil {
			return err
		}
	}
}

func (x *exchange) handle(ctx context.Context, m *carrelv1.StreamRequest) error {
	switch v := m.GetMessage().(type) {
	case *carrelv1.StreamRequest_Stdin:
		if x.stdin == nil || x.stdinClosed {
			return invalid("stdin", "it is closed or was not asked for", "set start.stdin, and send nothing after close_stdin")
		}
		// A command need not read all that it is given.
		if _, err := x.stdin.Write(v.Stdin); err != nil && !isBrokenPipe(err) && !x.ended.Load() {
			return fmt.Errorf("cannot write to the stdin of %s: %w", x.cmd, err)
		}
		return nil
	case *carrelv1.StreamRequest_CloseStdin:
		return x.closeStdin()
	case *carrelv1.StreamRequest_Resize:
		size, err := windowFrom(v.Resize)
		if err != nil || !x.terminal {
			return errors.Join(err, noTerminal(x.terminal))
		}
		return x.gate.Resize(ctx, authn.FromContext(ctx), x.ref, execapi.ResizeParams{ID: x.cmd, Rows: size.Rows, Cols: size.Cols})
	case *carrelv1.StreamRequest_Signal:
		if err := between("signal", int64(v.Signal), 1, maxSignal, "\"kill -l\" lists the numbers"); err != nil {
			return err
		}
		err := x.gate.Signal(ctx, authn.FromContext(ctx), x.ref, execapi.StopTaskParams{ID: x.cmd, Signal: int(v.Signal)})
		if x.ended.Load() || errdefs.IsNotFound(err) {
			return nil // it ended first; its status says how
		}
		return err
	default:
		return invalid("message", "it is a second start or empty", "send stdin, close_stdin, resize or signal after the start")
	}
}

func noTerminal(has bool) error {
	if has {
		return nil
	}
	return invalid("resize", "the command has no terminal", "give start.terminal")
}

// closeStdin is the end of input. A terminal has none: its client sends ^D.
func (x *exchange) closeStdin() error {
	if x.terminal || x.stdin == nil || x.stdinClosed {
		return nil
	}
	x.stdinClosed = true
	return x.stdin.Close()
}
