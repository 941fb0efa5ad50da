//go:build linux

package rootless_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// everyAPI answers Messages, Responses and Chat as a model would.
func everyAPI(w http.ResponseWriter, r *http.Request) {
	switch {
	case strings.HasSuffix(r.URL.Path, "/responses"):
		responses(w, r)
	case strings.HasSuffix(r.URL.Path, "/chat/completions"):
		chat(w, r)
	case strings.HasSuffix(r.URL.Path, "/models"):
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"object":"list","data":[{"id":"gpt-5","object":"model"}]}`)
	default:
		messages(w, r)
	}
}

// responses answers OpenAI's Responses.
func responses(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	const item = `{"type":"message","id":"m1","role":"assistant","status":"completed","content":[{"type":"output_text","text":"scripted answer",` +
		`"annotations":[]}]}`
	for _, e := range []struct{ kind, data string }{
		{"response.created", `{"type":"response.created","response":{"id":"r1"}}`},
		{"response.output_item.added", `{"type":"response.output_item.added","output_index":0,"item":{"type":"message","id":"m1",` +
			`"role":"assistant","status":"in_progress","content":[]}}`},
		{"response.content_part.added", `{"type":"response.content_part.added","item_id":"m1","output_index":0,"content_index":0,` +
			`"part":{"type":"output_text","text":"","annotations":[]}}`},
		{"response.output_text.delta", `{"type":"response.output_text.delta","item_id":"m1","output_index":0,"content_index":0,` +
			`"delta":"scripted answer"}`},
		{"response.output_item.done", `{"type":"response.output_item.done","output_index":0,"item":` + item + `}`},
		{"response.completed", `{"type":"response.completed","response":{"id":"r1","usage":{"input_tokens":1,"input_tokens_details":null,` +
			`"output_tokens":1,"output_tokens_details":null,"total_tokens":2},"output":[` + item + `]}}`},
	} {
		fmt.Fprintf(w, "event: %s\ndata: %s\n\n", e.kind, e.data)
		w.(http.Flusher).Flush()
	}
}

// chat answers OpenAI's Chat.
func chat(w http.ResponseWriter, r *http.Request) {
	var asked struct {
		Stream bool `json:"stream"`
	}
	b, _ := io.ReadAll(r.Body)
	_ = json.Unmarshal(b, &asked)
	const usage = `"usage":{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3}`
	if !asked.Stream {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"id":"c1","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"finish_reason":"stop",`+
			`"message":{"role":"assistant","content":"scripted answer"}}],`+usage+`}`)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	for _, d := range []string{
		`{"id":"c1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":"scripted answer"}}]}`,
		`{"id":"c1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`,
		`{"id":"c1","object":"chat.completion.chunk","created":1,"model":"m","choices":[],` + usage + `}`,
	} {
		fmt.Fprintf(w, "data: %s\n\n", d)
	}
	_, _ = io.WriteString(w, "data: [DONE]\n\n")
}

