package llm_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"

	"github.com/carrel-dev/carrel/internal/agent/llm"
)

// conversation has every kind of part.
func conversation() llm.Request {
	call := func(id, arguments string) llm.Part {
		return llm.Part{Call: &llm.ToolCall{ID: id, Name: "read", Arguments: json.RawMessage(arguments)}}
	}
	return llm.Request{
		Model: "m", System: "Be brief.", MaxTokens: 100, CacheKey: "session-7",
		Tools: []llm.Tool{{Name: "read", Description: "Reads a file.", Schema: json.RawMessage(schema)}},
		Messages: []llm.Message{
			{Role: llm.User, Parts: []llm.Part{{Text: "What is in a & b?"}}},
			{Role: llm.Assistant, Parts: []llm.Part{{Text: "Let me look."}, call("c1", `{"p":"a"}`), call("c2", "")}},
			{Role: llm.User, Parts: []llm.Part{
				{Text: "Hurry."}, {Result: &llm.ToolResult{ID: "c1", Text: "1"}}, {Result: &llm.ToolResult{ID: "c2", Text: "no p", Failed: true}},
			}},
			{Role: llm.Assistant, Parts: []llm.Part{{Text: "One."}}},
			{Role: llm.User, Parts: []llm.Part{{Text: "Thanks."}}},
		},
	}
}

// same compares JSON, whatever the order of its members.
func same(t *testing.T, what, got, want string) {
	t.Helper()
	var g, w any
	if err := json.Unmarshal([]byte(got), &g); err != nil {
		t.Fatalf("%s: %v: %s", what, err, got)
	}
	if err := json.Unmarshal([]byte(want), &w); err != nil {
		t.Fatalf("%s: %v: %s", what, err, want)
	}
	if d := cmp.Diff(w, g); d != "" {
		t.Errorf("%s (-want +got):\n%s", what, d)
	}
}

const schema = `{"type":"object","properties":{"p":{"type":"string"}}}`

func TestEncode(t *testing.T) {
	r := conversation()
	r.Messages[1].Parts[2].Call.Arguments = nil // as of a call that could not be used
	for _, c := range []struct {
		row  llm.Row
		want string
	}{
		{llm.Row{Wire: llm.Chat, MaxTokens: llm.MaxCompletionParameter, CacheKey: true}, `{"model":"m","stream":true,
			"stream_options":{"include_usage":true},"max_completion_tokens":100,"prompt_cache_key":"session-7",
			"tools":[{"type":"function","function":{"name":"read","description":"Reads a file.","parameters":` + schema + `}}],
			"messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"What is in a & b?"},
			{"role":"assistant","content":"Let me look.","tool_calls":[
				{"id":"c1","type":"function","function":{"name":"read","arguments":"{\"p\":\"a\"}"}},
				{"id":"c2","type":"function","function":{"name":"read","arguments":"{}"}}]},
			{"role":"tool","tool_call_id":"c1","content":"1"},{"role":"tool","tool_call_id":"c2","content":"error: no p"},
			{"role":"user","content":"Hurry."},{"role":"assistant","content":"One."},{"role":"user","content":"Thanks."}]}`},
		{llm.Row{Wire: llm.Responses, CacheKey: true}, `{"model":"m","stream":true,"store":false,"max_output_tokens":100,
			"prompt_cache_key":"session-7","instructions":"Be brief.",
			"tools":[{"type":"function","name":"read","description":"Reads a file.","strict":false,"parameters":` + schema + `}],
			"input":[{"role":"user","content":"What is in a & b?"},{"role":"assistant","content":"Let me look."},
			{"type":"function_call","call_id":"c1","name":"read","arguments":"{\"p\":\"a\"}"},
			{"type":"function_call","call_id":"c2","name":"read","arguments":"{}"},
			{"type":"function_call_output","call_id":"c1","output":"1"},{"type":"function_call_output","call_id":"c2","output":"error: no p"},
			{"role":"user","content":"Hurry."},{"role":"assistant","content":"One."},{"role":"user","content":"Thanks."}]}`},
		{llm.Row{Wire: llm.Messages}, `{"model":"m","stream":true,"max_tokens":100,
			"system":[{"type":"text","text":"Be brief.","cache_control":{"type":"ephemeral"}}],
			"tools":[{"name":"read","description":"Reads a file.","input_schema":` + schema + `}],
			"messages":[{"role":"user","content":[{"type":"text","text":"What is in a & b?"}]},
			{"role":"assistant","content":[{"type":"text","text":"Let me look."},{"type":"tool_use","id":"c1","name":"read","input":{"p":"a"}},
				{"type":"tool_use","id":"c2","name":"read","input":{}}]},
			{"role":"user","content":[{"type":"tool_result","tool_use_id":"c1","content":"1"},
				{"type":"tool_result","tool_use_id":"c2","content":"no p","is_error":true},{"type":"text","text":"Hurry."}]},
			{"role":"assistant","content":[{"type":"text","text":"One."}]},
			{"role":"user","content":[{"type":"text","text":"Thanks.","cache_control":{"type":"ephemeral"}}]}]}`},
	} {
		got, err := llm.Encode(llm.Config{Provider: c.row}, r)
		if err != nil {
			t.Fatal(err)
		}
		same(t, string(c.row.Wire), got, c.want)
		again, _ := llm.Encode(llm.Config{Provider: c.row}, r)
		if again != got { // or nothing is cached
			t.Errorf("%s: one request is written in two ways", c.row.Wire)
		}
	}
}

