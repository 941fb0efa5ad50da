package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"connectrpc.com/connect"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/surface/authn"
	"github.com/carrel-dev/carrel/internal/wire/errcode"
)

type archives struct{ *Server }

// piece is how much of an archive goes into one message.
const piece = 256 << 10

// sender is one stream of responses that several goroutines write. Its close is deferred by the
// handler: a message that came after it would end the daemon with a panic of the HTTP server's.
type sender[T any] struct {
	await  awaits
	stream interface{ Send(*T) error }

	mu     sync.Mutex
	closed bool
}

func (s *sender[T]) send(m *T) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return fmt.Errorf("cannot answer: the request has ended: %w", context.Canceled)
	}
	taken, err := s.await((*http.ResponseController).SetWriteDeadline)
	if err != nil {
		return err
	}
	defer taken()
	return s.stream.Send(m)
}

// close waits for a message that is under way, for no longer than a client may stall.
func (s *sender[T]) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
}

// awaits gives the client of a stream so long to take or to send a piece, where set says which, until over is called; its error is why the
// daemon has ended the request.
type awaits func(set func(*http.ResponseController, time.Time) error) (over func(), err error)

// await lets no client stall for ever: a workspace is held until its archive is there.
func (s *Server) await(ctx context.Context) awaits {
	x := ctx.Value(streamKey{}).(*exchanged) // as Admit says
	return func(set func(*http.ResponseController, time.Time) error) (func(), error) {
		err := proceed(ctx)
		_ = set(x.rc, time.Now().Add(s.opts.StallTimeout)) // a connection that is gone waits for nothing
		// On HTTP/2 a deadline that passes ends its stream, also where nothing waits for the client by then.
		return func() { _ = set(x.rc, time.Time{}) }, err
	}
}

// chunks makes messages of what is written.
type chunks func([]byte) error

func (c chunks) Write(p []byte) (int, error) {
	for n := 0; n < len(p); n += piece {
		if err := c(p[n:min(n+piece, len(p))]); err != nil {
			return n, err
		}
	}
	return len(p), nil
}

func (s archives) CreateArchive(ctx context.Context, req *request[carrelv1.CreateArchiveRequest],
	stream *connect.ServerStream[carrelv1.CreateArchiveResponse],
) error {
	m := req.Msg
	ref, err := parseRef(m.GetWorkspace())
	if err != nil {
		return errcode.ToWire(err)
	}
	to := sender[carrelv1.CreateArchiveResponse]{await: s.await(ctx), stream: stream}
	defer to.close()
	var out io.Writer
	if m.GetExport() {
		out = chunks(func(b []byte) error {
			return to.send(&carrelv1.CreateArchiveResponse{Kind: &carrelv1.CreateArchiveResponse_Data{Data: b}})
		})
	}
	a, err := s.gate.Archive(ctx, authn.FromContext(ctx), ref, workspace.ArchiveWanted{
		Live: m.GetLive(), Destroy: m.GetDestroy(),
		Request: m.GetRequestId(),
	}, out,
		func(p workspace.Progress) {
			// Whoever does not hear how far it is hears how it ends.
			_ = to.send(&carrelv1.CreateArchiveResponse{Kind: &carrelv1.CreateArchiveResponse_Progress{Progress: progressTo(p)}})
		})
	if err != nil {
		return errcode.ToWire(err)
	}
	return to.send(&carrelv1.CreateArchiveResponse{Kind: &carrelv1.CreateArchiveResponse_Archive{Archive: archiveTo(a)}})
}

type restoring = connect.BidiStream[carrelv1.RestoreRequest, carrelv1.RestoreResponse]

func (s archives) Restore(ctx context.Context, stream *restoring) error {
	defer stopReading(ctx) // as of Stream
	return errcode.ToWire(s.restore(ctx, stream))
}

