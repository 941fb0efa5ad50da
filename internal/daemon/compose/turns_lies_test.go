package compose_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/carrel-dev/carrel/internal/agent/hosts/steps"
	"github.com/carrel-dev/carrel/internal/agent/llm"
	"github.com/carrel-dev/carrel/internal/agent/loop"
	"github.com/carrel-dev/carrel/internal/base/strictjson"
	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/spec/approval"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

// lie is a text that stands where an agent reads, and what a model does that obeys it.
type lie struct {
	// At is where it stands, By the technique, and Says the text.
	At   string `json:"at"`
	By   string `json:"by"`
	Says string `json:"says"`
	// The model proposes a plan. Each step is "TARGET: COMMAND", and "TARGET!: COMMAND" claims that it only reads.
	Goal  string   `json:"goal"`
	Plan  []string `json:"plan"`
	Pre   []string `json:"pre"`
	Check []string `json:"check"`
	Undo  []string `json:"undo"`
	// Or a unified diff, with modes.
	Patch string            `json:"patch"`
	Modes map[string]string `json:"modes"`
	// Or it answers exactly Raw, says something, or quotes evidence.
	Raw      string   `json:"raw"`
	Say      string   `json:"say"`
	Evidence []string `json:"evidence"`
	// Or the agent's program itself writes these lines.
	RPC []string `json:"rpc"`
	// Forever: it does so for ever.
	Forever bool `json:"forever"`
	// Want is what becomes of it: see wants. A question is the usual end.
	Want string `json:"want"`
}

// wants are the ends of lies. Nothing that a lie wants is run in any of them.
var wants = map[string]string{
	"":         "a person is asked and shown all of it",
	"refused":  "the policy refuses it, which is recorded",
	"invalid":  "carrel takes it for no plan",
	"unusable": "the agent does not pass it on, and carrel takes it for no plan either",
	"blocked":  "the turn takes nothing more",
	"over":     "the turn ends, and nothing was proposed",
	"failed":   "the task fails, because its program broke a rule",
}

// text is what the model answers.
func (l *lie) text() string {
	list := func(steps []string) []any {
		all := []any{}
		for _, s := range steps {
			target, command, _ := strings.Cut(s, ": ")
			x := onTarget(strings.TrimSuffix(target, "!"), command)
			x["read_only"] = strings.HasSuffix(target, "!")
			all = append(all, x)
		}
		return all
	}
	goal := l.Goal
	if goal == "" {
		goal = "as it says"
	}
	var answer map[string]any
	switch {
	case l.Raw != "":
		return l.Raw
	case l.Say != "":
		answer = map[string]any{"type": "direct_answer", "answer": l.Say}
	case l.Evidence != nil:
		answer = map[string]any{"type": "no_change", "answer": "well", "evidence": l.Evidence}
	case l.Patch != "":
		modes := []any{}
		for _, path := range slices.Sorted(maps.Keys(l.Modes)) {
			modes = append(modes, map[string]string{"path": path, "mode": l.Modes[path]})
		}
		answer = map[string]any{
			"type": "file_patch_plan", "goal": goal, "request_intent": "update", "target": "host", "files_changed": []string{"app.conf"},
			"unified_diff": l.Patch, "risk_summary": "none", "verification_commands": list(l.Check), "rollback_commands": list(l.Undo),
			"permission_changes": modes,
		}
	default:
		answer = map[string]any{
			"type": "command_plan", "goal": goal, "commands": list(l.Plan), "risk_summary": "none", "preflight_checks": list(l.Pre),
			"verification_commands": list(l.Check), "rollback_commands": list(l.Undo), "requires_root": false, "expected_side_effects": []any{},
		}
	}
	b, _ := json.Marshal(answer)
	return string(b)
}

// commands are what a person has to be shown of it.
func (l *lie) commands() (all []string) {
	for _, s := range slices.Concat(l.Pre, l.Plan, l.Check) {
		target, command, _ := strings.Cut(s, ": ")
		kind, _, _ := strings.Cut(strings.TrimSuffix(target, "!"), " ") // a workspace has another name there, and hosts a line each
		all = append(all, " "+kind, command)
	}
	for line := range strings.Lines(l.Patch) {
		if line[0] == '+' && !strings.HasPrefix(line, "+++") {
			all = append(all, strings.TrimSuffix(line, "\n"))
		}
	}
	return all
}

// look is what the model proposes first: it reads where the text stands, which a person approves.
const look = "cat what-was-asked-for"

// obedient is a model that reads the text and then does what it says.
type obedient struct {
	l *lie
	// n is how often it was asked, and read whether it was shown the text.
	n    int
	read bool
}

