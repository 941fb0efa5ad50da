// Package client is the client's end of the channel that package fdapi names. The SDK speaks it, and the front of the
// command line, which must start fast: so it knows no schema, and links neither HTTP nor protobuf.
//
// It must not choose a daemon, and not know what the messages mean.
package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/linux/pollfd"
	"github.com/carrel-dev/carrel/internal/wire/fdapi"
	"github.com/carrel-dev/carrel/internal/wire/jsonrpc"
)

// maxQueueing bounds the last wait, and by that all waits together, for a place in the daemon's queue.
const maxQueueing = 2 * time.Second

// Dial connects to the daemon's socket. Its error is that of the system.
func Dial(ctx context.Context, socket string) (*net.UnixConn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	opening := true // it may have been opened since the first try
	again := func() bool {
		switch {
		case errors.Is(err, syscall.EAGAIN): // the queue of the socket is full, and a blocking connect would wait for its turn
			return true
		case errors.Is(err, syscall.EACCES): // once more after it was last seen closed to all
			was := opening
			opening = starting(socket)
			return was || opening
		}
		return false
	}
	for wait := time.Millisecond; again() && wait < maxQueueing; wait *= 2 {
		select {
		case <-time.After(wait):
			conn, err = new(net.Dialer).DialContext(ctx, "unix", socket)
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	if err != nil {
		return nil, err
	}
	return conn.(*net.UnixConn), nil
}

// starting reports whether a daemon has made its socket and not yet opened it to those who may use it.
func starting(socket string) bool {
	i, err := os.Lstat(socket)
	return err == nil && i.Mode().Type() == os.ModeSocket && i.Mode().Perm() == 0
}

// Conn is one upgraded connection, used for one command.
type Conn struct {
	conn     *jsonrpc.Conn
	socket   string
	patience time.Duration

	once   sync.Once
	exited chan struct{}
	end    json.RawMessage // valid once exited is closed
}

// Refused is the daemon's refusal to upgrade, with the code and the message of the API.
type Refused struct{ Code, Message string }

func (r *Refused) Error() string { return r.Message }

const upgrade = "POST " + fdapi.Path + " HTTP/1.1\r\nHost: carrel\r\nConnection: Upgrade\r\nUpgrade: " + fdapi.Protocol + "\r\n\r\n"

// Open upgrades a connection, and closes it if it cannot. It writes HTTP by hand, because the exchange is fixed and a
// program that runs one command needs no HTTP client otherwise. socket is where it leads, and patience for how long the daemon
// there may answer nothing at all before Open or a Call fails: see Guard. The end of a command may be waited for forever.
func Open(ctx context.Context, conn *net.UnixConn, socket string, patience time.Duration) (*Conn, error) {
	ctx, done := guarded(ctx, socket, patience)
	defer done()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	err := handshake(conn)
	if !stop() {
		err = context.Cause(ctx)
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	x := &Conn{socket: socket, patience: patience, exited: make(chan struct{})}
	x.conn = jsonrpc.New(conn, jsonrpc.Config{Handler: x.handle, MaxFDs: fdapi.MaxFDs})
	return x, nil
}

// handshake reads only the daemon's answer: the messages after it carry descriptors and need
// another reader.
func handshake(conn net.Conn) error {
	if _, err := io.WriteString(conn, upgrade); err != nil {
		return fmt.Errorf("cannot talk to carrel: %w: %w", err, errdefs.ErrUnavailable)
	}
	buf, n := make([]byte, 16<<10), 0
	for {
		m, err := conn.Read(buf[n:])
		n += m
		if head, body, ok := strings.Cut(string(buf[:n]), "\r\n\r\n"); ok {
			if strings.HasPrefix(head, "HTTP/1.1 101 ") {
				return nil
			}
			return refused(head, body, conn)
		}
		if err == nil && n == len(buf) {
			err = io.ErrShortBuffer
		}
		if err != nil {
			return fmt.Errorf("cannot talk to carrel: the answer is not HTTP: %w; is another program's socket named? %w",
				err, errdefs.ErrUnavailable)
		}
	}
}

// upgradeRequired is the status of an older daemon: 426 of RFC 9110.
const upgradeRequired = 426

// refused is the error for an answer other than 101.
func refused(head, body string, conn net.Conn) error {
	rest, _ := io.ReadAll(io.LimitReader(conn, 16<<10)) // the server closes after a refusal
	_, status, _ := strings.Cut(head, " ")
	e := new(Refused)
	if json.Unmarshal(append([]byte(body), rest...), e) == nil && e.Code != "" && e.Message != "" {
		return e
	}
	if s, _, _ := strings.Cut(status, " "); s == strconv.Itoa(upgradeRequired) {
		return fmt.Errorf("cannot start a command: the daemon does not speak %s; use a client of its version: %w",
			fdapi.Protocol, errdefs.ErrNotImplemented)
	}
	return fmt.Errorf("cannot start a command: the daemon answered %q: %w", status, errdefs.ErrUnavailable)
}

func (x *Conn) handle(_ context.Context, _ *jsonrpc.Conn, r *jsonrpc.Request) (any, []*os.File, error) {
	if r.Method != fdapi.Exited {
		return nil, nil, jsonrpc.MethodNotFound(r.Method)
	}
	// A command ends once: later messages are ignored.
	x.once.Do(func() {
		x.end = append(json.RawMessage(nil), r.Params...)
		close(x.exited)
	})
	return nil, nil, nil
}

// Call makes a call whose reply carries want descriptors; fds go with the request. req and res are what encoding/json
// takes, with the names of the schema.
func (x *Conn) Call(ctx context.Context, procedure string, req, res any, want int, fds ...*os.File) ([]*os.File, error) {
	ctx, done := guarded(ctx, x.socket, x.patience)
	defer done()
	got, err := x.conn.Call(ctx, procedure, req, res, fds...)
	if err != nil {
		return nil, err
	}
	if len(got) != want {
		for _, f := range got {
			f.Close()
		}
		return nil, fmt.Errorf("cannot use the daemon's answer to %s: it carries %d descriptors instead of %d: %w", procedure, len(got), want,
			errdefs.ErrInternal)
	}
	return got, pollfd.OpenAll(got)
}

// Wait waits for the end of the connection's command, and decodes into end what the daemon says of it. If the daemon closed the
// connection, the error is unavailable.
func (x *Conn) Wait(ctx context.Context, command string, end any) error {
	select {
	case <-x.exited:
	case <-x.conn.Done():
		// The last message may have arrived together with the end.
		select {
		case <-x.exited:
		default:
			return fmt.Errorf("cannot tell how %s ended: the daemon closed the connection, and hangs its commands up with that: %w",
				command, errdefs.ErrUnavailable)
		}
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if err := json.Unmarshal(x.end, end); err != nil {
		return fmt.Errorf("cannot tell how %s ended: %w: %w", command, err, errdefs.ErrInternal)
	}
	return nil
}

// Unknown is the error for an end without a status: why, as the daemon says.
func Unknown(command, why string) error {
	return fmt.Errorf("cannot tell how %s ended: %s: %w", command, why, errdefs.ErrUnavailable)
}

// IsCommandError reports whether err is about the command itself and not about the workspace: the program was not found there, or
// may not be executed.
func IsCommandError(err error) bool {
	return err != nil && strings.HasPrefix(err.Error(), "cannot run ") && (errdefs.IsNotFound(err) || errdefs.IsPermissionDenied(err))
}

// Done is closed when the connection has ended.
func (x *Conn) Done() <-chan struct{} { return x.conn.Done() }

// Close ends the connection, and with it the command.
func (x *Conn) Close() error { return x.conn.Close() }
