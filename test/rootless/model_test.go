//go:build linux

package rootless_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/internal/state/audit"
)

// modelServer speaks both APIs, and tells what it got as text. It echoes the key.
func modelServer(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	key := r.Header.Get("X-Api-Key") + r.Header.Get("Authorization")
	var asked struct{ Stream bool }
	_ = json.Unmarshal(body, &asked)
	switch {
	case strings.HasSuffix(r.URL.Path, "/v1/messages") && asked.Stream:
		w.Header().Set("Content-Type", "text/event-stream")
		for _, event := range []string{
			`{"type":"message_start","message":{"usage":{"input_tokens":1000,"output_tokens":1}}}`,
			`{"type":"content_block_delta","delta":{"type":"text_delta","text":"hello ` + key + `"}}`,
			`{"type":"message_delta","usage":{"output_tokens":234}}`,
		} {
			fmt.Fprintf(w, "data: %s\n\n", event)
			_ = http.NewResponseController(w).Flush()
		}
	case strings.HasSuffix(r.URL.Path, "/chat/completions") && asked.Stream:
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, "data: {\"choices\":[{\"delta\":{\"content\":\"hi\"}}]}\n\n")
		if strings.Contains(string(body), `"include_usage":true`) {
			fmt.Fprint(w, "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":3}}\n\n")
		}
		fmt.Fprint(w, "data: [DONE]\n\n")
	default:
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"content":"done","usage":{"input_tokens":10,"output_tokens":5,"prompt_tokens":7,"completion_tokens":3}}`)
	}
}

// models serves the APIs of a user's models, whose key the caller's variables hold.
func models(t *testing.T, more string) (*user, *keyed) {
	t.Helper()
	if !has("curl") {
		t.Skip("skipped: no curl on this host")
	}
	u := newUser(t)
	k := newKeyed(t, u, "models.test")
	k.serve = modelServer
	u.network(map[string]string{"models.test": "127.0.0.1"}, fmt.Sprintf(`allow: ["127.0.0.1:%[1]s"]
models:
  anthropic:
    url: https://models.test:%[1]s
    prices: {"claude-*": {input: "3", output: "15"}}
