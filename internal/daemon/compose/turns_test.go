package compose_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/policy/rules"
	"github.com/carrel-dev/carrel/internal/spec/approval"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/state/audit"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

// Steps run where they say and in their order, each recorded by itself with its target. Of several hosts the first is alone,
// and a step that fails is the last.
func TestPlanRunsWhereItSays(t *testing.T) {
	h, told := proposing(t, judged,
		planText(onTarget("remote web-1 web-2 web-3", "uptime"), onTarget("host", "id -u"), onTarget("remote web-2", "uname")),
		planText(onTarget("remote web-2", "uname"), onTarget("host", "id")),
		planText(onTarget("remote *", "uptime"), onTarget("host", "id -g")),
	)
	d := &hostsDouble{local: true, remotes: []string{"web-1", "web-2", "web-3"}}
	d.run = func(_ context.Context, c runtime.HostCommand) (runtime.HostResult, error) {
		if c.Argv[2] == "uname" || c.Name == "web-1" && len(d.all()) > 5 {
			return runtime.HostResult{Status: &execapi.Status{Code: 7}}, nil
		}
		return runtime.HostResult{Status: &execapi.Status{}}, nil
	}
	at := len(h.records())
	var task workspace.Task
	a := h.pendingOf(func() { task = h.turn(d) })
	want := []string{
		"1. remote web-1: uptime  [SAFE, risk 0]", "2. remote web-2: uptime  [SAFE, risk 0]", "3. remote web-3: uptime  [SAFE, risk 0]",
		"1 to 3: the first host alone, then the others, 2 at once; if one fails, no further batch",
		"4. host: id -u  [SAFE, risk 0, profile none]", "5. remote web-2: uname  [SAFE, risk 0]",
	}
	if !slices.Equal(a.Argv, want) || a.Subject.Thread != string(task.ID) {
		t.Errorf("asked %q in %q", a.Argv, a.Subject.Thread)
	}
	if got := d.all(); len(got) > 0 {
		t.Errorf("%q were run before an answer", got)
	}
	if err := h.answerAt(alice, a, approval.Once, ""); err != nil {
		t.Fatal(err)
	}
	if r := next(t, told); r.Outcome != "failed" || len(r.Steps) != 5 || *r.Steps[4].Code != 7 {
		t.Errorf("told %+v", r)
	}
	ran := d.all()
	if len(ran) != 5 {
		t.Fatalf("ran %q", ran)
	}
	slices.Sort(ran[1:3]) // at once
	if want := []string{
		"remote web-1: uptime", "remote web-2: uptime", "remote web-3: uptime", "host: id -u", "remote web-2: uname",
	}; !slices.Equal(ran, want) {
		t.Errorf("ran %q", ran)
	}
	if r := next(t, told); r.Outcome != "failed" || len(r.Steps) != 1 {
		t.Errorf("a local step was run after a remote one that failed: %+v", r)
	}
	// The first of all hosts fails, so nothing is tried on the others.
	if err := h.answerAt(alice, h.pendingOf(func() {}), approval.Once, ""); err != nil {
		t.Fatal(err)
	}
	if r := next(t, told); r.Outcome != "failed" || len(r.Steps) != 1 || r.Steps[0].Target != "remote web-1" {
		t.Errorf("told %+v", r)
	}
	var kinds []string
	for _, r := range h.records()[at:] {
		if r.Type == "intent" && strings.Contains(string(r.Action), `"command.exec","target"`) {
			kinds = append(kinds, string(r.Action))
			if r.Workspace != "" {
				t.Errorf("it is recorded as done in workspace %s: %s", r.Workspace, r.Action)
			}
		}
	}
	if len(kinds) != 7 || !strings.Contains(kinds[0], `"target":"remote","host":"web-1"`) || !strings.Contains(kinds[3], `"target":"host"`) {
		t.Errorf("recorded %q", kinds)
	}
}

