package api

import (
	"context"
	"os"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/surface/authn"
	"github.com/carrel-dev/carrel/internal/wire/errcode"
	"github.com/carrel-dev/carrel/internal/wire/fileapi"
)

// ReadBySocket has a file or a tree sent over the socket that came with the request.
func (s filesAPI) ReadBySocket(
	ctx context.Context, req *request[carrelv1.ReadBySocketRequest],
) (*response[carrelv1.ReadBySocketResponse], error) {
	m := req.Msg
	r := fileapi.Request{Op: fileapi.Read, Offset: m.GetOffset(), Length: m.GetLength(), To: []byte(m.GetAs())}
	if m.GetTree() {
		r.Op = fileapi.Pack
	}
	res, err := s.bySocket(ctx, m, r)
	if err != nil {
		return nil, errcode.ToWire(err)
	}
	out := &carrelv1.ReadBySocketResponse{}
	if out.Summary = summaryTo(&res); !m.GetTree() {
		out.File, out.Summary = entryTo(res.File), nil
	}
	return connect.NewResponse(out), nil
}

// WriteBySocket makes a file or a tree of what comes over the socket that came with the request.
func (s filesAPI) WriteBySocket(
	ctx context.Context, req *request[carrelv1.WriteBySocketRequest],
) (*response[carrelv1.WriteBySocketResponse], error) {
	m := req.Msg
	r := fileapi.Request{Op: fileapi.Write, Mode: m.Mode, Parents: m.GetParents(), Keep: m.GetKeep()}
	if m.GetTree() {
		r.Op = fileapi.Unpack
	}
	res, err := s.bySocket(ctx, m, r)
	if err != nil {
		return nil, errcode.ToWire(err)
	}
	out := &carrelv1.WriteBySocketResponse{}
	if out.Summary = summaryTo(&res); !m.GetTree() {
		out.File, out.Summary = entryTo(res.File), nil
	}
	return connect.NewResponse(out), nil
}

// bySocket is on with the socket of the request. It lasts as long as the client likes, so it counts as a stream does.
func (s filesAPI) bySocket(ctx context.Context, m named, r fileapi.Request) (res fileapi.Result, err error) {
	c, err := carried(ctx)
	if err != nil {
		return res, err
	}
	if len(c.in) != 1 || !isStream(c.in[0]) {
		return res, invalid("the descriptor", "it is not one connected Unix stream socket", "send one end of a socketpair")
	}
	leave, err := s.streams.enter(authn.FromContext(ctx))
	if err != nil {
		return res, err
	}
	defer leave()
	return s.on(ctx, m, r, fileapi.Streams{Socket: c.in[0]})
}

// isStream reports whether f is a connected Unix stream socket: what a workspace's program gets is nothing that could do more.
func isStream(f *os.File) (is bool) {
	rc, err := f.SyscallConn()
	if err != nil {
		return false
	}
	_ = rc.Control(func(fd uintptr) {
		for option, want := range map[int]int{unix.SO_DOMAIN: unix.AF_UNIX, unix.SO_TYPE: unix.SOCK_STREAM, unix.SO_ACCEPTCONN: 0} {
			if got, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, option); err != nil || got != want {
				return
			}
		}
		_, err := unix.Getpeername(int(fd))
		is = err == nil
	})
	return is
}
