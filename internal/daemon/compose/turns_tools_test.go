package compose_test

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/spec/tools"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

// callsOf is an answer with calls of tools: of each a target, a tool and its parameters.
func callsOf(calls ...map[string]any) string {
	b, _ := json.Marshal(map[string]any{"type": "tool_calls", "calls": calls})
	return string(b)
}

func readOf(target, path string) map[string]any {
	return map[string]any{"target": target, "tool": "read_file", "path": path}
}

// served notes what a client is told of each command, beside what hostsDouble does.
type served struct {
	*hostsDouble

	got chan runtime.HostCommand
}

func serving(say func(c runtime.HostCommand) runtime.HostResult) *served {
	s := &served{got: make(chan runtime.HostCommand, 64)}
	s.hostsDouble = &hostsDouble{local: true, remotes: []string{"web-1", "web-2"}}
	s.run = func(_ context.Context, c runtime.HostCommand) (runtime.HostResult, error) {
		s.got <- c
		return say(c), nil
	}
	return s
}

func prints(text string) runtime.HostResult {
	return runtime.HostResult{Status: &execapi.Status{}, Stdout: []byte(text)}
}

// Calls of tools run without a question under the usual policy, also on remote hosts, each held and recorded by itself.
func TestToolsNeedNoQuestion(t *testing.T) {
	h, told := proposing(t, "rules: []\n", callsOf(readOf("host", "/etc/hosts"), readOf("remote web-1", "/etc/hosts"),
		map[string]any{"target": "host", "tool": "processes"}))
	s := serving(func(runtime.HostCommand) runtime.HostResult { return prints("well\n") })
	at := len(h.records())
	h.turn(s.hostsDouble)
	r := next(t, told)
	if r.Outcome != "done" || len(r.Steps) != 3 || r.Steps[0].Stdout != "well\n" || r.Steps[1].Target != "remote web-1" {
		t.Fatalf("told %+v", r)
	}
	for range 3 {
		c := <-s.got
		if !c.ReadOnly || c.Timeout != 5*time.Second || c.MaxOutput != 20_000 || (c.Path == "/etc/hosts") != (c.Argv[3] == "read_file") {
			t.Errorf("the client is told %+v", c)
		}
	}
	traces := map[string]bool{}
	recorded := 0
	for _, r := range h.records()[at:] {
		if r.Type == "intent" && strings.Contains(string(r.Action), `"command.exec","target"`) {
			recorded++
			traces[string(r.Trace)] = true
		}
	}
	if recorded != 3 || len(traces) != 1 {
		t.Errorf("%d are recorded, under the traces %v", recorded, traces)
	}
}

// One call that the policy would ask about, or that changes something, refuses all of its round, and nothing runs.
func TestToolsAreJudged(t *testing.T) {
	for name, c := range map[string]struct{ path, want string }{
		"the password file": {"/etc/shadow", "secret"}, "a key of SSH": {"/home/alice/.ssh/id_ed25519", "secret"},
		"an environment": {"/proc/1/environ", "secret"},
	} {
		t.Run(name, func(t *testing.T) {
			h, told := proposing(t, "rules: []\n", callsOf(readOf("host", "/etc/hosts"), readOf("host", c.path)))
			s := serving(func(runtime.HostCommand) runtime.HostResult { return prints("well\n") })
			h.turn(s.hostsDouble)
			if r := next(t, told); r.Outcome != "refused" || !strings.Contains(r.Why, c.want) || !strings.Contains(r.Why, "call 2") {
				t.Errorf("told %+v", r)
			}
			if ran := s.all(); len(ran) > 0 {
				t.Errorf("ran %q", ran)
			}
		})
	}
}

// What leads elsewhere is judged there before it is read, and it is followed once.
func TestToolsFollowLinks(t *testing.T) {
	for _, c := range []struct{ to, out, err string }{
		{"/usr/lib/os-release", "well\n", ""},
		{"/etc/shadow", "", "secret"},
		{"relative", "", "leads to relative"},
		{"/etc/../root/x", "", "leads to"},
	} {
		h, told := proposing(t, "rules: []\n", callsOf(readOf("host", "/etc/os-release")))
		s := serving(func(x runtime.HostCommand) runtime.HostResult {
			if x.Path == "/etc/os-release" {
				return runtime.HostResult{Path: c.to}
			}
			return prints("well\n")
		})
		h.turn(s.hostsDouble)
		r := next(t, told)
		if r.Outcome != "done" || len(r.Steps) != 1 || r.Steps[0].Stdout != c.out || !strings.Contains(r.Steps[0].Error, c.err) {
			t.Errorf("%s: told %+v", c.to, r)
		}
		if ran := len(s.all()); (ran == 2) != (c.err == "") {
			t.Errorf("%s: %d commands were sent", c.to, ran)
		}
	}
	h, told := proposing(t, "rules: []\n", callsOf(readOf("host", "/etc/a")))
	s := serving(func(x runtime.HostCommand) runtime.HostResult { return runtime.HostResult{Path: x.Path + "b"} })
	h.turn(s.hostsDouble)
	if r := next(t, told); r.Steps[0].Error == "" || len(s.all()) != 2 {
		t.Errorf("told %+v after %d", r, len(s.all()))
	}
}