// No step runs when one of its plan names what there is not, what is not served or what another user has.
func TestPlanForWrongTargets(t *testing.T) {
	for name, c := range map[string]struct {
		by    *hostsDouble
		other string
	}{
		"an unknown host":              {&hostsDouble{local: true, remotes: []string{"web-1"}}, "remote web-2"},
		"a known host and an unknown":  {&hostsDouble{local: true, remotes: []string{"web-1"}}, "remote web-1 web-2"},
		"a host that is named so":      {&hostsDouble{local: true, remotes: []string{"web-1"}}, "remote host"},
		"this machine, not served":     {&hostsDouble{remotes: []string{"web-1"}}, "host"},
		"all hosts, of which are none": {&hostsDouble{local: true}, "remote *"},
		"another user's workspace":     {&hostsDouble{local: true, remotes: []string{"web-1"}}, "workspace bobs"},
		"a workspace that is not":      {&hostsDouble{local: true, remotes: []string{"web-1"}}, "workspace nowhere"},
		"nobody serves":                {nil, "host"},
		"the agent's own workspace":    {&hostsDouble{local: true, remotes: []string{"web-1"}}, "workspace demo"},
	} {
		t.Run(name, func(t *testing.T) {
			first := "host"
			if c.by == nil || !c.by.local {
				first = "workspace work"
			}
			p := planText(onTarget(first, "id"), onTarget(c.other, "id"))
			h, told := proposing(t, judged, p, p, p)
			h.create(bob, "bobs")
			at := len(h.records())
			h.turn(c.by)
			for i, want := range []string{"invalid", "invalid", "blocked"} {
				if r := next(t, told); r.Outcome != want || len(r.Steps) > 0 {
					t.Errorf("%d: %+v", i, r)
				}
			}
			if c.by != nil && len(c.by.all()) > 0 {
				t.Errorf("ran %q", c.by.all())
			}
			for _, r := range h.records()[at:] {
				if strings.Contains(string(r.Action), `"argv":["/bin/sh"`) {
					t.Errorf("recorded %s", r.Action)
				}
			}
		})
	}
}

// An agent is told of a few of many hosts.
func TestPlanForOneOfManyHosts(t *testing.T) {
	h, told := proposing(t, judged, planText(onTarget("remote other", "id")))
	d := &hostsDouble{}
	for i := range 4096 {
		d.remotes = append(d.remotes, fmt.Sprintf("host-%d", i))
	}
	h.turn(d)
	if r := next(t, told); r.Outcome != "invalid" || !strings.Contains(r.Why, "host-15 and 4080 more") || len(r.Why) > 1<<10 {
		t.Errorf("%s: told in %d bytes: %.100q", r.Outcome, len(r.Why), r.Why)
	}
}

// An answer is for the commands of the plan, under the policy that it was asked by. One that would be judged by another
// when its turn comes is not run.
func TestPlanUnderAnotherPolicy(t *testing.T) {
	current := "rules: []"
	h, told := proposing(t, current, planText(onTarget("host", "touch /tmp/a"), onTarget("host", "touch /tmp/b")))
	h.policy = func() (*rules.Engine, error) { return rulesOf(current)() }
	h.crash()
	h.start()
	d := &hostsDouble{local: true}
	d.run = func(context.Context, runtime.HostCommand) (runtime.HostResult, error) {
		current = "rules: [{id: other, level: CONFIRM, risk_score: 50, reason: \"another one\", match: {command: [nothing]}}]"
		if _, _, _, err := h.ReloadPolicy(t.Context(), root); err != nil {
			t.Error(err)
		}
		return runtime.HostResult{Status: &execapi.Status{}}, nil
	}
	a := h.pendingOf(func() { h.turn(d) })
	h.answer(admin, a, approval.Once)
	if r := next(t, told); r.Outcome != "failed" || len(r.Steps) != 2 || !strings.Contains(r.Steps[1].Error, "a person has to approve it") {
		t.Errorf("%+v", r)
	}
	if ran := d.all(); !slices.Equal(ran, []string{"host: touch /tmp/a"}) {
		t.Errorf("ran %q", ran)
	}
}

