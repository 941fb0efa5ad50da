package root_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/carrel-dev/carrel/test/ptytest"
)

// seated is a carrel where an agent that others made is in the place of carrel's own, in the workspace agent of alice.
type seated struct {
	*modeled

	t     *testing.T
	alice *syscall.Credential
}

func newSeated(t *testing.T) *seated {
	t.Helper()
	m, alice, _ := newAsked(t)
	s := &seated{m, t, alice}
	program := filepath.Join(t.TempDir(), "seatagent")
	c := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", program, "./testdata/seatagent")
	c.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	b, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	s.well("create", "--model", "house", "agent")
	s.put("seatagent", string(b), "755")
	return s
}

// well is a command of alice's that succeeds.
func (s *seated) well(args ...string) string {
	s.t.Helper()
	r := s.try(s.alice, "", args...)
	if r.code != 0 {
		s.t.Fatalf("%q: %+v", args, r)
	}
	return r.out
}

// put writes a file into the agent's workspace.
func (s *seated) put(name, text, mode string) {
	s.t.Helper()
	r := s.try(s.alice, text, "exec", "-i", "agent", "--", "/bin/sh", "-c", `cat > "$1" && chmod "$2" "$1"`, "sh", name, mode)
	if r.code != 0 {
		s.t.Fatalf("put %s: %s", name, r.err)
	}
}

// act has the agent do this in its next turn.
func (s *seated) act(acts ...map[string]any) {
	s.t.Helper()
	b, err := json.Marshal(acts)
	if err != nil {
		s.t.Fatal(err)
	}
	s.put("script.json", string(b), "644")
}

// noted is what the agent was told of a kind, in its order: texts as they are, and other things as JSON.
func (s *seated) noted(kind string) (all []string) {
	s.t.Helper()
	d := json.NewDecoder(strings.NewReader(s.well("exec", "agent", "--", "cat", "log.jsonl")))
	for d.More() {
		var n struct {
			Kind string
			Body json.RawMessage
		}
		if err := d.Decode(&n); err != nil {
			s.t.Fatal(err)
		}
		text := ""
		if json.Unmarshal(n.Body, &text) != nil {
			text = string(n.Body)
		}
		if n.Kind == kind {
			all = append(all, text)
		}
	}
	return all
}

func (s *seated) argv(args ...string) []string {
	return append([]string{"ask", "--llm", "m1", "--agent-command", "./seatagent"}, args...)
}

// ask asks without a terminal.
func (s *seated) ask(args ...string) result { return s.try(s.alice, "", s.argv(args...)...) }

// terminal asks at one.
func (s *seated) terminal(args ...string) *ptytest.Terminal {
	s.t.Helper()
	return ptytest.Start(s.t, s.command(context.Background(), s.alice, s.argv(args...)...), 50, 160, false)
}

// calls is an act: a tool is called with arguments.
func calls(tool string, arguments any) map[string]any {
	return map[string]any{"tool": tool, "arguments": arguments}
}

// proposes is an act: a plan of these steps is proposed, and its end is waited for.
func proposes(steps ...map[string]any) []map[string]any {
	return []map[string]any{
		calls("propose_plan", plainPlan(steps...)), {"tool": "wait_plan", "arguments": map[string]any{}, "until": `"outcome":"waiting"`},
	}
}

// plainPlan is a plan as the arguments of propose_plan.
func plainPlan(steps ...map[string]any) map[string]any {
	var p map[string]any
	_ = json.Unmarshal([]byte(planOfAll(steps...)), &p)
	delete(p, "type")
	return p
}