// cached returns where a request marks what is to be cached.
func cached(t *testing.T, r llm.Request) (marks []string) {
	t.Helper()
	text, err := llm.Encode(llm.Config{Provider: llm.Row{Wire: llm.Messages}}, r)
	if err != nil {
		t.Fatal(err)
	}
	var walk func(v any, at string)
	walk = func(v any, at string) {
		switch v := v.(type) {
		case map[string]any:
			if v["cache_control"] != nil {
				marks = append(marks, at)
			}
			for _, name := range []string{"system", "tools", "messages", "content"} {
				walk(v[name], at+"/"+name)
			}
		case []any:
			for i, x := range v {
				walk(x, fmt.Sprint(at, i))
			}
		}
	}
	var v any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatal(err)
	}
	walk(v, "")
	return marks
}

func TestCachePoints(t *testing.T) {
	r := conversation()
	for _, c := range []struct {
		what   string
		change func(*llm.Request)
		want   string
	}{
		{"all", func(*llm.Request) {}, "/system0 /messages4/content0"},
		{"stable", func(r *llm.Request) { r.Stable = 3 }, "/system0 /messages2/content2"},
		{"a call", func(r *llm.Request) { r.Stable = 2 }, "/system0 /messages1/content2"},
		{"no system", func(r *llm.Request) { r.System = "" }, "/tools0 /messages4/content0"},
		{"neither", func(r *llm.Request) { r.System, r.Tools = "", nil }, "/messages4/content0"},
		{"thoughts last", func(r *llm.Request) {
			r.Stable = 4
			thought := &llm.Opaque{Wire: llm.Messages, JSON: json.RawMessage(`{"type":"thinking"}`)}
			r.Messages[3].Parts = append(r.Messages[3].Parts, llm.Part{Opaque: thought})
		}, "/system0 /messages3/content0"},
		{"none", func(r *llm.Request) { r.CacheKey = "" }, ""},
	} {
		one := r
		one.Messages = append([]llm.Message(nil), r.Messages...)
		c.change(&one)
		if got := strings.Join(cached(t, one), " "); got != c.want {
			t.Errorf("%s: %s, want %s", c.what, got, c.want)
		}
	}
	// Of other wires the key is sent to those that take it.
	for _, takes := range []bool{false, true} {
		for _, w := range []llm.Wire{llm.Chat, llm.Responses} {
			text, err := llm.Encode(llm.Config{Provider: llm.Row{Wire: w, CacheKey: takes}}, r)
			if err != nil || strings.Contains(text, "session-7") != takes || strings.Contains(text, "cache_control") {
				t.Errorf("%s %t: %s, %v", w, takes, text, err)
			}
		}
	}
}