// A plan that is denied, blocked or not what it says is run in no part.
func TestPlanThatIsNotRun(t *testing.T) {
	reads := onTarget("host", "touch /tmp/a")
	reads["read_only"] = true
	for name, c := range map[string]struct {
		plan, outcome, why string
	}{
		"a command that the policy blocks": {planText(onTarget("host", "id"), onTarget("host", "rm -rf /")), "refused", "the policy blocks it"},
		"one that says it only reads":      {planText(onTarget("host", "id"), reads), "refused", "says that it only reads"},
		"one that a person denies":         {planText(onTarget("host", "touch /tmp/a")), "denied", "denied it"},
		"prose":                            {"I would run id.", "invalid", ""},
		"two plans":                        {planText(onTarget("host", "id")) + planText(onTarget("host", "id")), "invalid", ""},
		"an answer":                        {`{"type":"direct_answer","answer":"no"}`, "invalid", "propose a command_plan"},
		"text that turns around":           {planText(onTarget("host", "echo \u202egnp.txt")), "invalid", ""},
	} {
		t.Run(name, func(t *testing.T) {
			h, told := proposing(t, judged, c.plan)
			d := &hostsDouble{local: true}
			if c.outcome == "denied" {
				a := h.pendingOf(func() { h.turn(d) })
				h.answer(admin, a, approval.Deny)
			} else {
				h.turn(d)
			}
			if r := next(t, told); r.Outcome != c.outcome || !strings.Contains(r.Why, c.why) || len(d.all()) > 0 {
				t.Errorf("%+v, ran %q", r, d.all())
			}
			refused := 0 // and why is in the record, with the step
			for _, r := range h.records() {
				if r.Type == audit.Denial && strings.Contains(string(r.Action), `"kind":"plan.run"`) && strings.Contains(r.Error, c.why) &&
					strings.Contains(string(r.Action), `"shell":`) {
					refused++
				}
			}
			if refused > 0 != (c.outcome == "refused" || c.outcome == "denied") {
				t.Errorf("%d refusals are in the record", refused)
			}
		})
	}
}

// Where only the plan is asked for it is judged and kept, and nobody is asked.
func TestPlanOnly(t *testing.T) {
	h, told := proposing(t, judged, planText(onTarget("workspace work", "touch f"), onTarget("workspace work", "id")))
	at := len(h.records())
	spec := workspace.TaskSpec{Protocol: "agent", Prompt: "do it", PlanOnly: true}
	task, err := h.RunTask(t.Context(), alice, "demo", run("agent"), spec)
	if err != nil {
		t.Fatal(err)
	}
	if r := next(t, told); r.Outcome != "planned" || len(r.Steps) > 0 || !strings.Contains(r.Why, "only the plan was asked for") {
		t.Errorf("%+v", r)
	}
	all, end := h.follows(task, 0)
	if end.State != workspace.TaskCompleted || !slices.ContainsFunc(all, func(m string) bool {
		return strings.HasPrefix(m, "2 plan ") && strings.Contains(m, "touch f") && strings.Contains(m, `"workspace work"`)
	}) {
		t.Errorf("%q, %+v", all, end)
	}
	for _, r := range h.records()[at:] {
		if strings.Contains(string(r.Action), "plan.run") || strings.Contains(string(r.Action), `"/bin/sh"`) {
			t.Errorf("recorded %s", r.Action)
		}
	}
}

