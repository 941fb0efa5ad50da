package compose_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/policy/rules"
	"github.com/carrel-dev/carrel/internal/spec/approval"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/state/audit"
)

// sessions is a house of which each turn proposes one plan.
type sessions struct {
	*house

	plan  string
	rules string
	told  chan answerTo
}

func newSessions(t *testing.T) *sessions {
	s := &sessions{told: make(chan answerTo, 1), rules: judged}
	s.house = taskHouse(t, func(a *agentDouble) int {
		return onEach(a, []string{s.plan}, func(r answerTo) { s.told <- r })
	})
	s.policy = func() (*rules.Engine, error) { return rulesOf(s.rules)() }
	s.crash()
	s.start()
	return s
}

// propose runs a turn with a plan. It returns the question that came of it, which is denied, or ran if there was none; answer is given
// to a question in its place.
func (s *sessions) propose(by principal.Principal, after id.Command, d *hostsDouble, answer approval.Kind, steps ...map[string]any) (
	task workspace.Task, asked *approval.View, ran bool,
) {
	s.t.Helper()
	s.plan = planText(steps...)
	return s.proposes(by, after, d, answer)
}

func (s *sessions) proposes(by principal.Principal, after id.Command, d *hostsDouble, answer approval.Kind) (
	task workspace.Task, asked *approval.View, ran bool,
) {
	s.t.Helper()
	ctx, cancel := context.WithCancel(s.t.Context())
	defer cancel()
	questions := make(chan approval.View, 1)
	watching := make(chan struct{})
	go s.WatchApprovals(ctx, root, func(a *approval.View) error {
		if a == nil {
			close(watching)
			return nil
		}
		if a.State == approval.Pending {
			questions <- *a
			return errors.New("enough")
		}
		return nil
	})
	<-watching
	before := len(d.all())
	task, err := s.RunTask(s.t.Context(), by, "demo", run("agent"), workspace.TaskSpec{
		Protocol: "agent", Prompt: "do it", Serve: true, After: after,
	})
	if err != nil {
		s.t.Fatal(err)
	}
	leave, _, err := s.ServeHosts(s.t.Context(), by, "demo", task.ID, d)
	if err != nil {
		s.t.Fatal(err)
	}
	defer leave()
	select {
	case a := <-questions:
		asked = &a
		if answer == "" {
			answer = approval.Deny
		}
		if err := s.answerAt(by, a, answer, ""); err != nil {
			s.t.Fatal(err)
		}
		<-s.told
	case <-s.told:
	case <-time.After(time.Minute):
		s.t.Fatal("nothing came of the plan")
	}
	if _, end := s.follows(task, 0); end.State != workspace.TaskCompleted {
		s.t.Fatalf("%+v", end)
	}
	return task, asked, len(d.all()) > before
}

