package e2b_test

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/surface/api"
	"github.com/carrel-dev/carrel/internal/surface/api/apitest"
	"github.com/carrel-dev/carrel/internal/surface/e2b"
)

// life is what is shown of the life of a sandbox.
type life struct {
	State     string    `json:"state"`
	EndAt     time.Time `json:"endAt"`
	Lifecycle struct {
		AutoResume bool   `json:"autoResume"`
		OnTimeout  string `json:"onTimeout"`
	} `json:"lifecycle"`
}

func (r *rig) life(s sandbox) (l life) {
	r.t.Helper()
	status, b := r.send("GET", "/sandboxes/"+s.id, "", "X-Api-Key", r.key)
	if err := json.Unmarshal([]byte(b), &l); err != nil || status != 200 {
		r.t.Fatalf("%d %s", status, b)
	}
	return l
}

// What was asked for about the end of the time is kept and shown, and is what the daemon is told at that end.
func TestAtTheEnd(t *testing.T) {
	r := start(t, 0)
	for body, want := range map[string]struct {
		keep   workspace.State
		shown  string
		resume bool
	}{
		`{}`:                  {"", "kill", false},
		`{"autoPause":false}`: {"", "kill", false},
		`{"autoPause":true}`:  {workspace.StatePaused, "pause", false},
		`{"autoPause":true,"autoResume":{"enabled":true}}`: {workspace.StatePaused, "pause", true},
		`{"autoPause":true,"autoPauseMemory":false}`:       {workspace.StateStopped, "pause", false},
	} {
		s := r.made(body)
		l := r.life(s)
		if l.Lifecycle.OnTimeout != want.shown || l.Lifecycle.AutoResume != want.resume {
			t.Errorf("%s: %+v", body, l)
		}
		if keep, err := e2b.Keeps(r.book)(t.Context(), id.Workspace(s.id)); keep != want.keep || err != nil {
			t.Errorf("%s: %q, %v", body, keep, err)
		}
	}
	if keep, err := e2b.Keeps(r.book)(t.Context(), "ws-other"); keep != "" || err != nil {
		t.Errorf("a workspace that is no sandbox: %q, %v", keep, err)
	}
	r.book.texts.Store(id.Workspace("ws-broken"), "{")
	if _, err := e2b.Keeps(r.book)(t.Context(), "ws-broken"); err == nil {
		t.Error("what cannot be read is taken for a sandbox that ends")
	}
}

// The time of a sandbox that was paused stands still until somebody connects to it.
func TestPausedHasNoEnd(t *testing.T) {
	for what, c := range map[string]struct{ pause, connect string }{
		"with its memory": {``, `{"timeout":900}`},
		"without":         {`{"memory":false}`, `{"timeout":900}`},
		"started anew":    {``, `{"timeout":900,"memory":false}`},
	} {
		r := start(t, 0)
		in := []string{"X-Api-Key", r.key}
		s := r.sandbox()
		at := "/sandboxes/" + s.id
		before := r.life(s).EndAt
		if status, b := r.send("POST", at+"/pause", c.pause, in...); status != 204 {
			t.Fatalf("%s: %d %s", what, status, b)
		}
		if l := r.life(s); l.State != "paused" || l.EndAt.Year() != 9999 {
			t.Errorf("%s: %+v", what, l)
		}
		if keep, err := e2b.Keeps(r.book)(t.Context(), id.Workspace(s.id)); keep != workspace.StatePaused || err != nil {
			t.Errorf("%s: if its end was not taken off it is %q, %v", what, keep, err)
		}
		if status, b := r.send("POST", at+"/pause", "", in...); status != 409 {
			t.Errorf("%s: paused twice: %d %s", what, status, b)
		}
		if status, b := r.send("POST", at+"/timeout", `{"timeout":60}`, in...); status != 404 || !strings.Contains(b, "connect to it") {
			t.Errorf("%s: time for one that is paused: %d %s", what, status, b)
		}
		use := []string{"E2b-Sandbox-Id", s.id, "X-Access-Token", s.access}
		for _, path := range []string{"/health", "/files?path=x"} {
			if status, b := r.send("GET", path, "", use...); status != 502 || !strings.Contains(b, "sandbox was not found") {
				t.Errorf("%s: %s of one that is paused: %d %s", what, path, status, b)
			}
		}
		if status, b := r.send("POST", at+"/connect", c.connect, in...); status != 201 {
			t.Errorf("%s: connect: %d %s", what, status, b)
		}
		if l := r.life(s); l.State != "running" || !l.EndAt.After(before.Add(time.Minute)) || l.EndAt.Year() == 9999 {
			t.Errorf("%s: %+v, before %v", what, l, before)
		}
		if keep, err := e2b.Keeps(r.book)(t.Context(), id.Workspace(s.id)); keep != "" || err != nil {
			t.Errorf("%s: the next end of its time keeps it: %q, %v", what, keep, err)
		}
		if status, _ := r.send("GET", "/health", "", use...); status != 204 {
			t.Errorf("%s: it is not back: %d", what, status)
		}
		if stopped, want := r.gate.Audited("workspace.stop"), what != "with its memory"; stopped != want {
			t.Errorf("%s: stopped is %v", what, stopped)
		}
	}
}

