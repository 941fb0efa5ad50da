package apitest

import (
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/wire/fileapi"
)

// fileRows are the rows of what is done with files.
var fileRows = map[fileapi.Op]operation.Name{
	fileapi.Read: operation.ReadFile, fileapi.Pack: operation.ReadFile, fileapi.List: operation.ListFiles, fileapi.Stat: operation.ListFiles,
	fileapi.Search: operation.ListFiles, fileapi.Changes: operation.ListFiles, fileapi.Watch: operation.WatchFiles,
	fileapi.Write:  operation.WriteFile,
	fileapi.Unpack: operation.WriteFile, fileapi.Mkdir: operation.MakeDirectory, fileapi.Move: operation.MoveFile,
	fileapi.Remove: operation.RemoveFile, fileapi.Undo: operation.UndoPatch, fileapi.Patches: operation.ListPatches,
}

// OnFiles implements api.Gate: files are bytes by path, a stream of files is kept as the file at its path, and a watch
// says that it has begun.
func (g *Gate) OnFiles(
	ctx context.Context, p principal.Principal, ref string, r fileapi.Request, s fileapi.Streams,
) (res fileapi.Result, err error) {
	if s.Socket != nil {
		defer s.Socket.Close()
		frames := &fileapi.Writer{W: s.Socket}
		if s.Out = frames; r.Op == fileapi.Write || r.Op == fileapi.Unpack {
			s.Out, s.In = nil, io.NopCloser(&fileapi.Body{Frames: &fileapi.Reader{R: s.Socket}})
		} else {
			defer func() {
				if err == nil {
					err = frames.Send(fileapi.End, nil)
				}
			}()
		}
	}
	if s.In != nil {
		defer s.In.Close()
	}
	if err := g.permit(p, fileRows[r.Op]); err != nil {
		return res, err
	}
	key, to := "", ""
	if _, err := g.with(p, ref, string(fileRows[r.Op]), func(d *entry) error {
		key, to = string(d.Name)+"\x00"+string(r.Path), string(d.Name)+"\x00"+string(r.To)
		return nil
	}); err != nil {
		return res, err
	}
	var data []byte
	if s.In != nil {
		if data, err = io.ReadAll(s.In); err != nil {
			return res, err
		}
	}
	if r.Op == fileapi.Watch {
		if err := s.Events(nil); err != nil {
			return res, err
		}
		<-ctx.Done()
		return res, context.Cause(ctx)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.files == nil {
		g.files = map[string][]byte{}
	}
	text, there := g.files[key]
	entry := &fileapi.Entry{Path: r.Path, Type: "file", Mode: 0o644, Size: int64(len(text))}
	switch r.Op {
	case fileapi.Write, fileapi.Unpack:
		g.files[key] = data
		res.Bytes, entry.Size = int64(len(data)), int64(len(data))
	case fileapi.List, fileapi.Search, fileapi.Changes:
		return res, s.Entries([]fileapi.Entry{*entry})
	case fileapi.Mkdir:
	case fileapi.Patches: // each workspace has one change, of a file with its id as its name
		res.Patches = []fileapi.PatchRecord{{ID: "p-0", State: fileapi.PatchDone, Files: []string{"/home/work/p-0"}}}
		return res, nil
	case fileapi.Undo:
		if r.ID != "p-0" {
			return res, fmt.Errorf("cannot undo %q: there is no record of it: %w", r.ID, errdefs.ErrNotFound)
		}
		res.Patched = &fileapi.Patched{ID: "p-1"}
		return res, nil
	default:
		if !there {
			return res, fmt.Errorf("cannot find %q: there is none: %w", r.Path, errdefs.ErrNotFound)
		}
	}
	res.File = entry
	switch r.Op {
	case fileapi.Read, fileapi.Pack:
		text = text[min(int64(len(text)), r.Offset):]
		if r.Length > 0 {
			text = text[:min(int64(len(text)), r.Length)]
		}
		_, err = s.Out.Write(slices.Clone(text))
	case fileapi.Move:
		g.files[to] = text
		delete(g.files, key)
	case fileapi.Remove:
		delete(g.files, key)
	default:
	}
	return res, err
}

// OnFiles implements api.Gate. What is sent is read only as far as it takes to know that it is there.
func (r *Recorder) OnFiles(
	_ context.Context, _ principal.Principal, ref string, f fileapi.Request, s fileapi.Streams,
) (fileapi.Result, error) {
	if s.In != nil {
		_ = s.In.Close()
	}
	return fileapi.Result{}, r.note("OnFiles", ref, f, s.In != nil, s.Out != nil, s.Entries != nil, s.Events != nil, s.Socket != nil)
}