// What a person allows for a session is each command of the plan that was asked about, word for word on its target: a later plan of it
// runs without a question, which is shown and recorded. Anything else is asked about, and so is the same in another session, for
// another user, in another place, by another policy and after it was taken back.
func TestPlanForASession(t *testing.T) {
	s := newSessions(t)
	s.create(alice, "other")
	d := &hostsDouble{local: true, remotes: []string{"web-1", "web-2"}}
	touch, there := onTarget("host", "touch a"), onTarget("remote web-1", "touch b")
	first, asked, _ := s.propose(alice, "", d, approval.Thread, touch, there, onTarget("host", "id"))
	if asked == nil || asked.Final || asked.Keep == nil || len(asked.Keep.Steps) != 2 {
		t.Fatalf("asked %+v", asked)
	}
	list, err := s.Permissions(t.Context(), alice, "demo", string(first.ID))
	if err != nil || len(list) != 1 || list[0].String() != "Plan(host: touch a; remote web-1: touch b)" || list[0].Subject.By != "uid:1000" {
		t.Fatalf("%+v, %v", list, err)
	}
	at := len(s.records())
	second, asked, ran := s.propose(alice, first.ID, d, "", there, onTarget("host", "uname"), touch, touch)
	if asked != nil || !ran {
		t.Fatalf("what was allowed is asked about: %+v", asked)
	}
	all, _ := s.follows(second, 0)
	if !slices.ContainsFunc(all, func(m string) bool {
		return strings.Contains(m, " remembered ") && strings.Contains(m, string(list[0].From))
	}) {
		t.Errorf("it is not shown: %q", all)
	}
	plans, commands := 0, 0
	for _, r := range s.records()[at:] {
		if r.Type == audit.Intent && r.Approval == string(list[0].From)+" remembered" {
			if strings.Contains(string(r.Action), `"kind":"plan.run"`) {
				plans++
			} else {
				commands++
			}
		}
		if r.Type == audit.Request {
			t.Errorf("somebody is asked: %s", r.Action)
		}
	}
	if plans != 1 || commands != 3 {
		t.Errorf("recorded %d plans and %d commands by the permission", plans, commands)
	}
	longer := onTarget("remote web-1", "touch b")
	longer["timeout_seconds"] = 17
	if _, asked, _ := s.propose(alice, second.ID, d, "", longer); asked != nil {
		t.Errorf("another time is asked about: %+v", asked)
	}
	job := onTarget("host", "touch a")
	job["background"] = true
	elsewhere := &hostsDouble{local: true, remotes: []string{"web-1"}, place: "there"}
	for name, c := range map[string]struct {
		by    principal.Principal
		after id.Command
		d     *hostsDouble
		steps []map[string]any
	}{
		"another target":      {alice, second.ID, d, []map[string]any{onTarget("remote web-2", "touch b")}},
		"the host":            {alice, second.ID, d, []map[string]any{onTarget("host", "touch b")}},
		"one word more":       {alice, second.ID, d, []map[string]any{onTarget("host", "touch a b")}},
		"one space more":      {alice, second.ID, d, []map[string]any{onTarget("host", "touch  a")}},
		"one command more":    {alice, second.ID, d, []map[string]any{touch, onTarget("host", "touch c")}},
		"in the background":   {alice, second.ID, d, []map[string]any{job}},
		"several hosts":       {alice, second.ID, d, []map[string]any{onTarget("remote web-1 web-2", "touch b")}},
		"another session":     {alice, "", d, []map[string]any{touch}},
		"another user":        {admin, second.ID, d, []map[string]any{touch}},
		"another place":       {alice, second.ID, elsewhere, []map[string]any{touch}},
		"hosts of that place": {alice, second.ID, elsewhere, []map[string]any{there}},
	} {
		if _, asked, ran := s.propose(c.by, c.after, c.d, "", c.steps...); asked == nil || ran {
			t.Errorf("%s: asked %+v, ran %v", name, asked, ran)
		}
	}
	// The policy changes, and comes back.
	was := s.rules
	s.rules = "profiles: {host: {llm_first_run: judge}, remote: {llm_first_run: judge}}\n" +
		"rules: [{id: other, level: CONFIRM, risk_score: 50, reason: \"another one\", match: {command: [nothing]}}]\n"
	if _, _, _, err := s.ReloadPolicy(t.Context(), root); err != nil {
		t.Fatal(err)
	}
	if _, asked, _ := s.propose(alice, second.ID, d, "", touch); asked == nil {
		t.Error("it passes by another policy")
	}
	s.rules = was
	if _, _, _, err := s.ReloadPolicy(t.Context(), root); err != nil {
		t.Fatal(err)
	}
	if _, asked, _ := s.propose(alice, second.ID, d, "", touch); asked != nil {
		t.Errorf("the policy is as it was: %+v", asked)
	}
	if err := s.RevokePermission(t.Context(), bob, list[0].From); !errdefs.IsPermissionDenied(err) {
		t.Errorf("another user takes it back: %v", err)
	}
	if err := s.RevokePermission(t.Context(), alice, list[0].From); err != nil {
		t.Fatal(err)
	}
	if _, asked, _ := s.propose(alice, second.ID, d, "", touch); asked == nil {
		t.Error("it passes after it was taken back")
	}
}

// What was allowed by two answers passes in one plan, which is recorded with both. Where nobody is asked it passes too, and nothing else.
func TestPlanForASessionByTwoAnswers(t *testing.T) {
	s := newSessions(t)
	d := &hostsDouble{local: true}
	one, two := onTarget("host", "touch a"), onTarget("host", "touch b")
	first, _, _ := s.propose(alice, "", d, approval.Thread, one)
	second, asked, _ := s.propose(alice, first.ID, d, approval.Thread, two)
	if asked == nil {
		t.Fatal("the second is not asked about")
	}
	at := len(s.records())
	if _, asked, _ := s.propose(alice, second.ID, d, "", one, two); asked != nil {
		t.Errorf("asked %+v", asked)
	}
	if !slices.ContainsFunc(s.records()[at:], func(r audit.Record) bool {
		return strings.Contains(string(r.Action), "plan.run") && strings.Count(r.Approval, " remembered") == 2
	}) {
		t.Error("it is not recorded with both")
	}
	// An answer for once remembers nothing.
	third, _, _ := s.propose(alice, second.ID, d, approval.Once, onTarget("host", "touch c"))
	if _, asked, _ := s.propose(alice, third.ID, d, "", onTarget("host", "touch c")); asked == nil {
		t.Error("an answer for once was remembered")
	}
}