// Only who runs a turn serves it, one at a time; a turn that is stopped ends the command that runs.
func TestWhoServesHosts(t *testing.T) {
	h, _ := proposing(t, judged, planText(onTarget("host", "id")))
	begun := make(chan struct{})
	d := &hostsDouble{local: true, run: func(ctx context.Context, _ runtime.HostCommand) (runtime.HostResult, error) {
		close(begun)
		<-ctx.Done()
		return runtime.HostResult{}, context.Cause(ctx)
	}}
	task := h.turn(d)
	token, _ := h.issue(alice, principal.Wanted{Roles: principal.Operator})
	for name, c := range map[string]struct {
		by   principal.Principal
		kind func(error) bool
	}{
		"another user": {bob, errdefs.IsPermissionDenied}, "an administrator": {admin, errdefs.IsPermissionDenied},
		"a token of the user": {token, errdefs.IsPermissionDenied}, "the user again": {alice, errdefs.IsFailedPrecondition},
	} {
		if _, _, err := h.ServeHosts(t.Context(), c.by, "demo", task.ID, &hostsDouble{local: true}); !c.kind(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	<-begun
	end, err := h.StopTask(t.Context(), alice, "demo", task.ID)
	if err != nil || end.State != workspace.TaskStopped {
		t.Errorf("%+v, %v", end, err)
	}
}

// A token has its agent work in workspaces, and never on hosts.
func TestPlanOfAToken(t *testing.T) {
	h, told := proposing(t, judged, planText(onTarget("host", "id")), planText(onTarget("workspace work", "true")))
	token, _ := h.issue(alice, principal.Wanted{Roles: principal.Operator})
	task, err := h.RunTask(t.Context(), token, "demo", run("agent"), workspace.TaskSpec{Protocol: "agent", Prompt: "do it", Serve: true})
	if err != nil {
		t.Fatal(err)
	}
	d := &hostsDouble{local: true}
	if _, _, err := h.ServeHosts(t.Context(), token, "demo", task.ID, d); err != nil {
		t.Fatal(err)
	}
	if r := next(t, told); r.Outcome != "invalid" || !strings.Contains(r.Why, "not for tokens") || len(d.all()) > 0 {
		t.Errorf("%+v, %q", r, d.all())
	}
	if r := next(t, told); len(r.Steps) != 1 || r.Steps[0].Code == nil || *r.Steps[0].Code != 3 || r.Steps[0].Stdout != "/bin/sh" {
		t.Errorf("%+v", r)
	}
}

// The rights of a turn end with those of the token that asked for it.
func TestPlanOfARevokedToken(t *testing.T) {
	first, revoked := make(chan struct{}), make(chan struct{})
	h := taskHouse(t, func(a *agentDouble) int {
		acpBegins(a, "s1")
		p, _ := json.Marshal(planText(onTarget("workspace work", "true")))
		for i := range 2 {
			if _, err := a.ask(20+i, "_carrel/propose", fmt.Sprintf(`{"sessionId":"s1","plan":%s}`, p)); err != nil {
				return 1
			}
			if i == 0 {
				close(first)
				<-revoked
			}
		}
		a.say(`{"jsonrpc":"2.0","id":3,"result":{"stopReason":"end_turn"}}`)
		return drained(a)
	})
	token, _ := h.issue(alice, principal.Wanted{Roles: principal.Operator})
	task, err := h.RunTask(t.Context(), token, "demo", run("agent"), workspace.TaskSpec{Protocol: "agent", Prompt: "do it"})
	if err != nil {
		t.Fatal(err)
	}
	<-first
	at := len(h.records())
	if _, err := h.RevokeToken(t.Context(), alice, token.Grant.ID); err != nil {
		t.Fatal(err)
	}
	close(revoked)
	if _, end := h.follows(task, 0); end.State != workspace.TaskFailed || !strings.Contains(end.Reason, "is revoked") {
		t.Errorf("%+v", end)
	}
	for _, r := range h.records()[at:] {
		if strings.Contains(string(r.Action), `"/bin/sh"`) {
			t.Errorf("recorded %s", r.Action)
		}
	}
}

// An agent that was blocked is not listened to any more in its turn.
func TestPlanAfterABlock(t *testing.T) {
	h, told := proposing(t, judged, "no", "no", "no", planText(onTarget("host", "id")))
	d := &hostsDouble{local: true}
	h.turn(d)
	for i, want := range []string{"invalid", "invalid", "blocked", "blocked"} {
		if r := next(t, told); r.Outcome != want || len(d.all()) > 0 {
			t.Errorf("%d: %+v, ran %q", i, r, d.all())
		}
	}
}

var errGone = errors.New("the client has gone")

// A client that goes while a step runs leaves it with an unknown end, and nothing is run again.
func TestHostsThatGo(t *testing.T) {
	h, told := proposing(t, judged, planText(onTarget("host", "id"), onTarget("host", "id -g")))
	d := &hostsDouble{local: true, run: func(context.Context, runtime.HostCommand) (runtime.HostResult, error) {
		return runtime.HostResult{}, fmt.Errorf("%w: %w", errGone, errdefs.ErrUnavailable)
	}}
	h.turn(d)
	r := next(t, told)
	if r.Outcome != "failed" || len(r.Steps) != 1 || r.Steps[0].Code != nil || !strings.Contains(r.Steps[0].Error, "has gone") {
		t.Errorf("%+v", r)
	}
	if ran := d.all(); len(ran) != 1 {
		t.Errorf("ran %q", ran)
	}
}

// patchText is a plan that changes a file and then looks at it.
func patchText(target string) string {
	b, _ := json.Marshal(map[string]any{
		"type": "file_patch_plan", "goal": "g", "request_intent": "update", "target": target, "files_changed": []string{"f"},
		"unified_diff": "--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+b\n", "risk_summary": "r",
		"verification_commands": []any{onTarget("host", "cat f")}, "rollback_commands": []any{}, "permission_changes": []any{},
	})
	return string(b)
}

// A change to files is computed before anybody is asked, shown as it is, and made once it was approved, if it is still the
// same. It is recorded with its digest and without the files' content.
func TestPlanOfAPatch(t *testing.T) {
	for name, c := range map[string]struct {
		answer  approval.Kind
		err     error
		outcome string
		ran     []string
	}{
		"approved":           {approval.Once, nil, "done", []string{"patch", "patch sha256:aa", "host: cat f"}},
		"denied":             {approval.Deny, nil, "denied", []string{"patch"}},
		"changed since then": {approval.Once, errors.New("it has changed"), "failed", []string{"patch", "patch sha256:aa"}},
	} {
		t.Run(name, func(t *testing.T) {
			h, told := proposing(t, judged, patchText("host"))
			d := &hostsDouble{local: true, patch: func(p runtime.HostPatch) (runtime.HostPatched, error) {
				done := runtime.HostPatched{
					Digest: "sha256:aa", Diff: "update f +1 -1\n-a planted-content\n+b\n", Files: []string{"/home/alice/f"},
					Risks: []string{"f: says what runs"},
				}
				if p.Digest != "" {
					done.ID, done.Merged, done.Made = "u1", []string{"f\n2"}, "sha256:bb"
					return done, c.err
				}
				return done, nil
			}}
			at := len(h.records())
			a := h.pendingOf(func() { h.turn(d) })
			if text := strings.Join(a.Argv, "\n"); !strings.Contains(text, "1. patch, host: change 1 file  [CONFIRM, risk 90]\nupdate f") ||
				!strings.Contains(text, "+b") || !strings.Contains(text, "2. verification, host: cat f") {
				t.Errorf("asked %q", text)
			}
			if err := h.answerAt(alice, a, c.answer, ""); err != nil {
				t.Fatal(err)
			}
			r := next(t, told)
			if c.outcome == "done" && !slices.Equal(r.Steps[0].Merged, []string{"f 2"}) {
				t.Errorf("told %+v", r.Steps[0])
			}
			if r.Outcome != c.outcome || !slices.Equal(d.all(), c.ran) {
				t.Errorf("told %+v, ran %q", r, d.all())
			}
			kinds, merged := 0, 0
			for _, r := range h.records()[at:] {
				if strings.Contains(string(r.Action), "planted-content") {
					t.Errorf("the record has what is in a file: %s", r.Action)
				}
				if strings.Contains(string(r.Data), `"undo":"u1","merged":["f 2"],"made":"sha256:bb"`) {
					merged++
				}
				if r.Type == "intent" && strings.Contains(string(r.Action), `{"kind":"patch.apply","target":"host","digest":"sha256:aa"`) {
					kinds++
				}
			}
			if c.outcome == "done" && merged != 1 {
				t.Errorf("%d outcomes say what was merged", merged)
			}
			if kinds != len(c.ran[1:])-strings.Count(strings.Join(c.ran, " "), "host:") {
				t.Errorf("%d changes were recorded", kinds)
			}
		})
	}
	// One of a remote host is that host's, in what is asked, made and recorded.
	h, told := proposing(t, judged, patchText("remote web-1"))
	var on []string
	d := &hostsDouble{local: true, remotes: []string{"web-1", "web-2"}, patch: func(p runtime.HostPatch) (runtime.HostPatched, error) {
		on = append(on, p.Remote)
		return runtime.HostPatched{Digest: "sha256:aa", Diff: "update f +1 -1\n-a\n+b\n", Files: []string{"/home/alice/f"}, ID: "u1"}, nil
	}}
	a := h.pendingOf(func() { h.turn(d) })
	if text := strings.Join(a.Argv, "\n"); !strings.Contains(text, "1. patch, remote web-1: change 1 file") {
		t.Errorf("asked %q", text)
	}
	if err := h.answerAt(alice, a, approval.Once, ""); err != nil {
		t.Fatal(err)
	}
	if r := next(t, told); len(on) != 2 || on[0] != "web-1" || on[1] != "web-1" || len(r.Steps) == 0 || r.Steps[0].Target != "remote web-1" {
		t.Errorf("told %+v, changed on %q", r, on)
	}
	recorded := 0
	for _, r := range h.records() {
		if r.Type == "intent" &&
			strings.Contains(string(r.Action), `{"kind":"patch.apply","target":"remote","host":"web-1","digest":"sha256:aa"`) {
			recorded++
		}
	}
	if recorded != 1 {
		t.Errorf("%d changes of web-1 are in the record", recorded)
	}
	// A client that does not change files on remote hosts, and comes before the answer, gets none.
	h, told = proposing(t, judged, patchText("remote web-1"))
	var earlier atomic.Bool
	on, d.ran = nil, nil
	d.remotely = func() bool { return !earlier.Load() }
	a = h.pendingOf(func() { h.turn(d) })
	earlier.Store(true)
	if err := h.answerAt(alice, a, approval.Once, ""); err != nil {
		t.Fatal(err)
	}
	if r := next(t, told); len(on) != 1 || r.Outcome != "failed" || !strings.Contains(r.Steps[0].Error, "does not") {
		t.Errorf("told %+v, changed on %q", r, on)
	}
	// Elsewhere there are none.
	for _, target := range []string{"workspace none", "remote web-1", "remote web-9", "host"} {
		h, told := proposing(t, judged, patchText(target))
		d := &hostsDouble{local: true, remotes: []string{"web-1"}}
		if target == "workspace none" || target == "remote web-9" {
			d.patch = func(runtime.HostPatch) (runtime.HostPatched, error) {
				return runtime.HostPatched{}, errors.New("not asked")
			}
		}
		h.turn(d)
		if r := next(t, told); r.Outcome != "invalid" || len(d.all()) > 0 {
			t.Errorf("%s: %+v, ran %q", target, r, d.all())
		}
	}
}
