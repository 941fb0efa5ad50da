package llm_test

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/carrel-dev/carrel/internal/agent/llm"
)

// fuzzAnswer holds that whatever a provider sends is an error or an answer that keeps every promise, and that it is the same
// in whatever pieces it comes.
func fuzzAnswer(f *testing.F, w llm.Wire, seeds ...string) {
	f.Helper()
	text := transcript(f, w)
	f.Add(text, uint8(0))
	for _, s := range seeds {
		f.Add(s, uint8(7))
	}
	f.Fuzz(func(t *testing.T, text string, size uint8) { keeps(t, w, text, int(size)+1) })
}

// tester is a test, or a case of rapid.
type tester interface {
	Helper()
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// keeps checks what holds of whatever a provider sends.
func keeps(t tester, w llm.Wire, text string, size int) {
	t.Helper()
	a, all, err := llm.ReadAnswer(w, strings.NewReader(text))
	b, _, errb := llm.ReadAnswer(w, &pieces{text: text, sizes: []int{size}})
	if (err == nil) != (errb == nil) || err != nil && err.Error() != errb.Error() || !reflect.DeepEqual(a, b) {
		t.Fatalf("in pieces of %d bytes it is %+v, %v; at once %+v, %v", size, b, errb, a, err)
	}
	if err != nil {
		if a.Stop != "" || !utf8.ValidString(err.Error()) || strings.ContainsAny(err.Error(), "\x00\x1b\n\r") || len(err.Error()) > 2000 {
			t.Fatalf("%q, %q", a.Stop, err)
		}
		return
	}
	if a.Stop == "" || !strings.Contains(text, "data") {
		t.Fatalf("%q is taken for whole: %+v", text, a)
	}
	agrees(t, a, all)
	if len(a.Calls) > llm.MaxCalls || len(a.Parts) > llm.MaxParts+llm.MaxCalls+2 {
		t.Fatalf("%d calls, %d parts", len(a.Calls), len(a.Parts))
	}
	for _, n := range []int64{a.Usage.Input, a.Usage.Output, a.Usage.Cached, a.Usage.CacheWrite} {
		if n < 0 {
			t.Fatalf("%+v", a.Usage)
		}
	}
	ids := map[string]bool{}
	results := []llm.Part{{Text: "go on"}}
	for _, c := range a.Calls {
		var arguments map[string]any
		if c.Bad == "" && (json.Unmarshal(c.Arguments, &arguments) != nil || llm.Depth(c.Arguments) > llm.MaxDepth) ||
			(c.Bad == "") == (c.Arguments == nil) || ids[c.ID] {
			t.Fatalf("%+v", c)
		}
		ids[c.ID] = true
		results = append(results, llm.Part{Result: &llm.ToolResult{ID: c.ID, Text: c.Bad}})
	}
	for _, to := range wires {
		sent, err := llm.Encode(llm.Config{Provider: llm.Row{Wire: to}},
			llm.Request{Model: "m", Messages: []llm.Message{a.Message(), {Role: llm.User, Parts: results}}})
		if err != nil || !json.Valid([]byte(sent)) {
			t.Fatalf("%+v cannot be sent back to %s: %v, %s", a.Parts, to, err, sent)
		}
	}
}

func FuzzAnswerChat(f *testing.F) {
	fuzzAnswer(f, llm.Chat, short, data("[DONE]"), data(`{"error":{"message":"m","code":7}}`), data(
		`{"choices":[{"delta":{"reasoning_content":"","tool_calls":[{"index":-1,"id":"a","extra_content":{"x":1},`+
			`"function":{"name":"n","arguments":"{"}},`+
			`{"index":-1,"id":"b","function":{"name":"","arguments":"{}"}}]},"finish_reason":"stop",`+
			`"usage":{"prompt_tokens":1e9,"cached_tokens":7}}]}`,
		"[DONE]"))
}

func FuzzAnswerResponses(f *testing.F) {
	fuzzAnswer(f, llm.Responses, data(`{"type":"response.output_text.delta","output_index":9,"delta":"x"}`,
		`{"type":"response.incomplete","response":{"incomplete_details":{"reason":"content_filter"},`+
			`"usage":{"input_tokens":null,"output_tokens":1.5}}}`),
		data(`{"type":"error","code":null,"message":"m"}`), data(
			`{"type":"response.output_item.done","output_index":1,"item":{"type":"function_call","status":"incomplete","arguments":"{"}}`,
			`{"type":"response.completed","response":{"output":[{"type":"function_call"}]}}`))
}

func FuzzAnswerMessages(f *testing.F) {
	fuzzAnswer(f, llm.Messages, messagesTurn("end_turn"), messagesTurn("tool_use",
		`{"type":"content_block_start","index":2,"content_block":{"type":"tool_use","id":"a","name":"n","input":{"a":[]}}}`,
		`{"type":"content_block_stop","index":2}`,
		`{"type":"content_block_start","index":1,"content_block":{"type":"redacted_thinking","data":"x"}}`,
		`{"type":"content_block_stop","index":1}`), data(`{"type":"error","error":"text"}`))
}

// pool are well-formed events of each wire. %d is one of a few indexes.
var pool = map[llm.Wire][]string{
	llm.Chat: {
		`{"choices":[{"delta":{"content":"x"}}]}`, `{"choices":[{"delta":{"reasoning_content":"t"}}]}`,
		`{"choices":[{"delta":{"tool_calls":[{"index":%d,"id":"c%[1]d","function":{"name":"n","arguments":"{}"}}]}}]}`,
		`{"choices":[{"delta":{"tool_calls":[{"index":%d,"function":{"arguments":"}"}}]}}]}`,
		`{"choices":[{"delta":{},"finish_reason":"stop"}]}`, `{"choices":[{"delta":{},"finish_reason":"tool_calls"}]}`, used, `{}`, "[DONE]",
	},
	llm.Responses: {
		`{"type":"response.created","response":{"model":"m"}}`, `{"type":"response.output_text.delta","output_index":%d,"delta":"x"}`,
		`{"type":"response.output_item.added","output_index":%d,"item":{"type":"message"}}`,
		`{"type":"response.output_item.added","output_index":%d,"item":{"type":"function_call","call_id":"c","name":"n"}}`,
		`{"type":"response.function_call_arguments.delta","output_index":%d,"delta":"{}"}`,
		`{"type":"response.output_item.done","output_index":%d,"item":{"type":"function_call","call_id":"c","name":"n","arguments":"{}"}}`,
		`{"type":"response.output_item.done","output_index":%d,"item":{"type":"reasoning","encrypted_content":"e"}}`,
		`{"type":"response.output_item.done","output_index":%d,"item":{"type":"message","content":[{"type":"output_text","text":"x"}]}}`,
		`{"type":"response.refusal.delta","output_index":%d,"delta":"no"}`, `{"type":"response.completed","response":{}}`,
		`{"type":"response.incomplete","response":{"incomplete_details":{"reason":"max_output_tokens"}}}`,
	},
	llm.Messages: {
		`{"type":"content_block_start","index":%d,"content_block":{"type":"text","text":""}}`,
		`{"type":"content_block_start","index":%d,"content_block":{"type":"tool_use","id":"c","name":"n","input":{}}}`,
		`{"type":"content_block_start","index":%d,"content_block":{"type":"thinking","thinking":""}}`,
		`{"type":"content_block_start","index":%d,"content_block":{"type":"server_tool_use","id":"s","name":"n","input":{}}}`,
		`{"type":"content_block_delta","index":%d,"delta":{"type":"text_delta","text":"x"}}`,
		`{"type":"content_block_delta","index":%d,"delta":{"type":"input_json_delta","partial_json":"{}"}}`,
		`{"type":"content_block_stop","index":%d}`, `{"type":"ping"}`,
		`{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":5}}`, `{"type":"message_stop"}`,
	},
}

// Events in any order make an error or an answer that keeps every promise.
func TestAnyOrder(t *testing.T) {
	whole := 0
	for _, w := range wires {
		rapid.Check(t, func(r *rapid.T) {
			all := []string{}
			if w == llm.Messages {
				all = append(all, `{"type":"message_start","message":{"usage":{"input_tokens":1}}}`)
			}
			for range rapid.IntRange(1, 12).Draw(r, "events") {
				e := rapid.SampledFrom(pool[w]).Draw(r, "event")
				if strings.Contains(e, "%") {
					e = fmt.Sprintf(e, rapid.IntRange(0, 2).Draw(r, "index"))
				}
				all = append(all, e)
			}
			text := data(all...)
			keeps(r, w, text, rapid.IntRange(1, 300).Draw(r, "size"))
			if _, _, err := llm.ReadAnswer(w, strings.NewReader(text)); err == nil {
				whole++
			}
		})
	}
	if whole < 10 {
		t.Errorf("only %d of these answers are whole: they show nothing", whole)
	}
}