// A search tells nothing of files that tools may not read, whatever their names look like.
func TestSearchLeavesSecretsOut(t *testing.T) {
	h, told := proposing(t, "rules: []\n", callsOf(map[string]any{
		"target": "host", "tool": "search_files", "path": "/etc", "pattern": "a",
	}))
	s := serving(func(runtime.HostCommand) runtime.HostResult {
		return prints("/etc/hosts:1:127.0.0.1 a\n/etc/shadow:1:root:HIDDEN-1:19000:0:\n/srv/a:1:b/.env:2:KEY=HIDDEN-2\n" +
			"/etc/c:12:at 10:20:30 well\nHIDDEN-3\n/etc/HIDDEN-4\n")
	})
	h.turn(s.hostsDouble)
	r := next(t, told)
	want := "/etc/hosts:1:127.0.0.1 a\n/etc/c:12:at 10:20:30 well\n" +
		"… 4 lines are left out: they are of files that hold secrets, or were cut\n"
	if len(r.Steps) != 1 || r.Steps[0].Stdout != want {
		t.Errorf("told %+v", r)
	}
}

// Rounds, and what is read in a turn, are bounded.
func TestToolBounds(t *testing.T) {
	call := callsOf(readOf("host", "/etc/hosts"))
	short := func(runtime.HostCommand) runtime.HostResult { return prints("well\n") }
	h, told := proposing(t, judged, call, call, call, call, planText(onTarget("host", "id")), call, call, call, call, call)
	s := serving(short)
	h.turn(s.hostsDouble)
	var outcomes []string
	for range 10 {
		outcomes = append(outcomes, next(t, told).Outcome)
	}
	if want := []string{
		"done", "done", "done", "invalid", "done", "done", "done", "done", "invalid", "blocked",
	}; !slices.Equal(outcomes, want) {
		t.Errorf("told %q", outcomes)
	}
	// A call prints 20,000 bytes at most and all together 60,000, whatever a client says.
	long := strings.Repeat("0123456789abcd \n", 10_000)
	four := callsOf(readOf("host", "/etc/a"), readOf("host", "/etc/b"), readOf("host", "/etc/c"), readOf("host", "/etc/d"))
	h, told = proposing(t, "rules: []\n", four, call)
	s = serving(func(runtime.HostCommand) runtime.HostResult {
		return runtime.HostResult{Status: &execapi.Status{}, Stdout: []byte(long[:25_000]), Stderr: []byte(long[:25_000])}
	})
	h.turn(s.hostsDouble)
	all := 0
	for i, x := range next(t, told).Steps {
		if n := len(x.Stdout) + len(x.Stderr); n > tools.MaxOutput || i < 3 && n < 19_000 {
			t.Errorf("call %d printed %d", i, n)
		} else {
			all += n
		}
	}
	if all > tools.MaxTurn || all < 58_000 {
		t.Errorf("all printed %d", all)
	}
	if r := next(t, told); r.Outcome == "done" && len(r.Steps[0].Stdout) > tools.MaxTurn-all {
		t.Errorf("told %d bytes more", len(r.Steps[0].Stdout))
	}
}

// Targets are those of plans.
func TestToolTargets(t *testing.T) {
	for target, by := range map[string]*served{
		"host": nil, "remote web-9": serving(func(runtime.HostCommand) runtime.HostResult { return prints("") }), "workspace nowhere": nil,
	} {
		h, told := proposing(t, "rules: []\n", callsOf(map[string]any{"target": target, "tool": "sockets"}))
		var d *hostsDouble
		if by != nil {
			d = by.hostsDouble
		}
		h.turn(d)
		if r := next(t, told); r.Outcome != "invalid" || len(r.Steps) > 0 {
			t.Errorf("%s: told %+v", target, r)
		}
	}
}
