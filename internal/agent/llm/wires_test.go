package llm_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/carrel-dev/carrel/internal/agent/llm"
)

var wires = []llm.Wire{llm.Chat, llm.Responses, llm.Messages}

// transcript is the answer of a service as it sends it, written for these tests in the form that its reference has.
func transcript(t testing.TB, w llm.Wire) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", string(w)+".sse"))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

const said = "Grüße, 世界 😀\n\nTwo files."

// whole is what all transcripts say.
func whole(w llm.Wire) llm.Answer {
	a := llm.ToolCall{ID: "call_a1", Name: "read_file", Arguments: json.RawMessage(`{"path":"/tmp/ä.txt"}`)}
	b := llm.ToolCall{ID: "call_b2", Name: "read_file", Arguments: json.RawMessage(`{"path":"b","lines":[1,2]}`)}
	answer := llm.Answer{
		Text: said, Calls: []llm.ToolCall{a, b}, Stop: llm.StopTools, Parts: []llm.Part{{Text: said}, {Call: &a}, {Call: &b}},
		Usage: llm.Usage{Input: 56, Cached: 64, Output: 45},
	}
	own := func(text string) llm.Part {
		return llm.Part{Opaque: &llm.Opaque{Wire: w, JSON: json.RawMessage(text)}}
	}
	switch w {
	case llm.Chat:
		answer.Model, answer.Reason = "gpt-5.2-2026-01-15", "tool_calls"
	case llm.Responses:
		answer.Model, answer.Reason = "gpt-5.2-2026-01-15", "completed"
		thought := own(`{"id":"rs_1","type":"reasoning","summary":[],"encrypted_content":"gAAA12-whole"}`)
		answer.Parts = append([]llm.Part{thought}, answer.Parts...)
	case llm.Messages:
		answer.Model, answer.Reason = "claude-sonnet-5", "tool_use"
		thought := own(`{"type":"thinking","thinking":"Which file?","signature":"EqQBCg=="}`)
		answer.Parts = append([]llm.Part{thought}, answer.Parts...)
	}
	return answer
}

// agrees checks what holds of the events of every whole answer.
func agrees(t tester, a llm.Answer, all []llm.Event) {
	t.Helper()
	var text strings.Builder
	var calls []llm.ToolCall
	usage := llm.Usage{}
	for _, e := range all {
		switch e.Kind {
		case llm.TextDelta:
			text.WriteString(e.Text)
		case llm.CallDone:
			calls = append(calls, e.Call)
		case llm.UsageTold:
			usage = e.Usage
		case llm.Ended:
		}
	}
	if text.String() != a.Text || !reflect.DeepEqual(calls, a.Calls) || !a.Usage.Estimated && usage != a.Usage {
		t.Errorf("the events tell %q, %+v, %+v, and the answer %q, %+v, %+v", text.String(), calls, usage, a.Text, a.Calls, a.Usage)
	}
}

func TestWires(t *testing.T) {
	for _, w := range wires {
		a, all, err := llm.ReadAnswer(w, strings.NewReader(transcript(t, w)))
		if err != nil {
			t.Errorf("%s: %v", w, err)
		}
		if d := cmp.Diff(whole(w), a); d != "" {
			t.Errorf("%s (-want +got):\n%s", w, d)
		}
		agrees(t, a, all)
	}
}

// The answer is the same wherever its stream is split in two, in the middle of a line, an event or a character.
func TestSplitAnywhere(t *testing.T) {
	for _, w := range wires {
		t.Run(string(w), func(t *testing.T) {
			t.Parallel()
			text, want := transcript(t, w), whole(w)
			all := events(text)
			for i := 1; i < len(text); i++ {
				split := pieces{text: text, sizes: []int{i, len(text)}}
				if i%23 != 0 { // for most it is enough that the events are the same
					if got, err := llm.ReadEvents(&split); err != nil || !reflect.DeepEqual(got, all) {
						t.Fatalf("split at %d of %d: %q, %v", i, len(text), got, err)
					}
					continue
				}
				a, _, err := llm.ReadAnswer(w, &split)
				if err != nil || !reflect.DeepEqual(a, want) {
					t.Fatalf("split at %d of %d: %v\n%s", i, len(text), err, cmp.Diff(want, a))
				}
			}
		})
	}
}

