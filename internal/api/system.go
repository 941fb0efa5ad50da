package api

import (
	"context"
	"runtime"

	"connectrpc.com/connect"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
)

type system struct{ *Server }

func (s system) Version(context.Context, *connect.Request[carrelv1.VersionRequest]) (*connect.Response[carrelv1.VersionResponse], error) {
	return connect.NewResponse(&carrelv1.VersionResponse{
		Version: s.opts.Version,
		Commit:  s.opts.Commit,
		Go:      runtime.Version(),
	}), nil
}