// An agent that others made answers a question: it is told what carrel's own is told, reads by carrel's tools without a question,
// proposes a plan for this machine, which runs as alice once she has approved it, and its words are the answer. The record has it all.
func TestSeat(t *testing.T) {
	s := newSeated(t)
	look := calls("read_file", map[string]any{"target": "host", "path": "/etc/hostname"})
	s.act(append(append([]map[string]any{{"say": "I look.\n"}, look}, proposes(planStep("host", "echo seen-$((40+2))-$(id -u)", false))...),
		map[string]any{"say": "It says: %s\n", "piece": 3})...)
	mark := s.mark(t)
	x := s.terminal("--on", "host", "what", "does it say?")
	x.Expect(question)
	if screen := x.Screen(); !strings.Contains(screen, "1. host: echo seen-$((40+2))") {
		t.Errorf("the plan is not shown: %q", screen)
	}
	x.Type("y\n")
	x.Expect("It says:")
	if code := x.Wait(); code != 0 {
		t.Fatalf("exit code %d: %q", code, x.Screen())
	}
	want := fmt.Sprintf(`"stdout":"seen-42-%d\n"`, s.alice.Uid)
	if got := s.noted("wait_plan"); len(got) == 0 || !strings.Contains(got[len(got)-1], `"outcome":"done"`) ||
		!strings.Contains(got[len(got)-1], want) {
		t.Errorf("of its plan it was told %q", got)
	}
	name, err := os.ReadFile("/etc/hostname")
	if err != nil {
		t.Fatal(err)
	}
	if got := s.noted("read_file"); len(got) != 1 || !strings.Contains(got[0], `"stdout":"`+strings.TrimSpace(string(name))) {
		t.Errorf("it read %q", got)
	}
	var all struct {
		Tools []struct{ Name string }
	}
	if err := json.Unmarshal([]byte(s.noted("tools")[0]), &all); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, x := range all.Tools {
		names = append(names, x.Name)
	}
	for _, not := range []string{"exec", "write_file", "wait_approval"} {
		if strings.Contains(" "+strings.Join(names, " ")+" ", " "+not+" ") {
			t.Errorf("it has the tool %s", not)
		}
	}
	if len(names) != 15 {
		t.Errorf("it has the tools %q", names)
	}
	prompt := s.noted("prompt")[0]
	for _, part := range []string{"- host", "- workspace demo", "propose_plan", "what does it say?"} {
		if !strings.Contains(prompt, part) {
			t.Errorf("it was not told %q: %s", part, prompt)
		}
	}
	if got := s.noted("model"); got[0] != "m1" {
		t.Errorf("its model is %q", got)
	}
	s.settled(t)
	s.recorded(t, mark, `"kind":"task.run"`, `"protocol":"agent-acp"`)
	s.recorded(t, mark, `"kind":"plan.run"`, "echo seen-")
	s.recorded(t, mark, `"command.exec"`, "echo seen-", `"source":"llm"`)
	s.recorded(t, mark, `"command.exec"`, "/etc/hostname")
	s.recorded(t, mark, `"type":"approval"`, `"kind":"once"`, fmt.Sprintf("uid:%d", s.alice.Uid))
	// It goes on from what was said.
	s.act(map[string]any{"say": "as I said\n"})
	if r := s.ask("--on", "none", "--resume", "again?"); r.code != 0 || r.out != "as I said\n" {
		t.Fatalf("%+v", r)
	}
	if got := s.noted("prompt")[0]; !strings.Contains(got, "what does it say?") || !strings.Contains(got, "seen-42") {
		t.Errorf("it was not told what was said before: %s", got)
	}
}

