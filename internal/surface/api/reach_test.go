package api_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"connectrpc.com/connect"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/gen/carrel/v1/carrelv1connect"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

// tells is an exchange that lasts: what it has said and how it ended.
type tells interface {
	Receive() bool
	Err() error
	Close() error
}

// Whoever streams something of a workspace with a token is cut off when the workspace is renamed out
// of the token's reach: with the reason, and before another byte, by Connect and by gRPC.
func TestAStreamEndsWithItsReach(t *testing.T) {
	for name, protocol := range map[string]connect.ClientOption{"Connect": connect.WithProtoJSON(), "gRPC": connect.WithGRPC()} {
		t.Run(name, func(t *testing.T) { testReach(t, protocol) })
	}
}

func testReach(t *testing.T, protocol connect.ClientOption) {
	f := overTLS(t)
	ctx := t.Context()
	w, _, err := f.gate.Create(ctx, alice, workspace.Wanted{Key: "bot-1"})
	if err != nil {
		t.Fatal(err)
	}
	name := string(w.Name) // which it has afterwards too
	s := f.gate.Issue(t, alice, principal.Wanted{Roles: principal.Operator, Scope: principal.Scope{"bot-*"}})
	commands := carrelv1connect.NewCommandServiceClient(f.client(true), "https://"+f.addr, protocol)
	watching := carrelv1connect.NewWorkspaceServiceClient(f.client(true), "https://"+f.addr, protocol)

	// A command that says something now, and something more after the rename.
	gate := filepath.Join(t.TempDir(), "gate")
	script := []string{"/bin/sh", "-c", fmt.Sprintf("echo first; while [ ! -e %s ]; do sleep 0.01; done; echo second", gate)}
	detached, err := f.gate.Detach(ctx, alice, "bot-1", execapi.ExecParams{Argv: script, OutputLimit: 1 << 20}, false)
	if err != nil {
		t.Fatal(err)
	}
	logs, err := commands.Logs(ctx, carrying(s, &carrelv1.LogsRequest{Workspace: "bot-1", CommandId: string(detached), Follow: true}))
	if err != nil || !logs.Receive() || string(logs.Msg().GetData()) != "first\n" {
		t.Fatalf("logs: %v, %v", logs, err)
	}
	watch, err := watching.Watch(ctx, carrying(s, &carrelv1.WatchRequest{Workspaces: []string{"bot-1"}}))
	if err != nil {
		t.Fatal(err)
	}
	for watch.Receive() && watch.Msg().GetEvent() == nil { // first come the headers alone
	}
	stream := commands.Stream(ctx)
	stream.RequestHeader().Set("Authorization", "Bearer "+s.Reveal())
	if err := stream.Send(&carrelv1.StreamRequest{Message: &carrelv1.StreamRequest_Start{Start: &carrelv1.StreamStart{
		Workspace: "bot-1", Stdin: true, Command: &carrelv1.Command{Argv: []string{"cat"}},
	}}}); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Receive(); err != nil {
		t.Fatal(err)
	}
	answers := map[string]chan error{"Exec": make(chan error, 1), "Wait for a command": make(chan error, 1), "Wait": make(chan error, 1)}
	go func() {
		_, err := commands.Exec(ctx, carrying(s, &carrelv1.ExecRequest{Workspace: "bot-1", Command: command("sleep", "1000")}))
		answers["Exec"] <- err
	}()
	if err := f.gate.Await(ctx, func(last execapi.ExecParams, _ execapi.ResizeParams) bool { return last.Argv[0] == "sleep" }); err != nil {
		t.Fatal(err)
	}
	go func() {
		_, err := commands.Wait(ctx, carrying(s, &carrelv1.WaitRequest{Workspace: name, CommandId: string(detached)}))
		answers["Wait for a command"] <- err
	}()
	go func() {
		_, err := commands.Wait(ctx, carrying(s, &carrelv1.WaitRequest{Workspace: name}))
		answers["Wait"] <- err
	}()

	if _, err := f.gate.Update(ctx, alice, "bot-1", workspace.Change{Key: "private"}); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_ = stream.Send(&carrelv1.StreamRequest{Message: &carrelv1.StreamRequest_Stdin{Stdin: []byte("second")}}) // it may have ended
	if m, err := stream.Receive(); connect.CodeOf(err) != connect.CodePermissionDenied || !strings.Contains(err.Error(), "renamed") {
		t.Errorf("the command's stream goes on: %v, %v", m, err)
	}
	for what, s := range map[string]tells{"Logs": logs, "Watch": watch} {
		if s.Receive() {
			t.Errorf("%s goes on", what)
		} else if err := s.Err(); connect.CodeOf(err) != connect.CodePermissionDenied || !strings.Contains(err.Error(), "renamed") {
			t.Errorf("%s ends with %v", what, err)
		}
		_ = s.Close()
	}
	for what, answer := range answers {
		if err := <-answer; connect.CodeOf(err) != connect.CodePermissionDenied {
			t.Errorf("%s: %v", what, err)
		}
	}
	// The attached commands are hung up, as when their client goes; the detached one ends by itself.
	if err := f.gate.Idle(ctx); err != nil {
		t.Error(err)
	}
}

