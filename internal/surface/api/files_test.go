package api_test

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"connectrpc.com/connect"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/gen/carrel/v1/carrelv1connect"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/surface/api"
	"github.com/carrel-dev/carrel/internal/surface/api/apitest"
	"github.com/carrel-dev/carrel/internal/wire/fileapi"
)

func (e endless) OnFiles(_ context.Context, _ principal.Principal, _ string, _ fileapi.Request, s fileapi.Streams) (fileapi.Result, error) {
	if s.Out == nil {
		_, err := io.Copy(io.Discard, s.In)
		e.ended <- err
		return fileapi.Result{}, err
	}
	for b := make([]byte, 1<<20); ; {
		if _, err := s.Out.Write(b); err != nil {
			e.ended <- err
			return fileapi.Result{}, err
		}
	}
}

// Whoever takes nothing of a file, or sends nothing of one, is let go; whoever ends without saying that all was sent has
// sent nothing.
func TestFilesOfAStalledClient(t *testing.T) {
	t.Parallel()
	const stall = time.Second
	g := endless{&apitest.Gate{}, make(chan error, 1)}
	socket, _ := apitest.Serve(t, g, &alice, api.Options{StallTimeout: stall})
	c := carrelv1connect.NewFileServiceClient(unix(t, socket, true), "http://carrel")
	for _, read := range []func() error{
		func() error {
			_, err := c.ReadFile(t.Context(), request(&carrelv1.ReadFileRequest{Workspace: "demo"}))
			return err
		},
		func() error {
			_, err := c.PackFiles(t.Context(), request(&carrelv1.PackFilesRequest{Workspace: "demo"}))
			return err
		},
	} {
		if err := read(); err != nil {
			t.Fatal(err)
		}
		if err := <-g.ended; err == nil {
			t.Error("what nobody takes has no error")
		}
	}
	for _, wait := range []bool{true, false} {
		s := c.WriteFile(t.Context())
		start := &carrelv1.WriteFileRequest_Start{Start: &carrelv1.WriteFileStart{Workspace: "demo", Path: "x"}}
		if err := s.Send(&carrelv1.WriteFileRequest{Kind: start}); err != nil {
			t.Fatal(err)
		}
		if err := s.Send(&carrelv1.WriteFileRequest{Kind: &carrelv1.WriteFileRequest_Data{Data: []byte("some")}}); err != nil {
			t.Fatal(err)
		}
		if wait { // and it stalls
			if err := <-g.ended; err == nil || errors.Is(err, io.EOF) {
				t.Errorf("what does not come: %v", err)
			}
		}
		_, err := s.CloseAndReceive()
		if err == nil {
			t.Error("it was taken for the whole")
		}
		if !wait {
			if err := <-g.ended; err == nil {
				t.Error("the end was taken for the whole")
			}
			if connect.CodeOf(err) != connect.CodeInvalidArgument {
				t.Errorf("without finish: %v", err)
			}
		}
	}
}
