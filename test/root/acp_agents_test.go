package root_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// agentsEnv names a directory into which npm installed agents that speak ACP: "npm i --prefix DIR @zed-industries/codex-acp
// @zed-industries/claude-code-acp opencode-ai". They are run by the host's node.
const agentsEnv = "CARREL_TEST_ACP"

// acpAgent is how an agent is run.
type acpAgent struct {
	program string
	argv    []string
	env     []string
	files   map[string]string
}

// acpAgents are the agents, for a model at an address.
func acpAgents(at string) map[string]acpAgent {
	return map[string]acpAgent{
		"claude-code-acp": {
			"@zed-industries/claude-code-acp",
			[]string{"/usr/bin/node", "/agents/node_modules/@zed-industries/claude-code-acp/dist/index.js"},
			[]string{"ANTHROPIC_BASE_URL=" + at, "ANTHROPIC_API_KEY=scripted", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1"},
			map[string]string{},
		},
		"codex-acp": {
			"@zed-industries/codex-acp-linux-x64",
			[]string{
				"/agents/node_modules/@zed-industries/codex-acp-linux-x64/bin/codex-acp", "-c", `model_provider="t"`, "-c", `model="gpt-5"`,
				"-c", `approval_policy="on-request"`, "-c",
				`model_providers.t={name="t",base_url="` + at + `/v1",env_key="OPENAI_API_KEY",wire_api="responses"}`,
			},
			[]string{"OPENAI_API_KEY=scripted"},
			map[string]string{},
		},
		"opencode": {
			"opencode-ai",
			[]string{"/agents/node_modules/opencode-ai/bin/opencode.exe", "acp"},
			[]string{
				"ANTHROPIC_API_KEY=scripted", "OPENCODE_DISABLE_MODELS_FETCH=1", "OPENCODE_DISABLE_AUTOUPDATE=1", "OPENCODE_DISABLE_DEFAULT_PLUGINS=1",
				"OPENCODE_DISABLE_LSP_DOWNLOAD=1",
			},
			map[string]string{"opencode.json": `{"share":"disabled","autoupdate":false,"model":"anthropic/claude-sonnet-4-5",` +
				`"permission":{"bash":"ask"},` +
				`"provider":{"anthropic":{"options":{"baseURL":"` + at + `/v1"}}}}`},
		},
	}
}

// eachAgent begins a task of each agent in a workspace of its own, on a model that is a script inside and is told model, and calls f for it;
// mark is where the record ended before.
func eachAgent(t *testing.T, f func(t *testing.T, d *desk, id string, mark int), model ...string) {
	t.Helper()
	needRoot(t)
	dir := os.Getenv(agentsEnv)
	if dir == "" {
		t.Skipf("skipped: %s is not set to a directory with ACP agents", agentsEnv)
	}
	script, err := os.ReadFile("testdata/acp-model.js")
	if err != nil {
		t.Fatal(err)
	}
	for name, x := range acpAgents("http://127.0.0.1:8123") {
		t.Run(name, func(t *testing.T) {
			if _, err := os.Stat(filepath.Join(dir, "node_modules", x.program)); err != nil {
				t.Skipf("skipped: %v", err)
			}
			d := shared.desk(t, "--memory", "3GiB", "-v", dir+":/agents:ro")
			d.put(t, "model.js", script, "644")
			for file, text := range x.files {
				d.put(t, file, []byte(text), "644")
			}
			d.detach(t, append([]string{"/usr/bin/node", "model.js"}, model...)...)
			until(t, "the model listens", func() bool { return d.try("test", "-e", "listening").code == 0 })
			mark := d.h.mark(t)
			args := []string{"task", "run", "-d", "--acp", "--timeout", "4m", "-p", "prove it"}
			for _, e := range x.env {
				args = append(args, "--env", e)
			}
			id := strings.TrimSpace(d.h.carrel(t, append(append(args, d.Key, "--"), x.argv...)...))
			t.Cleanup(func() {
				if t.Failed() {
					t.Logf("the model's log: %s\n%s", d.try("cat", "model.log").out, d.h.try(nil, "", "task", "follow", "--now", d.Key, id).out)
				}
			})
			f(t, d, id, mark)
		})
	}
}

// slowly is until, for a large agent, which starts slowly on a loaded machine.
func slowly(t *testing.T, what string, yes func() bool) {
	t.Helper()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(8 * patience); !yes(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("%s does not come", what)
		}
	}
}

// asks are the questions that wait for somebody about a workspace, by their ids, with what is asked.
func (d *desk) asks(t *testing.T) map[string]string {
	t.Helper()
	var list []struct {
		ID, Workspace string
		Argv          []string
	}
	if err := json.Unmarshal([]byte(d.h.carrel(t, "approvals", "list", "-o", "json")), &list); err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, a := range list {
		if a.Workspace == d.Name {
			all[a.ID] = strings.Join(a.Argv, " ")
		}
	}
	return all
}

// Real agents in workspaces: each asks a person before it runs a command, runs it when that is approved, and its answer is the task's.
func TestTasksOfACPAgents(t *testing.T) {
	eachAgent(t, func(t *testing.T, d *desk, id string, _ int) {
		asked := ""
		slowly(t, "the question", func() bool {
			if s := d.task(t, id); s.State != "running" {
				t.Fatalf("nobody was asked: %+v", s)
			}
			for a, what := range d.asks(t) {
				if strings.Contains(what, "echo called-by-a-model > proof") {
					asked = a
				}
			}
			return asked != ""
		})
		if d.try("test", "-e", "proof").code == 0 {
			t.Error("it ran before it was approved")
		}
		d.h.carrel(t, "approvals", "approve", asked)
		slowly(t, "the end", func() bool { return d.task(t, id).State != "running" })
		out := d.h.try(nil, "", "task", "follow", "--now", d.Key, id).out
		if s := d.task(t, id); s.State != "completed" || d.sh(t, "cat proof") != "called-by-a-model" ||
			!strings.Contains(out, "scripted answer") {
			t.Errorf("%+v: %s", s, out)
		}
	})
}

// Real agents reach carrel's tools by the bridge that they are told of: a model has them run a command by one, and the record has it
// as carrel's.
func TestTaskToolsOfACPAgents(t *testing.T) {
	eachAgent(t, func(t *testing.T, d *desk, id string, mark int) {
		slowly(t, "its end", func() bool { // what an agent asks before it uses a tool is approved
			for a := range d.asks(t) {
				d.h.try(nil, "", "approvals", "approve", a) // another look may have been quicker
			}
			return d.task(t, id).State != "running"
		})
		if s := d.task(t, id); s.State != "completed" || d.sh(t, "cat proof") != "called-by-a-model" {
			t.Errorf("%+v", s)
		}
		d.h.recorded(t, mark, `"type":"intent"`, "command.exec", "called-by-a-model", `"source":"llm"`)
	}, "carrel")
}
