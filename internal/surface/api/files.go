package api

import (
	"context"
	"errors"
	"io"
	"math"
	"net/http"
	"strings"
	"unicode/utf8"

	"connectrpc.com/connect"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/surface/authn"
	"github.com/carrel-dev/carrel/internal/wire/errcode"
	"github.com/carrel-dev/carrel/internal/wire/fileapi"
)

type filesAPI struct{ *Server }

// pathFrom is what the two fields of a path say: text, and bytes that follow it.
func pathFrom(text string, raw []byte) []byte { return append([]byte(text), raw...) }

// named is a request that names a workspace and a path in it.
type named interface {
	GetWorkspace() string
	GetPath() string
	GetRawPath() []byte
}

// on carries out what a request says, on the workspace and the path that it names.
func (s filesAPI) on(ctx context.Context, m named, r fileapi.Request, st fileapi.Streams) (fileapi.Result, error) {
	ref, err := parseRef(m.GetWorkspace())
	if err != nil {
		return fileapi.Result{}, err
	}
	r.Path = pathFrom(m.GetPath(), m.GetRawPath())
	if err := r.Validate(); err != nil {
		return fileapi.Result{}, err
	}
	return s.gate.OnFiles(ctx, authn.FromContext(ctx), ref, r, st)
}

func (s filesAPI) ReadFile(
	ctx context.Context, req *request[carrelv1.ReadFileRequest], stream *connect.ServerStream[carrelv1.ReadFileResponse],
) error {
	m := req.Msg
	to := sender[carrelv1.ReadFileResponse]{await: s.await(ctx), stream: stream}
	defer to.close()
	res, err := s.on(ctx, m, fileapi.Request{Op: fileapi.Read, Offset: m.GetOffset(), Length: m.GetLength()}, fileapi.Streams{
		Out: chunks(func(b []byte) error {
			return to.send(&carrelv1.ReadFileResponse{Kind: &carrelv1.ReadFileResponse_Data{Data: b}})
		}),
	})
	if err != nil {
		return errcode.ToWire(err)
	}
	return to.send(&carrelv1.ReadFileResponse{Kind: &carrelv1.ReadFileResponse_File{File: entryTo(res.File)}})
}

func (s filesAPI) PackFiles(
	ctx context.Context, req *request[carrelv1.PackFilesRequest], stream *connect.ServerStream[carrelv1.PackFilesResponse],
) error {
	to := sender[carrelv1.PackFilesResponse]{await: s.await(ctx), stream: stream}
	defer to.close()
	res, err := s.on(ctx, req.Msg, fileapi.Request{Op: fileapi.Pack, To: []byte(req.Msg.GetAs())}, fileapi.Streams{
		Out: chunks(func(b []byte) error {
			return to.send(&carrelv1.PackFilesResponse{Kind: &carrelv1.PackFilesResponse_Data{Data: b}})
		}),
	})
	if err != nil {
		return errcode.ToWire(err)
	}
	return to.send(&carrelv1.PackFilesResponse{Kind: &carrelv1.PackFilesResponse_Summary{Summary: summaryTo(&res)}})
}

// sent is the data of the requests of a stream, up to the one that says that it is whole.
type sent struct {
	ctx   context.Context
	await awaits
	next  func() (data []byte, whole bool, err error)
	rest  []byte
	whole bool
}

// Read implements io.Reader. io.ErrUnexpectedEOF: the client did not say that it was whole.
func (u *sent) Read(p []byte) (n int, err error) {
	for len(u.rest) == 0 {
		if u.whole {
			return 0, io.EOF
		}
		sent, err := u.await((*http.ResponseController).SetReadDeadline)
		if err != nil {
			return 0, err
		}
		u.rest, u.whole, err = u.next()
		if sent(); err != nil {
			if errors.Is(err, io.EOF) {
				err = invalid("finish", "the stream ended without it, so that it is not whole and was given up", "send it last")
			}
			return 0, err
		}
	}
	n = copy(p, u.rest)
	u.rest = u.rest[n:]
	return n, nil
}

// Close ends a Read that waits.
func (u *sent) Close() error {
	stopReading(u.ctx)
	return nil
}

