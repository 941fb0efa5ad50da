package api_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/gen/carrel/v1/carrelv1connect"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/surface/api"
	"github.com/carrel-dev/carrel/internal/surface/api/apitest"
)

// watchApprovals opens a stream that lasts until ctx ends, and returns why it was refused.
func watchApprovals(ctx context.Context, t *testing.T, c carrelv1connect.ApprovalServiceClient) error {
	t.Helper()
	w, err := c.WatchApprovals(ctx, request(&carrelv1.WatchApprovalsRequest{}))
	if err == nil && !w.Receive() {
		err = w.Err()
	}
	return err
}

// A user at the bound of streams is refused more, of every kind, and nobody else is; a stream that
// ended gives its place back.
func TestStreamsAreBounded(t *testing.T) {
	var caller atomic.Pointer[principal.Principal]
	caller.Store(&alice)
	const limit = 5
	who := func() principal.Principal { return *caller.Load() }
	socket, _ := apitest.ServeAs(t, &apitest.Gate{}, who, api.Options{StreamsPerOwner: limit})
	create(t, socket, "demo")
	as := func(p principal.Principal) (carrelv1connect.ApprovalServiceClient, carrelv1connect.CommandServiceClient) {
		caller.Store(&p)
		h := unix(t, socket, true)
		a, c := carrelv1connect.NewApprovalServiceClient(h, "http://carrel"), carrelv1connect.NewCommandServiceClient(h, "http://carrel")
		_, err := c.ListCommands(t.Context(), request(&carrelv1.ListCommandsRequest{Workspace: "demo"})) // it is connected as p now
		if code := connect.CodeOf(err); err != nil && code != connect.CodeNotFound && code != connect.CodePermissionDenied {
			t.Fatal(err)
		}
		return a, c
	}
	mine, commands := as(alice)
	first, leave := context.WithCancel(t.Context())
	for i := range limit {
		ctx := t.Context()
		if i == 0 {
			ctx = first
		}
		if err := watchApprovals(ctx, t, mine); err != nil {
			t.Fatalf("stream %d: %v", i, err)
		}
	}
	err := watchApprovals(t.Context(), t, mine)
	if connect.CodeOf(err) != connect.CodeResourceExhausted || !strings.Contains(err.Error(), "max_streams_per_owner") {
		t.Errorf("one stream too many: %v", err)
	}
	_, err = commands.Wait(t.Context(), request(&carrelv1.WaitRequest{Workspace: "demo"}))
	if connect.CodeOf(err) != connect.CodeResourceExhausted {
		t.Errorf("a wait, which lasts as well: %v", err)
	}
	if _, err = commands.ListCommands(t.Context(), request(&carrelv1.ListCommandsRequest{Workspace: "demo"})); err != nil {
		t.Errorf("what does not last: %v", err)
	}
	// A token of the same owner adds nothing; another user and an administrator are not affected.
	of := func(owner principal.Principal, id string) principal.Principal {
		return principal.Principal{Kind: principal.Token, Grant: &principal.Grant{
			ID: id, Owner: owner.Owner(), Roles: principal.Roles(principal.Approver),
		}}
	}
	bob := principal.Principal{Kind: principal.User, UID: 1001, GID: 1001}
	root := principal.Principal{Kind: principal.User}
	token, _ := as(of(alice, "0123456789ab"))
	if err := watchApprovals(t.Context(), t, token); connect.CodeOf(err) != connect.CodeResourceExhausted {
		t.Errorf("a token of the same owner: %v", err)
	}
	for _, p := range []principal.Principal{bob, root} {
		other, _ := as(p)
		if err := watchApprovals(t.Context(), t, other); err != nil {
			t.Errorf("%s: %v", p, err)
		}
	}
	// A token may not take all of its owner's.
	token, _ = as(of(bob, "ba9876543210"))
	for i := range 3 {
		if err := watchApprovals(t.Context(), t, token); (err != nil) != (i >= limit/2) {
			t.Errorf("stream %d of a token: %v", i, err)
		}
	}
	leave()
	caller.Store(&alice) // the client may make another connection
	for end := time.Now().Add(10 * time.Second); ; {
		err := watchApprovals(t.Context(), t, mine)
		if err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the place of one that ended is not given again: %v", err)
		}
	}
	if err := watchApprovals(t.Context(), t, mine); connect.CodeOf(err) != connect.CodeResourceExhausted {
		t.Errorf("one stream too many, again: %v", err)
	}
}
