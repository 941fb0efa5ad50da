package compose_test

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/policy/rules"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

// hostsDouble stands for the process of a user that serves hosts: it notes what it is told to run.
type hostsDouble struct {
	local   bool
	profile string
	remotes []string
	place   string // "here" without one
	as      string // as whom and where, "" if that is not known
	// run is what becomes of a command, success if it is nil.
	run func(context.Context, runtime.HostCommand) (runtime.HostResult, error)

	// patch is what becomes of a change to files; without it there are none.
	patch func(runtime.HostPatch) (runtime.HostPatched, error)
	// remotely says whether it takes changes for remote hosts, if it takes any; nil is yes.
	remotely func() bool

	mu  sync.Mutex
	ran []string
}

func (d *hostsDouble) Local() bool { return d.local }

func (d *hostsDouble) Profile() string { return cmp.Or(d.profile, operation.Unheld) }

func (d *hostsDouble) Remotes() []string { return d.remotes }

func (d *hostsDouble) As(remote string) string {
	if d.as == "" || remote == "" {
		return d.as
	}
	return d.as + " " + remote
}

func (d *hostsDouble) Place() string {
	if d.place == unknown {
		return ""
	}
	return cmp.Or(d.place, "here")
}

// unknown is a place of which nothing is said.
const unknown = "unknown"

func (d *hostsDouble) RunOn(ctx context.Context, c runtime.HostCommand) (runtime.HostResult, error) {
	d.mu.Lock()
	target := map[bool]string{false: "host", true: "remote"}[c.Remote]
	d.ran = append(d.ran, strings.TrimSpace(target+" "+c.Name)+": "+c.Argv[2])
	d.mu.Unlock()
	if d.run != nil {
		return d.run(ctx, c)
	}
	return runtime.HostResult{Status: &execapi.Status{}, Stdout: []byte("well\n")}, nil
}

func (d *hostsDouble) Patches() bool { return d.patch != nil }

func (d *hostsDouble) RemotePatches() bool {
	return d.patch != nil && (d.remotely == nil || d.remotely())
}

func (d *hostsDouble) Patch(_ context.Context, p runtime.HostPatch) (runtime.HostPatched, error) {
	d.mu.Lock()
	d.ran = append(d.ran, strings.TrimSpace("patch "+p.Digest))
	d.mu.Unlock()
	return d.patch(p)
}

// all are the commands that were run, in their order.
func (d *hostsDouble) all() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.ran)
}

// answerTo is what an agent is told of a proposal.
type answerTo struct {
	Outcome string `json:"outcome"`
	Why     string `json:"why"`
	Steps   []struct {
		Step   int      `json:"step"`
		Target string   `json:"target"`
		Code   *int     `json:"exit_code"`
		Error  string   `json:"error"`
		Stdout string   `json:"stdout"`
		Merged []string `json:"merged"`
		Stderr string   `json:"stderr"`
	} `json:"steps"`
	NotBegun []struct {
		Step int    `json:"step"`
		Why  string `json:"why"`
	} `json:"not_begun"`
	LeftOut  []string  `json:"left_out"`
	Rollback *answerTo `json:"rollback"`
}

// judged has commands of models judged as those of people.
const judged = "profiles: {host: {llm_first_run: judge}, remote: {llm_first_run: judge}}\nrules: []\n"

// proposing is a house whose agent proposes plans, one after the other, and passes on what it is told of each.
func proposing(t *testing.T, text string, plans ...string) (h *house, told <-chan answerTo) {
	t.Helper()
	answers := make(chan answerTo, len(plans))
	h = taskHouse(t, func(a *agentDouble) int {
		return onEach(a, plans, func(r answerTo) { answers <- r })
	})
	h.policy = func() (*rules.Engine, error) { return rulesOf(text)() }
	h.crash()
	h.start()
	return h, answers
}

// turn runs a turn of alice's with who serves hosts, nil for nobody.
func (h *house) turn(by *hostsDouble) workspace.Task {
	h.t.Helper()
	spec := workspace.TaskSpec{Protocol: "agent", Prompt: "do it", Serve: by != nil}
	task, err := h.RunTask(h.t.Context(), alice, "demo", run("agent"), spec)
	if err != nil {
		h.t.Fatal(err)
	}
	if by != nil {
		leave, _, err := h.ServeHosts(h.t.Context(), alice, "demo", task.ID, by)
		if err != nil {
			h.t.Fatal(err)
		}
		h.t.Cleanup(leave)
	}
	return task
}

// next is what the agent is told of its next plan.
func next(t *testing.T, told <-chan answerTo) answerTo {
	t.Helper()
	select {
	case r := <-told:
		return r
	case <-time.After(time.Minute):
		t.Fatal("the agent was told nothing")
	}
	return answerTo{}
}

// onTarget is a step of a plan.
func onTarget(target, command string) map[string]any {
	return map[string]any{"command": command, "purpose": "p", "read_only": false, "target": target}
}

func planText(steps ...map[string]any) string {
	b, _ := json.Marshal(map[string]any{
		"type": "command_plan", "goal": "g", "commands": steps, "risk_summary": "r", "preflight_checks": []any{},
		"verification_commands": []any{}, "rollback_commands": []any{}, "requires_root": false, "expected_side_effects": []any{},
	})
	return string(b)
}