func carrying[T any](s interface{ Reveal() string }, m *T) *connect.Request[T] {
	r := connect.NewRequest(m)
	r.Header().Set("Authorization", "Bearer "+s.Reveal())
	return r
}

// A follow whose token is revoked says so, and does not end as if there were no more.
func TestAFollowSaysThatItsTokenHasEnded(t *testing.T) {
	f := overTLS(t)
	ctx := t.Context()
	if _, _, err := f.gate.Create(ctx, alice, workspace.Wanted{Key: "demo"}); err != nil {
		t.Fatal(err)
	}
	detached, err := f.gate.Detach(ctx, alice, "demo", execapi.ExecParams{
		Argv: []string{"/bin/sh", "-c", "echo first; exec sleep 1000"}, OutputLimit: 1 << 20,
	}, false)
	if err != nil {
		t.Fatal(err)
	}
	follow := map[string]func(context.Context, interface{ Reveal() string }) (tells, error){
		"Logs": func(ctx context.Context, s interface{ Reveal() string }) (tells, error) {
			return carrelv1connect.NewCommandServiceClient(f.client(true), "https://"+f.addr).Logs(ctx,
				carrying(s, &carrelv1.LogsRequest{Workspace: "demo", CommandId: string(detached), Follow: true}))
		},
		"Watch": func(ctx context.Context, s interface{ Reveal() string }) (tells, error) {
			return carrelv1connect.NewWorkspaceServiceClient(f.client(true), "https://"+f.addr).Watch(ctx,
				carrying(s, &carrelv1.WatchRequest{Workspaces: []string{"demo"}}))
		},
		"WatchApprovals": func(ctx context.Context, s interface{ Reveal() string }) (tells, error) {
			return carrelv1connect.NewApprovalServiceClient(f.client(true), "https://"+f.addr).WatchApprovals(ctx,
				carrying(s, &carrelv1.WatchApprovalsRequest{}))
		},
		"Show": func(ctx context.Context, s interface{ Reveal() string }) (tells, error) {
			return carrelv1connect.NewAuditServiceClient(f.client(true), "https://"+f.addr).Show(ctx,
				carrying(s, &carrelv1.ShowRequest{Follow: true}))
		},
	}
	for name, open := range follow {
		s := f.gate.Issue(t, root, principal.Wanted{Roles: principal.Admin})
		stream, err := open(ctx, s)
		if err != nil || !stream.Receive() {
			t.Fatalf("%s: %v, %v", name, stream, err)
		}
		if _, err := f.gate.RevokeToken(ctx, root, string(s.ID())); err != nil {
			t.Fatal(err)
		}
		for stream.Receive() { // what was on its way
		}
		if err := stream.Err(); connect.CodeOf(err) != connect.CodeUnauthenticated {
			t.Errorf("%s ends with %v", name, err)
		}
		_ = stream.Close()
	}
	f.gate.Close()
}