// Of plans that can be answered for once only nothing is remembered: what the policy never remembers, changes to files, several hosts.
func TestPlanForNoSession(t *testing.T) {
	for name, c := range map[string]struct {
		steps []map[string]any
		plan  string
	}{
		"what destroys":           {steps: []map[string]any{onTarget("host", "rm -r a")}},
		"among others":            {steps: []map[string]any{onTarget("host", "touch a"), onTarget("workspace work", "rm -rf .")}},
		"several hosts":           {steps: []map[string]any{onTarget("remote web-1 web-2", "touch a")}},
		"several hosts that read": {steps: []map[string]any{onTarget("remote web-1 web-2", "id")}},
		"a change to files":       {plan: patchText("host")},
		"nobody says where it is": {steps: []map[string]any{onTarget("host", "touch a")}},
	} {
		s := newSessions(t)
		d := &hostsDouble{local: true, remotes: []string{"web-1", "web-2"}, patch: patchDouble}
		if strings.HasPrefix(name, "nobody") {
			d.place = unknown
		}
		s.plan = c.plan
		if c.plan == "" {
			s.plan = planText(c.steps...)
		}
		a := s.pendingOf(func() { s.turn(d) })
		if !a.Final || a.Keep != nil {
			t.Errorf("%s: asked %+v", name, a.Approval)
		}
		if err := s.answerAt(alice, a, approval.Thread, ""); !errdefs.IsPermissionDenied(err) {
			t.Errorf("%s: %v", name, err)
		}
		if err := s.answerAt(alice, a, approval.Deny, ""); err != nil {
			t.Fatal(err)
		}
		<-s.told
	}
}

// A command that was held to reading when it was allowed is asked about where it is not, and a job where it may take longer.
func TestPlanForASessionAndWhatHoldsIt(t *testing.T) {
	s := newSessions(t)
	s.rules = "rules: []"
	if _, _, _, err := s.ReloadPolicy(t.Context(), root); err != nil {
		t.Fatal(err)
	}
	d := &hostsDouble{local: true}
	of := func(name string, value any) map[string]any {
		step := onTarget("host", "id")
		step[name] = value
		if name == "timeout_seconds" {
			step["background"] = true
		}
		return step
	}
	first, asked, _ := s.propose(alice, "", d, approval.Thread, of("read_only", true), of("timeout_seconds", 60))
	if asked == nil || asked.Keep == nil {
		t.Fatalf("asked %+v", asked)
	}
	for name, c := range map[string]struct {
		step map[string]any
		asks bool
	}{
		"the same":      {of("read_only", true), false},
		"the same job":  {of("timeout_seconds", 60), false},
		"not held":      {of("read_only", false), true},
		"a longer job":  {of("timeout_seconds", 61), true},
		"a job no more": {of("purpose", "another"), true},
	} {
		if _, asked, _ := s.propose(alice, first.ID, d, "", c.step); asked != nil != c.asks {
			t.Errorf("%s: asked %+v", name, asked)
		}
	}
}

// A plan that is let through one step at a time is asked about step by step, also where a step was allowed for the session.
func TestPlanForASessionStepByStep(t *testing.T) {
	s := newSessions(t)
	d := &hostsDouble{local: true}
	first, _, _ := s.propose(alice, "", d, approval.Thread, onTarget("host", "touch b"))
	s.plan = planText(onTarget("host", "touch a"), onTarget("host", "touch b"))
	a := s.pendingOf(func() {
		task, err := s.RunTask(t.Context(), alice, "demo", run("agent"), workspace.TaskSpec{
			Protocol: "agent", Prompt: "do it", Serve: true, After: first.ID,
		})
		if err != nil {
			t.Fatal(err)
		}
		leave, _, err := s.ServeHosts(t.Context(), alice, "demo", task.ID, d)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(leave)
	})
	if err := s.answerAt(alice, a, approval.Steps, ""); err != nil {
		t.Fatal(err)
	}
	a = s.pendingOf(func() {})
	if a.Keep != nil || !strings.Contains(strings.Join(a.Argv, ""), "touch b") {
		t.Errorf("asked %+v", a)
	}
	if err := s.answerAt(alice, a, approval.Deny, ""); err != nil {
		t.Fatal(err)
	}
	if r := <-s.told; len(r.Steps) != 1 {
		t.Errorf("%+v", r)
	}
}

func patchDouble(runtime.HostPatch) (runtime.HostPatched, error) {
	return runtime.HostPatched{Digest: "sha256:aa", Diff: "update f +1 -1\n-a\n+b\n", Files: []string{"/home/alice/f"}}, nil
}