func TestEncodeOptions(t *testing.T) {
	form := &llm.Schema{Name: "form", JSON: json.RawMessage(schema)}
	for _, c := range []struct {
		what   string
		cfg    llm.Config
		schema *llm.Schema
		has    []string
		hasNot []string
		object bool
	}{
		{
			"chat by schema",
			llm.Config{Provider: llm.Row{Wire: llm.Chat}},
			form,
			[]string{`"response_format":{"type":"json_schema","json_schema":{"name":"form","strict":true,"schema":` + schema + `}}`},
			nil,
			false,
		},
		{
			"chat by object",
			llm.Config{Provider: llm.Row{Wire: llm.Chat, Structured: llm.ByObject}},
			form,
			[]string{`"response_format":{"type":"json_object"}`, `JSON schema:\n{\"type\":\"object\"`},
			[]string{"json_schema"},
			false,
		},
		{
			"responses by schema",
			llm.Config{Provider: llm.Row{Wire: llm.Responses}},
			form,
			[]string{`"text":{"format":{"type":"json_schema","name":"form","strict":true,"schema":` + schema + `}}`},
			nil,
			false,
		},
		{
			"messages by schema",
			llm.Config{Provider: llm.Row{Wire: llm.Messages}},
			form,
			[]string{`"output_config":{"format":{"type":"json_schema","schema":` + schema + `}}`, `"max_tokens":8192`},
			nil,
			false,
		},
		{
			"messages by object",
			llm.Config{Provider: llm.Row{Wire: llm.Messages, Structured: llm.ByObject}},
			form,
			[]string{`JSON schema:\n{`},
			[]string{"output_config"},
			false,
		},
		{
			"no usage",
			llm.Config{Provider: llm.Row{Wire: llm.Chat}, NoStreamOptions: true},
			nil,
			[]string{`"stream":true`},
			[]string{"stream_options", "max_"},
			false,
		},
		{
			"reasoning",
			llm.Config{Provider: llm.Row{Wire: llm.Responses}, Reasoning: true},
			nil,
			[]string{`"include":["reasoning.encrypted_content"]`, `"store":false`},
			[]string{"max_"},
			false,
		},
		{"no reasoning", llm.Config{Provider: llm.Row{Wire: llm.Responses}}, nil, nil, []string{"include"}, false},
		{
			"chat, an object",
			llm.Config{Provider: llm.Row{Wire: llm.Chat}},
			nil,
			[]string{`"response_format":{"type":"json_object"}`},
			[]string{"schema"},
			true,
		},
		{
			"responses, an object",
			llm.Config{Provider: llm.Row{Wire: llm.Responses}},
			nil,
			[]string{`"text":{"format":{"type":"json_object"}}`},
			[]string{"schema"},
			true,
		},
		{"messages, an object", llm.Config{Provider: llm.Row{Wire: llm.Messages}}, nil, nil, []string{"output_config", "schema"}, true},
	} {
		r := hello()
		r.Schema, r.Object = c.schema, c.object
		text, err := llm.Encode(c.cfg, r)
		if err != nil {
			t.Fatalf("%s: %v", c.what, err)
		}
		for _, s := range c.has {
			if !strings.Contains(text, s) {
				t.Errorf("%s: there is no %s in %s", c.what, s, text)
			}
		}
		for _, s := range c.hasNot {
			if strings.Contains(text, s) {
				t.Errorf("%s: there is %s in %s", c.what, s, text)
			}
		}
	}
}