func noStart() error {
	return invalid("start", "the first message is not a start", "send one that says the workspace and the path")
}

func startTwice() error { return invalid("start", "it came twice", "send data, and finish") }

// uploading is a message of a stream that begins with a start.
type uploading[S any] interface {
	GetStart() *S
	GetData() []byte
	GetFinish() bool
}

// begun reads the start of a stream, and returns it with the data that follow.
func begun[S, M any, P interface {
	*M
	uploading[S]
}](ctx context.Context, s filesAPI, stream *connect.ClientStream[M]) (*S, *sent, error) {
	msg := func() P { return stream.Msg() }
	if !stream.Receive() {
		return nil, nil, orNoStart(stream.Err())
	}
	start := msg().GetStart()
	if start == nil {
		return nil, nil, noStart()
	}
	return start, &sent{ctx: ctx, await: s.await(ctx), next: func() ([]byte, bool, error) {
		if !stream.Receive() {
			return nil, false, orEOF(stream.Err())
		}
		if msg().GetStart() != nil {
			return nil, false, startTwice()
		}
		return msg().GetData(), msg().GetFinish(), nil
	}}, nil
}

func (s filesAPI) WriteFile(
	ctx context.Context, stream *connect.ClientStream[carrelv1.WriteFileRequest],
) (*response[carrelv1.WriteFileResponse], error) {
	defer stopReading(ctx) // connect would pass over what comes until the client ends it
	m, in, err := begun[carrelv1.WriteFileStart](ctx, s, stream)
	if err != nil {
		return nil, errcode.ToWire(err)
	}
	r := fileapi.Request{Op: fileapi.Write, Mode: m.Mode, Parents: m.GetParents(), Keep: m.GetKeep()}
	res, err := s.on(ctx, m, r, fileapi.Streams{In: in})
	if err != nil {
		return nil, errcode.ToWire(err)
	}
	return connect.NewResponse(&carrelv1.WriteFileResponse{File: entryTo(res.File)}), nil
}

func orNoStart(err error) error {
	if err == nil {
		return noStart()
	}
	return err
}

func orEOF(err error) error {
	if err == nil {
		return io.EOF
	}
	return err
}

func (s filesAPI) UnpackFiles(
	ctx context.Context, stream *connect.ClientStream[carrelv1.UnpackFilesRequest],
) (*response[carrelv1.UnpackFilesResponse], error) {
	defer stopReading(ctx) // connect would pass over what comes until the client ends it
	m, in, err := begun[carrelv1.UnpackFilesStart](ctx, s, stream)
	if err != nil {
		return nil, errcode.ToWire(err)
	}
	res, err := s.on(ctx, m, fileapi.Request{Op: fileapi.Unpack, Parents: m.GetParents()}, fileapi.Streams{In: in})
	if err != nil {
		return nil, errcode.ToWire(err)
	}
	return connect.NewResponse(&carrelv1.UnpackFilesResponse{Summary: summaryTo(&res)}), nil
}

func (s filesAPI) ListFiles(ctx context.Context, req *request[carrelv1.ListFilesRequest]) (*response[carrelv1.ListFilesResponse], error) {
	m := req.Msg
	out := &carrelv1.ListFilesResponse{}
	res, err := s.on(ctx, m, fileapi.Request{
		Op: fileapi.List, Depth: int(m.GetDepth()), Limit: int(m.GetLimit()), After: pathFrom(m.GetAfter(), m.GetRawAfter()),
	}, fileapi.Streams{Entries: collect(&out.Entries)})
	if err != nil {
		return nil, errcode.ToWire(err)
	}
	out.File, out.Truncated, out.Skipped = entryTo(res.File), res.Truncated, res.Skipped
	return connect.NewResponse(out), nil
}

func collect(to *[]*carrelv1.FileEntry) func([]fileapi.Entry) error {
	return func(list []fileapi.Entry) error {
		for i := range list {
			*to = append(*to, entryTo(&list[i]))
		}
		return nil
	}
}