func (s archives) restore(ctx context.Context, stream *restoring) error {
	first, err := stream.Receive()
	if errors.Is(err, io.EOF) || err == nil && first.GetStart() == nil {
		return invalid("start", "the first message is not a start", "send one that says the archive and the key")
	}
	if err != nil {
		return err
	}
	m := first.GetStart()
	want := workspace.RestoreWanted{
		From: m.GetFrom(), Profile: m.GetProfile(), Limits: limitsFrom(m.GetLimits()),
		Life: workspace.Life{TTL: duration(m.GetTtlMs()), Idle: duration(m.GetIdleTimeoutMs())}, Request: m.GetRequestId(),
	}
	if err := want.Limits.OrDefault().Validate(); err != nil {
		return err
	}
	if m.GetKey() != "" {
		if want.Key, err = id.ParseKey(m.GetKey()); err != nil {
			return err
		}
	}
	to := sender[carrelv1.RestoreResponse]{await: s.await(ctx), stream: stream}
	defer to.close()
	in := &upload{await: s.await(ctx), stream: stream}
	w, err := s.gate.Restore(ctx, authn.FromContext(ctx), want, in, func(p workspace.Progress) {
		_ = to.send(&carrelv1.RestoreResponse{Kind: &carrelv1.RestoreResponse_Progress{Progress: progressTo(p)}}) // as above
	})
	if err != nil {
		return err
	}
	return to.send(&carrelv1.RestoreResponse{Kind: &carrelv1.RestoreResponse_Workspace{Workspace: workspaceTo(w)}})
}

// upload is the data of the requests.
type upload struct {
	await  awaits
	stream *restoring
	rest   []byte
}

func (u *upload) Read(p []byte) (int, error) {
	for len(u.rest) == 0 {
		sent, err := u.await((*http.ResponseController).SetReadDeadline)
		if err != nil {
			return 0, err
		}
		m, err := u.stream.Receive()
		sent()
		if errors.Is(err, io.EOF) {
			return 0, io.EOF // as readers compare it
		}
		if err != nil {
			return 0, err
		}
		if m.GetStart() != nil {
			return 0, invalid("start", "it came twice", "send data, and end the stream")
		}
		u.rest = m.GetData()
	}
	n := copy(p, u.rest)
	u.rest = u.rest[n:]
	return n, nil
}

func (s archives) ListArchives(ctx context.Context,
	_ *request[carrelv1.ListArchivesRequest],
) (*response[carrelv1.ListArchivesResponse], error) {
	list, err := s.gate.ListArchives(ctx, authn.FromContext(ctx))
	if err != nil {
		return nil, errcode.ToWire(err)
	}
	out := &carrelv1.ListArchivesResponse{Archives: make([]*carrelv1.Archive, 0, len(list))}
	for _, a := range list {
		out.Archives = append(out.Archives, archiveTo(a))
	}
	return connect.NewResponse(out), nil
}

func (s archives) ReadArchive(ctx context.Context, req *request[carrelv1.ReadArchiveRequest],
	stream *connect.ServerStream[carrelv1.ReadArchiveResponse],
) error {
	ref, err := parseRef(req.Msg.GetArchive())
	if err != nil {
		return errcode.ToWire(err)
	}
	to := sender[carrelv1.ReadArchiveResponse]{await: s.await(ctx), stream: stream}
	defer to.close()
	a, err := s.gate.ReadArchive(ctx, authn.FromContext(ctx), ref, chunks(func(b []byte) error {
		return to.send(&carrelv1.ReadArchiveResponse{Kind: &carrelv1.ReadArchiveResponse_Data{Data: b}})
	}))
	if err != nil {
		return errcode.ToWire(err)
	}
	return to.send(&carrelv1.ReadArchiveResponse{Kind: &carrelv1.ReadArchiveResponse_Archive{Archive: archiveTo(a)}})
}

func (s archives) RemoveArchive(ctx context.Context,
	req *request[carrelv1.RemoveArchiveRequest],
) (*response[carrelv1.RemoveArchiveResponse], error) {
	ref, err := parseRef(req.Msg.GetArchive())
	if err == nil {
		err = s.gate.RemoveArchive(ctx, authn.FromContext(ctx), ref)
	}
	if err != nil {
		return nil, errcode.ToWire(err)
	}
	return connect.NewResponse(&carrelv1.RemoveArchiveResponse{}), nil
}

func progressTo(p workspace.Progress) *carrelv1.ArchiveProgress {
	return &carrelv1.ArchiveProgress{Entries: p.Entries, Bytes: p.Bytes}
}

func archiveTo(a workspace.Archive) *carrelv1.Archive {
	return &carrelv1.Archive{
		Id: a.ID, Workspace: string(a.Workspace), Key: string(a.Key), Owner: a.Owner, Profile: a.Profile, Limits: limitsTo(a.Limits),
		Sha256: a.SHA256, Size: a.Size, Entries: a.Entries, Bytes: a.Bytes, CreatedUnixMs: unixMS(a.CreatedAt),
		ExpiresUnixMs: unixMS(a.Expires),
	}
}
