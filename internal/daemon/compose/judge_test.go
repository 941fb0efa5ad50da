package compose_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/daemon/compose"
	"github.com/carrel-dev/carrel/internal/policy/rules"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/state/audit"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

// decision is the frozen form of a decision in the record.
type decision struct {
	Level          string   `json:"level"`
	RiskScore      int      `json:"risk_score"`
	Capabilities   []string `json:"capabilities"`
	Rules          []string `json:"rules"`
	NeverWhitelist bool     `json:"never_whitelist"`
	Reasons        []string `json:"reasons"`
	Profile        string   `json:"profile"`
	Source         string   `json:"source"`
	Policy         string   `json:"policy"`
}

func decided(t *testing.T, r audit.Record) decision {
	t.Helper()
	var d decision
	dec := json.NewDecoder(strings.NewReader(string(r.Decision)))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&d); err != nil {
		t.Fatalf("the decision %q of %s record %d: %v", r.Decision, r.Type, r.Seq, err)
	}
	if d.Level != r.Policy || !strings.HasPrefix(d.Policy, "sha256:") || d.Capabilities == nil || d.Level != "SAFE" &&
		(len(d.Rules) == 0 || len(d.Reasons) == 0) || d.Profile == "" || d.Source == "" {
		t.Errorf("%s record %d says %+v", r.Type, r.Seq, d)
	}
	return d
}

// weak is a report in which something that is required was not seen to hold.
var weak = workspace.Report{Controls: []workspace.Control{{ID: "seccomp", Required: true, State: workspace.Applied}}}

// A command that is blocked does not reach the runtime by any way, and the record says
// what it was and why. Each is one that a judge of first words, of names alone or of argv
// alone lets pass.
func TestBlockedOnEveryPath(t *testing.T) {
	h := newHouse(t)
	ctx := t.Context()
	h.create(alice, "demo")
	calls := fmt.Sprint(h.rt.calls)
	for name, e := range map[string]execapi.ExecParams{
		"plain":                {Argv: []string{"rm", "-rf", "/var/lib/carrel"}},
		"behind another":       {Argv: []string{"sh", "-c", "true && ls; rm -rf /var/lib/carrel/daemon/audit"}},
		"wrapped":              {Argv: []string{"env", "X=1", "nice", "timeout", "5", "bash", "-c", "echo hi | tee /etc/carrel/policy.yaml"}},
		"what nobody can read": {Argv: []string{"echo", "\x1b]0;ls\x07"}},
		"unreadable as shell":  {Argv: []string{"sh", "-c", "echo 'x"}},
	} {
		at := len(h.records())
		_, _, err := h.Run(ctx, alice, "demo", e)
		_, _, serr := h.Spawn(ctx, alice, "demo", e, true)
		_, derr := h.Detach(ctx, alice, "demo", e, false)
		for _, err := range []error{err, serr, derr} {
			if !errdefs.IsPermissionDenied(err) || !strings.Contains(err.Error(), "the policy blocks it: ") ||
				!strings.Contains(err.Error(), "carrel policy explain") {
				t.Errorf("%s: %v", name, err)
			}
		}
		h.expect(at, "denial command.exec denied permission_denied", "denial command.exec denied permission_denied",
			"denial command.exec denied permission_denied")
		for _, r := range h.records()[at:] {
			if d := decided(t, r); d.Level != "BLOCK" || d.RiskScore != 100 || d.Profile != "workspace" || d.Source != "llm" || !d.NeverWhitelist {
				t.Errorf("%s: %+v", name, d)
			}
		}
	}
	if now := fmt.Sprint(h.rt.calls); now != calls {
		t.Errorf("the runtime was asked:\n%s\n%s", calls, now)
	}
}

// Where the boundary was not seen to hold a command is judged as on the host, and what is not plainly harmless
// does not run unasked. Where that is not known nothing runs, and nobody is asked.
func TestUnverifiedIsTheHost(t *testing.T) {
	h := newHouse(t)
	ctx := t.Context()
	h.create(alice, "demo")
	touch := run("touch", "x")
	if _, _, err := h.Run(ctx, alice, "demo", touch); err != nil {
		t.Fatal(err)
	}
	h.crash()
	h.start() // another daemon, which has not seen a start
	h.rt.setHook(func(op string, _ id.Workspace) error { return map[string]error{"report": errdefs.ErrUnavailable}[op] })
	at := len(h.records())
	if _, _, err := h.Run(ctx, alice, "demo", touch); !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), "carrel up") {
		t.Errorf("a report that cannot be had: %v", err)
	}
	for _, r := range h.records()[at:] {
		if r.Type == audit.Intent || r.Type == audit.Approval {
			t.Errorf("a report that cannot be had: %+v", r)
		}
	}
	h.rt.setHook(nil)
	h.rt.setReport(weak)
	at = len(h.records())
	touch.Asked.WaitMS = -1
	if _, _, err := h.Run(ctx, alice, "demo", touch); err == nil {
		t.Error("a control that is not verified: it ran")
	}
	if d := decided(t, h.records()[at]); d.Profile != "host" || d.Level != "CONFIRM" {
		t.Errorf("a control that is not verified: %+v", d)
	}
	for _, held := range []string{"sudo make install", "crontab jobs", "cat .netrc", "curl https://example.org/", "docker compose up"} {
		if h.passes(alice, "demo", "user", strings.Fields(held)...) {
			t.Errorf("%s passes unasked", held)
		}
	}
	h.rt.setReport(report())
	if _, err := h.Stop(ctx, alice, "demo"); err != nil { // it is proved anew when it starts
		t.Fatal(err)
	}
	if _, _, err := h.Run(ctx, alice, "demo", touch); err != nil {
		t.Error(err)
	}
}

