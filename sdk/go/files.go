package carrel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/containerd/errdefs"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
)

// filePiece is how much is sent at once, in bytes.
const filePiece = 256 << 10

// ReadFile writes a file of a workspace, or the part that the request names, to w. After an error w may have a part
// of it.
//
// Errors: not_found, permission_denied (the workspace's own user may not, or a link leads out), failed_precondition
// (it is no regular file, the workspace is paused), unavailable (it was broken off).
func (c *Client) ReadFile(ctx context.Context, req *carrelv1.ReadFileRequest, w io.Writer) (*carrelv1.FileEntry, error) {
	if c.host.direct() {
		var res carrelv1.ReadBySocketResponse
		done, err := c.readBySocket(ctx, &carrelv1.ReadBySocketRequest{
			Workspace: req.GetWorkspace(), Path: req.GetPath(), RawPath: req.GetRawPath(), Offset: req.GetOffset(), Length: req.GetLength(),
		}, &res, w)
		if done {
			return res.GetFile(), err
		}
	}
	s, err := c.Files().ReadFile(ctx, connect.NewRequest(req))
	if err != nil {
		return nil, err
	}
	defer s.Close()
	var file *carrelv1.FileEntry
	for s.Receive() {
		if s.Msg().GetFile() != nil {
			file = s.Msg().GetFile()
			continue
		}
		if _, err := w.Write(s.Msg().GetData()); err != nil {
			return nil, err
		}
	}
	return file, wholeFiles(s.Err(), file != nil)
}

// PackFiles writes a file or a tree of a workspace to w as a tar stream, which is whole if there is no error. What is in
// it comes from the workspace: names may be made to harm whoever unpacks it.
//
// Errors: as of ReadFile.
func (c *Client) PackFiles(ctx context.Context, req *carrelv1.PackFilesRequest, w io.Writer) (*carrelv1.FilesSummary, error) {
	if c.host.direct() {
		var res carrelv1.ReadBySocketResponse
		done, err := c.readBySocket(ctx, &carrelv1.ReadBySocketRequest{
			Workspace: req.GetWorkspace(), Path: req.GetPath(), RawPath: req.GetRawPath(), Tree: true, As: req.GetAs(),
		}, &res, w)
		if done {
			return res.GetSummary(), err
		}
	}
	s, err := c.Files().PackFiles(ctx, connect.NewRequest(req))
	if err != nil {
		return nil, err
	}
	defer s.Close()
	var sum *carrelv1.FilesSummary
	for s.Receive() {
		if s.Msg().GetSummary() != nil {
			sum = s.Msg().GetSummary()
			continue
		}
		if _, err := w.Write(s.Msg().GetData()); err != nil {
			return nil, err
		}
	}
	return sum, wholeFiles(s.Err(), sum != nil)
}

func wholeFiles(err error, done bool) error {
	if err == nil && !done {
		return fmt.Errorf("cannot read all of it: the daemon broke off before its end; try again: %w", errdefs.ErrUnavailable)
	}
	return err
}

// WriteFile writes what r has as a file of a workspace. Until all of it has come and is on disk, what was there stays;
// so it does after an error of r, which WriteFile returns. If the daemon ends the call first, a Read of r that waits is not waited for.
//
// Errors: already_exists (keep is set), resource_exhausted (disk, limits), and as of ReadFile. After unavailable
// without "cannot" of the daemon's own it is not known whether all had arrived.
func (c *Client) WriteFile(ctx context.Context, start *carrelv1.WriteFileStart, r io.Reader) (*carrelv1.FileEntry, error) {
	if c.host.direct() {
		var res carrelv1.WriteBySocketResponse
		done, err := c.writeBySocket(ctx, &carrelv1.WriteBySocketRequest{
			Workspace: start.GetWorkspace(), Path: start.GetPath(), RawPath: start.GetRawPath(), Mode: start.Mode, Parents: start.GetParents(),
			Keep: start.GetKeep(),
		}, &res, r)
		if done {
			return res.GetFile(), err
		}
	}
	var res carrelv1.WriteFileResponse
	err := sendAll(ctx, c.Files().WriteFile, r, &carrelv1.WriteFileRequest{Kind: &carrelv1.WriteFileRequest_Start{Start: start}},
		&carrelv1.WriteFileRequest{Kind: &carrelv1.WriteFileRequest_Finish{Finish: true}},
		func(b []byte) *carrelv1.WriteFileRequest {
			return &carrelv1.WriteFileRequest{Kind: &carrelv1.WriteFileRequest_Data{Data: b}}
		}, &res)
	return res.GetFile(), err
}