// The answer is the same in pieces of any sizes, with any ends of lines, and with comments, pings and empty lines between
// its events.
func TestAnyPieces(t *testing.T) {
	between := map[llm.Wire][]string{
		llm.Chat:      {": OPENROUTER PROCESSING\n\n", "\n", ": x\n"},
		llm.Responses: {"event: keepalive\ndata: {\"type\":\"keepalive\"}\n\n", ":\n\n"},
		llm.Messages:  {"event: ping\ndata: {\"type\": \"ping\"}\n\n", "event: new\ndata: {\"type\": \"new\"}\n\n", ": x\n\n"},
	}
	for _, w := range wires {
		text, want := transcript(t, w), whole(w)
		rapid.Check(t, func(t *rapid.T) {
			all := strings.SplitAfter(text, "\n\n")
			for i, e := range all[:len(all)-1] {
				if rapid.Bool().Draw(t, "more") {
					all[i] = rapid.SampledFrom(between[w]).Draw(t, "between") + e
				}
			}
			sent := strings.ReplaceAll(strings.Join(all, ""), "\n", rapid.SampledFrom([]string{"\n", "\r\n", "\r"}).Draw(t, "end"))
			if rapid.Bool().Draw(t, "mark") {
				sent = "\xef\xbb\xbf" + sent
			}
			sizes := rapid.SliceOfN(rapid.IntRange(1, 700), 1, 60).Draw(t, "sizes")
			a, _, err := llm.ReadAnswer(w, &pieces{text: sent, sizes: sizes})
			if err != nil || !reflect.DeepEqual(a, want) {
				t.Fatalf("%s: %v\n%s", w, err, cmp.Diff(want, a))
			}
		})
	}
}

// A stream that ends too early is no answer, wherever it ends: after a whole event too.
func TestCut(t *testing.T) {
	for _, w := range wires {
		t.Run(string(w), func(t *testing.T) {
			t.Parallel()
			text := strings.TrimRight(transcript(t, w), "\n")
			for i := 0; i <= len(text); i++ {
				if i%19 != 0 && i < len(text)-100 && !strings.HasSuffix(text[:i], "\n\n") {
					continue
				}
				if a, _, err := llm.ReadAnswer(w, strings.NewReader(text[:i])); err == nil || !strings.Contains(err.Error(), "cut") || a.Stop != "" {
					t.Fatalf("cut at %d of %d: %q, %v", i, len(text), a.Stop, err)
				}
			}
		})
	}
}

// data makes a stream of events.
func data(events ...string) string {
	var b strings.Builder
	for _, e := range events {
		fmt.Fprintf(&b, "data: %s\n\n", e)
	}
	return b.String()
}

// messagesTurn is a stream of the wire Messages with these events of blocks.
func messagesTurn(stop string, blocks ...string) string {
	all := []string{`{"type":"message_start","message":{"model":"m","usage":{"input_tokens":1,"output_tokens":1}}}`}
	all = append(all, blocks...)
	all = append(all, `{"type":"message_delta","delta":{"stop_reason":"`+stop+`"},"usage":{"output_tokens":9}}`, `{"type":"message_stop"}`)
	return data(all...)
}

