package carrel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"connectrpc.com/connect"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/wire/fdapi"
)

// DefaultSession is the session that is meant where none is named.
const DefaultSession = "main"

// TerminalOptions say which session to join, or to open.
type TerminalOptions struct {
	// Session is its name: 1 to 32 lower-case letters, digits, '-' and '_'; "" is DefaultSession.
	Session string
	// Command is what the session runs if it has to be opened. Stdin and Terminal are not used. Without Argv the session
	// is joined and not opened.
	Command Spec
	// Size is that of this client's window. The terminal has the size of the smallest window of those who type.
	Size WindowSize
	// New opens it, and fails if it is open already (already_exists).
	New bool
	// ReadOnly looks on: what is written is dropped, and Size does not count. It takes no more than the permission to read
	// output.
	ReadOnly bool
	// Record has the session recorded from its beginning: its output is written to ~/.carrel/recordings/ID.cast in the
	// workspace, an asciinema v2 file of at most 16 MiB. One that is open and is not recorded is a failed_precondition.
	Record bool
}

// Terminal is a session that this process has joined. The session goes on when it is left.
type Terminal struct {
	// ID names the command of the session, as in "carrel ps", and Session the session.
	ID, Session string
	// Opened: this call has opened it.
	Opened bool
	// File is a socket: reading it gives what draws the terminal in a window, and ends with EOF when the session does. What
	// is written is typed. A client that reads slowly misses states between and holds nobody.
	File *os.File

	workspace string
	link      terminalLink
}

// terminalLink is a Terminal's connection to the daemon.
type terminalLink interface {
	resize(ctx context.Context, workspace, command string, size WindowSize) error
	broke() error
	close() error
}

// OpenTerminal joins a session of workspace, which is a key or a derived name, and opens it first if there is none with that
// name and o has a command. not_found: there is none, and o has none.
func (c *Client) OpenTerminal(ctx context.Context, workspace string, o TerminalOptions) (*Terminal, error) {
	if o.Session == "" {
		o.Session = DefaultSession
	}
	for {
		command, recorded, err := c.sessionOf(ctx, workspace, o.Session)
		if err != nil {
			return nil, err
		}
		opened := false
		switch {
		case command != "" && o.New:
			return nil, fmt.Errorf("cannot open session %s: it is open already; join it, or give another name: %w", o.Session,
				errdefs.ErrAlreadyExists)
		case command != "" && o.Record && !recorded:
			return nil, fmt.Errorf("cannot record session %s: it was opened without a recording; end it, or open one with another name: %w",
				o.Session, errdefs.ErrFailedPrecondition)
		case command == "" && (o.ReadOnly || len(o.Command.Argv) == 0):
			return nil, fmt.Errorf("cannot join session %s: workspace %s has no such session; \"carrel shell --ls\" lists those that it has: %w",
				o.Session, workspace, errdefs.ErrNotFound)
		case command == "":
			command, err = c.openSession(ctx, workspace, &o)
			if errdefs.IsAlreadyExists(err) && !o.New {
				continue // somebody was faster
			}
			if err != nil {
				return nil, err
			}
			opened = true
		}
		t, err := c.joinSession(ctx, workspace, command, &o)
		if err != nil {
			return nil, err
		}
		t.ID, t.Session, t.Opened, t.workspace = command, o.Session, opened, workspace
		return t, nil
	}
}

// sessionOf is the command of an open session, "" if there is none, and whether it is recorded.
func (c *Client) sessionOf(ctx context.Context, workspace, session string) (command string, recorded bool, err error) {
	res, err := c.Commands().ListCommands(ctx, connect.NewRequest(&carrelv1.ListCommandsRequest{Workspace: workspace}))
	if err != nil {
		return "", false, err
	}
	for _, x := range res.Msg.GetCommands() {
		if x.GetSession() == session && x.GetStatus() == nil {
			return x.GetCommandId(), x.GetRecorded(), nil
		}
	}
	return "", false, nil
}

func (c *Client) openSession(ctx context.Context, workspace string, o *TerminalOptions) (string, error) {
	command, err := o.Command.message()
	if err != nil {
		return "", err
	}
	res, err := c.Commands().Detach(ctx, connect.NewRequest(&carrelv1.DetachRequest{
		Workspace: workspace, Command: command, Terminal: o.Size.message(), Session: o.Session, Record: o.Record,
	}))
	if err != nil {
		return "", err
	}
	return res.Msg.GetCommandId(), nil
}

