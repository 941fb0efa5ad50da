package carrel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"connectrpc.com/connect"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
)

// Over TLS or with a token no descriptors can be passed. This file gives a command equivalent
// streams then: pipes of this process, which are copied from and to the daemon.

// link is a Command's connection to the daemon.
type link interface {
	wait(ctx context.Context, id string) (Status, error)
	signal(ctx context.Context, workspace, command string, signal int, grace time.Duration) error
	resize(ctx context.Context, workspace, command string, size WindowSize) error
	close() error
}

var (
	_ link = (*session)(nil)
	_ link = (*streamed)(nil)
)

// streamed is a command over CommandService.Stream.
type streamed struct {
	client *Client
	stream *connect.BidiStreamForClient[carrelv1.StreamRequest, carrelv1.StreamResponse]
	cancel context.CancelFunc

	sending sync.Mutex // Connect allows one sender at a time

	// The ends of the pipes that are copied; the user of the Command has the others.
	stdin, stdout, stderr *os.File
	// gone are outputs whose reader has closed them.
	gone          map[*os.File]bool
	id, workspace string

	exited chan struct{} // closed once status and err are set
	status Status
	err    error
}

// startRemote is Start over a stream. The stream, and with it the command, outlives ctx.
func (c *Client) startRemote(ctx context.Context, start *carrelv1.StreamStart, s Spec) (_ *Command, err error) {
	whole, cancel := context.WithCancel(context.WithoutCancel(ctx))
	workspace := start.GetWorkspace()
	x := &streamed{client: c, cancel: cancel, workspace: workspace, gone: map[*os.File]bool{}, exited: make(chan struct{})}
	cmd := &Command{workspace: workspace, link: x}
	defer func() {
		if err != nil {
			cancel()
			x.closeNear()
			cmd.closeFiles()
		}
	}()
	if err := x.open(cmd, s); err != nil {
		return nil, err
	}
	// Until the command has started, the end of ctx ends it.
	stop := context.AfterFunc(ctx, cancel)
	x.stream = c.Commands().Stream(whole)
	if err := x.send(&carrelv1.StreamRequest{Message: &carrelv1.StreamRequest_Start{Start: start}}); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if x.stdin == nil { // nothing will be sent, and a proxy on the way gives up on a client that says nothing
		x.endSending()
	}
	first, err := x.stream.Receive() // returns the error of a stream that was refused
	if !stop() {
		return nil, context.Cause(ctx)
	}
	if err != nil {
		return nil, err
	}
	x.id, cmd.ID = first.GetCommandId(), first.GetCommandId()
	go x.receive()
	if x.stdin != nil {
		go x.feed()
	}
	return cmd, nil
}

// open makes the pipes, or a pair of sockets for a terminal.
func (x *streamed) open(cmd *Command, s Spec) error {
	fail := func(err error) error { return fmt.Errorf("cannot make the streams of the command: %w", err) }
	if s.Terminal != nil {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return fail(err)
		}
		cmd.Terminal = os.NewFile(uintptr(fds[0]), "terminal")
		near := os.NewFile(uintptr(fds[1]), "terminal")
		x.stdin, x.stdout = near, near
		return nil
	}
	var err error
	if cmd.Stdout, x.stdout, err = os.Pipe(); err != nil {
		return fail(err)
	}
	if cmd.Stderr, x.stderr, err = os.Pipe(); err != nil {
		return fail(err)
	}
	if s.Stdin {
		if x.stdin, cmd.Stdin, err = os.Pipe(); err != nil {
			return fail(err)
		}
	}
	return nil
}

func (x *streamed) send(m *carrelv1.StreamRequest) error {
	x.sending.Lock()
	defer x.sending.Unlock()
	return x.stream.Send(m)
}

// endSending ends this side of the stream.
func (x *streamed) endSending() {
	x.sending.Lock()
	defer x.sending.Unlock()
	_ = x.stream.CloseRequest() // receive gets the error
}

// feed sends what is written to the near side of stdin, and its end.
func (x *streamed) feed() {
	buf := make([]byte, 32<<10)
	for {
		n, err := x.stdin.Read(buf)
		if n > 0 && x.send(&carrelv1.StreamRequest{Message: &carrelv1.StreamRequest_Stdin{Stdin: buf[:n]}}) != nil {
			return // receive gets the error
		}
		if err != nil {
			if errors.Is(err, io.EOF) { // and not if this process closed it
				_ = x.send(&carrelv1.StreamRequest{Message: &carrelv1.StreamRequest_CloseStdin{CloseStdin: true}})
				if x.stderr != nil { // a terminal may still change its size
					x.endSending()
				}
			}
			return
		}
	}
}

