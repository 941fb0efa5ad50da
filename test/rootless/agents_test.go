//go:build linux

package rootless_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// agentsEnv names a directory into which npm installed agents: "npm i --prefix DIR @anthropic-ai/claude-code @openai/codex
// opencode-ai @qwen-code/qwen-code @google/gemini-cli". Programs of others may be in its node_modules/.bin, as a script of aider.
const agentsEnv = "CARREL_TEST_AGENTS"

// agent returns the program of an agent, and how a run sees its directory.
func agent(t *testing.T, name string) (mount, program string) {
	t.Helper()
	dir := os.Getenv(agentsEnv)
	if dir == "" {
		t.Skipf("skipped: %s is not set to a directory with %s", agentsEnv, name)
	}
	at := filepath.Join(dir, "node_modules/.bin", name)
	if _, err := os.Stat(at); err != nil {
		t.Skipf("skipped: %v", err)
	}
	return dir + ":/mnt/agents:ro", "/mnt/agents/node_modules/.bin/" + name
}

// messages answers Anthropic Messages as a model would.
func messages(w http.ResponseWriter, r *http.Request) {
	var asked struct {
		Model  string `json:"model"`
		Stream bool   `json:"stream"`
	}
	b, _ := io.ReadAll(r.Body)
	if err := json.Unmarshal(b, &asked); err != nil || !strings.HasSuffix(r.URL.Path, "/messages") {
		http.NotFound(w, r)
		return
	}
	message := fmt.Sprintf(`{"id":"msg_1","type":"message","role":"assistant","model":%q,"content":[],"stop_reason":null,"stop_sequence":null,`+
		`"usage":{"input_tokens":1,"output_tokens":1}}`, asked.Model)
	if !asked.Stream {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, strings.Replace(strings.Replace(message, `"content":[]`, `"content":[{"type":"text","text":"scripted answer"}]`, 1),
			`"stop_reason":null`, `"stop_reason":"end_turn"`, 1))
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	for _, e := range []struct{ kind, data string }{
		{"message_start", `{"type":"message_start","message":` + message + `}`},
		{"content_block_start", `{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}`},
		{"content_block_delta", `{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"scripted answer"}}`},
		{"content_block_stop", `{"type":"content_block_stop","index":0}`},
		{"message_delta", `{"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},"usage":{"output_tokens":2}}`},
		{"message_stop", `{"type":"message_stop"}`},
	} {
		fmt.Fprintf(w, "event: %s\ndata: %s\n\n", e.kind, e.data)
		w.(http.Flusher).Flush()
	}
}

// Claude Code answers by a scripted model, with a key that it does not have.
func TestClaudeCode(t *testing.T) {
	mount, program := agent(t, "claude")
	u := newUser(t)
	k := newKeyed(t, u, "api.test")
	k.serve = messages
	r := u.run("--here", "-v", mount, "--allow", "api.test:"+k.port, "--secret", "ANTHROPIC_API_KEY@api.test:"+k.port,
		"--env", "ANTHROPIC_BASE_URL=https://api.test:"+k.port, "--env", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1",
		"--", program, "-p", "hello")
	if r.code != 0 || !strings.Contains(r.out, "scripted answer") {
		t.Errorf("%+v", r)
	}
	if got := k.got(); len(got) == 0 || !slices.Contains(got, "api.test:"+k.port+" "+secretValue) || slices.ContainsFunc(got, func(s string) bool {
		_, key, _ := strings.Cut(s, " ") // it also asks without a key whether the server is there
		return key != "" && key != secretValue
	}) {
		t.Errorf("the model server got %q", got)
	}
	if strings.Contains(r.out+r.err, secretValue) {
		t.Errorf("the agent saw the key: %+v", r)
	}
	u.holdsNowhere(secretValue)
}

// Codex does too, with the key in another header.
func TestCodex(t *testing.T) {
	mount, program := agent(t, "codex")
	u := newUser(t)
	k := newKeyed(t, u, "api.test")
	k.serve = func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/responses") {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		const item = `{"type":"message","id":"m1","role":"assistant","status":"completed","content":[{"type":"output_text","text":"scripted answer",` +
			`"annotations":[]}]}`
		for _, e := range []struct{ kind, data string }{
			{"response.created", `{"type":"response.created","response":{"id":"r1"}}`},
			{"response.output_item.done", `{"type":"response.output_item.done","output_index":0,"item":` + item + `}`},
			{"response.completed", `{"type":"response.completed","response":{"id":"r1","usage":{"input_tokens":1,"input_tokens_details":null,` +
				`"output_tokens":1,"output_tokens_details":null,"total_tokens":2},"output":[` + item + `]}}`},
		} {
			fmt.Fprintf(w, "event: %s\ndata: %s\n\n", e.kind, e.data)
			w.(http.Flusher).Flush()
		}
	}
	u.env = append(u.env, "OPENAI_API_KEY="+secretValue)
	r := u.run("--here", "-v", mount, "--allow", "api.test:"+k.port, "--secret", "OPENAI_API_KEY@api.test:"+k.port, "--", program, "exec",
		"--skip-git-repo-check", "-c", `model_provider="t"`, "-c",
		fmt.Sprintf(`model_providers.t={name="t",base_url="https://api.test:%s/v1",env_key="OPENAI_API_KEY",wire_api="responses"}`, k.port), "hello")
	if r.code != 0 || !strings.Contains(r.out, "scripted answer") {
		t.Errorf("%+v", r)
	}
	if got := k.got(); !slices.Contains(got, "api.test:"+k.port+" Bearer "+secretValue) {
		t.Errorf("the model server got %q", got)
	}
	if strings.Contains(r.out+r.err, secretValue) {
		t.Errorf("the agent saw the key: %+v", r)
	}
	u.holdsNowhere(secretValue)
}

// opencode too, which speaks as the SDK for JavaScript does.
func TestOpencode(t *testing.T) {
	mount, program := agent(t, "opencode")
	u := newUser(t)
	k := newKeyed(t, u, "api.test")
	k.serve = messages
	config := fmt.Sprintf(`{"share":"disabled","autoupdate":false,"provider":{"anthropic":{"options":{"baseURL":"https://api.test:%s/v1"}}}}`, k.port)
	args := []string{
		"--here", "-v", mount, "--allow", "api.test:" + k.port, "--secret", "ANTHROPIC_API_KEY@api.test:" + k.port,
		"--env", "OPENCODE_CONFIG_CONTENT=" + config,
	}
	for _, off := range []string{"MODELS_FETCH", "AUTOUPDATE", "DEFAULT_PLUGINS", "LSP_DOWNLOAD"} {
		args = append(args, "--env", "OPENCODE_DISABLE_"+off+"=1")
	}
	r := u.run(append(args, "--", program, "run", "-m", "anthropic/claude-sonnet-4-5", "hello")...)
	if r.code != 0 || !strings.Contains(r.out, "scripted answer") {
		t.Errorf("%+v", r)
	}
	if got := k.got(); !slices.Contains(got, "api.test:"+k.port+" "+secretValue) {
		t.Errorf("the model server got %q", got)
	}
	if strings.Contains(r.out+r.err, secretValue) {
		t.Errorf("the agent saw the key: %+v", r)
	}
	u.holdsNowhere(secretValue)
}
