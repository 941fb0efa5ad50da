package api_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"connectrpc.com/connect"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/surface/api"
	"github.com/carrel-dev/carrel/internal/surface/api/apitest"
)

func TestControl(t *testing.T) {
	socket, _ := apitest.Serve(t, &apitest.Gate{}, &alice, api.Options{})
	c := workspacesOn(t, socket)
	if _, err := c.Create(t.Context(), request(&carrelv1.CreateRequest{Key: "demo", Profile: "chat", IdleTimeoutMs: -1})); err != nil {
		t.Fatal(err)
	}
	paused, err := c.Pause(t.Context(), request(&carrelv1.PauseRequest{Workspace: "demo"}))
	if w := paused.Msg.GetWorkspace(); err != nil || w.GetState() != "paused" || w.GetProfile() != "chat" ||
		w.GetIdleTimeoutMs() != -1 || w.GetExpiresUnixMs() != 0 {
		t.Errorf("%v, %v", paused, err)
	}
	resumed, err := c.Resume(t.Context(), request(&carrelv1.ResumeRequest{Workspace: "demo"}))
	if err != nil || resumed.Msg.GetWorkspace().GetState() != "running" {
		t.Errorf("%v, %v", resumed, err)
	}
	updated, err := c.Update(t.Context(), request(&carrelv1.UpdateRequest{
		Workspace: "demo", Key: "new", Limits: &carrelv1.Limits{Pids: 77}, TtlMs: 5000, IdleTimeoutMs: 9000,
	}))
	if w := updated.Msg.GetWorkspace(); err != nil || w.GetKey() != "new" || w.GetLimits().GetPids() != 77 ||
		w.GetExpiresUnixMs() != w.GetCreatedUnixMs()+5000 || w.GetIdleTimeoutMs() != 9000 {
		t.Errorf("%v, %v", updated, err)
	}
	for _, bad := range []*carrelv1.UpdateRequest{
		{Workspace: "new", Limits: &carrelv1.Limits{Pids: 1}},
		{Workspace: "new", Key: "a\nb"},
		{Workspace: "new", ModelBudget: &carrelv1.ModelBudget{Money: "0.00"}}, // it would be no limit
		{Workspace: ""},
	} {
		if _, err := c.Update(t.Context(), request(bad)); connect.CodeOf(err) != connect.CodeInvalidArgument {
			t.Errorf("%v: %v", bad, err)
		}
	}
	stats, err := c.Stats(t.Context(), request(&carrelv1.StatsRequest{Workspaces: []string{"new"}}))
	if u := stats.Msg.GetUsage(); err != nil || len(u) != 1 || u[0].GetKey() != "new" || u[0].GetPids() != 3 ||
		u[0].GetDiskBytes() != -1 || u[0].GetLimits().GetPids() != 77 {
		t.Errorf("%v, %v", stats, err)
	}
	_, err = c.Stats(t.Context(), request(&carrelv1.StatsRequest{Workspaces: []string{"nope"}}))
	if connect.CodeOf(err) != connect.CodeNotFound {
		t.Error(err)
	}
}

// A thousand rules fit a request, and what a workspace may reach is shown.
func TestReach(t *testing.T) {
	socket, _ := apitest.Serve(t, &apitest.Gate{}, &alice, api.Options{})
	c := workspacesOn(t, socket)
	var many []string
	for i := range workspace.MaxReachRules - 1 {
		many = append(many, fmt.Sprintf("host-%d.example", i))
	}
	res, err := c.Create(t.Context(), request(&carrelv1.CreateRequest{
		Key: "demo", ReachAllow: append(many, many[0]), ReachDeny: []string{"ads.example"},
	}))
	if w := res.Msg.GetWorkspace(); err != nil || !slices.Equal(w.GetReachAllow(), many) ||
		!slices.Equal(w.GetReachDeny(), []string{"ads.example"}) || !w.GetEgress() {
		t.Fatalf("%d rules, %v, %v, %v", len(w.GetReachAllow()), w.GetReachDeny(), w.GetEgress(), err)
	}
	got, err := c.Update(t.Context(), request(&carrelv1.UpdateRequest{
		Workspace: "demo", ReachRemove: many, ReachAllow: nil, ReachDeny: []string{"*.ads.example"},
	}))
	if w := got.Msg.GetWorkspace(); err != nil || len(w.GetReachAllow()) != 0 ||
		!slices.Equal(w.GetReachDeny(), []string{"ads.example", "*.ads.example"}) {
		t.Errorf("%v, %v", w, err)
	}
	for want, bad := range map[connect.Code]*carrelv1.UpdateRequest{
		connect.CodeNotFound:        {Workspace: "demo", ReachRemove: []string{"gone.example"}},
		connect.CodeInvalidArgument: {Workspace: "demo", ReachAllow: []string{"a b"}},
	} {
		if _, err := c.Update(t.Context(), request(bad)); connect.CodeOf(err) != want {
			t.Errorf("%v: %v", bad, err)
		}
	}
	if _, err := c.Create(t.Context(), request(&carrelv1.CreateRequest{Key: "x", ReachDeny: []string{""}})); connect.CodeOf(err) !=
		connect.CodeInvalidArgument {
		t.Errorf("an empty rule: %v", err)
	}
	stopped, err := c.Stop(t.Context(), request(&carrelv1.StopRequest{Workspace: "demo"}))
	if err != nil || stopped.Msg.GetWorkspace().GetEgress() {
		t.Errorf("stopped: %v, %v", stopped, err)
	}
}

func TestWatch(t *testing.T) {
	socket, s := apitest.Serve(t, &apitest.Gate{}, &alice, api.Options{})
	create(t, socket, "demo")
	c := workspacesOn(t, socket)
	watch, err := c.Watch(t.Context(), request(&carrelv1.WatchRequest{Workspaces: []string{"demo"}, After: 5}))
	if err != nil {
		t.Fatal(err)
	}
	if !watch.Receive() {
		t.Fatal(watch.Err())
	}
	if m := watch.Msg(); m.GetLost() != 2 || m.GetEvent().GetNumber() != 6 || m.GetEvent().GetKind() != "workspace.start" ||
		m.GetEvent().GetKey() != "demo" {
		t.Errorf("%v", m)
	}
	for _, bad := range []*carrelv1.WatchRequest{{After: -1}, {Workspaces: []string{"nope"}}} {
		w, err := c.Watch(t.Context(), request(bad))
		if err == nil {
			w.Receive()
			err = w.Err()
		}
		if connect.CodeOf(err) != connect.CodeInvalidArgument && connect.CodeOf(err) != connect.CodeNotFound {
			t.Errorf("%v: %v", bad, err)
		}
	}
	// A daemon that stops does not wait for those who watch.
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	s.Drain(ctx)
	if watch.Receive() || watch.Err() != nil || ctx.Err() != nil {
		t.Errorf("after the end: %v, %v", watch.Msg(), watch.Err())
	}
}
