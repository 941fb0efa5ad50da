package api_test

import (
	"context"
	"io"
	"testing"
	"time"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/gen/carrel/v1/carrelv1connect"
	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/surface/api"
	"github.com/carrel-dev/carrel/internal/surface/api/apitest"
)

// pausing is a gate that does something else for longer than a client may stall.
type pausing struct {
	*apitest.Gate

	pause time.Duration
	ran   chan error
	goOn  chan struct{} // closed once the pause of an upload is over
}

func (g pausing) ServeHosts(ctx context.Context, _ principal.Principal, _ string, _ id.Command, h runtime.Hosts) (
	func(), <-chan struct{}, error,
) {
	over := make(chan struct{})
	go func() {
		defer close(over)
		<-time.After(g.pause) // a model thinks, or a person does
		_, err := h.RunOn(ctx, runtime.HostCommand{Argv: []string{"id"}, Timeout: time.Minute, MaxOutput: 4})
		g.ran <- err
	}()
	return func() {}, over, nil
}

func (g pausing) Restore(_ context.Context, _ principal.Principal, _ workspace.RestoreWanted, in io.Reader, _ func(workspace.Progress)) (
	api.Workspace, error,
) {
	if _, err := io.ReadFull(in, make([]byte, 4)); err != nil {
		g.ran <- err
		return api.Workspace{}, err
	}
	<-time.After(g.pause) // a disk is slow
	close(g.goOn)
	rest, err := io.ReadAll(in)
	if err == nil && string(rest) != "more" {
		err = io.ErrUnexpectedEOF
	}
	g.ran <- err
	return api.Workspace{}, err
}

// A stream on which nobody waits for the client goes on, however long nothing is said on it: a turn of an agent in which a model thinks or
// a command runs for long, and what comes in while the last piece is worked on.
func TestQuietStreamsGoOn(t *testing.T) {
	t.Parallel()
	const stall = 100 * time.Millisecond
	g := pausing{&apitest.Gate{}, 4 * stall, make(chan error, 1), make(chan struct{})}
	socket, _ := apitest.Serve(t, g, &alice, api.Options{StallTimeout: stall})
	client := unix(t, socket, true)

	serves := carrelv1connect.NewAgentServiceClient(client, "http://carrel").Serve(t.Context())
	start := &carrelv1.ServeStart{Workspace: "demo", TaskId: "c-0123456789abcdef", Local: true}
	if err := serves.Send(&carrelv1.ServeRequest{Message: &carrelv1.ServeRequest_Start{Start: start}}); err != nil {
		t.Fatal(err)
	}
	if m, err := serves.Receive(); err != nil || !m.GetServing() {
		t.Fatal(m, err)
	}
	m, err := serves.Receive()
	if err != nil {
		t.Fatalf("after a pause: %v", err)
	}
	<-time.After(g.pause) // the command runs
	done := &carrelv1.StepResult{Number: m.GetStep().GetNumber(), Status: &carrelv1.Status{}}
	if err := serves.Send(&carrelv1.ServeRequest{Message: &carrelv1.ServeRequest_Result{Result: done}}); err != nil {
		t.Error(err)
	}
	if err := <-g.ran; err != nil {
		t.Errorf("a step that took long: %v", err)
	}

	up := carrelv1connect.NewArchiveServiceClient(client, "http://carrel").Restore(t.Context())
	for _, m := range []*carrelv1.RestoreRequest{
		{Kind: &carrelv1.RestoreRequest_Start{Start: &carrelv1.RestoreStart{Key: "x"}}},
		{Kind: &carrelv1.RestoreRequest_Data{Data: []byte("some")}},
		{Kind: &carrelv1.RestoreRequest_Data{Data: []byte("more")}},
	} {
		if string(m.GetData()) == "more" {
			<-g.goOn
		}
		if err := up.Send(m); err != nil {
			t.Fatal(err)
		}
	}
	if err := up.CloseRequest(); err != nil {
		t.Error(err)
	}
	if err := <-g.ran; err != nil {
		t.Errorf("an upload that is worked on for long: %v", err)
	}
}