// An agent that others made proposes a note by a tool: the person is shown it, and keeps it. It is told in the next session, and none is
// taken once the session has read something. What it thinks is a detail.
func TestSeatRemembers(t *testing.T) {
	s := newSeated(t)
	home := t.TempDir() // of the notes
	openWay(t, home)
	if err := os.Chown(home, int(s.alice.Uid), int(s.alice.Gid)); err != nil {
		t.Fatal(err)
	}
	s.env = append(s.env, "HOME="+home)
	thinks := func(text string) map[string]any {
		return map[string]any{"update": map[string]any{
			"sessionUpdate": "agent_thought_chunk", "content": map[string]string{"type": "text", "text": text},
		}}
	}
	note := calls("remember", map[string]any{"note": "db-1 is the primary"})
	s.act(thinks("I wonder\x1b[2J"), note, map[string]any{"say": "noted\n"})
	r := s.ask("--on", "none", "db-1 is the primary, by the way")
	if r.code != 0 || r.out != "noted\n" || !strings.Contains(r.err, "db-1 is the primary") || strings.Contains(r.err+r.out, "wonder") {
		t.Fatalf("%+v", r)
	}
	if got := s.noted("remember"); len(got) != 1 || !strings.Contains(got[0], `"outcome":"done"`) {
		t.Errorf("it was told %q", got)
	}
	s.act(calls("read_file", map[string]any{"target": "workspace demo", "path": "/etc/hosts"}), note, map[string]any{"say": "read\n"})
	if r := s.ask("--on", "none", "look"); r.code != 0 || strings.Contains(r.err, "db-1") {
		t.Errorf("%+v", r)
	}
	if got := s.noted("remember"); len(got) != 1 || !strings.Contains(got[0], `"outcome":"refused"`) {
		t.Errorf("it was told %q", got)
	}
	// In a chat what it thinks is a detail, and /remember keeps what it has proposed.
	s.act(thinks("I wonder\x1b[2J"), note, map[string]any{"say": "noted\n"})
	x := ptytest.Start(t, s.command(context.Background(), s.alice, "chat", "--plain", "--llm", "m1", "--agent-command", "./seatagent", "--on",
		"none"), 50, 160, false)
	x.Expect("you>")
	x.Type("/trace\n")
	x.Expect("details are shown")
	x.Type("db-1 is the primary\n")
	x.Expect("thinks: I wonder")
	x.Expect("noted")
	if screen := x.Screen(); strings.Contains(screen, "wonder\x1b[2J") {
		t.Errorf("what it thinks is obeyed: %q", screen)
	}
	x.Type("/remember\n/quit\n")
	x.Wait()
	if out := s.well("agent", "memory", "ls"); !strings.Contains(out, "db-1 is the primary") {
		t.Errorf("kept is %q", out)
	}
	s.act(map[string]any{"say": "I know\n"})
	if r := s.ask("--on", "none", "which is the primary?"); r.code != 0 {
		t.Fatalf("%+v", r)
	}
	if got := s.noted("prompt"); len(got) != 1 || !strings.Contains(got[0], "- db-1 is the primary") {
		t.Errorf("it was told %q", got)
	}
}

