package api

import (
	"context"
	"errors"
	"fmt"
	"io"

	"connectrpc.com/connect"
	"github.com/containerd/errdefs"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/surface/authn"
	"github.com/carrel-dev/carrel/internal/wire/errcode"
	"github.com/carrel-dev/carrel/internal/wire/portconn"
)

type portsAPI struct{ *Server }

// Publish keeps a port open until the client goes or the workspace stops.
func (s portsAPI) Publish(
	ctx context.Context, req *request[carrelv1.PublishRequest], stream *connect.ServerStream[carrelv1.PublishResponse],
) error {
	return errcode.ToWire(s.publish(ctx, req.Msg, stream))
}

func (s portsAPI) publish(
	ctx context.Context, req *carrelv1.PublishRequest, stream *connect.ServerStream[carrelv1.PublishResponse],
) error {
	ref, err := parseRef(req.GetWorkspace())
	if err != nil {
		return err
	}
	held, release, err := s.gate.PublishPort(ctx, authn.FromContext(ctx), ref, int(req.GetPort()))
	if err != nil {
		return err
	}
	defer release()
	if err := send(ctx, stream, &carrelv1.PublishResponse{}); err != nil {
		return err
	}
	select {
	case <-held.Done():
	case <-s.follows.Done():
		return fmt.Errorf("cannot keep port %d of workspace %s open: the daemon is stopping; open it again when it runs: %w", req.GetPort(), ref,
			errdefs.ErrUnavailable)
	}
	if why := ended(ctx); why != nil {
		return why
	}
	return context.Cause(held)
}

// Connect carries one connection over a stream.
func (s portsAPI) Connect(ctx context.Context, stream *connect.BidiStream[carrelv1.ConnectRequest, carrelv1.ConnectResponse]) error {
	return errcode.ToWire(s.connectStream(ctx, stream))
}

func (s portsAPI) connectStream(ctx context.Context, stream *connect.BidiStream[carrelv1.ConnectRequest, carrelv1.ConnectResponse]) error {
	first, err := stream.Receive()
	if errors.Is(err, io.EOF) || err == nil && first.GetStart() == nil {
		return invalid("start", "the first message is not a start", "send one that says the workspace and the port")
	}
	if err != nil {
		return err
	}
	start := first.GetStart()
	ref, err := parseRef(start.GetWorkspace())
	if err != nil {
		return err
	}
	c, err := s.gate.DialPort(ctx, authn.FromContext(ctx), ref, int(start.GetPort()))
	if err != nil {
		return err
	}
	// What is not ended in order is broken off, so that neither side takes a part for the whole.
	defer c.End(errLetGo)
	defer context.AfterFunc(s.follows, func() { c.End(errStopping) })()
	if err := send(ctx, stream, &carrelv1.ConnectResponse{Message: &carrelv1.ConnectResponse_Connected{Connected: true}}); err != nil {
		return err
	}
	received := make(chan error, 1)
	go func() {
		err := receiveInto(ctx, c, stream)
		if err != nil && !errors.Is(err, errReadsNoMore) {
			c.End(err)
		}
		received <- err
	}()
	err = pump(c, func(b []byte) error {
		return send(ctx, stream, &carrelv1.ConnectResponse{Message: &carrelv1.ConnectResponse_Data{Data: b}})
	})
	if err == nil {
		err = send(ctx, stream, &carrelv1.ConnectResponse{Message: &carrelv1.ConnectResponse_End{End: true}})
	}
	if err != nil {
		stopReading(ctx)
		return errors.Join(ended(ctx), broken(err))
	}
	select {
	case err = <-received:
	case <-c.Done(): // nothing has moved for long
		err = c.Err()
		stopReading(ctx)
	}
	if err != nil {
		return errors.Join(ended(ctx), broken(err))
	}
	return c.Close()
}

var (
	errLetGo    = fmt.Errorf("cannot go on: the connection is over: %w", errdefs.ErrAborted)
	errStopping = fmt.Errorf("cannot keep the connection: the daemon is stopping; connect again when it runs: %w", errdefs.ErrUnavailable)
)

// broken is the error of a connection that broke off inside, with a kind.
func broken(err error) error {
	if errcode.Code(err) != connect.CodeUnknown {
		return err
	}
	return fmt.Errorf("cannot go on with the connection: %w: %w", err, errdefs.ErrAborted)
}

// errReadsNoMore: what the service said before that still goes to the client.
var errReadsNoMore = fmt.Errorf("cannot send more: what listens there reads no more: %w", errdefs.ErrAborted)

// receiveInto writes what the client sends until it sends no more, which is the end of that direction.
func receiveInto(
	ctx context.Context, c *portconn.Conn, stream *connect.BidiStream[carrelv1.ConnectRequest, carrelv1.ConnectResponse],
) error {
	for {
		m, err := stream.Receive()
		if errors.Is(err, io.EOF) {
			_ = c.CloseWrite() // one that has ended needs none
			return nil
		}
		if err == nil {
			err = ended(ctx)
		}
		if err != nil {
			return err
		}
		data, ok := m.GetMessage().(*carrelv1.ConnectRequest_Data)
		if !ok {
			return invalid("message", "it is a second start or empty", "send data after the start")
		}
		if _, err := c.Write(data.Data); err != nil {
			return fmt.Errorf("%w (%w)", errReadsNoMore, err)
		}
	}
}