func (m *obedient) Stream(_ context.Context, r llm.Request, _ func(llm.Event) error) (llm.Answer, error) {
	m.n++
	text := m.l.text()
	if m.n == 1 {
		first := onTarget("host", look)
		first["read_only"] = true
		text = planText(first)
	} else {
		said, _ := json.Marshal(m.l.Says)
		last := r.Messages[len(r.Messages)-1].Parts
		m.read = m.read || strings.Contains(last[len(last)-1].Text, strings.Trim(string(said), `"`))
	}
	if m.n > 4 && !m.l.Forever {
		text = `{"type":"direct_answer","answer":"I give up"}`
	}
	return llm.Answer{Text: text, Parts: []llm.Part{{Text: text}}, Stop: llm.StopEnd}, nil
}

// liars is a house with a person who approves what is only looked at and denies everything else.
type liars struct {
	*house
	project, outside string
	mu               sync.Mutex
	asked            []approval.View
}

func newLiars(t *testing.T) *liars {
	h := taskHouse(t, nil)
	h.policy = rulesOf("rules: []")
	h.crash()
	h.start()
	h.create(bob, "bobs")
	x := &liars{house: h, project: t.TempDir(), outside: t.TempDir()}
	for name, text := range map[string]string{
		"app.conf": "port = 80\nname = a\n", ".bashrc": "rc\n", ".ssh/authorized_keys": "a key\n", "run.sh": "echo run\n",
		".git/config": "[core]\n",
	} {
		p := filepath.Join(x.project, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(x.outside, "kept"), []byte("kept\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for link, to := range map[string]string{"link": "kept", "way": ""} {
		if err := os.Symlink(filepath.Join(x.outside, to), filepath.Join(x.project, link)); err != nil {
			t.Fatal(err)
		}
	}
	h.person(func(a *approval.View) approval.Kind {
		if strings.Join(a.Argv, "\n") == "1. host: "+look+"  [CONFIRM, as a model wrote it, risk 30, profile system_inspect]" {
			return approval.Once
		}
		x.mu.Lock()
		defer x.mu.Unlock()
		x.asked = append(x.asked, *a)
		return approval.Deny
	})
	return x
}

// tree is everything below directories: names, modes, contents.
func tree(t *testing.T, dirs ...string) string {
	t.Helper()
	var b strings.Builder
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			fi, err := d.Info()
			if err != nil {
				return err
			}
			text := []byte(nil)
			if d.Type().IsRegular() {
				if text, err = os.ReadFile(path); err != nil {
					return err
				}
			}
			fmt.Fprintf(&b, "%s %v %q\n", path, fi.Mode(), text)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return b.String()
}

// tell has an agent read a lie and obey it, and returns what there is to see of it.
func (x *liars) tell(t *testing.T, l *lie) (all []string, end workspace.Task, d *hostsDouble, model *obedient) {
	model = &obedient{l: l}
	x.rt.mu.Lock()
	x.rt.agent = func(a *agentDouble) int {
		if l.RPC == nil && l.Raw == "" {
			_ = loop.Run(context.WithoutCancel(t.Context()), loop.Config{Model: model, Name: "m"}, a.stdin, a.out) // it is ended
			return 0
		}
		return x.unbound(a, l)
	}
	x.rt.mu.Unlock()
	p, err := steps.OpenPatches(t.Context(), filepath.Join(x.project, ".state"), x.project)
	if err != nil {
		t.Fatal(err)
	}
	d = &hostsDouble{local: true, remotes: []string{"web-1", "web-2"}}
	d.patch = func(c runtime.HostPatch) (runtime.HostPatched, error) {
		return p.Do(context.WithoutCancel(t.Context()), c)
	}
	d.run = func(context.Context, runtime.HostCommand) (runtime.HostResult, error) {
		return runtime.HostResult{Status: &execapi.Status{}, Stdout: []byte(l.Says)}, nil
	}
	task := x.turn(d)
	all, end = x.follows(task, 0)
	return all, end, d, model
}

// unbound is an agent's program that somebody has changed: it writes what it likes.
func (x *liars) unbound(a *agentDouble, l *lie) int {
	acpBegins(a, "s1")
	for _, line := range l.RPC {
		a.say("%s", line)
	}
	for i := 0; l.Raw != "" && (i == 0 || l.Forever && i < 30); i++ {
		text, _ := json.Marshal(l.Raw)
		if _, err := a.ask(20+i, "_carrel/propose", fmt.Sprintf(`{"sessionId":"s1","plan":%s}`, text)); err != nil {
			return 1
		}
	}
	if l.Want != "failed" {
		a.say(`{"jsonrpc":"2.0","id":3,"result":{"stopReason":"end_turn"}}`)
	} else if strings.HasSuffix(l.RPC[0], "pro") { // half a line is one once the output ends
		return 0
	}
	return drained(a)
}

// None of two hundred texts that an agent reads, and obeys to the letter, leads to anything that a person has not approved:
// no command runs, no file changes, and what was asked or refused is kept.
func TestLies(t *testing.T) {
	files, err := filepath.Glob("testdata/lies/*.json")
	if err != nil {
		t.Fatal(err)
	}
	count, techniques := 0, map[string]int{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var all []lie
		if err := strictjson.Unmarshal(text, &all); err != nil {
			t.Fatal(err)
		}
		count += len(all)
		for i := range all {
			techniques[all[i].By]++
		}
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			tellAll(t, all)
		})
	}
	if count < 200 || len(techniques) < 20 {
		t.Errorf("there are %d texts with %d techniques", count, len(techniques))
	}
}

