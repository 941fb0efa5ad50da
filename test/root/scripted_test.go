package root_test

import (
	"encoding/json"
	"io"
	"net/http"
	"sync"
	"testing"
)

// scripted is a model that answers by a script: one answer after the other. An answer is made of what the model was asked.
type scripted struct {
	t  *testing.T
	mu sync.Mutex
	// asked are the bodies of the requests.
	asked  []string
	given  []string
	script []func(asked string) string
}

// script has the model of the host answer so, each time anew.
func (m *modeled) script(t *testing.T, answers ...func(asked string) string) *scripted {
	t.Helper()
	s := &scripted{t: t, script: answers}
	h := http.HandlerFunc(s.serve)
	m.says.Store(&h)
	return s
}

// always is an answer that is the same whatever is asked.
func always(text string) func(string) string { return func(string) string { return text } }

// serve speaks OpenAI's chat completions, streamed.
func (s *scripted) serve(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	s.mu.Lock()
	s.asked = append(s.asked, string(body))
	n := len(s.asked) - 1
	s.mu.Unlock()
	if err != nil || n >= len(s.script) {
		http.Error(w, `{"error":{"message":"the script has ended"}}`, http.StatusBadRequest)
		return
	}
	text, _ := json.Marshal(s.script[n](string(body)))
	w.Header().Set("Content-Type", "text/event-stream")
	given := ""
	for _, data := range []string{
		`{"id":"x","object":"chat.completion.chunk","model":"m1","choices":[{"index":0,"delta":{"role":"assistant","content":` + string(text) + `}}]}`,
		`{"id":"x","object":"chat.completion.chunk","model":"m1","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`,
		`{"id":"x","object":"chat.completion.chunk","model":"m1","choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3,"total_tokens":10}}`,
		`[DONE]`,
	} {
		given += "data: " + data + "\n\n"
	}
	s.mu.Lock()
	s.given = append(s.given, given)
	s.mu.Unlock()
	_, _ = io.WriteString(w, given)
}

// gave are the bodies of the answers so far.
func (s *scripted) gave() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.given...)
}

// said are the bodies of the requests so far.
func (s *scripted) said() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.asked...)
}

// planOf is a plan of one command, in the form of package plan.
func planOf(target, command string, readOnly bool) string {
	return planOfAll(planStep(target, command, readOnly))
}

func planStep(target, command string, readOnly bool) map[string]any {
	return map[string]any{"command": command, "purpose": "to see", "read_only": readOnly, "target": target}
}

func planOfAll(steps ...map[string]any) string {
	b, _ := json.Marshal(map[string]any{
		"type": "command_plan", "goal": "find out", "commands": steps, "risk_summary": "none", "preflight_checks": []any{},
		"verification_commands": []any{}, "rollback_commands": []any{}, "requires_root": false, "expected_side_effects": []any{},
	})
	return string(b)
}

func directly(text string) string {
	b, _ := json.Marshal(map[string]string{"type": "direct_answer", "answer": text})
	return string(b)
}