// What it may not do is refused with the reason, nothing of it is run, and none of it goes on for ever.
func TestSeatThatLies(t *testing.T) {
	s := newSeated(t)
	left := filepath.Join(t.TempDir(), "left")
	openWay(t, filepath.Dir(left))
	if err := os.Chmod(filepath.Dir(left), 0o777); err != nil {
		t.Fatal(err)
	}
	noTarget := planStep("host", "touch "+left, false)
	delete(noTarget, "target")
	touch := plainPlan(planStep("host", "touch "+left, false))
	for name, x := range map[string]struct {
		acts []map[string]any
		// tool is whose answers are looked at: one of them has told, or or, and they are at most most.
		tool, told, or string
		most           int
		// failed is why the task has failed, "" if it has not.
		failed string
	}{
		"no target": {
			acts: []map[string]any{calls("propose_plan", plainPlan(noTarget))},
			tool: "propose_plan", told: "commands[0].target: is missing", most: 1,
		},
		"another target": {
			acts: []map[string]any{calls("propose_plan", plainPlan(planStep("workspace nobodys", "touch "+left, false)))},
			tool: "propose_plan", told: `"outcome":"invalid"`, most: 1,
		},
		"another member": {
			acts: []map[string]any{calls("read_file", map[string]any{"target": "host", "path": "/etc/hosts", "tool": "list_dir"})},
			tool: "read_file", told: "tool: is there twice", most: 1,
		},
		"a secret": {
			acts: []map[string]any{calls("read_file", map[string]any{"target": "host", "path": "/etc/shadow"})},
			tool: "read_file", told: `"outcome":"refused"`, most: 1,
		},
		"for ever": {
			acts: []map[string]any{{
				"tool": "read_file", "arguments": map[string]any{"target": "host", "path": "/etc/hostname"}, "times": 10_000,
			}},
			tool: "read_file", told: `"outcome":"blocked"`, most: 40, failed: "goes on calling tools",
		},
		"plans for ever": {
			acts: []map[string]any{{
				"tool": "propose_plan", "arguments": plainPlan(planStep("workspace demo", "true %d", true)), "times": 10_000,
			}},
			tool: "propose_plan", told: "a turn has at most 24 plans", most: 40, failed: "goes on calling tools",
		},
		"after its turn": {
			acts: []map[string]any{{"end": true}, calls("propose_plan", touch)},
			// It depends on what is quicker: the call, or the end of the socket.
			tool: "propose_plan", told: "closed: ", or: "the turn is over", most: 1,
		},
		"not approved, and once more": {
			acts: []map[string]any{calls("propose_plan", touch), calls("propose_plan", touch)},
			tool: "propose_plan", told: "because the last plan was not approved", most: 2,
		},
	} {
		t.Run(name, func(t *testing.T) {
			s.act(x.acts...)
			mark := s.mark(t)
			r := s.ask("--on", "host", "do it")
			if (r.code != 0) != (x.failed != "") || !strings.Contains(r.err, x.failed) {
				t.Errorf("%+v", r)
			}
			s.settled(t)
			got := s.noted(x.tool)
			if all := strings.Join(got, "\n"); !strings.Contains(all, x.told) && (x.or == "" || !strings.Contains(all, x.or)) || len(got) > x.most {
				t.Errorf("it was told %d times: %s", len(got), all)
			}
			if _, err := os.Lstat(left); err == nil {
				t.Fatal("it was run")
			}
			for _, rec := range s.since(t, mark) {
				if strings.Contains(rec.raw, "root:") {
					t.Errorf("the record has it: %s", rec.raw)
				}
			}
		})
	}
}

// Two plans at once: one is asked about, and the other is refused while it waits. What a program asks for is asked at the same terminal,
// and it has none of the client's files.
func TestSeatAsksOneAtATime(t *testing.T) {
	s := newSeated(t)
	s.act(
		map[string]any{"fs": "/etc/passwd"},
		map[string]any{"permission": "echo permitted"},
		map[string]any{"tool": "propose_plan", "arguments": plainPlan(planStep("workspace demo", "echo x >> f"+leaves, false)), "times": 2, "together": true},
		map[string]any{"tool": "wait_plan", "arguments": map[string]any{}, "until": `"outcome":"waiting"`},
		map[string]any{"say": "It is over.\n"},
	)
	x := s.terminal("--on", "none", "do it")
	x.Expect(question)
	if screen := x.Screen(); !strings.Contains(screen, "echo permitted") {
		t.Errorf("asked %q", screen)
	}
	x.Type("y\n")
	x.ExpectAfter("echo x >> f", question)
	x.Type("y\n")
	x.Expect("It is over.")
	if code := x.Wait(); code != 0 {
		t.Errorf("exit code %d: %q", code, x.Screen())
	}
	if got := s.noted("permission"); len(got) != 1 || !strings.Contains(got[0], `"optionId":"yes"`) {
		t.Errorf("its wish was answered with %q", got)
	}
	if got := s.noted("fs"); len(got) != 1 || !strings.Contains(got[0], "carrel has no files") {
		t.Errorf("a file of the client: %q", got)
	}
	got := strings.Join(s.noted("propose_plan"), "\n")
	if !strings.Contains(got, "cannot take a second plan") || strings.Contains(got, "cannot take a second plan") && strings.Count(got, "cannot") != 1 {
		t.Errorf("of two plans it was told %s", got)
	}
	if out := s.well("exec", "demo", "--", "cat", "f"); out != "x\n" {
		t.Errorf("it ran so: %q", out)
	}
}

