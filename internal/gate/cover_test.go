package gate_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/gate"
	"github.com/carrel-dev/carrel/internal/gate/judge"
	"github.com/carrel-dev/carrel/internal/policy/rules"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/state/record"
)

var (
	machine = operation.Target{Kind: operation.Host, Owner: "uid:1000"}
	web     = operation.Target{Kind: operation.Remote, Name: "web-1", Owner: "uid:1000"}
)

// written is a command of alice's that a model wrote, on a target.
func written(t *testing.T, on operation.Target, line string) operation.Request {
	t.Helper()
	c := operation.Command{Command: workspace.Command{Argv: []string{"/bin/sh", "-c", line}}, Source: "llm"}
	e, err := operation.NewExec(c)
	if err != nil {
		t.Fatal(err)
	}
	return operation.Request{By: alice, Op: e, On: on, Wait: -1}
}

// covering is a gate that has admitted a plan of commands. A person is asked about it if asks is true, and about nothing
// else: the answers have run out.
func covering(t *testing.T, b *book, asks bool, steps ...operation.Request) (*gate.Gate, *gate.Admitted, func(rules string)) {
	t.Helper()
	current := "rules: []"
	j := judge.New(func() (*rules.Engine, error) {
		return rules.New(rules.Config{Rules: &rules.Source{Name: "policy.yaml", Data: []byte(current)}})
	})
	answer := answers{}
	if asks {
		answer = answers{nil}
	}
	g := gate.New(gate.Config{Records: record.NewWriter(b, nil), Judge: j, Ask: &answer, Log: slog.New(slog.DiscardHandler)})
	p := operation.Plan{ID: "c-0123456789abcdef", Number: 1, Goal: "g", Asks: asks}
	for _, s := range steps {
		digest, err := operation.Same(s.Op, s.On)
		if err != nil {
			t.Fatal(err)
		}
		p.Steps = append(p.Steps, operation.PlanStep{Part: "command", Target: string(s.On.Kind), Command: "c", Level: "CONFIRM", Digest: digest})
	}
	a, err := g.Admit(t.Context(), operation.Request{By: principal.InWorkspace(demo.Name, demo.Owner), Op: p, On: demo}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return g, a, func(text string) {
		current = text
		if _, _, _, err := j.Reload(func(was, now string, _ int, err error) error {
			if was == now {
				t.Error("the policy is the same")
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
}

// lets reports whether a request is admitted. One that is not must have been asked about.
func lets(t *testing.T, ctx context.Context, g *gate.Gate, r operation.Request) bool {
	t.Helper()
	a, err := g.Admit(ctx, r, nil)
	if err != nil {
		if !strings.Contains(err.Error(), "nobody was to be asked") {
			t.Errorf("it is not asked about: %v", err)
		}
		return false
	}
	if err := a.Do(ctx, nothing); err != nil {
		t.Error(err)
	}
	return true
}

// A plan that a person was asked about covers each of its commands as often as it stands there, on its target.
func TestCoverOnce(t *testing.T) {
	b := &book{}
	one, two := written(t, machine, "touch /tmp/a"), written(t, web, "touch /tmp/a")
	three := written(t, demo, "git push https://example.com/in x")
	three.Verified = true
	g, a, _ := covering(t, b, true, one, two, two, three)
	c := a.Cover()
	if c == nil {
		t.Fatal("it covers nothing")
	}
	ctx := gate.Covered(t.Context(), c)
	if lets(t, t.Context(), g, one) {
		t.Error("a command passes that is not carried out with the plan")
	}
	// The id that carrel gives a command is not part of what a person was asked about.
	named := one
	exec := one.Op.(operation.Exec)
	exec.ID = id.NewCommand()
	named.Op = exec
	for i, x := range []struct {
		request operation.Request
		want    bool
	}{
		{named, true}, {one, false}, {two, true}, {two, true}, {two, false}, {three, true}, {three, false}, {named, false},
	} {
		if got := lets(t, ctx, g, x.request); got != x.want {
			t.Errorf("%d: passes: %v", i, got)
		}
	}
	covered := 0
	for _, r := range b.list {
		if r.Type == "intent" {
			covered++
			if r.Approval != "ap-1 once by uid:0" || r.Policy != "CONFIRM" {
				t.Errorf("recorded as %q, %q", r.Approval, r.Policy)
			}
		}
	}
	if covered != 4 {
		t.Errorf("%d intents are recorded", covered)
	}
}

// What the plan does not say is asked about, and what is over covers nothing.
func TestCoverNothingElse(t *testing.T) {
	step := written(t, machine, "touch /tmp/a")
	more := step
	exec := operation.Command{Command: workspace.Command{Argv: []string{"/bin/sh", "-c", "touch /tmp/a"}, TimeoutMS: 1}, Source: "llm"}
	longer, err := operation.NewExec(exec)
	if err != nil {
		t.Fatal(err)
	}
	more.Op = longer
	for name, x := range map[string]struct {
		request operation.Request
		before  func(c *gate.Cover, reload func(string))
	}{
		"another command":  {request: written(t, machine, "touch /tmp/b")},
		"a longer command": {request: written(t, machine, "touch /tmp/a; id")},
		"another time":     {request: more},
		"another target":   {request: written(t, web, "touch /tmp/a")},
		"another policy": {request: step, before: func(_ *gate.Cover, reload func(string)) {
			reload("rules: [{id: other, level: CONFIRM, risk_score: 50, reason: \"another\", match: {command: [nothing]}}]")
		}},
		"after its end": {request: step, before: func(c *gate.Cover, _ func(string)) { c.End() }},
	} {
		t.Run(name, func(t *testing.T) {
			g, a, reload := covering(t, &book{}, true, step)
			c := a.Cover()
			if x.before != nil {
				x.before(c, reload)
			}
			ctx := gate.Covered(t.Context(), c)
			if lets(t, ctx, g, x.request) {
				t.Error("it passes")
			}
			if x.before == nil && !lets(t, ctx, g, step) {
				t.Error("the step itself does not pass after it")
			}
		})
	}
}

// A command that the policy blocks is blocked in a plan too.
func TestCoverBlocks(t *testing.T) {
	step := written(t, machine, "rm -rf /")
	g, a, _ := covering(t, &book{}, true, step)
	if _, err := g.Admit(gate.Covered(t.Context(), a.Cover()), step, nil); !errdefs.IsPermissionDenied(err) {
		t.Errorf("admitted: %v", err)
	}
}

// A plan that nobody was asked about covers nothing, and neither does an answer to another operation.
func TestNoCover(t *testing.T) {
	step := written(t, machine, "touch /tmp/a")
	g, a, _ := covering(t, &book{}, false, step)
	c := a.Cover()
	if c != nil {
		t.Error("a plan that nobody was asked about covers something")
	}
	if lets(t, gate.Covered(t.Context(), c), g, step) {
		t.Error("a command passes unasked")
	}
	c.End()
	one, err := newGate(&book{}, nil).Admit(t.Context(), step, nil)
	if err != nil {
		t.Fatal(err)
	}
	if one.Cover() != nil {
		t.Error("an answer to a command covers others")
	}
}

// Commands that are carried out at the same time do not pass more often together.
func TestCoverAtOnce(t *testing.T) {
	step := written(t, machine, "touch /tmp/a")
	g, a, _ := covering(t, &book{}, true, step, step, step)
	ctx := gate.Covered(t.Context(), a.Cover())
	var passed atomic.Int32
	var all sync.WaitGroup
	for range 16 {
		all.Go(func() {
			if lets(t, ctx, g, step) {
				passed.Add(1)
			}
		})
	}
	all.Wait()
	if n := passed.Load(); n != 3 {
		t.Errorf("%d pass", n)
	}
}

// stepper lets plans through one step at a time, and nothing else.
type stepper struct{}

func (stepper) Ask(_ context.Context, q *gate.Question) (gate.Pass, error) {
	if q.Request.Op.Op() != operation.RunPlan {
		return gate.Pass{}, gate.Refuse(fmt.Errorf("nobody was to be asked: %w", errdefs.ErrPermissionDenied))
	}
	return gate.Pass{Text: "ap-1 steps by uid:0", First: true}, nil
}

// A plan that is let through one step at a time covers its first step alone: that of several hosts with all of them.
func TestCoverFirst(t *testing.T) {
	one, two, three := written(t, machine, "touch /tmp/a"), written(t, web, "touch /tmp/a"), written(t, machine, "touch /tmp/b")
	const choosable = -1 // the first is a change to several files, about which a person is asked by itself
	for together, want := range map[int][]bool{
		0: {true, false, false}, 2: {true, true, false}, 9: {true, true, true}, choosable: {false, false, false},
	} {
		j := judge.New(func() (*rules.Engine, error) {
			return rules.New(rules.Config{Rules: &rules.Source{Name: "policy.yaml", Data: []byte("rules: []")}})
		})
		g := gate.New(gate.Config{Records: record.NewWriter(&book{}, nil), Judge: j, Ask: stepper{}, Log: slog.New(slog.DiscardHandler)})
		p := operation.Plan{ID: "c-0123456789abcdef", Number: 1, Goal: "g", Asks: true}
		for _, s := range []operation.Request{one, two, three} {
			digest, err := operation.Same(s.Op, s.On)
			if err != nil {
				t.Fatal(err)
			}
			p.Steps = append(p.Steps, operation.PlanStep{Part: "command", Level: "CONFIRM", Digest: digest})
		}
		if p.Steps[0].Together = max(together, 0); together == choosable {
			p.Files = []string{"f", "g"}
		}
		a, err := g.Admit(t.Context(), operation.Request{By: principal.InWorkspace(demo.Name, demo.Owner), Op: p, On: demo}, nil)
		if err != nil || !a.Stepwise() {
			t.Fatalf("%v", err)
		}
		ctx := gate.Covered(t.Context(), a.Cover())
		for i, s := range []operation.Request{one, two, three} {
			if got := lets(t, ctx, g, s); got != want[i] {
				t.Errorf("%d together: step %d passes: %v", together, i+1, got)
			}
		}
	}
}

// chooser lets a part of plans through, and nothing else.
type chooser struct{ pass gate.Pass }

func (c chooser) Ask(_ context.Context, q *gate.Question) (gate.Pass, error) {
	if q.Request.Op.Op() != operation.RunPlan {
		return gate.Pass{}, gate.Refuse(fmt.Errorf("nobody was to be asked: %w", errdefs.ErrPermissionDenied))
	}
	return c.pass, nil
}

// Of a plan of which a part is let through, that part is what is admitted, recorded and covered: the whole is not, and no
// other part than the one with the digest that was approved.
func TestCoverOfAPart(t *testing.T) {
	whole, smaller := written(t, machine, "touch /tmp/a"), written(t, machine, "touch /tmp/b")
	planOf := func(s operation.Request) operation.Plan {
		digest, err := operation.Same(s.Op, s.On)
		if err != nil {
			t.Fatal(err)
		}
		return operation.Plan{
			ID: "c-0123456789abcdef", Number: 1, Goal: "g", Asks: true,
			Steps: []operation.PlanStep{{Part: "patch", Level: "CONFIRM", Digest: digest}},
		}
	}
	part := planOf(smaller)
	digest, err := operation.Same(part, demo)
	if err != nil {
		t.Fatal(err)
	}
	for name, x := range map[string]struct {
		part   func([]string) (operation.Plan, error)
		digest string
		ok     bool
	}{
		"the part":                {func([]string) (operation.Plan, error) { return part, nil }, digest, true},
		"another digest":          {func([]string) (operation.Plan, error) { return planOf(whole), nil }, digest, false},
		"no digest":               {func([]string) (operation.Plan, error) { return part, nil }, "", false},
		"a plan without a part":   {nil, digest, false},
		"a part that there isn't": {func([]string) (operation.Plan, error) { return part, errdefs.ErrInvalidArgument }, digest, false},
	} {
		t.Run(name, func(t *testing.T) {
			j := judge.New(func() (*rules.Engine, error) {
				return rules.New(rules.Config{Rules: &rules.Source{Name: "policy.yaml", Data: []byte("rules: []")}})
			})
			ask := chooser{gate.Pass{Text: "ap-1 files by uid:0", Files: []string{"b"}, Digest: x.digest}}
			g := gate.New(gate.Config{Records: record.NewWriter(&book{}, nil), Judge: j, Ask: ask, Log: slog.New(slog.DiscardHandler)})
			p := planOf(whole)
			p.Part = x.part
			a, err := g.Admit(t.Context(), operation.Request{By: principal.InWorkspace(demo.Name, demo.Owner), Op: p, On: demo}, nil)
			if (err == nil) != x.ok {
				t.Fatalf("admitted: %v", err)
			}
			if err != nil {
				return
			}
			if got, err := operation.Same(a.Request().Op, demo); got != digest || err != nil || len(a.Files()) != 1 {
				t.Errorf("admitted is %s, %v", got, err)
			}
			ctx := gate.Covered(t.Context(), a.Cover())
			if lets(t, ctx, g, whole) || !lets(t, ctx, g, smaller) {
				t.Error("the whole is covered, or the part is not")
			}
		})
	}
}