func (c *Client) joinSession(ctx context.Context, workspace, command string, o *TerminalOptions) (*Terminal, error) {
	if !c.host.direct() {
		return c.joinRemote(ctx, &carrelv1.JoinStart{
			Workspace: workspace, CommandId: command, Size: o.Size.message(), ReadOnly: o.ReadOnly,
		})
	}
	x, err := c.open(ctx)
	if err != nil {
		return nil, err
	}
	var res carrelv1.AttachResponse
	fds, err := x.call(ctx, fdapi.Attach, &carrelv1.AttachRequest{
		Workspace: workspace, CommandId: command, Follow: true, Join: true, ReadOnly: o.ReadOnly, Size: o.Size.message(),
	}, &res, 1)
	if err == nil && res.GetClient() == 0 {
		fds[0].Close()
		err = fmt.Errorf("cannot join session %s: its executor is of an older release; stop and start the workspace: %w", o.Session,
			errdefs.ErrFailedPrecondition)
	}
	if err != nil {
		x.Close()
		return nil, err
	}
	return &Terminal{File: fds[0], link: &memberHere{x, res.GetClient()}}, nil
}

// memberHere has joined with a descriptor.
type memberHere struct {
	*session

	client int32
}

func (m *memberHere) resize(ctx context.Context, workspace, command string, size WindowSize) error {
	_, err := m.call(ctx, fdapi.Resize, &carrelv1.ResizeRequest{
		Workspace: workspace, CommandId: command, Size: size.message(), Client: m.client,
	}, new(carrelv1.ResizeResponse), 0)
	return err
}

func (m *memberHere) broke() error { return nil }

// memberElsewhere has joined over a stream.
type memberElsewhere struct {
	stream *connect.BidiStreamForClient[carrelv1.JoinRequest, carrelv1.JoinResponse]
	cancel context.CancelFunc
	near   *os.File

	sending sync.Mutex    // Connect allows one sender at a time
	over    chan struct{} // closed once err is set
	err     error
}

// joinRemote joins over a stream, which outlives ctx.
func (c *Client) joinRemote(ctx context.Context, start *carrelv1.JoinStart) (_ *Terminal, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot make the stream of the terminal: %w", err)
	}
	whole, cancel := context.WithCancel(context.WithoutCancel(ctx))
	m := &memberElsewhere{cancel: cancel, near: os.NewFile(uintptr(fds[1]), "terminal"), over: make(chan struct{})}
	t := &Terminal{File: os.NewFile(uintptr(fds[0]), "terminal"), link: m}
	defer func() {
		if err != nil {
			cancel()
			m.near.Close()
			t.File.Close()
		}
	}()
	stop := context.AfterFunc(ctx, cancel)
	m.stream = c.Commands().Join(whole)
	if err := m.send(&carrelv1.JoinRequest{Message: &carrelv1.JoinRequest_Start{Start: start}}); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	_, err = m.stream.Receive() // which returns the error of one that was refused
	if !stop() {
		return nil, context.Cause(ctx)
	}
	if err != nil {
		return nil, err
	}
	go m.receive()
	go m.feed()
	return t, nil
}

func (m *memberElsewhere) send(r *carrelv1.JoinRequest) error {
	m.sending.Lock()
	defer m.sending.Unlock()
	return m.stream.Send(r)
}

func (m *memberElsewhere) feed() {
	buf := make([]byte, 32<<10)
	for {
		n, err := m.near.Read(buf)
		if n > 0 && m.send(&carrelv1.JoinRequest{Message: &carrelv1.JoinRequest_Stdin{Stdin: buf[:n]}}) != nil {
			return // receive gets the error
		}
		if err != nil {
			return
		}
	}
}

func (m *memberElsewhere) receive() {
	defer close(m.over)
	defer m.near.Close()
	defer m.cancel()
	for {
		r, err := m.stream.Receive()
		if err != nil {
			if !errors.Is(err, io.EOF) {
				m.err = err
			}
			return
		}
		if b := r.GetStdout(); len(b) > 0 {
			if _, err := m.near.Write(b); err != nil {
				return
			}
		}
	}
}

func (m *memberElsewhere) resize(_ context.Context, _, _ string, size WindowSize) error {
	return m.send(&carrelv1.JoinRequest{Message: &carrelv1.JoinRequest_Resize{Resize: size.message()}})
}

func (m *memberElsewhere) broke() error {
	<-m.over
	return m.err
}

func (m *memberElsewhere) close() error {
	m.cancel()
	return nil
}

// Resize says that this client's window has another size. One that looks on cannot; it joins again.
func (t *Terminal) Resize(ctx context.Context, size WindowSize) error {
	return t.link.resize(ctx, t.workspace, t.ID, size)
}

// Err is for when File has ended: it is why it broke off, as a token that ended, or nil if the session has ended, or carrel
// does not know.
func (t *Terminal) Err() error { return t.link.broke() }

// Close leaves the session, which goes on.
func (t *Terminal) Close() error {
	t.File.Close()
	return t.link.close()
}
