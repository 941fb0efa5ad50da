package compose_test

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/spec/approval"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/state/audit"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

// undoable is a plan with rollback steps.
func undoable(steps, rollback []map[string]any) string {
	var p map[string]any
	_ = json.Unmarshal([]byte(planText(steps...)), &p)
	p["rollback_commands"] = rollback
	b, _ := json.Marshal(p)
	return string(b)
}

// After a step of an approved plan has failed, its rollback steps are a plan that a person is asked about, by a question of
// its own. They are those for places where something ran, run only if the person lets them, and never come back.
func TestRollback(t *testing.T) {
	one := []map[string]any{onTarget("remote web-1", "touch /tmp/a"), onTarget("remote web-1", "fail"), onTarget("host", "touch /tmp/b")}
	back := []map[string]any{onTarget("remote *", "mv /tmp/a /tmp/c"), onTarget("host", "mv /tmp/b /tmp/c"), onTarget("remote web-1", "id")}
	const first = "remote web-1: touch /tmp/a"
	for name, x := range map[string]struct {
		plan    string
		answers []approval.Kind
		asked   string // the second question, "" for none
		ran     []string
		outcome string // of the rollback
		why     string
	}{
		"approved": {
			undoable(one, back),
			[]approval.Kind{approval.Once, approval.Once},
			"1. rollback, remote web-1: mv /tmp/a /tmp/c  [CONFIRM",
			[]string{first, "remote web-1: fail", "remote web-1: mv /tmp/a /tmp/c", "remote web-1: id"},
			"done",
			"left out, because nothing ran there that changes anything: remote web-2: mv /tmp/a /tmp/c, host: mv /tmp/b /tmp/c",
		},
		"denied": {
			undoable(one, back),
			[]approval.Kind{approval.Once, approval.Deny},
			"1. rollback, remote web-1: mv",
			[]string{first, "remote web-1: fail"},
			"denied", "denied it",
		},
		"the plan was denied": {undoable(one, back), []approval.Kind{approval.Deny}, "", nil, "", ""},
		"another target": {
			undoable(one, back[1:2]),
			[]approval.Kind{approval.Once},
			"",
			[]string{first, "remote web-1: fail"},
			"refused",
			"none of its rollback steps",
		},
		"what the policy blocks": {
			undoable(one, []map[string]any{onTarget("remote web-1", "rm -rf /")}),
			[]approval.Kind{approval.Once},
			"",
			[]string{first, "remote web-1: fail"},
			"refused", "the policy blocks it",
		},
		"only looked": {
			undoable([]map[string]any{looksAt("remote web-1", "echo fail"), onTarget("host", "touch b")}, back),
			[]approval.Kind{approval.Once},
			"",
			[]string{"remote web-1: echo fail"},
			"refused", "none of its rollback steps",
		},
		"one that fails": {
			undoable(one, []map[string]any{onTarget("remote web-1", "echo fail"), onTarget("remote web-1", "id")}),
			[]approval.Kind{approval.Once, approval.Once},
			"1. rollback, remote web-1: echo fail  [SAFE",
			[]string{first, "remote web-1: fail", "remote web-1: echo fail"},
			"failed", "",
		},
		"nothing failed": {
			undoable(one[:1], back), []approval.Kind{approval.Once}, "", []string{first}, "", "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, told := proposing(t, judged, x.plan)
			d := &hostsDouble{local: true, remotes: []string{"web-1", "web-2"}}
			d.run = func(_ context.Context, c runtime.HostCommand) (runtime.HostResult, error) {
				code := 0
				if strings.Contains(c.Argv[2], "fail") {
					code = 1
				}
				return runtime.HostResult{Status: &execapi.Status{Code: code}}, nil
			}
			n := 0
			asked := h.person(func(*approval.View) approval.Kind {
				if n++; n > len(x.answers) {
					return approval.Deny
				}
				return x.answers[n-1]
			})
			at := len(h.records())
			task := h.turn(d)
			r := next(t, told)
			all, _ := h.follows(task, 0)
			questions := asked()
			if len(questions) != len(x.answers) || x.asked != "" && !strings.HasPrefix(questions[1], x.asked) {
				t.Errorf("asked %q", questions)
			}
			if got := d.all(); !slices.Equal(got, x.ran) {
				t.Errorf("ran %q", got)
			}
			switch {
			case (r.Rollback == nil) != (x.outcome == ""):
				t.Errorf("told %+v", r)
			case r.Rollback != nil && (r.Rollback.Outcome != x.outcome || !strings.Contains(r.Rollback.Why, x.why) || r.Outcome != "failed"):
				t.Errorf("told %+v of the rollback, %s", *r.Rollback, r.Outcome)
			}
			if got := strings.Contains(strings.Join(all, "\n"), `"only_first_run":true`); got {
				t.Errorf("it can be approved by a flag: %q", all)
			}
			recorded := 0
			for _, r := range h.records()[at:] {
				if (r.Type == audit.Intent || r.Type == audit.Denial) && strings.Contains(string(r.Action), `"undoes":1`) {
					recorded++
				}
			}
			if want := strings.Contains(fmt.Sprint("denied done failed ", "refused"), x.outcome) && x.outcome != "" &&
				!strings.Contains(x.why, "none of its"); (recorded == 1) != want {
				t.Errorf("%d plans that undo are recorded", recorded)
			}
		})
	}
}

// Without anybody to ask, a rollback is told and not run. Plans that nobody was asked about have none offered.
func TestRollbackUnattended(t *testing.T) {
	p := undoable([]map[string]any{onTarget("host", "id"), onTarget("host", "false")}, []map[string]any{onTarget("host", "id")})
	h, told := proposing(t, judged, p)
	d := &hostsDouble{local: true}
	d.run = func(_ context.Context, c runtime.HostCommand) (runtime.HostResult, error) {
		return runtime.HostResult{Status: &execapi.Status{Code: len(c.Argv[2]) - 2}}, nil
	}
	e := run("agent")
	e.Asked.WaitMS = -1
	task, err := h.RunTask(t.Context(), alice, "demo", e, workspace.TaskSpec{Protocol: "agent", Prompt: "do it", Serve: true})
	if err != nil {
		t.Fatal(err)
	}
	leave, _, err := h.ServeHosts(t.Context(), alice, "demo", task.ID, d)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(leave)
	if r := next(t, told); r.Outcome != "failed" || r.Rollback != nil || !slices.Equal(d.all(), []string{"host: id", "host: false"}) {
		t.Errorf("%+v, ran %q", r, d.all())
	}
}