func (s filesAPI) SearchFiles(
	ctx context.Context, req *request[carrelv1.SearchFilesRequest],
) (*response[carrelv1.SearchFilesResponse], error) {
	m := req.Msg
	out := &carrelv1.SearchFilesResponse{}
	res, err := s.on(ctx, m, fileapi.Request{
		Op: fileapi.Search, Name: m.GetName(), Text: m.GetText(), Depth: int(m.GetDepth()), Limit: int(m.GetLimit()),
	}, fileapi.Streams{Entries: collect(&out.Matches)})
	if err != nil {
		return nil, errcode.ToWire(err)
	}
	out.Truncated, out.Skipped = res.Truncated, res.Skipped
	return connect.NewResponse(out), nil
}

func (s filesAPI) ListChanges(
	ctx context.Context, req *request[carrelv1.ListChangesRequest],
) (*response[carrelv1.ListChangesResponse], error) {
	m := req.Msg
	out := &carrelv1.ListChangesResponse{}
	if m.GetSinceUnixMs() > maxUnixMs {
		return nil, errcode.ToWire(invalid("since_unix_ms", "it is no time", "leave it out for all since the workspace was made"))
	}
	r := fileapi.Request{Op: fileapi.Changes, SinceNS: m.GetSinceUnixMs() * 1_000_000, Limit: int(m.GetLimit())}
	res, err := s.on(ctx, m, r, fileapi.Streams{
		Entries: func(list []fileapi.Entry) error {
			for i := range list {
				out.Changes = append(out.Changes, &carrelv1.FileChange{
					File: entryTo(&list[i]), Kind: asText(list[i].Kind), Reader: asText(list[i].Reader), Trigger: asText(list[i].Trigger),
				})
			}
			return nil
		},
	})
	if err != nil {
		return nil, errcode.ToWire(err)
	}
	out.Truncated, out.Skipped = res.Truncated, res.Skipped
	return connect.NewResponse(out), nil
}

// maxUnixMs is what nanoseconds have room for.
const maxUnixMs = math.MaxInt64 / 1_000_000

func (s filesAPI) StatFile(ctx context.Context, req *request[carrelv1.StatFileRequest]) (*response[carrelv1.StatFileResponse], error) {
	res, err := s.on(ctx, req.Msg, fileapi.Request{Op: fileapi.Stat, Follow: req.Msg.GetFollow()}, fileapi.Streams{})
	if err != nil {
		return nil, errcode.ToWire(err)
	}
	return connect.NewResponse(&carrelv1.StatFileResponse{File: entryTo(res.File)}), nil
}

func (s filesAPI) MakeDirectory(
	ctx context.Context, req *request[carrelv1.MakeDirectoryRequest],
) (*response[carrelv1.MakeDirectoryResponse], error) {
	r := fileapi.Request{Op: fileapi.Mkdir, Mode: req.Msg.Mode, Parents: req.Msg.GetParents()}
	if _, err := s.on(ctx, req.Msg, r, fileapi.Streams{}); err != nil {
		return nil, errcode.ToWire(err)
	}
	return connect.NewResponse(&carrelv1.MakeDirectoryResponse{}), nil
}

func (s filesAPI) MoveFile(ctx context.Context, req *request[carrelv1.MoveFileRequest]) (*response[carrelv1.MoveFileResponse], error) {
	m := req.Msg
	r := fileapi.Request{Op: fileapi.Move, To: pathFrom(m.GetTo(), m.GetRawTo()), Parents: m.GetParents(), Keep: !m.GetReplace()}
	if _, err := s.on(ctx, m, r, fileapi.Streams{}); err != nil {
		return nil, errcode.ToWire(err)
	}
	return connect.NewResponse(&carrelv1.MoveFileResponse{}), nil
}

func (s filesAPI) RemoveFile(
	ctx context.Context, req *request[carrelv1.RemoveFileRequest],
) (*response[carrelv1.RemoveFileResponse], error) {
	r := fileapi.Request{Op: fileapi.Remove, Recursive: req.Msg.GetRecursive()}
	if _, err := s.on(ctx, req.Msg, r, fileapi.Streams{}); err != nil {
		return nil, errcode.ToWire(err)
	}
	return connect.NewResponse(&carrelv1.RemoveFileResponse{}), nil
}

