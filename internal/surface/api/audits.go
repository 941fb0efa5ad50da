package api

import (
	"context"
	"time"

	"connectrpc.com/connect"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/base/checkpoint"
	"github.com/carrel-dev/carrel/internal/surface/authn"
	"github.com/carrel-dev/carrel/internal/wire/errcode"
)

type audits struct{ *Server }

func (s audits) Verify(
	ctx context.Context, _ *request[carrelv1.VerifyRequest],
) (*response[carrelv1.VerifyResponse], error) {
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

		File: v.File, Checkpoints: v.Checkpoints, Signed: v.Signed, Countersigned: v.Countersigned, Anchored: v.Anchored,
		LogKey: v.LogKey, BrokerKey: v.BrokerKey, Note: v.Note,
	}), nil
}

func (s audits) Show(ctx context.Context, req *request[carrelv1.ShowRequest],
	stream *connect.ServerStream[carrelv1.ShowResponse],
) error {
	m := req.Msg
	if m.GetFromSeq() < 0 || m.GetLast() < 0 {
		return errcode.ToWire(invalid("from_seq", "it or last is negative", "give 0 for all"))
	}
	f, err := filter(m.GetFilter())
	if err != nil {
		return errcode.ToWire(err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer s.untilClosing(ctx, cancel)()
	err = s.gate.ShowAudit(ctx, authn.FromContext(ctx), m.GetFromSeq(), m.GetLast(), m.GetFollow(), f, func(lines [][]byte) error {
		return send(ctx, stream, &carrelv1.ShowResponse{Lines: lines})
	})
	if why := ended(ctx); why != nil || m.GetFollow() && ctx.Err() != nil {
		return errcode.ToWire(why) // a follow has no other end
	}
	return errcode.ToWire(err)
}

// filter reads what names records.
func filter(f *carrelv1.Filter) (AuditFilter, error) {
	out := AuditFilter{
		Workspace: f.GetWorkspace(), Principal: f.GetPrincipal(), Level: f.GetLevel(), Capability: f.GetCapability(),
		Trace: f.GetTrace(), Type: f.GetType(),
	}
	if f.GetSince() < 0 || f.GetUntil() < 0 {
		return out, invalid("filter", "a time of it is negative", "give Unix nanoseconds, or 0 for none")
	}
	if n := f.GetSince(); n > 0 {
		out.Since = time.Unix(0, n)
	}
	if n := f.GetUntil(); n > 0 {
		out.Until = time.Unix(0, n)
	}
	return out, nil
}

func (s audits) Checkpoint(ctx context.Context, req *request[carrelv1.CheckpointRequest]) (*response[carrelv1.CheckpointResponse], error) {
	st, err := s.gate.Checkpoint(ctx, authn.FromContext(ctx), req.Msg.GetSign())
	if err != nil {
		return nil, errcode.ToWire(err)
	}
	res := &carrelv1.CheckpointResponse{
		Signed: st.Signed, Countersigned: st.Countersigned, Anchored: st.Anchored, LogKey: st.LogKey, BrokerKey: st.BrokerKey,
		Anchor: st.Anchor, AnchorRequired: st.AnchorRequired,
	}
	if st.Err != nil {
		res.Error = st.Err.Error()
	}
	if st.AnchorErr != nil {
		res.AnchorError = st.AnchorErr.Error()
	}
	return connect.NewResponse(res), nil
}

func (s audits) Prove(ctx context.Context, req *request[carrelv1.ProveRequest],
	stream *connect.ServerStream[carrelv1.ProveResponse],
) error {
	m := req.Msg
	if m.GetFromSeq() < 0 || m.GetToSeq() < 0 {
		return errcode.ToWire(invalid("from_seq", "it or to_seq is negative", "give 0 for all"))
	}
	f, err := filter(m.GetFilter())
	if err != nil {
		return errcode.ToWire(err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer s.untilClosing(ctx, cancel)()
	first := true
	return errcode.ToWire(s.gate.ProveAudit(ctx, authn.FromContext(ctx), m.GetFromSeq(), m.GetToSeq(), f,
		func(proofs []checkpoint.Proof) error {
			res := &carrelv1.ProveResponse{}
			for _, p := range proofs {
				if first {
					res.Note, first = p.Note, false
				}
				one := &carrelv1.Proven{Line: p.Line, Index: p.Index}
				for _, h := range p.Hashes {
					one.Hashes = append(one.Hashes, h[:])
				}
				res.Records = append(res.Records, one)
			}
			return stream.Send(res)
		}))
}
