package model_test

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/internal/egress/model"
	"github.com/carrel-dev/carrel/internal/spec/budget"
)

const (
	sse  = "text/event-stream; charset=utf-8"
	jsn  = "application/json"
	seen = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"1\",\"usage\":{\"input_tokens\":25," +
		"\"cache_creation_input_tokens\":3,\"cache_read_input_tokens\":7,\"output_tokens\":1}}}\n\n"
	piece = "event: content_block_delta\n" + "data: {\"type\":\"content_block_delta\",\"index\":0," +
		"\"delta\":{\"type\":\"text_delta\",\"text\":\"0123456789\"}}\n\n"
	last = "event: message_delta\n" +
		"data: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":15}}\n\n"
)

// responses are those of the APIs, with what they tell.
var responses = []struct {
	name, kind, body string
	api              model.API
	drop             bool
	want             model.Usage
	left             string // what the program gets if that is not all
}{
	{
		name: "anthropic", api: model.Anthropic, kind: jsn,
		body: `{"content":[{"text":"hi"}],"usage":{"input_tokens":25,` +
			`"cache_creation_input_tokens":3,"cache_read_input_tokens":7,"output_tokens":15}}`,
		want: model.Usage{Usage: budget.Usage{Input: 25, Output: 15, CachedInput: 7, CacheWrite: 3}},
	},
	{
		name: "anthropic stream", api: model.Anthropic, kind: sse, body: seen + piece + piece + last + "data: {\"type\":\"message_stop\"}\n\n",
		want: model.Usage{Usage: budget.Usage{Input: 25, Output: 15, CachedInput: 7, CacheWrite: 3}},
	},
	{
		name: "anthropic stream that breaks off", api: model.Anthropic, kind: sse, body: seen + strings.Repeat(piece, 50),
		// 500 bytes of text, and half a token for each; what was read is known.
		want: model.Usage{Usage: budget.Usage{Input: 25, Output: 250, CachedInput: 7, CacheWrite: 3}, Unknown: true},
	},
	{
		name: "chat", api: model.OpenAI, kind: jsn,
		body: `{"choices":[{"message":{"content":"hi"}}],"usage":{"prompt_tokens":20,"completion_tokens":9,"total_tokens":29,` +
			`"prompt_tokens_details":{"cached_tokens":8}}}`,
		want: model.Usage{Usage: budget.Usage{Input: 12, Output: 9, CachedInput: 8}},
	},
	{
		name: "chat stream", api: model.OpenAI, kind: sse,
		body: "data: {\"choices\":[{\"delta\":{}}],\"usage\":null}\r\n\r\n" +
			"data: {\"choices\":[],\"usage\":{\"prompt_tokens\":20,\"completion_tokens\":9}}\r\n\r\n",
		want: model.Usage{Usage: budget.Usage{Input: 20, Output: 9}},
	},
	{
		name: "chat stream, not asked for", api: model.OpenAI, kind: sse, drop: true,
		body: "data: {\"choices\":[1]}\n\ndata: {\"choices\":[],\"usage\":{\"prompt_tokens\":20,\"completion_tokens\":9}}\n\ndata: [DONE]\n\n",
		left: "data: {\"choices\":[1]}\n\ndata: [DONE]\n\n",
		want: model.Usage{Usage: budget.Usage{Input: 20, Output: 9}},
	},
	{
		name: "chat stream without its last line", api: model.OpenAI, kind: sse, drop: true,
		body: "data: {\"choices\":[1]}\n\ndata: {\"choices\":[],\"usage\":{\"prompt_tokens\":20}}\n",
		left: "data: {\"choices\":[1]}\n\n",
		want: model.Usage{Usage: budget.Usage{Input: 20}},
	},
	{
		name: "chat stream that tells usage so far", api: model.OpenAI, kind: sse, drop: true,
		body: "data: {\"choices\":[1],\"usage\":{\"prompt_tokens\":20,\"completion_tokens\":1}}\n\n" +
			"data: {\"choices\":[1],\"usage\":{\"prompt_tokens\":20,\"completion_tokens\":2}}\n\n",
		want: model.Usage{Usage: budget.Usage{Input: 20, Output: 2}},
	},
	{
		name: "responses stream", api: model.OpenAI, kind: sse,
		body: "event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"usage\":null}}\n\n" +
			"event: response.completed\ndata: {\"type\":\"response.completed\",\ndata: \"response\":{\"output\":[]," +
			"\"usage\":{\"input_tokens\":36,\"input_tokens_details\":{\"cached_tokens\":6},\"output_tokens\":87}}}\n\n",
		want: model.Usage{Usage: budget.Usage{Input: 30, Output: 87, CachedInput: 6}},
	},
	{
		name: "embeddings", api: model.OpenAI, kind: jsn, body: `{"data":[],"usage":{"prompt_tokens":8,"total_tokens":8}}`,
		want: model.Usage{Usage: budget.Usage{Input: 8}},
	},
	// 100 bytes of the request are 50 tokens; one second is 100 tokens.
	{
		name: "nothing told", api: model.OpenAI, kind: jsn, body: `{"choices":[{"message":{"content":"` + strings.Repeat("x", 400) + `"}}]}`,
		want: model.Usage{Usage: budget.Usage{Input: 50, Output: 200}, Unknown: true},
	},
	{name: "nothing", api: model.Anthropic, kind: jsn, want: model.Usage{Usage: budget.Usage{Input: 50, Output: 100}, Unknown: true}},
	{
		name: "no JSON", api: model.Anthropic, kind: jsn, body: strings.Repeat("<p>", 200),
		want: model.Usage{Usage: budget.Usage{Input: 50, Output: 300}, Unknown: true},
	},
	{
		name: "another type", api: model.OpenAI, kind: "audio/mpeg", body: strings.Repeat("x", 1000),
		want: model.Usage{Usage: budget.Usage{Input: 50, Output: 500}, Unknown: true},
	},
	// The text of a model is not its usage.
	{
		name: "forged", api: model.OpenAI, kind: sse,
		body: "data: {\"choices\":[{\"delta\":{\"content\":\"\\n\\n" +
			"data: {\\\"choices\\\":[],\\\"usage\\\":{\\\"prompt_tokens\\\":0}}\\n\\n\",\"usage\":" +
			"{\"prompt_tokens\":1}}}],\"x\":{\"usage\":{\"prompt_tokens\":1}}}\n\n",
		want: model.Usage{Usage: budget.Usage{Input: 50, Output: 100}, Unknown: true},
	},
	{
		name: "too much", api: model.OpenAI, kind: jsn, body: `{"usage":{"prompt_tokens":9e18,"completion_tokens":-4}}`,
		want: model.Usage{Usage: budget.Usage{Input: 50, Output: 100}, Unknown: true},
	},
}