func (s filesAPI) WatchFiles(
	ctx context.Context, req *request[carrelv1.WatchFilesRequest], stream *connect.ServerStream[carrelv1.WatchFilesResponse],
) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.follows, cancel)() // it would never end by itself
	to := sender[carrelv1.WatchFilesResponse]{await: s.await(ctx), stream: stream}
	defer to.close()
	_, err := s.on(ctx, req.Msg, fileapi.Request{Op: fileapi.Watch, Depth: int(req.Msg.GetDepth())}, fileapi.Streams{
		Events: func(list []fileapi.Event) error {
			out := &carrelv1.WatchFilesResponse{}
			for _, e := range list {
				w := &carrelv1.FileEvent{What: e.What, Directory: e.Dir}
				w.Path, w.RawPath = pathTo(e.Path)
				out.Events = append(out.Events, w)
			}
			return to.send(out)
		},
	})
	return errcode.ToWire(err)
}

// pathTo gives bytes that a workspace named to the field that can hold them.
func pathTo(b []byte) (text string, raw []byte) {
	if utf8.Valid(b) {
		return string(b), nil
	}
	return "", b
}

func entryTo(e *fileapi.Entry) *carrelv1.FileEntry {
	if e == nil {
		return &carrelv1.FileEntry{}
	}
	out := &carrelv1.FileEntry{
		Type: printable(e.Type), Mode: e.Mode, Size: e.Size, ModifiedUnixNs: e.MTimeNS, Line: e.Line, Text: e.Text,
	}
	out.Path, out.RawPath = pathTo(e.Path)
	out.Target, out.RawTarget = pathTo(e.Target)
	return out
}

// printable is a text of a workspace for a field that has to be UTF-8.
func printable(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	return ""
}

func summaryTo(r *fileapi.Result) *carrelv1.FilesSummary {
	return &carrelv1.FilesSummary{
		Entries: r.Entries, Bytes: r.Bytes, Skipped: r.Skipped, First: string([]rune(string(r.First))), Why: printable(r.Why), Changed: r.Changed,
	}
}

func (s filesAPI) ListPatches(
	ctx context.Context, req *request[carrelv1.ListPatchesRequest],
) (*response[carrelv1.ListPatchesResponse], error) {
	res, err := s.onPatches(ctx, req.Msg.GetWorkspace(), fileapi.Request{Op: fileapi.Patches})
	if err != nil {
		return nil, errcode.ToWire(err)
	}
	out := &carrelv1.ListPatchesResponse{}
	for _, p := range res.Patches {
		out.Patches = append(out.Patches, &carrelv1.FilePatch{
			Id: asText(p.ID), Undoes: asText(p.Undoes), Undone: p.State == fileapi.PatchUndone, Conflict: p.State == fileapi.PatchConflict,
			Files: asTexts(p.Files),
		})
	}
	return connect.NewResponse(out), nil
}

func (s filesAPI) UndoPatch(ctx context.Context, req *request[carrelv1.UndoPatchRequest]) (*response[carrelv1.UndoPatchResponse], error) {
	res, err := s.onPatches(ctx, req.Msg.GetWorkspace(), fileapi.Request{Op: fileapi.Undo, ID: req.Msg.GetId()})
	if err != nil {
		return nil, errcode.ToWire(err)
	}
	out := &carrelv1.UndoPatchResponse{}
	if res.Patched != nil {
		out.Id = asText(res.Patched.ID)
	}
	return connect.NewResponse(out), nil
}

// onPatches carries out a request about the changes to files of a workspace.
func (s filesAPI) onPatches(ctx context.Context, workspace string, r fileapi.Request) (fileapi.Result, error) {
	ref, err := parseRef(workspace)
	if err == nil {
		err = r.Validate()
	}
	if err != nil {
		return fileapi.Result{}, err
	}
	return s.gate.OnFiles(ctx, authn.FromContext(ctx), ref, r, fileapi.Streams{})
}

// asText is what a workspace says, as a message can have it.
func asText(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

func asTexts(all []string) []string {
	var out []string
	for _, s := range all {
		out = append(out, asText(s))
	}
	return out
}