// receive passes output on until the command has ended.
func (x *streamed) receive() {
	defer close(x.exited)
	defer x.closeNear()
	defer x.cancel()
	for {
		m, err := x.stream.Receive()
		if err != nil {
			x.err = err
			if errors.Is(err, io.EOF) || errors.Is(err, context.Canceled) {
				x.err = fmt.Errorf("cannot tell how %s ended: the connection was closed, and the daemon hangs its commands up with that: %w",
					x.id, errdefs.ErrUnavailable)
			}
			return
		}
		switch v := m.GetMessage().(type) {
		case *carrelv1.StreamResponse_Stdout:
			x.pass(x.stdout, v.Stdout)
		case *carrelv1.StreamResponse_Stderr:
			x.pass(x.stderr, v.Stderr)
		case *carrelv1.StreamResponse_Exited:
			x.status = StatusOf(v.Exited)
			return
		}
	}
}

// pass writes output to its pipe. If the reader has closed it, the command gets SIGPIPE, as from
// a pipe of its own.
func (x *streamed) pass(w *os.File, b []byte) {
	if w == nil || x.gone[w] {
		return
	}
	if _, err := w.Write(b); err != nil {
		x.gone[w] = true
		go func() { _ = x.signal(context.Background(), x.workspace, x.id, int(unix.SIGPIPE), 0) }() // it may have ended
	}
}

// closeNear ends the output for its readers, and ends feed.
func (x *streamed) closeNear() {
	for _, f := range []*os.File{x.stdin, x.stdout, x.stderr} {
		if f != nil {
			_ = f.Close() // that of a terminal is closed twice
		}
	}
}

func (x *streamed) wait(ctx context.Context, _ string) (Status, error) {
	select {
	case <-x.exited:
		return x.status, x.err
	case <-ctx.Done():
		return Status{}, context.Cause(ctx)
	}
}

// signal does not go through the stream, where it would wait behind stdin.
func (x *streamed) signal(ctx context.Context, workspace, command string, signal int, grace time.Duration) error {
	return x.client.signalRemote(ctx, workspace, command, signal, grace)
}

func (c *Client) signalRemote(ctx context.Context, workspace, command string, signal int, grace time.Duration) error {
	_, err := c.Commands().Signal(ctx, connect.NewRequest(&carrelv1.SignalRequest{
		Workspace: workspace, CommandId: command, Signal: int32(signal), GraceMs: milliseconds(grace),
	}))
	return err
}

func (x *streamed) resize(_ context.Context, _, _ string, size WindowSize) error {
	return x.send(&carrelv1.StreamRequest{Message: &carrelv1.StreamRequest_Resize{Resize: size.message()}})
}

func (x *streamed) close() error {
	x.cancel()
	return nil
}

// followed is an attachment over CommandService.Logs.
type followed struct {
	client *Client
	cancel context.CancelFunc
	over   chan struct{} // closed once err is set
	err    error
}

// attachRemote is Attach without descriptors: it gives the output, and takes no input.
func (c *Client) attachRemote(ctx context.Context, workspace, command string, follow bool) (*Attachment, error) {
	whole, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, cancel)
	s, err := c.Commands().Logs(whole, connect.NewRequest(&carrelv1.LogsRequest{Workspace: workspace, CommandId: command, Follow: follow}))
	if err != nil {
		cancel()
		return nil, err
	}
	more := s.Receive()
	if !stop() {
		cancel()
		return nil, context.Cause(ctx)
	}
	if !more && s.Err() != nil {
		cancel()
		return nil, s.Err()
	}
	r, w, err := os.Pipe()
	if err != nil {
		cancel()
		return nil, fmt.Errorf("cannot make the stream of the output: %w", err)
	}
	f := &followed{client: c, cancel: cancel, over: make(chan struct{})}
	a := &Attachment{File: r, workspace: workspace, command: command, link: f}
	if more {
		a.Lost = s.Msg().GetLost()
		if st := s.Msg().GetStatus(); st != nil {
			status := StatusOf(st)
			a.Status = &status
		}
	}
	go func() {
		defer cancel()
		defer w.Close()
		defer close(f.over)
		for ; more; more = s.Receive() {
			if _, err := w.Write(s.Msg().GetData()); err != nil {
				return
			}
		}
		f.err = s.Err()
	}()
	return a, nil
}

// broke waits for the end of the output and returns why it is not that of the command.
func (f *followed) broke() error {
	<-f.over
	return f.err
}

func (f *followed) signal(ctx context.Context, workspace, command string, signal int, grace time.Duration) error {
	return f.client.signalRemote(ctx, workspace, command, signal, grace)
}

func (f *followed) resize(context.Context, string, string, WindowSize) error {
	return fmt.Errorf("cannot set the size of a detached command's terminal from elsewhere: attach to it on the daemon's host: %w",
		errdefs.ErrNotImplemented)
}

func (f *followed) close() error {
	f.cancel()
	return nil
}