func TestStops(t *testing.T) {
	chat := func(reason string) string {
		return data(`{"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":"`+reason+`"}]}`, `[DONE]`)
	}
	responses := func(kind, rest string) string {
		return data(`{"type":"response.output_text.delta","output_index":0,"delta":"x"}`,
			`{"type":"response.`+kind+`","response":{"status":"`+kind+`"`+rest+`}}`)
	}
	block := []string{
		`{"type":"content_block_start","index":0,"content_block":{"type":"text","text":"x"}}`, `{"type":"content_block_stop","index":0}`,
	}
	for _, c := range []struct {
		wire llm.Wire
		text string
		want llm.Stop
	}{
		{llm.Chat, chat("stop"), llm.StopEnd},
		{llm.Chat, chat("length"), llm.StopLength},
		{llm.Chat, chat("content_filter"), llm.StopRefused},
		{llm.Chat, chat("abort"), llm.StopOther},
		{llm.Responses, responses("completed", ""), llm.StopEnd},
		{llm.Responses, responses("incomplete", `,"incomplete_details":{"reason":"max_output_tokens"}`), llm.StopLength},
		{llm.Responses, responses("incomplete", `,"incomplete_details":{"reason":"content_filter"}`), llm.StopRefused},
		{llm.Responses, responses("incomplete", `,"incomplete_details":null`), llm.StopOther},
		{llm.Messages, messagesTurn("end_turn", block...), llm.StopEnd},
		{llm.Messages, messagesTurn("stop_sequence", block...), llm.StopEnd},
		{llm.Messages, messagesTurn("max_tokens", block...), llm.StopLength},
		{llm.Messages, messagesTurn("model_context_window_exceeded", block...), llm.StopLength},
		{llm.Messages, messagesTurn("refusal", block...), llm.StopRefused},
		{llm.Messages, messagesTurn("pause_turn", block...), llm.StopOther},
	} {
		a, _, err := llm.ReadAnswer(c.wire, strings.NewReader(c.text))
		if err != nil || a.Stop != c.want || a.Text != "x" {
			t.Errorf("%s: %q %q, %v; want %q\n%s", c.wire, a.Stop, a.Text, err, c.want, c.text)
		}
	}
}

// What a provider may say of how a model declines is no text of the answer.
func TestRefusals(t *testing.T) {
	for w, text := range map[llm.Wire]string{
		llm.Chat: data(`{"choices":[{"delta":{"refusal":"I "}}]}`,
			`{"choices":[{"delta":{"refusal":"won't"},"finish_reason":"stop"}]}`, `[DONE]`),
		llm.Responses: data(`{"type":"response.refusal.delta","output_index":0,"delta":"I won't"}`,
			`{"type":"response.output_item.done","output_index":0,"item":{"type":"message","content":[{"type":"refusal","refusal":"I won't"}]}}`,
			`{"type":"response.completed","response":{}}`),
	} {
		a, _, err := llm.ReadAnswer(w, strings.NewReader(text))
		if err != nil || a.Stop != llm.StopRefused || a.Refusal != "I won't" || a.Text != "" {
			t.Errorf("%s: %+v, %v", w, a, err)
		}
	}
}