// Each agent works with a model of the run by the variables that the run sets, and what its line in docs/egress.md has beside
// them. None has the key.
func TestAgentsByModel(t *testing.T) {
	for _, c := range []struct {
		name, program, model string
		args, env            []string
	}{
		{"claude", "claude", "anthropic", []string{"-p", "hello"}, []string{"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1"}},
		{"codex", "codex", "local", []string{
			"exec", "--skip-git-repo-check", "-m", "gpt-5", "-c", `model_provider="carrel"`, "-c",
			`model_providers.carrel={name="carrel",base_url="http://local.carrel.internal/v1",env_key="OPENAI_API_KEY",wire_api="responses"}`, "hello",
		}, nil},
		{"codex by one setting", "codex", "local", []string{
			"exec", "--skip-git-repo-check", "-m", "gpt-5", "-c", `openai_base_url="http://local.carrel.internal/v1"`, "hello",
		}, nil},
		{"opencode", "opencode", "anthropic", []string{"run", "-m", "anthropic/claude-sonnet-4-5", "hello"}, []string{
			"OPENCODE_DISABLE_MODELS_FETCH=1", "OPENCODE_DISABLE_AUTOUPDATE=1", "OPENCODE_DISABLE_DEFAULT_PLUGINS=1", "OPENCODE_DISABLE_LSP_DOWNLOAD=1",
		}},
		{"opencode with OpenAI's", "opencode", "local", []string{"run", "-m", "openai/gpt-5", "hello"}, []string{
			"OPENCODE_DISABLE_MODELS_FETCH=1", "OPENCODE_DISABLE_AUTOUPDATE=1", "OPENCODE_DISABLE_DEFAULT_PLUGINS=1", "OPENCODE_DISABLE_LSP_DOWNLOAD=1",
		}},
		{"qwen", "qwen", "local", []string{"--auth-type", "openai", "-m", "gpt-5", "-p", "hello"}, nil},
		{"aider", "aider", "local", []string{
			"--model", "openai/gpt-5", "--message", "hello", "--no-git", "--yes-always", "--no-check-update", "--no-show-model-warnings", "--analytics-disable",
		}, nil},
		{"goose", "goose", "local", []string{"run", "--no-session", "-t", "hello"}, []string{
			"GOOSE_PROVIDER=openai", "GOOSE_MODEL=gpt-5", "GOOSE_DISABLE_KEYRING=1",
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			mount, program := agent(t, c.program)
			u, k := models(t, "")
			k.serve = everyAPI
			args := []string{"--here", "-v", mount, "--model", c.model}
			for _, e := range c.env {
				args = append(args, "--env", e)
			}
			r := u.run(append(append(args, "--", program), c.args...)...)
			if r.code != 0 || !strings.Contains(r.out, "scripted answer") || !strings.Contains(r.err, "carrel: "+c.model+": ") {
				t.Errorf("%+v\nthe model server got %q", r, k.got())
			}
			if strings.Contains(r.out+r.err, secretValue) {
				t.Errorf("the agent saw the key: %+v", r)
			}
		})
	}
}

// The Gemini CLI speaks Google's own API, which no model of a run has. It works with a secret.
func TestGemini(t *testing.T) {
	mount, program := agent(t, "gemini")
	u := newUser(t)
	k := newKeyed(t, u, "api.test")
	keys := make(chan string, 100)
	k.serve = func(w http.ResponseWriter, r *http.Request) {
		if !strings.Contains(r.URL.Path, "enerateContent") {
			http.NotFound(w, r)
			return
		}
		select {
		case keys <- r.Header.Get("X-Goog-Api-Key"):
		default:
		}
		const answer = `{"candidates":[{"index":0,"finishReason":"STOP","content":{"role":"model","parts":[{"text":"scripted answer"}]}}],` +
			`"usageMetadata":{"promptTokenCount":1,"candidatesTokenCount":2,"totalTokenCount":3}}`
		if strings.Contains(r.URL.Path, "streamGenerateContent") {
			w.Header().Set("Content-Type", "text/event-stream")
			fmt.Fprintf(w, "data: %s\n\n", answer)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, answer)
	}
	// With another URL than Google's it takes no key without this.
	settings := filepath.Join(u.home, "project/.gemini")
	if err := os.MkdirAll(settings, 0o755); err != nil {
		t.Fatal(err)
	}
	text := `{"security":{"auth":{"selectedType":"gemini-api-key"}}}`
	if err := os.WriteFile(filepath.Join(settings, "settings.json"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	u.env = append(u.env, "GEMINI_API_KEY="+secretValue)
	r := u.run("--here", "-v", mount, "--allow", "api.test:"+k.port, "--secret", "GEMINI_API_KEY@api.test:"+k.port,
		"--env", "GOOGLE_GEMINI_BASE_URL=https://api.test:"+k.port, "--env", "GEMINI_CLI_TRUST_WORKSPACE=true",
		"--", program, "-m", "gemini-2.5-flash", "-p", "hello")
	if r.code != 0 || !strings.Contains(r.out, "scripted answer") {
		t.Errorf("%+v\nthe model server got %q", r, k.got())
	}
	if len(keys) == 0 || <-keys != secretValue {
		t.Error("the model server got no key")
	}
	if strings.Contains(r.out+r.err, secretValue) {
		t.Errorf("the agent saw the key: %+v", r)
	}
}