// What empties a directory of the host is asked about: the mounts that a workspace has reach the policy.
func TestMountsAreJudged(t *testing.T) {
	h := newHouse(t)
	h.create(alice, "demo")
	if !h.passes(alice, "demo", "llm", "sh", "-c", "cd /workspace && rm -rf *") {
		t.Error("it is asked about a workspace without mounts")
	}
	h.rt.mounts("ws-2a97516c", []workspace.Mount{
		{Source: "/a", Destination: "/workspace"}, {Source: "/b", Destination: "/mnt/b", ReadOnly: true},
	})
	if err := h.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	if h.passes(alice, "demo", "llm", "sh", "-c", "cd /workspace && rm -rf *") {
		t.Error("a project is emptied unasked")
	}
	for _, held := range []string{"rm -rf /workspace/build", "rm -rf /mnt/b"} { // the second is read-only
		if !h.passes(alice, "demo", "llm", "sh", "-c", held) {
			t.Errorf("%s is asked about", held)
		}
	}
}

// What is explained is what would be decided, by the rules in force and by what was seen of the workspace;
// nothing runs, is started or is asked, and who may not run there is told nothing.
func TestExplainIsWhatWouldBeDecided(t *testing.T) {
	h := newHouse(t)
	ctx := t.Context()
	h.create(alice, "demo")
	explain := func(by principal.Principal, argv ...string) (rules.Decision, bool, bool, error) {
		return h.Explain(ctx, by, "demo", execapi.ExecParams{Argv: argv, Asked: execapi.Asked{Source: "user"}})
	}
	calls, at := fmt.Sprint(h.rt.calls), len(h.records())
	for _, argv := range [][]string{
		{"ls"}, {"sh", "-c", "true && ls; rm -rf /var/lib/carrel/daemon/audit"}, {"git", "push", "https://example.com/in", "x"},
	} {
		d, verified, assumed, err := explain(alice, argv...)
		if err != nil || !verified || assumed || d.Profile != rules.Workspace || !slices.ContainsFunc(d.Segments, func(s rules.Segment) bool {
			return s.Level == d.Level
		}) {
			t.Errorf("%q: %+v, %v, %v, %v", argv, d, verified, assumed, err)
		}
		e := run(argv...)
		e.Asked = execapi.Asked{Source: "user", WaitMS: -1}
		if now := fmt.Sprint(h.rt.calls); now != calls {
			t.Fatalf("explaining %q asked the runtime:\n%s\n%s", argv, calls, now)
		}
		if n := len(h.records()); n != at {
			t.Errorf("explaining %q wrote %d records", argv, n-at)
		}
		_, _, err = h.Run(ctx, alice, "demo", e)
		if (err == nil) != (d.Level == rules.Safe) {
			t.Errorf("%q is said to be %s, and then: %v", argv, d.Level, err)
		}
		if got := decided(t, h.records()[at]); got.Level != d.Level.String() || got.RiskScore != d.RiskScore || got.Policy != d.Policy {
			t.Errorf("%q is explained as %+v and judged as %+v", argv, d, got)
		}
		calls, at = fmt.Sprint(h.rt.calls), len(h.records())
	}
	if _, _, _, err := explain(bob, "ls"); !errdefs.IsPermissionDenied(err) {
		t.Errorf("somebody else is told: %v", err)
	}
	h.crash()
	h.start() // another daemon, which has not seen a start
	h.rt.setReport(weak)
	d, verified, assumed, err := explain(alice, "touch", "x")
	if err != nil || verified || assumed || d.Level != rules.Confirm || d.Profile != rules.Host {
		t.Errorf("where it was not seen to hold: %+v, %v, %v, %v", d, verified, assumed, err)
	}
	h.rt.setReport(report())
	if _, err := h.Stop(ctx, alice, "demo"); err != nil {
		t.Fatal(err)
	}
	calls = fmt.Sprint(h.rt.calls)
	if d, verified, assumed, err := explain(alice, "touch", "x"); err != nil || !verified || !assumed || d.Level != rules.Safe {
		t.Errorf("while it is stopped: %+v, %v, %v, %v", d, verified, assumed, err)
	}
	if now := fmt.Sprint(h.rt.calls); now != calls {
		t.Errorf("explaining starts it:\n%s\n%s", calls, now)
	}
}