// Whatever the pieces are in which it comes, the usage is read, and the program gets the response.
func TestUsage(t *testing.T) {
	for _, r := range responses {
		for _, size := range []int{1, 2, 3, 7, 50, 1 << 20} {
			var pieces [][]byte
			for b := []byte(r.body); len(b) > 0; b = b[min(size, len(b)):] {
				pieces = append(pieces, b[:min(size, len(b))])
			}
			want := r.body
			if r.left != "" {
				want = r.left
			}
			if out, used := model.Measure(r.api, r.kind, r.drop, pieces); used != r.want || out != want {
				t.Errorf("%s in pieces of %d: %+v, not %+v; out %q", r.name, size, used, r.want, out)
			}
		}
	}
}

// An event of any length passes, and is not held for long.
func TestLongEvents(t *testing.T) {
	long := "data: {\"choices\":[{\"delta\":{\"content\":\"" + strings.Repeat("x", 1<<20) + "\"}}]}\n\n"
	usage := "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":2}}\n\n"
	var pieces [][]byte
	for b := []byte(long + usage + long); len(b) > 0; b = b[min(1000, len(b)):] {
		pieces = append(pieces, b[:min(1000, len(b))])
	}
	whole := "data: {\"x\":\"" + strings.Repeat("x", 1<<20) + "\",\"choices\":[],\"usage\":{\"prompt_tokens\":1}}\n\n"
	for _, pieces := range [][][]byte{split([]byte(whole), 1), {[]byte(whole)}} {
		if out, _ := model.Measure(model.OpenAI, sse, true, pieces); out != whole {
			t.Errorf("a part of an event of %d bytes passes: %d", len(whole), len(out))
		}
	}
	out, used := model.Measure(model.OpenAI, sse, true, pieces)
	if out != long+long || used != (model.Usage{Usage: budget.Usage{Input: 1, Output: 2}}) {
		t.Errorf("%d bytes, %+v", len(out), used)
	}
}

