package carrel

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"
	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/api/errcode"
	"github.com/carrel-dev/carrel/internal/fdapi"
	"github.com/carrel-dev/carrel/internal/jsonrpc"
	"github.com/carrel-dev/carrel/internal/pollfd"
)

// session is one upgraded connection, used for one command.
type session struct {
	conn   *jsonrpc.Conn
	once   sync.Once
	exited chan struct{}
	end    *carrelv1.Exited // valid once exited is closed
}

const upgrade = "POST " + fdapi.Path + " HTTP/1.1\r\nHost: carrel\r\nConnection: Upgrade\r\nUpgrade: " + fdapi.Protocol + "\r\n\r\n"

// open connects and upgrades. It writes HTTP by hand, because the exchange is fixed and a program
// that runs one command needs no HTTP client otherwise.
func (c *Client) open(ctx context.Context) (*session, error) {
	conn, err := c.dial(ctx)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	err = handshake(conn)
	if !stop() {
		err = context.Cause(ctx)
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	x := &session{exited: make(chan struct{})}
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

// refused is the error for an answer other than 101.
func refused(head, body string, conn net.Conn) error {
	rest, _ := io.ReadAll(io.LimitReader(conn, 16<<10)) // the server closes after a refusal
	_, status, _ := strings.Cut(head, " ")
	var e struct{ Code, Message string }
	if json.Unmarshal(append([]byte(body), rest...), &e) == nil && e.Message != "" {
		var code connect.Code
		if code.UnmarshalText([]byte(e.Code)) == nil {
			return errcode.FromWire(connect.NewError(code, errors.New(e.Message)))
		}
	}
	if s, _, _ := strings.Cut(status, " "); s == strconv.Itoa(http.StatusUpgradeRequired) {
		return fmt.Errorf("cannot start a command: the daemon does not speak %s; use a client of its version: %w",
			fdapi.Protocol, errdefs.ErrNotImplemented)
	}
	return fmt.Errorf("cannot start a command: the daemon answered %q: %w", status, errdefs.ErrUnavailable)
}

func (x *session) handle(_ context.Context, _ *jsonrpc.Conn, r *jsonrpc.Request) (any, []*os.File, error) {
	if r.Method != fdapi.Exited {
		return nil, nil, jsonrpc.MethodNotFound(r.Method)
	}
	e := new(carrelv1.Exited)
	if err := json.Unmarshal(r.Params, e); err != nil {
		return nil, nil, err
	}
	// A command ends once: later messages are ignored.
	x.once.Do(func() {
		x.end = e
		close(x.exited)
	})
	return nil, nil, nil
}

// call makes a call whose reply carries want descriptors; fds go with the request.
func (x *session) call(ctx context.Context, procedure string, req, res proto.Message, want int, fds ...*os.File) ([]*os.File, error) {
	// encoding/json and not protojson: see package fdapi.
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

func (x *session) wait(ctx context.Context, command string) (Status, error) {
	select {
	case <-x.exited:
	case <-x.conn.Done():
		// The last message may have arrived together with the end.
		select {
		case <-x.exited:
		default:
			return Status{}, fmt.Errorf("cannot tell how %s ended: the daemon closed the connection, and hangs its commands up with that: %w",
				command, errdefs.ErrUnavailable)
		}
	case <-ctx.Done():
		return Status{}, context.Cause(ctx)
	}
	if x.end.GetStatus() == nil {
		return Status{}, fmt.Errorf("cannot tell how %s ended: %s: %w", command, x.end.GetError(), errdefs.ErrUnavailable)
	}
	return StatusOf(x.end.GetStatus()), nil
}

func (x *session) close() error { return x.conn.Close() }

func (x *session) signal(ctx context.Context, workspace, command string, signal int, grace time.Duration) error {
	_, err := x.call(ctx, fdapi.Signal, &carrelv1.SignalRequest{
		Workspace: workspace, CommandId: command, Signal: int32(signal), GraceMs: milliseconds(grace),
	}, new(carrelv1.SignalResponse), 0)
	return err
}

func (x *session) resize(ctx context.Context, workspace, command string, size WindowSize) error {
	_, err := x.call(ctx, fdapi.Resize, &carrelv1.ResizeRequest{
		Workspace: workspace, CommandId: command, Size: size.message(),
	}, new(carrelv1.ResizeResponse), 0)
	return err
}
