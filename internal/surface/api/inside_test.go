package api_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/containerd/errdefs"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/base/token"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/surface/api"
	"github.com/carrel-dev/carrel/internal/surface/api/apitest"
	"github.com/carrel-dev/carrel/internal/surface/authn"
	carrel "github.com/carrel-dev/carrel/sdk/go"
)

// within serves by inside the workspace demo, which is made, and returns a client of that.
func within(t *testing.T, g *apitest.Gate, s *api.Server, by principal.Principal) (*carrel.Client, *api.Inside) {
	t.Helper()
	w, _, err := g.Create(t.Context(), alice, workspace.Wanted{Key: "demo"})
	if err != nil {
		t.Fatal(err)
	}
	x, err := s.Inside(by.Bind(w.Name, id.NewTrace()), "task")
	if err != nil {
		t.Fatal(err)
	}
	c, err := carrel.New(carrel.Options{Dial: x.Dial})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		ended := make(chan struct{})
		go func() { defer close(ended); _ = x.Close() }()
		select {
		case <-ended:
		case <-time.After(10 * time.Second):
			t.Error("its end does not come")
		}
	})
	return c, x
}

// A client inside is served what works in its workspace, and nothing else, as who it acts for.
func TestInsideServesItsPart(t *testing.T) {
	g := &apitest.Gate{}
	_, s := apitest.Serve(t, g, &alice, api.Options{})
	c, _ := within(t, g, s, alice)
	got, err := c.Workspaces().Get(t.Context(), connect.NewRequest(&carrelv1.GetRequest{Workspace: "demo"}))
	if err != nil || got.Msg.GetWorkspace().GetKey() != "demo" {
		t.Fatal(got, err)
	}
	res, err := c.Exec(t.Context(), "demo", carrel.Spec{Argv: []string{"true"}}, nil)
	if err == nil {
		t.Errorf("a call that no tool makes: %+v", res)
	}
	for what, call := range map[string]func() error{
		"List": func() error {
			_, err := c.Workspaces().List(t.Context(), connect.NewRequest(&carrelv1.ListRequest{}))
			return err
		},
		"Create": func() error {
			_, _, err := c.Create(t.Context(), &carrelv1.CreateRequest{Key: "another"})
			return err
		},
		"Stop": func() error {
			_, err := c.Workspaces().Stop(t.Context(), connect.NewRequest(&carrelv1.StopRequest{Workspace: "demo"}))
			return err
		},
		"AnswerApproval": func() error {
			_, err := c.Approvals().AnswerApproval(t.Context(), connect.NewRequest(&carrelv1.AnswerApprovalRequest{Id: "ap-1", Kind: "once"}))
			return err
		},
		"CreateToken": func() error {
			_, err := c.Tokens().CreateToken(t.Context(), connect.NewRequest(&carrelv1.CreateTokenRequest{}))
			return err
		},
		"RunTask": func() error {
			_, err := c.Tasks().RunTask(t.Context(), connect.NewRequest(&carrelv1.RunTaskRequest{Workspace: "demo"}))
			return err
		},
	} {
		if err := call(); !errdefs.IsPermissionDenied(err) || !strings.Contains(err.Error(), "to a program inside a workspace") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := s.Inside(alice, "task"); err == nil {
		t.Error("who is bound to no workspace is served")
	}
}

// Of a token that was revoked, calls are refused, and what is held ends.
func TestInsideOfATokenThatEnds(t *testing.T) {
	g := &apitest.Gate{}
	tokens := authn.NewTokens(g)
	g.TokensRevoked = tokens.Revoked
	_, s := apitest.Serve(t, g, &alice, api.Options{Tokens: tokens})
	secret := g.Issue(t, alice, principal.Wanted{Roles: principal.Operator})
	issued, ok := g.Issued(secret.ID())
	if !ok {
		t.Fatal("no token")
	}
	c, x := within(t, g, s, principal.Principal{Kind: principal.Token, Grant: &issued.Grant})
	get := func() error {
		_, err := c.Workspaces().Get(t.Context(), connect.NewRequest(&carrelv1.GetRequest{Workspace: "demo"}))
		return err
	}
	if err := get(); err != nil {
		t.Fatal(err)
	}
	held, leave, err := x.Hold(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer leave()
	if _, err := g.RevokeToken(t.Context(), alice, string(token.ID(issued.ID))); err != nil {
		t.Fatal(err)
	}
	select {
	case <-held.Done():
		if err := context.Cause(held); !strings.Contains(err.Error(), "was revoked") {
			t.Errorf("it ended because %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("what is held goes on")
	}
	if err := get(); !errdefs.IsUnauthorized(err) {
		t.Errorf("a call: %v", err)
	}
	if _, _, err := x.Hold(t.Context()); err == nil {
		t.Error("another session begins")
	}
}