// A turn whose agent ends goes on with a new one, which is told what was done and what is not known.
func TestSeatThatIsCutOff(t *testing.T) {
	s := newSeated(t)
	s.act(append(proposes(planStep("workspace demo", "echo done-once >> g", false)), map[string]any{"exit": true})...)
	c := s.command(t.Context(), s.alice, s.argv("--on", "none", "do it")...)
	r := finish(c, "")
	// The script is the same: each agent proposes, and ends. Two more are begun, and no further.
	if r.code == 0 || strings.Count(r.err, "the turn was cut off, and goes on") != 2 {
		t.Errorf("%+v", r)
	}
	if got := s.noted("prompt"); len(got) != 1 || !strings.Contains(got[0], "carrel was interrupted") || !strings.Contains(got[0], "echo done-once") ||
		!strings.Contains(got[0], "do it") {
		t.Errorf("the last one was told %q", got)
	}
}

// agent.yaml names the agent for every question; a flag stands over it, and what only carrel's own can do is refused.
func TestSeatSettings(t *testing.T) {
	s := newSeated(t)
	home := homeOf(t, s.alice)
	carrel := func(settings string, args ...string) result {
		t.Helper()
		dir := filepath.Join(home, ".config", "carrel")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "agent.yaml"), []byte(settings), 0o644); err != nil {
			t.Fatal(err)
		}
		c := s.command(t.Context(), s.alice, args...)
		c.Env = append(c.Environ(), "HOME="+home, "XDG_CONFIG_HOME=", "XDG_STATE_HOME=")
		return finish(c, "")
	}
	const named = "thresholds: {disk_used: 95}\nagent:\n  command: [./seatagent]\n  environment: {CARREL_LLM: m2}\n"
	s.act(map[string]any{"say": "by agent.yaml\n"})
	if r := carrel(named, "ask", "--on", "none", "who?"); r.code != 0 || r.out != "by agent.yaml\n" {
		t.Errorf("%+v", r)
	}
	if got := s.noted("model"); len(got) != 1 || got[0] != "m2" {
		t.Errorf("its variable is %q", got)
	}
	if r := carrel(named, "agent", "check", "--on", "none"); r.code != 0 || !strings.Contains(r.out, "./seatagent, in the place of carrel's own") {
		t.Errorf("%+v", r)
	}
	m := s.script(t, always(directly("by carrel's own")))
	if r := carrel(named, "ask", "--on", "none", "--llm", "m1", "--agent-command", "", "who?"); r.code != 0 || r.out != "by carrel's own\n" ||
		len(m.said()) != 1 {
		t.Errorf("%+v", r)
	}
	for _, x := range []struct {
		settings string
		args     []string
		want     string
	}{
		{named, []string{"--max-tokens", "5"}, "the budget of the workspace bounds it"},
		{named, []string{"--provider", "openai"}, "cannot use --provider"},
		{"", []string{"--agent-command", "sh -c 'id'"}, "no shell reads it"},
		{"", nil, "without its name"},
		{"agent: {command: []}\n", nil, "agent.command is empty"},
		{"agent: {argv: [x]}\n", nil, "argv"},
		{"agent: {command: [./none]}\n", nil, "none"},
	} {
		if r := carrel(x.settings, append(append([]string{"ask", "--on", "none"}, x.args...), "who?")...); r.code == 0 || !strings.Contains(r.err, x.want) {
			t.Errorf("%s %q: %+v", x.settings, x.args, r)
		}
	}
}