// Variables are judged with the command, also by one whose words were judged before.
func TestEnvironmentIsJudged(t *testing.T) {
	h := newHouse(t)
	ctx := t.Context()
	h.rt.setReport(weak)
	h.create(alice, "demo")
	ls := run("ls")
	ls.Asked = execapi.Asked{Source: "user", WaitMS: -1}
	if _, _, err := h.Run(ctx, alice, "demo", ls); err != nil {
		t.Fatal(err)
	}
	for _, kv := range []string{"LD_PRELOAD=/tmp/x.so", "BASH_ENV=/tmp/x", "PATH=/tmp:/bin"} {
		at := len(h.records())
		ls.Env = []string{kv}
		if _, _, err := h.Run(ctx, alice, "demo", ls); err == nil {
			t.Errorf("with %s it ran", kv)
		}
		if d := decided(t, h.records()[at]); !slices.Contains(d.Capabilities, "environment.poison") {
			t.Errorf("%s: %+v", kv, d)
		}
	}
}

// What a client says of the author makes a judgement stricter and never milder.
func TestSource(t *testing.T) {
	h := newHouse(t)
	ctx := t.Context()
	h.create(alice, "demo")
	for claimed, want := range map[string]string{"": "llm", "llm": "llm", "user": "user", "root": "llm", "system": "llm"} {
		e := run("ls")
		e.Asked.Source = claimed
		at := len(h.records())
		if _, _, err := h.Run(ctx, alice, "demo", e); err != nil {
			t.Fatal(err)
		}
		if d := decided(t, h.records()[at]); d.Source != want {
			t.Errorf("%q was recorded as %s", claimed, d.Source)
		}
	}
}

// A policy that fails while it judges blocks, and one that cannot be read lets nothing
// pass.
func TestBrokenPolicyBlocks(t *testing.T) {
	h := newHouse(t)
	ctx := t.Context()
	h.create(alice, "demo")
	h.policy = func() (*rules.Engine, error) { return nil, errors.New("policy.yaml:3:1: broken") }
	g := compose.New(compose.Config{
		Runtimes: runtime.ByBoundary{workspace.BoundaryNamespace: h.rt}, Store: h.store, Audit: h.log,
		Prefix: "ws", Policy: h.policy,
	})
	calls := h.rt.count("run")
	if _, _, err := g.Run(ctx, alice, "demo", run("ls")); err == nil || !strings.Contains(err.Error(), "policy.yaml:3:1") ||
		!strings.Contains(err.Error(), "so it was not done") {
		t.Errorf("%v", err)
	}
	if h.rt.count("run") != calls {
		t.Error("it ran")
	}
}

// A decision in memory is that of one policy and one question: nothing of another
// workspace's rules, of other variables or of another directory.
func TestDecisionsAreNotMixedUp(t *testing.T) {
	h := newHouse(t)
	h.policy = rulesOf(`rules:
  - id: only.here
    level: BLOCK
    risk_score: 99
    capabilities: []
    reason: not in this workspace
    match: {command: [ls], workspace: [closed]}
`)
	h.crash()
	h.start()
	ctx := t.Context()
	h.create(alice, "open")
	h.create(alice, "closed")
	for range 3 {
		if _, _, err := h.Run(ctx, alice, "open", run("ls")); err != nil {
			t.Error(err)
		}
		if _, _, err := h.Run(ctx, alice, "closed", run("ls")); !errdefs.IsPermissionDenied(err) ||
			!strings.Contains(err.Error(), "not in this workspace") {
			t.Error(err)
		}
	}
}

func rulesOf(text string) func() (*rules.Engine, error) {
	return func() (*rules.Engine, error) {
		return rules.New(rules.Config{Rules: &rules.Source{Name: "policy.yaml", Data: []byte(text)}})
	}
}

// A record of a decision stays within its bounds whatever was judged.
func TestDecisionIsClipped(t *testing.T) {
	h := newHouse(t)
	h.create(alice, "demo")
	var text strings.Builder
	for i := range 400 {
		fmt.Fprintf(&text, "git push https://h%d.example/%s f;", i, strings.Repeat("€", 60))
	}
	e := run("sh", "-c", text.String())
	e.Asked.WaitMS = -1
	at := len(h.records())
	if _, _, err := h.Run(context.WithoutCancel(t.Context()), alice, "demo", e); err == nil {
		t.Error("it ran")
	}
	r := h.records()[at]
	if d := decided(t, r); len(d.Reasons) > 16 || len(r.Decision) > 16<<10 {
		t.Errorf("%d reasons, %d bytes", len(d.Reasons), len(r.Decision))
	}
}
