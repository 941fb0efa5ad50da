package carrel

import (
	"context"
	"errors"
	"os"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/wire/errcode"
	"github.com/carrel-dev/carrel/internal/wire/fdapi"
	"github.com/carrel-dev/carrel/internal/wire/fdapi/client"
)

// session is one upgraded connection, used for one command.
type session struct{ *client.Conn }

// open connects and upgrades.
func (c *Client) open(ctx context.Context) (*session, error) {
	conn, err := c.dial(ctx)
	if err != nil {
		return nil, err
	}
	x, err := client.Open(ctx, conn, c.host.socket, c.patience)
	if r, ok := errors.AsType[*client.Refused](err); ok {
		var code connect.Code
		if code.UnmarshalText([]byte(r.Code)) != nil {
			code = connect.CodeUnknown
		}
		return nil, errcode.FromWire(connect.NewError(code, r))
	}
	if err != nil {
		return nil, err
	}
	return &session{x}, nil
}

// call makes a call whose reply carries want descriptors; fds go with the request.
func (x *session) call(ctx context.Context, procedure string, req, res proto.Message, want int, fds ...*os.File) ([]*os.File, error) {
	return x.Call(ctx, procedure, req, res, want, fds...) // encoding/json and not protojson: see package fdapi
}

func (x *session) wait(ctx context.Context, command string) (Status, error) {
	var end carrelv1.Exited
	if err := x.Wait(ctx, command, &end); err != nil {
		return Status{}, err
	}
	if end.GetStatus() == nil {
		return Status{}, client.Unknown(command, end.GetError())
	}
	return StatusOf(end.GetStatus()), nil
}

func (x *session) close() error { return x.Close() }

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