// split cuts b in pieces by a seed.
func split(b []byte, seed uint64) (pieces [][]byte) {
	r := rand.New(rand.NewPCG(seed, 0))
	for len(b) > 0 {
		n := 1 + r.IntN(len(b))
		pieces, b = append(pieces, b[:n]), b[n:]
	}
	return pieces
}

// What encoding/json reads as an object the scanner reads too, with the same values, in any pieces.
func FuzzScan(f *testing.F) {
	for _, s := range []string{
		`{}`, ` { "usage" : { "a" : [ 1 , {} ] } , "x" : null } `, `{"\u0075sage":"\u00e9\"\\","response":{"usage":[]}}`, `{"usage":1e5}`,
		`{"usage":-1.5E+3,"a":"}"}`,
		`{"a":{"usage":1},"usage":true}`, `{"usage/x":1,"usage":{"x":2}}`, `[]`, `{"a":1}x`, `{"a":"` + "\x01" + `"}`, `{/**/"a":1}`,
		`{"a" 1}`, `{"a":1,}`, "{\"\xff\":1}",
	} {
		f.Add([]byte(s), uint64(1))
	}
	f.Fuzz(func(t *testing.T, b []byte, seed uint64) {
		found, err := model.Scan([][]byte{b}, "usage", "response/usage")
		again, err2 := model.Scan(split(b, seed), "usage", "response/usage")
		if (err == nil) != (err2 == nil) {
			t.Fatalf("%q: %v in one piece, %v in several", b, err, err2)
		}
		if err == nil {
			for name := range found {
				if found[name] != again[name] {
					t.Fatalf("%q: %q and %q", b, found[name], again[name])
				}
			}
		}
		var want map[string]json.RawMessage
		if json.Unmarshal(b, &want) != nil || want == nil || bytes.Count(b, []byte("{"))+bytes.Count(b, []byte("[")) > 100 {
			return
		}
		if err != nil {
			t.Fatalf("%q is refused: %v", b, err)
		}
		for _, name := range []string{"usage"} {
			got, ok := found[name]
			if ok && strings.TrimSpace(got) != string(want[name]) && len(want) > 0 {
				t.Fatalf("%q: %s is %q, not %q", b, name, got, want[name])
			}
		}
	})
}

// Whatever a host sends, the program gets it, whatever the pieces, and the usage is the same and never negative or nothing.
func FuzzMeter(f *testing.F) {
	for _, r := range responses {
		f.Add([]byte(r.body), r.kind == sse, r.api == model.OpenAI, r.drop, uint64(1))
	}
	f.Add([]byte("data:{}\r\rdata\n\n:x\n\ndata: {\"usage\":\ndata: {}}\n\n"), true, true, true, uint64(2))
	f.Fuzz(func(t *testing.T, b []byte, stream, openAI, drop bool, seed uint64) {
		api, kind := model.Anthropic, jsn
		if openAI {
			api = model.OpenAI
		}
		if stream {
			kind = sse
		}
		out, used := model.Measure(api, kind, drop, [][]byte{b})
		out2, used2 := model.Measure(api, kind, drop, split(b, seed))
		if out != out2 || used != used2 {
			t.Fatalf("%q: %q %+v, in pieces %q %+v", b, out, used, out2, used2)
		}
		if !drop && out != string(b) {
			t.Fatalf("%q became %q", b, out)
		}
		if min(used.Input, used.Output, used.CachedInput, used.CacheWrite) < 0 || used.Unknown && used.Output == 0 {
			t.Fatalf("%q: %+v", b, used)
		}
	})
}

func FuzzUsage(f *testing.F) {
	for _, s := range []string{
		`{"input_tokens":1}`, `{"prompt_tokens":1,"prompt_tokens_details":{"cached_tokens":5}}`, `{"prompt_tokens":"1"}`,
		`{"output_tokens":1e400}`, `[]`, `null`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, api := range model.APIs() {
			u, ok := model.ReadUsage(api, b)
			if min(u.Input, u.Output, u.CachedInput, u.CacheWrite) < 0 || u.Tokens() > 1e10 || !ok && !json.Valid(b) && u.Tokens() != 0 {
				t.Fatalf("%q: %+v, %v", b, u, ok)
			}
		}
	})
}
