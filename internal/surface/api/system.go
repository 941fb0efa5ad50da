package api

import (
	"context"
	"runtime"

	"connectrpc.com/connect"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/surface/authn"
	"github.com/carrel-dev/carrel/internal/wire/errcode"
)

type system struct{ *Server }

func (s system) Version(context.Context, *request[carrelv1.VersionRequest]) (*response[carrelv1.VersionResponse], error) {
	m := &carrelv1.VersionResponse{
		Version: s.opts.Version,
		Commit:  s.opts.Commit,
		Go:      runtime.Version(),
		Address: s.opts.Address, Fingerprint: s.opts.Fingerprint, DiskLimit: s.opts.DiskLimit,
	}
	if s.opts.Full != nil {
		if err := s.opts.Full(); err != nil {
			m.DiskFull = err.Error()
		}
	}
	return connect.NewResponse(m), nil
}

func (s system) Mended(
	ctx context.Context, _ *request[carrelv1.MendedRequest],
) (*response[carrelv1.MendedResponse], error) {
	list, err := s.gate.Mended(ctx, authn.FromContext(ctx))
	if err != nil {
		return nil, errcode.ToWire(err)
	}
	out := &carrelv1.MendedResponse{}
	for _, m := range list {
		out.Mended = append(out.Mended, &carrelv1.Mended{Kind: string(m.Kind), Workspace: string(m.Workspace), Done: m.Done})
	}
	return connect.NewResponse(out), nil
}

func (s system) ReloadPolicy(
	ctx context.Context, _ *request[carrelv1.ReloadPolicyRequest],
) (*response[carrelv1.ReloadPolicyResponse], error) {
	was, now, rules, err := s.gate.ReloadPolicy(ctx, authn.FromContext(ctx))
	if err != nil {
		return nil, errcode.ToWire(err)
	}
	return connect.NewResponse(&carrelv1.ReloadPolicyResponse{Old: was, New: now, Rules: int32(rules)}), nil
}