// Forms that other servers of these wires send.
func TestOtherServers(t *testing.T) {
	call := func(id, path string) llm.ToolCall {
		return llm.ToolCall{ID: id, Name: "read", Arguments: json.RawMessage(path)}
	}
	for _, c := range []struct {
		what string
		wire llm.Wire
		text string
		want []llm.ToolCall
	}{
		{
			"Gemini numbers all calls 0, and says stop", llm.Chat, data(
				`{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"a","type":"function","function":{"name":"read","arguments":"{\"a\":1}"}},`+
					`{"index":0,"id":"b","type":"function","function":{"name":"read","arguments":"{}"}}]},"finish_reason":"stop"}]}`, `[DONE]`),
			[]llm.ToolCall{call("a", `{"a":1}`), call("b", `{}`)},
		},
		{"the id is repeated", llm.Chat, data(
			`{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"a","function":{"name":"read","arguments":"{"}}]}}]}`,
			`{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"a","function":{"name":"read","arguments":"}"}}]},"finish_reason":"tool_calls"}]}`,
			`[DONE]`), []llm.ToolCall{call("a", `{}`)}},
		{"no id, no arguments", llm.Chat, data(
			`{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"name":"read"}},{"index":1,"function":{"name":"read","arguments":null}}]},`+
				`"finish_reason":"tool_calls"}]}`, `[DONE]`), []llm.ToolCall{call("call_0", `{}`), call("call_1", `{}`)}},
		{"two calls with one id", llm.Messages, messagesTurn("tool_use",
			`{"type":"content_block_start","index":0,"content_block":{"type":"tool_use","id":"a","name":"read","input":{}}}`,
			`{"type":"content_block_stop","index":0}`,
			`{"type":"content_block_start","index":1,"content_block":{"type":"tool_use","id":"a","name":"read","input":{"b":2}}}`,
			`{"type":"content_block_stop","index":1}`), []llm.ToolCall{call("a", `{}`), call("call_1", `{"b":2}`)}},
		{"the item is all there is", llm.Responses, data(
			`{"type":"response.output_item.done","output_index":0,"item":{"type":"function_call","call_id":"a","name":"read","arguments":"{}"}}`,
			`{"type":"response.completed","response":{"output":[{"type":"function_call"}]}}`), []llm.ToolCall{call("a", `{}`)}},
	} {
		a, all, err := llm.ReadAnswer(c.wire, strings.NewReader(c.text))
		if err != nil || a.Stop != llm.StopTools || !reflect.DeepEqual(a.Calls, c.want) {
			t.Errorf("%s: %v, %q, %+v", c.what, err, a.Stop, a.Calls)
		}
		agrees(t, a, all)
	}
	a, _, err := llm.ReadAnswer(llm.Responses, strings.NewReader(data(
		`{"type":"response.output_item.done","output_index":0,"item":{"type":"message","content":[{"type":"output_text","text":"at once"}]}}`,
		`{"type":"response.completed","response":{}}`)))
	if err != nil || a.Text != "at once" {
		t.Errorf("%+v, %v", a, err)
	}
}

// A call that must not be run says why, and can be sent back.
func TestBadCalls(t *testing.T) {
	deep := strings.Repeat(`{"a":`, llm.MaxDepth) + "1" + strings.Repeat("}", llm.MaxDepth)
	for _, c := range []struct{ name, arguments, bad string }{
		{"read", `{"a":1`, "not one JSON object"},
		{"read", `[]`, "not one JSON object"},
		{"read", `{}{}`, "not one JSON object"},
		{"read", `"x"`, "not one JSON object"},
		{"read", `{"a":1,"a":2}`, "ambiguous"},
		{"read", `{"a":[{"b":1,"\u0062":2}]}`, "ambiguous"},
		{"read", `{"a":` + deep + `}`, "nested more than"},
		{"rm -rf", `{}`, "no name"},
		{"", `{}`, "no name"},
		{strings.Repeat("n", 65), `{}`, "no name"},
		{"read", deep, ""},
		{"read", "", ""},
		{"read", " null ", ""},
	} {
		name, _ := json.Marshal(c.name)
		arguments, _ := json.Marshal(c.arguments)
		a, _, err := llm.ReadAnswer(llm.Chat, strings.NewReader(data(fmt.Sprintf(
			`{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"a","function":{"name":%s,"arguments":%s}}]},"finish_reason":"tool_calls"}]}`,
			name, arguments), `[DONE]`)))
		if err != nil || len(a.Calls) != 1 {
			t.Fatalf("%.40q: %v", c.arguments, err)
		}
		got := a.Calls[0]
		if (c.bad == "") != (got.Bad == "") || !strings.Contains(got.Bad, c.bad) || (got.Bad == "") != (got.Arguments != nil) {
			t.Errorf("%.40q: %q, %.40q", c.arguments, got.Bad, got.Arguments)
		}
		for _, w := range wires {
			_, err := llm.Encode(llm.Config{Provider: llm.Row{Wire: w}}, llm.Request{
				Model: "m", Messages: []llm.Message{a.Message(), {Role: llm.User, Parts: []llm.Part{{Result: &llm.ToolResult{ID: got.ID}}}}},
			})
			if err != nil {
				t.Errorf("%.40q cannot be sent back to %s: %v", c.arguments, w, err)
			}
		}
	}
}

