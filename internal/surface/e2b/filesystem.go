package e2b

import (
	"context"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"time"
	"unicode/utf8"

	"connectrpc.com/connect"
	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/carrel-dev/carrel/gen/e2b/filesystem"
	"github.com/carrel-dev/carrel/internal/base/errtext"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/surface/authn"
	"github.com/carrel-dev/carrel/internal/wire/errcode"
	"github.com/carrel-dev/carrel/internal/wire/fileapi"
)

// filesystem serves filesystem.Filesystem.
type filesystem struct{ *Server }

// inside is a path as it is in the workspace, absolute. Relative ones are in the home, which "~" is too.
func inside(p string) string {
	switch {
	case strings.HasPrefix(p, "/"):
		return path.Clean(p)
	case p == "~" || strings.HasPrefix(p, "~/"):
		p = p[1:]
	}
	return path.Join(workspace.Home, p)
}

// on works on files of the sandbox that a request is about.
func (s *Server) on(ctx context.Context, r fileapi.Request, st fileapi.Streams) (fileapi.Result, error) {
	if err := r.Validate(); err != nil {
		return fileapi.Result{}, err
	}
	res, err := s.Gate.OnFiles(ctx, authn.FromContext(ctx), sandboxOf(ctx), r, st)
	if errdefs.IsFailedPrecondition(err) { // it is a directory, or none: SDKs take that for a wrong argument
		err = fmt.Errorf("%s: %w", errtext.Text(err), errdefs.ErrInvalidArgument)
	}
	return res, err
}

// stat looks at a name, and at what it leads to if it is a link.
func (s *Server) stat(ctx context.Context, p string) (*pb.EntryInfo, error) {
	res, err := s.on(ctx, fileapi.Request{Op: fileapi.Stat, Path: []byte(p)}, fileapi.Streams{})
	if err != nil {
		return nil, err
	}
	info := entry(p, res.File)
	if info.GetIsSymlink() {
		if to, err := s.on(ctx, fileapi.Request{Op: fileapi.Stat, Path: []byte(p), Follow: true}, fileapi.Streams{}); err == nil {
			info.Type, info.Size = typeOf(to.File.Type), to.File.Size
		}
	}
	return info, nil
}

// isDirectory reports whether a name leads to a directory.
func (s *Server) isDirectory(ctx context.Context, p string) bool {
	res, err := s.on(ctx, fileapi.Request{Op: fileapi.Stat, Path: []byte(p), Follow: true}, fileapi.Streams{})
	return err == nil && res.File.Type == "directory"
}

func typeOf(t string) pb.FileType {
	switch t {
	case "file":
		return pb.FileType_FILE_TYPE_FILE
	case "directory":
		return pb.FileType_FILE_TYPE_DIRECTORY
	}
	return pb.FileType_FILE_TYPE_UNSPECIFIED
}

// entry is what is known of a name. The owner of all that is in a home is the workspace's one user.
func entry(p string, e *fileapi.Entry) *pb.EntryInfo {
	out := &pb.EntryInfo{
		Name: path.Base(p), Path: p, Type: typeOf(e.Type), Size: e.Size, Mode: e.Mode, Permissions: permissions(e), Owner: "user", Group: "user",
		ModifiedTime: timestamppb.New(time.Unix(0, e.MTimeNS)),
	}
	if e.Type == "link" {
		target := strings.ToValidUTF8(string(e.Target), "\uFFFD")
		out.IsSymlink, out.SymlinkTarget, out.Type = true, &target, pb.FileType_FILE_TYPE_FILE
	}
	return out
}

func permissions(e *fileapi.Entry) string {
	mode := fs.FileMode(e.Mode & 0o777)
	switch e.Type {
	case "directory":
		mode |= fs.ModeDir
	case "link":
		mode |= fs.ModeSymlink
	}
	return mode.String()
}

// begin looks at what every call needs first.
func begin[T any](req *connect.Request[T], paths ...*string) error {
	if err := user(req.Header()); err != nil {
		return err
	}
	for _, p := range paths {
		*p = inside(*p)
	}
	return nil
}

