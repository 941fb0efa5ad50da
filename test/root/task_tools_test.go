package root_test

import (
	"context"
	"encoding/json"
	"os"
	"strings"
	"testing"
)

// mcpCall is a call of the agent in testdata/acp-tools.py: a method of MCP, and its params.
type mcpCall [2]any

// tool is the call of a tool.
func tool(name string, arguments map[string]any) mcpCall {
	return mcpCall{"tools/call", map[string]any{"name": name, "arguments": arguments}}
}

// toolTask begins a task of the agent in testdata/acp-tools.py, which makes calls by the server that it is told of. It returns the
// task's id.
func (d *desk) toolTask(t testing.TB, hold bool, calls ...mcpCall) string {
	t.Helper()
	return d.toolTaskOf(t, nil, hold, calls...)
}

// toolTaskOf is toolTask for who has these variables.
func (d *desk) toolTaskOf(t testing.TB, env []string, hold bool, calls ...mcpCall) string {
	t.Helper()
	agent, err := os.ReadFile("testdata/acp-tools.py")
	if err != nil {
		t.Fatal(err)
	}
	d.put(t, "agent.py", agent, "644")
	prompt, err := json.Marshal(map[string]any{"calls": calls, "hold": hold})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	c := d.h.command(ctx, nil, "task", "run", "-d", "--acp", "-p", string(prompt), d.Key, "--", "/usr/bin/python3", "agent.py")
	c.Env = append(c.Env, env...)
	r := finish(c, "")
	if r.code != 0 {
		t.Fatalf("the task did not begin: %+v", r)
	}
	return strings.TrimSpace(r.out)
}

// toolAnswer is what the agent reports of a call.
type toolAnswer struct {
	Method string
	Answer struct {
		Closed string
		Error  *struct{ Message string }
		Result struct {
			Tools   []struct{ Name string }
			Content []struct{ Type, Text string }
			IsError bool
		}
	}
}

func (a *toolAnswer) text() string {
	var all []string
	for _, c := range a.Answer.Result.Content {
		all = append(all, c.Text)
	}
	return strings.Join(all, "\n")
}

// answers are what the agent has reported.
func (d *desk) answers(t testing.TB, task string) (all []toolAnswer) {
	t.Helper()
	messages := json.NewDecoder(strings.NewReader(d.h.try(nil, "", "task", "follow", "--now", "-o", "json", d.Key, task).out))
	for messages.More() {
		var m struct{ Kind, Body string }
		if err := messages.Decode(&m); err != nil {
			t.Fatal(err)
		}
		if m.Kind != "message" {
			continue
		}
		var a toolAnswer
		if err := json.Unmarshal([]byte(m.Body), &a); err != nil {
			t.Fatalf("%v: %s", err, m.Body)
		}
		all = append(all, a)
	}
	return all
}

// recordOf is what is looked at of a record.
type recordOf struct {
	Type, Trace, Principal, Workspace string
	Action                            json.RawMessage
}

// An agent starts the server of tools that it is told of, and works by it. The record has what it did under the task's trace, as
// written by a model, by whoever runs the task.
func TestTaskTools(t *testing.T) {
	needRoot(t)
	t.Parallel()
	d := shared.desk(t)
	mark := d.h.mark(t)
	id := d.toolTask(
		t, false, mcpCall{"tools/list", map[string]any{}},
		tool("exec", map[string]any{"command": "echo by-a-tool; id -u"}),
		tool("write_file", map[string]any{"path": "written", "content": "by a tool\n"}),
		tool("read_file", map[string]any{"path": "written"}),
		tool("list_commands", map[string]any{}),
	)
	until(t, "the end", func() bool { return d.task(t, id).State != "running" })
	all := d.answers(t, id)
	if x := d.task(t, id); x.State != "completed" || len(all) != 5 {
		t.Fatalf("%+v: %+v", x, all)
	}
	var names []string
	for _, x := range all[0].Answer.Result.Tools {
		names = append(names, x.Name)
	}
	if got := strings.Join(names, " "); !strings.Contains(got, "exec") || strings.Contains(got, "workspaces") || strings.Contains(got, "record") {
		t.Errorf("it has the tools %s", got)
	}
	uid := strings.TrimSpace(d.sh(t, "id -u"))
	if got := all[1].text(); !strings.Contains(got, "exit code 0") || !strings.Contains(got, "by-a-tool\n"+uid) {
		t.Errorf("exec: %s", got)
	}
	if got := d.sh(t, "cat written"); got != "by a tool" {
		t.Errorf("written: %q", got)
	}
	if got := all[3].text(); !strings.Contains(got, "by a tool") {
		t.Errorf("read: %s", got)
	}
	if got := all[4].text(); !strings.Contains(got, id) {
		t.Errorf("list_commands: %s", got)
	}
	var records []recordOf
	for _, r := range d.h.since(t, mark) {
		var x recordOf
		if err := json.Unmarshal([]byte(r.raw), &x); err != nil {
			t.Fatal(err)
		}
		if x.Type == "intent" && x.Workspace == d.Name {
			records = append(records, x)
		}
	}
	trace, seen := "", 0
	for _, r := range records {
		if strings.Contains(string(r.Action), `"kind":"task.run"`) {
			trace = r.Trace
		}
	}
	for _, r := range records {
		action := string(r.Action)
		if strings.Contains(action, "by-a-tool") && strings.Contains(action, "command.exec") ||
			strings.Contains(action, `"kind":"file.write"`) && strings.Contains(action, `"written"`) {
			seen++
			if r.Trace != trace || trace == "" || r.Principal != "uid:0" ||
				strings.Contains(action, "by-a-tool") && !strings.Contains(action, `"source":"llm"`) {
				t.Errorf("the trace of the task is %q, and this is recorded: %+v %s", trace, r, action)
			}
		}
	}
	if seen != 2 {
		t.Errorf("%d of 2 are recorded", seen)
	}
	d.h.carrel(t, "audit", "verify")
}