// Streams that contradict themselves, or that no service sends, are no answers.
func TestBrokenStreams(t *testing.T) {
	many := make([]string, llm.MaxCalls+1)
	for i := range many {
		many[i] = fmt.Sprintf(`{"index":%d,"id":"%d","function":{"name":"read"}}`, i, i)
	}
	item := `{"type":"response.output_item.done","output_index":0,` +
		`"item":{"type":"function_call","call_id":"a","name":"read","arguments":"{}"}}`
	open := `{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}`
	deep := strings.Repeat("[", llm.MaxDepth) + strings.Repeat("]", llm.MaxDepth)
	var blocks, uses, items []string
	for i := range llm.MaxCalls + 1 {
		uses = append(uses, fmt.Sprintf(`{"type":"content_block_start","index":%d,"content_block":{"type":"tool_use","name":"read"}}`, i),
			fmt.Sprintf(`{"type":"content_block_stop","index":%d}`, i))
		items = append(items, strings.Replace(item, `"output_index":0`, fmt.Sprintf(`"output_index":%d`, i), 1))
	}
	for i := range llm.MaxParts + 1 {
		blocks = append(blocks, fmt.Sprintf(`{"type":"content_block_start","index":%d,"content_block":{"type":"text"}}`, i))
	}
	for _, c := range []struct {
		wire       llm.Wire
		text, says string
	}{
		{llm.Chat, data(`{`), "not in the form"},
		{llm.Chat, data(`[]`), "not in the form"},
		{llm.Chat, data(`{"x":` + deep + `}`), "nested"},
		{llm.Chat, data(`{"choices":[{"delta":{"content":7}}]}`), "not in the form"},
		{llm.Chat, data(`[DONE]`), "without saying why"},
		{llm.Chat, data(`{"choices":[{"index":1,"delta":{"content":"x"}}]}`), "second answer"},
		{llm.Chat, data(`{"choices":[{"delta":{},"finish_reason":"tool_calls"}]}`, `[DONE]`), "calls none"},
		{llm.Chat, data(`{"choices":[{"delta":{"tool_calls":[` + strings.Join(many, ",") + `]}}]}`), "more than 256"},
		{
			llm.Chat, data(`{"choices":[{"delta":{"tool_calls":[{"id":"`+strings.Repeat("i", 600)+`"}]},"finish_reason":"stop"}]}`, `[DONE]`),
			"id of a",
		},
		{llm.Responses, data(item, item), "another item"},
		{llm.Responses, data(`{"type":"response.output_text.delta","output_index":0,"delta":"x"}`, item), "another item"},
		{llm.Responses, data(`{"type":"response.function_call_arguments.delta","output_index":0,"delta":"{ }"}`, item), "differ"},
		{llm.Responses, data(`{"type":"response.output_text.delta","output_index":0,"delta":"x"}`, `{"type":"response.output_item.done",`+
			`"output_index":0,"item":{"type":"message","content":[{"type":"output_text","text":"y"}]}}`), "differ"},
		{llm.Responses, data(`{"type":"response.function_call_arguments.delta","output_index":0,"delta":"{}"}`,
			`{"type":"response.completed","response":{}}`), "middle of a tool call"},
		{llm.Responses, data(`{"type":"response.completed","response":{"output":[{"type":"function_call"}]}}`), "lacks a tool call"},
		{llm.Messages, data(`{"type":"message_stop"}`), "not begun"},
		{llm.Messages, data(open), "not begun"},
		{llm.Messages, messagesTurn("end_turn", open), "middle of a block"},
		{llm.Messages, messagesTurn("end_turn", open, open), "twice"},
		{llm.Messages, messagesTurn("end_turn", `{"type":"message_start","message":{}}`), "second answer"},
		{llm.Messages, messagesTurn("end_turn", `{"type":"content_block_delta","index":3,"delta":{"type":"text_delta"}}`), "not open"},
		{llm.Messages, messagesTurn("end_turn", `{"type":"content_block_stop","index":3}`), "not open"},
		{
			llm.Messages, messagesTurn("end_turn", open, `{"type":"content_block_delta","index":0,"delta":{"type":"input_json_delta"}}`),
			"another block",
		},
		{llm.Messages, messagesTurn(""), "without saying why"},
		{llm.Messages, messagesTurn("tool_use"), "calls none"},
		{llm.Messages, messagesTurn("end_turn", blocks...), "more than 1024 parts"},
		{llm.Messages, messagesTurn("tool_use", uses...), "more than 256"},
		{llm.Responses, data(items...), "more than 256"},
	} {
		a, _, err := llm.ReadAnswer(c.wire, strings.NewReader(c.text))
		if err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s %.200s: %v", c.wire, c.text, err)
		}
		if a.Stop != "" {
			t.Errorf("%s %.200s is taken for whole: %q", c.wire, c.text, a.Stop)
		}
	}
}

