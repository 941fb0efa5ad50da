package llm_test

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/internal/agent/llm"
	"github.com/carrel-dev/carrel/internal/agent/llm/cassette"
)

// finals end a turn, on each wire.
var finals = map[llm.Wire]string{
	llm.Chat: data(`{"model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":"Both "},"finish_reason":null}]}`,
		`{"model":"m","choices":[{"index":0,"delta":{"content":"are read."},"finish_reason":null}]}`,
		`{"model":"m","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}`,
		`{"model":"m","choices":[],"usage":{"prompt_tokens":30,"completion_tokens":5}}`, "[DONE]"),
	llm.Responses: data(`{"type":"response.output_text.delta","output_index":0,"delta":"Both are read."}`,
		`{"type":"response.completed","response":{"usage":{"input_tokens":30,"output_tokens":5}}}`),
	llm.Messages: messagesTurn("end_turn", `{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}`,
		`{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Both are read."}}`,
		`{"type":"content_block_stop","index":0}`),
}

// A whole turn, a call and its results, is played from a cassette: what is sent is byte for byte what was recorded.
// CARREL_TEST_RECORD=1 records the cassettes anew, of a scripted server.
func TestTurn(t *testing.T) {
	for _, w := range wires {
		file := filepath.Join("testdata", "turn-"+string(w)+".jsonl")
		var via http.RoundTripper
		if os.Getenv("CARREL_TEST_RECORD") != "" {
			_ = os.Remove(file)
			replies := []string{transcript(t, w), finals[w]}
			c, err := cassette.Record(file, tripper(func(*http.Request) (*reply, error) {
				text := replies[0]
				replies = replies[1:]
				return answered(strings.NewReader(text)), nil
			}), "sk-test")
			if err != nil {
				t.Fatal(err)
			}
			via = c
			defer func() {
				if err := c.Close(); err != nil {
					t.Error(err)
				}
			}()
		} else {
			p, err := cassette.Open(file)
			if err != nil {
				t.Fatal(err)
			}
			via = p
			defer func() {
				if err := p.Left(); err != nil {
					t.Error(err)
				}
			}()
		}
		c := client(t, llm.Config{
			Provider: llm.Row{Wire: w, CacheKey: true}, Transport: via, Reasoning: true, Key: func() string { return "sk-test" },
		})
		r := hello()
		r.System, r.CacheKey = "Be brief.", "s-1"
		r.Tools = []llm.Tool{{Name: "read_file", Description: "Reads <a> file.", Schema: json.RawMessage(schema)}}
		budget := &llm.Budget{Tokens: 300, Requests: 5}
		var a llm.Answer
		turn := func() error {
			return budget.Spend(func() (u llm.Usage, err error) {
				a, err = c.Stream(t.Context(), r, nil)
				return a.Usage, err
			})
		}
		for err := turn(); ; err = turn() {
			if err != nil {
				t.Fatalf("%s: %v", w, err)
			}
			if a.Stop != llm.StopTools {
				break
			}
			results := llm.Message{Role: llm.User}
			for _, call := range a.Calls {
				results.Parts = append(results.Parts, llm.Part{Result: &llm.ToolResult{ID: call.ID, Text: "Inhalt: größer & <kleiner>"}})
			}
			r.Messages = append(r.Messages, a.Message(), results)
		}
		tokens, requests := budget.Used()
		if a.Stop != llm.StopEnd || a.Text != "Both are read." || requests != 2 || tokens < 165 {
			t.Errorf("%s: %+v, %d tokens in %d requests", w, a, tokens, requests)
		}
	}
}