// A paused sandbox goes on by what comes for it, if it was asked for so; to ask whether it runs is no such thing.
func TestWokenByRequests(t *testing.T) {
	r := start(t, 0)
	s := r.made(`{"timeout":600,"autoPause":true,"autoResume":{"enabled":true}}`)
	use := []string{"E2b-Sandbox-Id", s.id, "X-Access-Token", s.access}
	if status, b := r.send("POST", "/sandboxes/"+s.id+"/pause", "", "X-Api-Key", r.key); status != 204 {
		t.Fatalf("%d %s", status, b)
	}
	if status, _ := r.send("GET", "/health", "", use...); status != 502 || r.life(s).State != "paused" {
		t.Errorf("it was woken by who asked whether it runs: %d", status)
	}
	if status, b := r.send("POST", "/files?path=x", "text", use...); status != 200 {
		t.Errorf("%d %s", status, b)
	}
	if l := r.life(s); l.State != "running" || l.EndAt.Year() == 9999 {
		t.Errorf("%+v", l)
	}
	if !r.gate.Audited("workspace.resume") {
		t.Error("it was not resumed")
	}
}

// Whoever pauses and connects at once, a sandbox that runs in the end has an end, and one that is paused has none.
func TestPausedAndConnectedAtOnce(t *testing.T) {
	r := start(t, 0)
	s := r.sandbox()
	at := "/sandboxes/" + s.id
	for range 20 {
		var all sync.WaitGroup
		for i := range 6 {
			all.Go(func() {
				path, body := at+"/pause", ""
				if i%2 == 0 {
					path, body = at+"/connect", `{"timeout":900}`
				}
				if status, b := r.send("POST", path, body, "X-Api-Key", r.key); status >= 400 && status != 409 {
					t.Errorf("%s: %d %s", path, status, b)
				}
			})
		}
		all.Wait()
		if l := r.life(s); (l.State == "running") == (l.EndAt.Year() == 9999) {
			t.Fatalf("%+v", l)
		}
	}
}

// late is a gate at which the time of a workspace is over in the moment in which it is given more.
type late struct {
	*apitest.Gate
	end func(*apitest.Gate, context.Context, principal.Principal, string) (api.Workspace, error)
}

func (l late) Update(ctx context.Context, p principal.Principal, ref string, c workspace.Change) (api.Workspace, error) {
	if _, err := l.end(l.Gate, ctx, p, ref); err != nil {
		return api.Workspace{}, err
	}
	return l.Gate.Update(ctx, p, ref, c)
}

// Who connects in that moment has a sandbox that runs.
func TestConnectedAtItsEnd(t *testing.T) {
	for what, end := range map[string]func(*apitest.Gate, context.Context, principal.Principal, string) (api.Workspace, error){
		"paused": (*apitest.Gate).Pause, "stopped": (*apitest.Gate).Stop,
	} {
		r := startOver(t, 0, func(g *apitest.Gate) api.Gate { return late{g, end} })
		s := r.made(`{"timeout":60,"autoPause":true}`)
		if status, b := r.send("POST", "/sandboxes/"+s.id+"/connect", `{"timeout":900}`, "X-Api-Key", r.key); status != 200 {
			t.Errorf("%s: %d %s", what, status, b)
		}
		if l := r.life(s); l.State != "running" {
			t.Errorf("%s: %+v", what, l)
		}
	}
}

// No time at all is the least that there may be, and for a new sandbox none.
func TestNoTime(t *testing.T) {
	r := start(t, 0)
	s := r.sandbox()
	if status, b := r.send("POST", "/sandboxes/"+s.id+"/timeout", `{"timeout":0}`, "X-Api-Key", r.key); status != 204 {
		t.Errorf("%d %s", status, b)
	}
	if status, b := r.send("POST", "/sandboxes/"+s.id+"/timeout", `{"timeout":-1}`, "X-Api-Key", r.key); status != 400 {
		t.Errorf("%d %s", status, b)
	}
}

// Who may not pause a sandbox does not keep it over the end of its time by asking.
func TestPauseByAStranger(t *testing.T) {
	r := start(t, 0)
	s := r.sandbox()
	before, _ := r.book.texts.Load(id.Workspace(s.id))
	kept := make(chan string, 100)
	r.book.told = kept
	agent := r.gate.Issue(t, principal.Principal{Kind: principal.User, UID: 7}, principal.Wanted{Roles: principal.Roles(principal.Agent)})
	if status, b := r.send("POST", "/sandboxes/"+s.id+"/pause", "", "X-Api-Key", e2b.APIKey(agent)); status != 403 {
		t.Errorf("%d %s", status, b)
	}
	close(kept)
	for text := range kept {
		if text != before {
			t.Errorf("it is kept as %s", text)
		}
	}
}
