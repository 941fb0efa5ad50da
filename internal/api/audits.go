package api

import (
	"context"

	"connectrpc.com/connect"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/api/errcode"
	"github.com/carrel-dev/carrel/internal/authn"
)

type audits struct{ *Server }

func (s audits) Verify(ctx context.Context, _ *connect.Request[carrelv1.VerifyRequest]) (*connect.Response[carrelv1.VerifyResponse], error) {
	v, err := s.gate.VerifyAudit(ctx, authn.FromContext(ctx))
	if err != nil {
		return nil, errcode.ToWire(err)
	}
	return connect.NewResponse(&carrelv1.VerifyResponse{
		Ok:      v.OK,
		Records: v.Records,
		Bytes:   v.Bytes,
		Head:    v.Head,
		BadSeq:  v.BadSeq,
		BadLine: v.BadLine,
		Harm:    v.Harm,
		Detail:  v.Detail,
	}), nil
}

func (s audits) Show(ctx context.Context, req *connect.Request[carrelv1.ShowRequest], stream *connect.ServerStream[carrelv1.ShowResponse]) error {
	m := req.Msg
	if m.GetFromSeq() < 0 || m.GetLast() < 0 {
		return errcode.ToWire(invalid("from_seq", "it or last is negative", "give 0 for all"))
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer s.untilClosing(ctx, cancel)()
	err := s.gate.ShowAudit(ctx, authn.FromContext(ctx), m.GetFromSeq(), m.GetLast(), m.GetFollow(), func(lines [][]byte) error {
		return stream.Send(&carrelv1.ShowResponse{Lines: lines})
	})
	if m.GetFollow() && ctx.Err() != nil {
		return nil // a follow has no other end
	}
	return errcode.ToWire(err)
}