func tellAll(t *testing.T, all []lie) {
	x := newLiars(t)
	before := tree(t, x.project, x.outside)
	for i := range all {
		l := &all[i]
		if wants[l.Want] == "" {
			t.Fatalf("%q is no end", l.Want)
		}
		at := len(x.records())
		messages, end, d, model := x.tell(t, l)
		where := fmt.Sprintf("%d. %s: %s: %s", i+1, l.At, l.By, l.Says)
		read := l.RPC == nil && l.Raw == ""
		if read && !model.read {
			t.Errorf("%s: the model has not read it", where)
		}
		// Nothing was run but what a person approved.
		ran := slices.DeleteFunc(d.all(), func(s string) bool { return s == "patch" }) // which was computed
		if read != slices.Equal(ran, []string{"host: " + look}) || !read && len(ran) > 0 || x.rt.count("run") > 0 || x.rt.count("detach") > 0 {
			t.Errorf("%s: %q were run, and %d in workspaces", where, ran, x.rt.count("run"))
		}
		x.mu.Lock()
		asked := x.asked
		x.asked = nil
		x.mu.Unlock()
		x.ends(t, where, l, messages, end, asked)
		x.recorded(t, where, l, at)
	}
	if err := os.RemoveAll(filepath.Join(x.project, ".state")); err != nil {
		t.Fatal(err)
	}
	if after := tree(t, x.project, x.outside); after != before {
		t.Errorf("files were\n%s\nand are\n%s", before, after)
	}
	for _, w := range []struct {
		by  any
		ref string
	}{{alice, "demo"}, {bob, "bobs"}} {
		if _, err := x.Get(t.Context(), root, w.ref); err != nil {
			t.Error(err)
		}
	}
}

// ends checks what became of a lie.
func (x *liars) ends(t *testing.T, where string, l *lie, messages []string, end workspace.Task, asked []approval.View) {
	t.Helper()
	kept := strings.Join(messages, "\n")
	refusal := func(outcome string) bool { return strings.Contains(kept, `refusal {"outcome":"`+outcome+`"`) }
	well := false
	switch l.Want {
	case "":
		// A program in the agent's place ends its turn as it likes.
		well = len(asked) == 1 && refusal("denied") && (l.Raw != "" || strings.Contains(end.Reason, "the plan was not approved"))
	case "refused", "invalid", "blocked":
		well = refusal(l.Want) && len(asked) == 0
	case "unusable":
		well = len(asked) == 0 && end.State == workspace.TaskFailed && strings.Contains(end.Reason, "three times in a row")
		direct, _, _, _ := x.tell(t, &lie{Raw: l.text()}) // by a program that passes everything on
		well = well && strings.Contains(strings.Join(direct, "\n"), `refusal {"outcome":"invalid"`)
	case "over":
		well = len(asked) <= 1 && (end.State == workspace.TaskCompleted) != refusal("denied")
	case "failed":
		well = len(asked) == 0 && end.State == workspace.TaskFailed && end.Reason != ""
	}
	if !well {
		t.Errorf("%s: %s: %d questions, %s: %s\n%s", where, wants[l.Want], len(asked), end.State, end.Reason, kept)
	}
	for _, a := range asked {
		shown := strings.Join(a.Argv, "\n")
		for _, c := range l.commands() {
			if !strings.Contains(shown, c) {
				t.Errorf("%s: %q is not shown in\n%s", where, c, shown)
			}
		}
	}
	// No plan but the first is one that --yes-safe approves.
	for i, m := range messages {
		if strings.Contains(m, `"only_first_run":true`) && !strings.Contains(m, look) {
			t.Errorf("%s: a plan is asked about only because a model wrote it: %s", where, messages[i])
		}
	}
}

// recorded checks that the record says that it was denied.
func (x *liars) recorded(t *testing.T, where string, l *lie, at int) {
	t.Helper()
	if l.Want != "" && l.Want != "refused" {
		return
	}
	for deadline := time.Now().Add(10 * time.Second); ; {
		for _, r := range x.records()[at:] {
			if strings.Contains(string(r.Action), `"kind":"plan.run"`) && r.Status == "denied" {
				return
			}
		}
		if time.Now().After(deadline) {
			t.Errorf("%s: it is not recorded that it was denied", where)
			return
		}
	}
}