// UnpackFiles makes what the tar stream r has below a directory of a workspace. Each file appears when it is whole;
// after an error those stay that were.
//
// Errors: as of WriteFile; invalid_argument (it is no tar stream, or a name leads out or through a link).
func (c *Client) UnpackFiles(ctx context.Context, start *carrelv1.UnpackFilesStart, r io.Reader) (*carrelv1.FilesSummary, error) {
	if c.host.direct() {
		var res carrelv1.WriteBySocketResponse
		done, err := c.writeBySocket(ctx, &carrelv1.WriteBySocketRequest{
			Workspace: start.GetWorkspace(), Path: start.GetPath(), RawPath: start.GetRawPath(), Parents: start.GetParents(), Tree: true,
		}, &res, r)
		if done {
			return res.GetSummary(), err
		}
	}
	var res carrelv1.UnpackFilesResponse
	err := sendAll(ctx, c.Files().UnpackFiles, r, &carrelv1.UnpackFilesRequest{Kind: &carrelv1.UnpackFilesRequest_Start{Start: start}},
		&carrelv1.UnpackFilesRequest{Kind: &carrelv1.UnpackFilesRequest_Finish{Finish: true}},
		func(b []byte) *carrelv1.UnpackFilesRequest {
			return &carrelv1.UnpackFilesRequest{Kind: &carrelv1.UnpackFilesRequest_Data{Data: b}}
		}, &res)
	return res.GetSummary(), err
}

// ListChanges lists what was changed below a directory of a workspace since a moment, what programs act on by themselves first; the
// zero time is when the workspace was made, and path "" the home. more says that there are more, or that some were not looked at. What
// is listed is what the workspace holds: a reader of it shows names as what a stranger wrote.
//
// Errors: as of ReadFile, and deadline_exceeded (it takes more than 30 seconds).
func (c *Client) ListChanges(
	ctx context.Context, workspace, path string, since time.Time,
) (list []*carrelv1.FileChange, more bool, err error) {
	req := &carrelv1.ListChangesRequest{Workspace: workspace, Path: path}
	if !since.IsZero() {
		req.SinceUnixMs = since.UnixMilli()
	}
	res, err := c.Files().ListChanges(ctx, connect.NewRequest(req))
	if err != nil {
		return nil, false, err
	}
	return res.Msg.GetChanges(), res.Msg.GetTruncated() || res.Msg.GetSkipped() > 0, nil
}

// ListPatches returns the changes that agents made to files of a workspace and that can be undone, those that were undone
// included. What runs in the workspace can change what is said of them.
//
// Errors: as of ReadFile.
func (c *Client) ListPatches(ctx context.Context, workspace string) ([]*carrelv1.FilePatch, error) {
	res, err := c.Files().ListPatches(ctx, connect.NewRequest(&carrelv1.ListPatchesRequest{Workspace: workspace}))
	if err != nil {
		return nil, err
	}
	return res.Msg.GetPatches(), nil
}

// UndoPatch brings back what was there before such a change: all files, or none if one has changed since. The id that it
// returns undoes the undoing.
//
// Errors: invalid_argument (it is no id), not_found, failed_precondition (a file has changed since, it was undone before), and
// as of ReadFile.
func (c *Client) UndoPatch(ctx context.Context, workspace, id string) (string, error) {
	res, err := c.Files().UndoPatch(ctx, connect.NewRequest(&carrelv1.UndoPatchRequest{Workspace: workspace, Id: id}))
	if err != nil {
		return "", err
	}
	return res.Msg.GetId(), nil
}

// sendAll sends what r has and reads the answer to it into res. The error of r comes first: where sending fails, the answer says
// why. An answer that comes before the end of r is not held up by a Read of it.
func sendAll[M, R any](ctx context.Context, open func(context.Context) *connect.ClientStreamForClient[M, R], r io.Reader, start, finish *M,
	data func([]byte) *M, res *R,
) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	conn, err := open(ctx).Conn()
	if err != nil {
		return err
	}
	unread := make(chan error, 1)
	go func() {
		bad := pass(conn, r, start, finish, data)
		unread <- bad
		if bad != nil {
			cancel() // the daemon must not take it for the whole
			return
		}
		_ = conn.CloseRequest() // as for what cannot be sent
	}()
	if err = conn.Receive(res); err == nil {
		if err = conn.Receive(new(R)); errors.Is(err, io.EOF) {
			err = nil
		}
	}
	if bad := ended(unread, err != nil); bad != nil && !errors.Is(bad, errSocket) {
		return bad
	}
	if err != nil {
		return cutOff(err)
	}
	return conn.CloseResponse()
}

// pass sends what r has. Its error is of r.
func pass[M any](conn connect.StreamingClientConn, r io.Reader, start, finish *M, data func([]byte) *M) error {
	if conn.Send(start) != nil {
		return nil
	}
	buf := make([]byte, filePiece)
	for {
		n, err := r.Read(buf)
		if n > 0 && conn.Send(data(buf[:n])) != nil {
			return nil
		}
		if errors.Is(err, io.EOF) {
			_ = conn.Send(finish) // as above
			return nil
		}
		if err != nil {
			return fmt.Errorf("cannot read what is to be written: %w", err)
		}
	}
}

// cutOff says of an error of the connection what it means for what was sent; any other says it itself.
func cutOff(err error) error {
	if strings.Contains(err.Error(), "cannot ") {
		return err
	}
	return fmt.Errorf("cannot tell whether all arrived: the connection to the daemon broke off: %w; what is there is whole, see "+
		"\"carrel files ls\", and try again: %w", err, errdefs.ErrUnavailable)
}