// What the provider wants back is sent back where it stood, and to no other.
func TestThoughts(t *testing.T) {
	a, _, err := llm.ReadAnswer(llm.Chat, strings.NewReader(data(
		`{"choices":[{"delta":{"reasoning_content":"Let "}}]}`, `{"choices":[{"delta":{"reasoning_content":"me see"}}]}`,
		`{"choices":[{"delta":{"content":"Yes.","tool_calls":[{"index":0,"id":"a","extra_content":{"google":{"thought_signature":"sig"}},`+
			`"function":{"name":"read","arguments":"{}"}}]},"finish_reason":"tool_calls"}]}`, `[DONE]`)))
	if err != nil || a.Text != "Yes." {
		t.Fatalf("%+v, %v", a, err)
	}
	empty, _, err := llm.ReadAnswer(llm.Chat, strings.NewReader(data(
		`{"choices":[{"delta":{"reasoning_content":"","tool_calls":[{"index":0,"id":"a","function":{"name":"read"}}]},"finish_reason":"stop"}]}`,
		`[DONE]`)))
	if err != nil {
		t.Fatal(err)
	}
	hidden, _, err := llm.ReadAnswer(llm.Messages, strings.NewReader(messagesTurn("end_turn",
		`{"type":"content_block_start","index":0,"content_block":{"type":"redacted_thinking","data":"EmwKAh"}}`,
		`{"type":"content_block_stop","index":0}`,
		`{"type":"content_block_start","index":1,"content_block":{"type":"text","text":"Yes."}}`, `{"type":"content_block_stop","index":1}`)))
	if err != nil {
		t.Fatal(err)
	}
	encode := func(w llm.Wire, a llm.Answer) string {
		text, err := llm.Encode(llm.Config{Provider: llm.Row{Wire: w}}, llm.Request{Model: "m", Messages: []llm.Message{a.Message(), {
			Role: llm.User, Parts: []llm.Part{{Text: "go on"}},
		}}})
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	for _, c := range []struct {
		wire  llm.Wire
		of    llm.Answer
		text  string
		there bool
	}{
		{llm.Chat, a, `"reasoning_content":"Let me see"`, true},
		{llm.Chat, a, `"extra_content":{"google":{"thought_signature":"sig"}}`, true},
		{llm.Messages, a, "Let me see", false},
		{llm.Messages, a, "sig", false},
		{llm.Responses, a, "Let me see", false},
		{llm.Chat, empty, `"reasoning_content":""`, true},
		{llm.Messages, hidden, `{"type":"redacted_thinking","data":"EmwKAh"},{"type":"text"`, true},
		{llm.Chat, hidden, "EmwKAh", false},
		{llm.Messages, whole(llm.Messages), `{"type":"thinking","thinking":"Which file?","signature":"EqQBCg=="},{"type":"text"`, true},
		{llm.Responses, whole(llm.Responses), `"encrypted_content":"gAAA12-whole"},{"role":"assistant"`, true},
	} {
		if text := encode(c.wire, c.of); strings.Contains(text, c.text) != c.there {
			t.Errorf("%s: %s is not as it should be in %s", c.wire, c.text, text)
		}
	}
}