func TestRequestRefused(t *testing.T) {
	object := json.RawMessage(`{}`)
	for what, change := range map[string]func(*llm.Request){
		"no model":            func(r *llm.Request) { r.Model = "" },
		"a long model":        func(r *llm.Request) { r.Model = strings.Repeat("m", 300) },
		"no message":          func(r *llm.Request) { r.Messages = nil },
		"too many":            func(r *llm.Request) { r.Messages = make([]llm.Message, llm.MaxMessages+1) },
		"no role":             func(r *llm.Request) { r.Messages[0].Role = "system" },
		"the assistant last":  func(r *llm.Request) { r.Messages[0].Role = llm.Assistant },
		"empty":               func(r *llm.Request) { r.Messages[0].Parts = nil },
		"empty parts":         func(r *llm.Request) { r.Messages[0].Parts = []llm.Part{{}} },
		"negative":            func(r *llm.Request) { r.MaxTokens = -1 },
		"too stable":          func(r *llm.Request) { r.Stable = 2 },
		"a long key":          func(r *llm.Request) { r.CacheKey = strings.Repeat("k", 65) },
		"a tool without name": func(r *llm.Request) { r.Tools = []llm.Tool{{Schema: object}} },
		"a tool with spaces":  func(r *llm.Request) { r.Tools = []llm.Tool{{Name: "a b", Schema: object}} },
		"a tool twice":        func(r *llm.Request) { r.Tools = []llm.Tool{{Name: "a", Schema: object}, {Name: "a", Schema: object}} },
		"no schema":           func(r *llm.Request) { r.Tools = []llm.Tool{{Name: "a"}} },
		"a schema and an object": func(r *llm.Request) {
			r.Schema, r.Object = &llm.Schema{Name: "a", JSON: object}, true
		},
		"half a schema":    func(r *llm.Request) { r.Tools = []llm.Tool{{Name: "a", Schema: json.RawMessage(`{`)}} },
		"a list as schema": func(r *llm.Request) { r.Schema = &llm.Schema{Name: "a", JSON: json.RawMessage(`[]`)} },
		"a schema without name": func(r *llm.Request) {
			r.Schema = &llm.Schema{JSON: object}
		},
		"a user's call": func(r *llm.Request) { r.Messages[0].Parts = []llm.Part{{Call: &llm.ToolCall{ID: "a", Name: "a"}}} },
		"a result of no call": func(r *llm.Request) {
			r.Messages[0].Parts = []llm.Part{{Result: &llm.ToolResult{Text: "x"}}}
		},
		"text and result": func(r *llm.Request) {
			r.Messages[0].Parts = []llm.Part{{Text: "x", Result: &llm.ToolResult{ID: "a"}}}
		},
		"an assistant's result": func(r *llm.Request) {
			r.Messages = append([]llm.Message{{Role: llm.Assistant, Parts: []llm.Part{{Result: &llm.ToolResult{ID: "a"}}}}}, r.Messages...)
		},
		"a call without id": func(r *llm.Request) {
			r.Messages = append([]llm.Message{{Role: llm.Assistant, Parts: []llm.Part{{Call: &llm.ToolCall{Name: "a"}}}}}, r.Messages...)
		},
		"arguments that are none": func(r *llm.Request) {
			call := &llm.ToolCall{ID: "a", Name: "a", Arguments: json.RawMessage(`7`)}
			r.Messages = append([]llm.Message{{Role: llm.Assistant, Parts: []llm.Part{{Call: call}}}}, r.Messages...)
		},
		"thoughts that are none": func(r *llm.Request) {
			own := &llm.Opaque{Wire: llm.Chat, JSON: json.RawMessage(`{`)}
			r.Messages = append([]llm.Message{{Role: llm.Assistant, Parts: []llm.Part{{Opaque: own}}}}, r.Messages...)
		},
		"too large": func(r *llm.Request) { r.System = strings.Repeat("x", llm.MaxRequest) },
	} {
		one := client(t, llm.Config{Transport: tripper(func(*http.Request) (*reply, error) {
			t.Errorf("%s is sent", what)
			return answered(strings.NewReader(short)), nil
		})})
		r := hello()
		change(&r)
		if _, err := one.Stream(t.Context(), r, nil); !errdefs.IsInvalidArgument(err) || !strings.HasPrefix(err.Error(), "cannot ask ") {
			t.Errorf("%s: %v", what, err)
		}
	}
}