%[2]s  local: {api: openai, url: "https://models.test:%[1]s/base/v1", key: LOCAL_KEY}
`, k.port, more))
	u.env = append(u.env, "LOCAL_KEY="+secretValue)
	return u, k
}

// post is a request of Anthropic's.
const post = `curl -sS -H "x-api-key: $ANTHROPIC_API_KEY" -H 'content-type: application/json' $ANTHROPIC_BASE_URL/v1/messages -d `

// A command uses models by plain HTTP with a key that it never sees. What was used is told and recorded.
func TestModel(t *testing.T) {
	u, k := models(t, "")
	r := u.run("--model", "anthropic", "--model", "local", "--", "bash", "-c", `
		echo base $ANTHROPIC_BASE_URL $OPENAI_BASE_URL
		`+post+`'{"max_tokens":9,"messages":[],"model":"claude-x","stream":true}' -N
		`+post+`'{"model":"claude-y"}'; echo
		curl -sS $OPENAI_BASE_URL/chat/completions -H "Authorization: Bearer $OPENAI_API_KEY" -d '{"model":"m","stream":true}'
		curl -sS $ANTHROPIC_BASE_URL/v1/files; curl -sS -x http://127.0.0.53:3128 $ANTHROPIC_BASE_URL/v1/models; echo
		curl -sS https://anthropic.carrel.internal/v1/models -o /dev/null || echo no TLS
		curl -sS https://models.test:`+k.port+`/ -o /dev/null || echo not reached
		env; cat /proc/*/environ /proc/*/cmdline 2>/dev/null`)
	for _, want := range []string{
		"base http://anthropic.carrel.internal http://local.carrel.internal/v1\n", "hello " + strings.Repeat("*", len(secretValue)),
		`{"content":"done",`, "data: {\"choices\":[{\"delta\":{\"content\":\"hi\"}}]}\n\ndata: [DONE]\n", `"not_found_error"`,
		"no TLS\n", "not reached\n",
	} {
		if !strings.Contains(r.out, want) {
			t.Errorf("%q is missing in %s\n%s", want, r.out, r.err)
		}
	}
	for _, want := range []string{"carrel: anthropic: 3 requests, 1,249 tokens, 0.006", "carrel: local: 1 request, 10 tokens\n"} {
		if !strings.Contains(r.err, want) {
			t.Errorf("%q is missing in %s", want, r.err)
		}
	}
	if r.code != 0 || strings.Contains(r.out+r.err, secretValue) {
		t.Errorf("%d: the command saw the key: %s%s", r.code, r.out, r.err)
	}
	for _, got := range k.got() {
		if !strings.HasSuffix(got, " "+secretValue) && !strings.HasSuffix(got, " Bearer "+secretValue) {
			t.Errorf("the host got %q", got)
		}
	}
	found := false
	for _, rec := range u.records() {
		if rec.Type != audit.Usage {
			continue
		}
		found = true
		var data struct {
			Models []struct {
				Endpoint                string
				Requests, Tokens, Money int64
				Models                  map[string]struct{ Requests, Tokens, Money int64 }
			}
		}
		if err := json.Unmarshal(rec.Data, &data); err != nil || len(data.Models) != 2 {
			t.Fatalf("%s: %v", rec.Data, err)
		}
		a := data.Models[0]
		// 1,010 tokens for 3 and 239 for 15 a million.
		if a.Endpoint != "anthropic" || a.Money != 6_615_000 || a.Models["claude-x"].Tokens != 1234 || a.Models["claude-y"].Requests != 1 {
			t.Errorf("%s", rec.Data)
		}
		if strings.Contains(string(rec.Data), "hello") {
			t.Errorf("the record has the content: %s", rec.Data)
		}
	}
	if !found {
		t.Error("there is no record of what was used")
	}
	ways := map[string]bool{}
	for _, c := range u.connections() {
		if c.Host == "anthropic.carrel.internal" && c.Refused == "" {
			ways[c.Way] = true
		}
	}
	if !ways["transparent"] || !ways["http"] {
		t.Errorf("the records have %v", ways)
	}
	u.holdsNowhere(secretValue)
}

// The budget stops at the limit, also of requests at once, with an error of the API's own form.
func TestModelBudget(t *testing.T) {
	u, k := models(t, "    budget: {money: 0.004}\n")
	one := post + `'{"model":"claude-x"}' -w '%{http_code}\n'`
	r := u.run("--model", "anthropic", "--model-requests", "1", "--", "bash", "-c", one+" & "+one+" & wait")
	const refused = `{"type":"error","error":{"type":"invalid_request_error","message":"carrel: the budget of 1 request is used up; --model-requests`
	if strings.Count(r.out, "200\n") != 1 || strings.Count(r.out, "400\n") != 1 || len(k.got()) != 1 || !strings.Contains(r.out, refused) ||
		!strings.Contains(r.err, "anthropic: 1 request, 15 tokens, 0.000105; 1 request refused\n") {
		t.Errorf("%+v, %v", r, k.got())
	}
	r = u.run("--model", "anthropic", "--model-tokens", "20", "--", "bash", "-c", one+"; "+one+"; "+one)
	if strings.Count(r.out, "200\n") != 2 || !strings.Contains(r.out, "the budget of 20 tokens is used up") {
		t.Errorf("%+v", r)
	}
	stream := post + `'{"model":"claude-x","stream":true}' -w '%{http_code}\n'`
	r = u.run("--model", "anthropic", "--", "bash", "-c", stream+"; "+stream+"; "+post+`'{"model":"other"}'`)
	if strings.Count(r.out, "200\n") != 1 || !strings.Contains(r.out, "the budget of 0.004 is used up; it is that of the model anthropic") {
		t.Errorf("%+v", r)
	}
	r = u.run("--model", "anthropic", "--", "bash", "-c", post+`'{"model":"other"}'`)
	if !strings.Contains(r.out, `no price is known for the model \"anthropic/other\"`) {
		t.Errorf("%+v", r)
	}
}

// A model needs no rule, and gives none: its host is reached for it alone. Trouble with that host has the form of the API.
func TestModelWithoutRules(t *testing.T) {
	if !has("curl") {
		t.Skip("skipped: no curl on this host")
	}
	u := newUser(t)
	u.network(map[string]string{"api.openai.com": "10.1.2.3"}, "")
	u.env = append(u.env, "OPENAI_API_KEY="+secretValue)
	r := u.run("--model", "openai", "--", "bash", "-c", `curl -sS $OPENAI_BASE_URL/models; curl -sS https://api.openai.com/ || echo not reached`)
	const refused = `{"error":{"message":"carrel: cannot reach api.openai.com:443 at 10.1.2.3:`
	if !strings.Contains(r.out, refused) || !strings.Contains(r.out, "not reached\n") {
		t.Errorf("%+v", r)
	}
	if !strings.Contains(r.err, "openai: 1 request, 0 tokens\n") {
		t.Errorf("%+v", r)
	}
}

// What is wrong is one line without the key, and nothing runs.
func TestModelsThatAreWrong(t *testing.T) {
	u := newUser(t)
	u.network(nil, `models:
  bad: {api: openai, url: "http://plain.test", key: MY_KEY}
  short: {api: openai, url: "https://x.test", key: SHORT}
`)
	u.env = append(u.env, "MY_KEY="+secretValue, "SHORT=abc", "OPENAI_API_KEY="+secretValue)
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--model", "gemini"}, "use anthropic, bad, openai, short"},
		{[]string{"--model", "anthropic"}, "ANTHROPIC_API_KEY, which is not set here"},
		{[]string{"--model", "bad"}, "https://HOST"},
		{[]string{"--model", "short"}, "not a key"},
		{[]string{"--model-requests", "5"}, "add --model NAME"},
		{[]string{"--model", "openai", "--model-tokens", "-5"}, "negative"},
		{[]string{"--model", "openai", "--allow", "api.openai.com", "--secret", "OPENAI_API_KEY"}, "leave one of the two out"},
	} {
		r := u.run(append(c.args, "--", "echo", "ran")...)
		if r.code != 125 || r.out != "" || !strings.Contains(r.err, c.want) || strings.Count(r.err, "\n") != 1 ||
			strings.Contains(r.err, secretValue) {
			t.Errorf("%q: %+v", c.args, r)
		}
	}
}

// sdksEnv names a directory with Python's packages anthropic and openai: pip install --target DIR anthropic openai.
const sdksEnv = "CARREL_TEST_SDKS"

// The official clients use models without any setting of their own, by streams too, and show what a used-up budget says
// without another attempt.
func TestModelClients(t *testing.T) {
	dir := os.Getenv(sdksEnv)
	if dir == "" {
		t.Skipf("skipped: %s is not set to a directory with anthropic and openai", sdksEnv)
	}
	u := newUser(t)
	k := newKeyed(t, u, "models.test")
	requests := 0
	k.serve = func(w http.ResponseWriter, r *http.Request) {
		requests++
		body, _ := io.ReadAll(r.Body)
		var asked struct{ Stream bool }
		_ = json.Unmarshal(body, &asked)
		const message = `{"id":"m","type":"message","role":"assistant","model":"claude-x","stop_reason":"end_turn","stop_sequence":null,` +
			`"content":[{"type":"text","text":"scripted"}],"usage":{"input_tokens":10,"output_tokens":5}}`
		events := func(all ...string) {
			w.Header().Set("Content-Type", "text/event-stream")
			for _, e := range all {
				fmt.Fprint(w, e, "\n\n")
				_ = http.NewResponseController(w).Flush()
			}
		}
		const chunk = `"id":"c","object":"chat.completion.chunk","created":1,"model":"m"`
		switch {
		case r.URL.Path == "/v1/messages" && asked.Stream:
			events("event: message_start\ndata: "+`{"type":"message_start","message":`+strings.Replace(message, `{"type":"text","text":"scripted"}`, "", 1)+"}",
				"event: content_block_start\n"+`data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}`,
				"event: content_block_delta\n"+`data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"streamed"}}`,
				"event: content_block_stop\n"+`data: {"type":"content_block_stop","index":0}`,
				"event: message_delta\n"+`data: {"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":7}}`,
				"event: message_stop\n"+`data: {"type":"message_stop"}`)
		case r.URL.Path == "/v1/chat/completions" && asked.Stream:
			events("data: {"+chunk+`,"choices":[{"index":0,"delta":{"content":"streamed"},"finish_reason":null}]}`,
				"data: {"+chunk+`,"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4,"total_tokens":7}}`, "data: [DONE]")
		case r.URL.Path == "/v1/responses":
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, `{"id":"r","object":"response","created_at":1,"model":"m","status":"completed","output":[{"type":"message","id":"o",`+
				`"role":"assistant","status":"completed","content":[{"type":"output_text","text":"responded","annotations":[]}]}],`+
				`"parallel_tool_calls":true,"tool_choice":"auto","tools":[],"usage":{"input_tokens":1,"input_tokens_details":{"cached_tokens":0},`+
				`"output_tokens":2,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":3}}`)
		default:
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, message)
		}
	}
	u.network(map[string]string{"models.test": "127.0.0.1"}, fmt.Sprintf(`allow: ["127.0.0.1:%[1]s"]
models:
  anthropic: {url: "https://models.test:%[1]s"}
  openai: {url: "https://models.test:%[1]s/v1"}
`, k.port))
	u.env = append(u.env, "OPENAI_API_KEY="+secretValue)
	script := `
import anthropic, openai
a, o = anthropic.Anthropic(), openai.OpenAI()
ask = dict(model="claude-x", max_tokens=9, messages=[{"role": "user", "content": "hello"}])
print("message", a.messages.create(**ask).content[0].text)
with a.messages.stream(**ask) as s:
    print("anthropic", s.get_final_text())
print("openai", "".join(c.choices[0].delta.content or "" for c in o.chat.completions.create(
    model="m", stream=True, messages=[{"role": "user", "content": "hello"}]) if c.choices))
print("response", o.responses.create(model="m", input="hello").output_text)
try:
    a.messages.create(**ask)
except anthropic.BadRequestError as e:
    print("refused", e)
`
	r := u.run("-v", dir+":/mnt/sdks:ro", "--model", "anthropic", "--model", "openai", "--model-requests", "4",
		"--env", "PYTHONPATH=/mnt/sdks", "--", "python3", "-c", script)
	for _, want := range []string{"message scripted\n", "anthropic streamed\n", "openai streamed\n", "response responded\n", "refused "} {
		if !strings.Contains(r.out, want) {
			t.Errorf("%q is missing in %s\n%s", want, r.out, r.err)
		}
	}
	if requests != 4 || slices.ContainsFunc(k.got(), func(s string) bool { return !strings.HasSuffix(s, secretValue) }) {
		t.Errorf("%d requests arrived, not 4, or one with another key", requests)
	}
	for _, want := range []string{"carrel: anthropic: 2 requests, 32 tokens", "carrel: openai: 2 requests, 10 tokens"} {
		if !strings.Contains(r.err, want) {
			t.Errorf("%q is missing in %s", want, r.err)
		}
	}
	u.holdsNowhere(secretValue)
}
