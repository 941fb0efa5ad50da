package llm_test

import (
	"bufio"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/agent/llm"
)

// fixtures are what the mock answers, in its own form. The first that matches counts.
const fixtures = `{"fixtures": [
	{"match": {"toolCallId": "call_2"}, "response": {"content": "Both are read."}},
	{"match": {"userMessage": "read both"}, "response": {"content": "Grüße, 世界 😀", "toolCalls": [
		{"id": "call_1", "name": "read", "arguments": {"path": "/tmp/ä", "lines": [1, 2]}},
		{"id": "call_2", "name": "read", "arguments": {"path": "b"}}]}},
	{"match": {"userMessage": "as JSON"}, "response": {"content": "{\"n\": 7}"}},
	{"match": {"userMessage": "be cut"}, "response": {"content": "This is long enough to be cut."}, "truncateAfterChunks": 3},
	{"match": {"userMessage": "too much"}, "response": {"status": 429, "error": {"message": "Slow down.", "type": "rate_limit_error"}}},
	{"match": {"userMessage": "wrong"}, "response": {"status": 400, "error": {"message": "No such thing.", "type": "invalid_request_error"}}}
]}`

// TestMock asks a scripted model server that others made, @copilotkit/aimock. CARREL_TEST_LLMOCK is a directory into which
// npm has installed it; node is needed too.
func TestMock(t *testing.T) {
	dir := os.Getenv("CARREL_TEST_LLMOCK")
	if dir == "" {
		t.Skip("CARREL_TEST_LLMOCK is not set: no directory in which npm has installed @copilotkit/aimock")
	}
	base := mock(t, filepath.Join(dir, "node_modules/@copilotkit/aimock/dist/cli.js"))
	for _, w := range wires {
		t.Run(string(w), func(t *testing.T) { mocked(t, w, base) })
	}
}

// mock starts the server and returns its URL.
func mock(t *testing.T, program string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "fixtures.json")
	if err := os.WriteFile(file, []byte(fixtures), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	c := exec.CommandContext(ctx, "node", program, "-p", "0", "-f", file, "-c", "3", "-l", "1", "--strict")
	c.Cancel = func() error { return c.Process.Signal(syscall.SIGTERM) }
	out, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		_ = c.Wait()
	})
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if _, url, ok := strings.Cut(lines.Text(), "listening on "); ok {
			go func() { // it must not wait for its output to be read
				for lines.Scan() {
				}
			}()
			return url
		}
	}
	t.Fatal("the mock does not say where it listens")
	return ""
}

func mocked(t *testing.T, w llm.Wire, base string) {
	c := client(t, llm.Config{
		Provider: llm.Row{Name: "mock", Wire: w}, BaseURL: base + root(w), Retries: -1, Key: func() string { return "sk-mock" },
	})
	ask := func(r llm.Request) (llm.Answer, []llm.Event, error) {
		var all []llm.Event
		a, err := c.Stream(t.Context(), r, func(e llm.Event) error {
			all = append(all, e)
			return nil
		})
		return a, all, err
	}
	say := func(text string) llm.Request {
		return llm.Request{
			Model: "m", System: "Be brief.", Messages: []llm.Message{{Role: llm.User, Parts: []llm.Part{{Text: text}}}},
			Tools: []llm.Tool{{Name: "read", Schema: json.RawMessage(`{"type":"object"}`)}},
		}
	}
	r := say("read both")
	a, all, err := ask(r)
	if err != nil || a.Stop != llm.StopTools || a.Text != "Grüße, 世界 😀" || len(a.Calls) != 2 {
		t.Fatalf("%+v, %v", a, err)
	}
	agrees(t, a, all)
	results := []llm.Part{}
	for i, want := range []string{`{"path":"/tmp/ä","lines":[1,2]}`, `{"path":"b"}`} {
		var got, wanted any
		if err := json.Unmarshal(a.Calls[i].Arguments, &got); err != nil {
			t.Error(err)
		}
		_ = json.Unmarshal([]byte(want), &wanted)
		if !reflect.DeepEqual(got, wanted) || a.Calls[i].Name != "read" {
			t.Errorf("%+v: %s", a.Calls[i], a.Calls[i].Arguments)
		}
		results = append(results, llm.Part{Result: &llm.ToolResult{ID: a.Calls[i].ID, Text: "text", Failed: i == 1}})
	}
	r.Messages = append(r.Messages, a.Message(), llm.Message{Role: llm.User, Parts: results})
	if a, _, err = ask(r); err != nil || a.Stop != llm.StopEnd || a.Text != "Both are read." {
		t.Errorf("with results: %+v, %v", a, err)
	}
	r = say("as JSON")
	r.Schema = &llm.Schema{Name: "form", JSON: json.RawMessage(`{"type":"object"}`)}
	if a, _, err = ask(r); err != nil || string(a.JSON) != `{"n": 7}` {
		t.Errorf("as JSON: %+v, %v", a, err)
	}
	if a, _, err = ask(say("be cut")); !errdefs.IsDataLoss(err) || a.Stop != "" {
		t.Errorf("cut: %+v, %v", a, err)
	}
	if _, _, err = ask(say("too much")); !errdefs.IsResourceExhausted(err) || !strings.Contains(err.Error(), "Slow down.") {
		t.Errorf("too much: %v", err)
	}
	if _, _, err = ask(say("wrong")); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "No such thing.") {
		t.Errorf("wrong: %v", err)
	}
}