func (s filesystem) Stat(ctx context.Context, req *connect.Request[pb.StatRequest]) (*connect.Response[pb.StatResponse], error) {
	err := begin(req, &req.Msg.Path)
	var info *pb.EntryInfo
	if err == nil {
		info, err = s.stat(ctx, req.Msg.GetPath())
	}
	if err != nil {
		return nil, errcode.ToWire(err)
	}
	return connect.NewResponse(&pb.StatResponse{Entry: info}), nil
}

func (s filesystem) MakeDir(ctx context.Context, req *connect.Request[pb.MakeDirRequest]) (*connect.Response[pb.MakeDirResponse], error) {
	err := begin(req, &req.Msg.Path)
	p := req.Msg.GetPath()
	if err == nil {
		// SDKs tell by already_exists that it was there; what is missing above is made.
		_, err = s.on(ctx, fileapi.Request{Op: fileapi.Mkdir, Path: []byte(path.Dir(p)), Parents: true}, fileapi.Streams{})
		if errdefs.IsAlreadyExists(err) {
			err = wrong("cannot make %q: a name on the way is no directory", p)
		}
	}
	if err == nil {
		_, err = s.on(ctx, fileapi.Request{Op: fileapi.Mkdir, Path: []byte(p)}, fileapi.Streams{})
		if errdefs.IsAlreadyExists(err) && !s.isDirectory(ctx, p) {
			err = wrong("cannot make %q: there is something with this name that is no directory", p)
		}
	}
	var info *pb.EntryInfo
	if err == nil {
		info, err = s.stat(ctx, p)
	}
	if err != nil {
		return nil, errcode.ToWire(err)
	}
	return connect.NewResponse(&pb.MakeDirResponse{Entry: info}), nil
}

func (s filesystem) Move(ctx context.Context, req *connect.Request[pb.MoveRequest]) (*connect.Response[pb.MoveResponse], error) {
	err := begin(req, &req.Msg.Source, &req.Msg.Destination)
	if err == nil {
		_, err = s.on(ctx, fileapi.Request{
			Op: fileapi.Move, Path: []byte(req.Msg.GetSource()), To: []byte(req.Msg.GetDestination()), Parents: true,
		}, fileapi.Streams{})
	}
	var info *pb.EntryInfo
	if err == nil {
		info, err = s.stat(ctx, req.Msg.GetDestination())
	}
	if err != nil {
		return nil, errcode.ToWire(err)
	}
	return connect.NewResponse(&pb.MoveResponse{Entry: info}), nil
}

func (s filesystem) ListDir(ctx context.Context, req *connect.Request[pb.ListDirRequest]) (*connect.Response[pb.ListDirResponse], error) {
	out, p := &pb.ListDirResponse{}, &req.Msg.Path
	err := begin(req, p)
	for after := []byte(nil); err == nil; {
		var res fileapi.Result
		res, err = s.on(ctx, fileapi.Request{Op: fileapi.List, Path: []byte(*p), Depth: max(1, int(req.Msg.GetDepth())), After: after},
			fileapi.Streams{Entries: func(list []fileapi.Entry) error {
				for _, e := range list {
					if len(list) == 1 && path.IsAbs(string(e.Path)) { // it is what was asked for itself
						return wrong("%q is no directory", *p)
					}
					if after = e.Path; utf8.Valid(e.Path) {
						out.Entries = append(out.Entries, entry(path.Join(*p, string(e.Path)), &e))
					}
				}
				return nil
			}})
		if err == nil && len(out.Entries) > maxListed {
			err = wrong("%s has more than %d entries; list less deep", *p, maxListed)
		}
		if !res.Truncated {
			break
		}
	}
	if err != nil {
		return nil, errcode.ToWire(err)
	}
	return connect.NewResponse(out), nil
}

// maxListed bounds the entries of a listing.
const maxListed = 50_000

func (s filesystem) Remove(ctx context.Context, req *connect.Request[pb.RemoveRequest]) (*connect.Response[pb.RemoveResponse], error) {
	err := begin(req, &req.Msg.Path)
	if err == nil {
		_, err = s.on(ctx, fileapi.Request{Op: fileapi.Remove, Path: []byte(req.Msg.GetPath()), Recursive: true}, fileapi.Streams{})
	}
	if err != nil {
		return nil, errcode.ToWire(err)
	}
	return connect.NewResponse(&pb.RemoveResponse{}), nil
}
