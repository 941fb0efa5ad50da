package model_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/redact"
	"github.com/carrel-dev/carrel/internal/egress/model"
	"github.com/carrel-dev/carrel/internal/egress/room"
	"github.com/carrel-dev/carrel/internal/spec/budget"
	"github.com/carrel-dev/carrel/internal/spec/httprule"
)

// The host gets the real key and nothing by which the program could say who pays. What it echoes of the key is masked.
func TestKey(t *testing.T) {
	for _, c := range []struct {
		api      model.API
		upstream string
		path     string
		want     string // method, host and path
	}{
		{model.Anthropic, "https://example.com/base/", "/v1/messages?beta=true", "POST example.com /base/v1/messages?beta=true"},
		{model.OpenAI, "https://example.com:8443/api/v1", "/v1/chat/completions", "POST example.com:8443 /api/v1/chat/completions"},
		{model.Anthropic, "https://example.com", "/messages", "POST example.com /v1/messages"},
		{model.OpenAI, "https://example.com/api/v1", "/responses", "POST example.com /api/v1/responses"},
	} {
		var got *http.Request
		var body string
		r := start(t, c.api, func(w http.ResponseWriter, r *http.Request) {
			b, _ := io.ReadAll(r.Body)
			got, body = r, string(b)
			w.Header().Set("X-Echo", "Bearer "+key)
			w.Header().Set("Set-Cookie", "a=b")
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprintf(w, `{"seen":%q}`, key)
		}, func(m *model.Config) { m.Upstream = c.upstream })
		var text []byte
		var header http.Header
		take := func(res *http.Response) {
			header = res.Header
			text, _ = io.ReadAll(res.Body)
		}
		r.do("POST", c.path, `{"model":"m","max_tokens":1}`, take, "X-Api-Key: sk-program", "Authorization: Bearer sk-program",
			"Cookie: x=y", "OpenAI-Organization: org", "Accept-Encoding: gzip", "X-Forwarded-For: 192.0.2.1", "Anthropic-Version: 2023-06-01",
			"Connection: X-Stainless-Os", "X-Stainless-Os: Linux", "X-HTTP-Method-Override: DELETE", "Content-Type: text/plain",
			"X_Api_Key: sk-program", "openai_organization: org", "X.HTTP_Method~Override: DELETE", "X-Envoy-Original-Path: /v1/files",
			"Destination: /v1/files", "Transfer_Encoding: chunked")
		if s := got.Method + " " + got.Host + " " + got.RequestURI; s != c.want {
			t.Errorf("%s, not %s", s, c.want)
		}
		secret := map[model.API][2]string{model.Anthropic: {"X-Api-Key", key}, model.OpenAI: {"Authorization", "Bearer " + key}}[c.api]
		if got.Header.Get(secret[0]) != secret[1] || body != `{"model":"m","max_tokens":1}` || got.ContentLength != int64(len(body)) {
			t.Errorf("%v %s", got.Header, body)
		}
		for name, values := range got.Header {
			if strings.Contains(strings.Join(values, ""), "sk-program") {
				t.Errorf("the program's key arrived in %s", name)
			}
			if httprule.MeaningOf(name) != httprule.NoMeaning || strings.Contains(name, "_") {
				t.Errorf("%s arrived", name)
			}
		}
		for _, name := range []string{
			"Cookie", "Openai-Organization", "X-Forwarded-For", "X-Stainless-Os", "X-Http-Method-Override",
			"Connection",
		} {
			if got.Header.Get(name) != "" {
				t.Errorf("%s arrived", name)
			}
		}
		for name, want := range map[string]string{
			"Accept-Encoding": "identity", "Anthropic-Version": "2023-06-01", "Content-Type": "application/json",
		} {
			if got.Header.Get(name) != want {
				t.Errorf("%s is %q", name, got.Header.Get(name))
			}
		}
		stars := strings.Repeat("*", len(key))
		if header.Get("X-Echo") != "Bearer "+stars || header.Get("Set-Cookie") != "" || string(text) != `{"seen":"`+stars+`"}` {
			t.Errorf("%v %s", header, text)
		}
		r.used()
	}
}

// The key is masked wherever the host cuts it.
func TestKeyInPieces(t *testing.T) {
	for at := range len(key) {
		r := start(t, model.Anthropic, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "data: {\"text\":\""+key[:at])
			_ = http.NewResponseController(w).Flush()
			_, _ = io.WriteString(w, key[at:]+"\"}\n\n")
		}, nil)
		if _, body := r.get("POST", "/v1/messages", `{"model":"m"}`); strings.Contains(body, key[:at]+key[at:]) ||
			body != "data: {\"text\":\""+strings.Repeat("*", len(key))+"\"}\n\n" {
			t.Fatalf("cut at %d: %s", at, body)
		}
	}
}

// Only the API's own calls are served, and what is refused never reaches the host.
func TestCalls(t *testing.T) {
	served := map[model.API][]string{
		model.Anthropic: {
			"POST /v1/messages", "POST /v1/messages/count_tokens", "GET /v1/models", "GET /v1/models/claude-x",
			"GET /v1/models?limit=1", "POST /messages", "POST /messages/count_tokens", "GET /models", "GET /models/claude-x",
		},
		model.OpenAI: {
			"POST /v1/responses", "POST /v1/chat/completions", "POST /v1/completions", "POST /v1/embeddings", "GET /v1/models",
			"GET /v1/models/meta/llama:free", "POST /v1/responses/compact", "POST /v1/responses/input_tokens",
			"POST /responses", "POST /chat/completions", "GET /models", "GET /models/meta/llama:free",
		},
	}
	never := []string{
		"GET /", "POST /v1", "POST /v1/", "POST /v1/messages/", "POST /v1//messages", "POST /v1/messages/batches", "POST /v1/files",
		"DELETE /v1/models/x",
		"GET /v1/messages", "PUT /v1/chat/completions", "GET /v1/models/", "GET /v1/models/../files", "GET /v1/models/a/../../files",
		"GET /v1/models/a//b",
		"GET /v1/models/%2e%2e/files", "POST /v1/mess%61ges", "GET /v1/responses/resp_1", "POST /V1/messages", "HEAD /v1/models",
		"POST /v1/images/generations",
		"GET /v1/organization/costs", "OPTIONS /v1/messages", "POST /", "POST //messages", "POST /v1/v1/messages", "POST /v2/messages",
		"POST /messages/batches", "GET /models/", "GET /models/../files", "GET /models/a//b", "POST /v1messages",
	}
	for api, all := range served {
		reached := 0
		r := start(t, api, func(w http.ResponseWriter, r *http.Request) {
			reached++
			answer("application/json", `{}`)(w, r)
		}, nil)
		for _, one := range all {
			method, path, _ := strings.Cut(one, " ")
			body := map[string]string{"POST": `{"model":"m"}`}[method]
			if status, body := r.get(method, path, body); status != 200 {
				t.Errorf("%s: %d %s", one, status, body)
			}
		}
		for other, calls := range served {
			if other != api {
				never = append(never, calls[0])
			}
		}
		before := reached
		for _, one := range never {
			method, path, _ := strings.Cut(one, " ")
			status, body := r.get(method, path, `{"model":"m"}`)
			if status != 404 && status != 405 {
				t.Errorf("%s: %s: %d %s", api, one, status, body)
			} else if method != "HEAD" {
				problem(t, api, body)
			}
		}
		if reached != before || len(r.asked()) != before {
			t.Errorf("%d calls that are not served arrived", reached-before)
		}
		never = never[:len(never)-1]
	}
}

// What a stream has used is told while it goes on.
func TestProgress(t *testing.T) {
	r := start(t, model.Anthropic, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		word := `data: {"type":"content_block_delta","delta":{"text":"` + strings.Repeat("word ", 200) + "\"}}\n\n"
		for {
			_, _ = io.WriteString(w, word)
			_ = http.NewResponseController(w).Flush()
			select {
			case <-r.Context().Done():
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
	}, nil)
	r.do("POST", "/v1/messages", `{"model":"m"}`, func(res *http.Response) {
		buf := make([]byte, 32<<10)
		for told := false; !told; {
			if _, err := res.Body.Read(buf); err != nil {
				t.Error(err)
				return
			}
			r.mu.Lock()
			told = len(r.soFar) > 0
			r.mu.Unlock()
		}
	})
	r.mu.Lock()
	if u := r.soFar[0]; u.Output < 1000 || u.Input == 0 || !u.Unknown {
		t.Errorf("%+v", u)
	}
	r.mu.Unlock()
	r.used()
}

// Each event arrives before the next is sent.
func TestStreamIsNotHeld(t *testing.T) {
	next := make(chan bool)
	r := start(t, model.OpenAI, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for i := range 3 {
			fmt.Fprintf(w, "data: {\"choices\":[{\"delta\":{\"content\":\"%d\"}}]}\n\n", i)
			_ = http.NewResponseController(w).Flush()
			<-next
		}
		fmt.Fprint(w, "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":3}}\n\ndata: [DONE]\n\n")
	}, nil)
	r.do("POST", "/v1/chat/completions", `{"model":"m","stream":true}`, func(res *http.Response) {
		in := bufio.NewReader(res.Body)
		for i := range 3 {
			line, err := in.ReadString('\n')
			if err != nil || !strings.Contains(line, fmt.Sprintf(`"%d"`, i)) {
				t.Errorf("%q, %v", line, err)
			}
			_, _ = in.ReadString('\n')
			next <- true
		}
		if rest, _ := io.ReadAll(in); string(rest) != "data: [DONE]\n\n" {
			t.Errorf("the program gets %q", rest)
		}
	})
	if u := r.used(); u != (model.Usage{Usage: budget.Usage{Input: 5, Output: 3}}) {
		t.Errorf("%+v", u)
	}
}

// A stream of chat tells its usage, and the program gets what it asked for.
func TestUsageIsAskedFor(t *testing.T) {
	var sent string
	serve := func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		sent = string(b)
		answer("text/event-stream", "data: {\"choices\":[{}],\"usage\":null}\n\n"+
			"data: {\"choices\": [ ],\"usage\":{\"prompt_tokens\":7}}\n\n")(w, r)
	}
	long := strings.Repeat("x", 3<<20) // the members are in different pieces
	for _, c := range []struct {
		body, want string
		whole      bool // the program gets all
	}{
		{`{"model":"m","stream":true}`, `{"stream_options":{"include_usage":true},"model":"m","stream":true}`, false},
		{
			` {"a":"` + long + `","model":"m","stream":true}`,
			` {"stream_options":{"include_usage":true},"a":"` + long + `","model":"m","stream":true}`, false,
		},
		{
			`{"model":"m","a":"` + long + `","stream_options":{"x":1,"include_usage":false},"stream":true}`,
			`{"model":"m","a":"` + long + `","stream_options":{"include_usage":true,"x":1},"stream":true}`, false,
		},
		{`{"model":"m","stream":true,"stream_options":null}`, `{"model":"m","stream":true,"stream_options":{"include_usage":true}}`, false},
		{`{"model":"m","stream":true,"stream_options":{"include_usage": true}}`, "", true},
		{`{"model":"m","stream":true,"stream_options":7}`, "", true},
		{`{"model":"m","stream":false}`, "", true},
		{`{"model":"m"}`, "", true},
	} {
		r := start(t, model.OpenAI, serve, nil)
		_, body := r.get("POST", "/v1/chat/completions", c.body)
		if c.want == "" {
			c.want = c.body
		}
		if sent != c.want {
			t.Errorf("%.80s became %.120s", c.body, sent)
		}
		if whole := strings.Contains(body, "prompt_tokens"); whole != c.whole || !strings.Contains(body, `"usage":null`) {
			t.Errorf("%.80s: the program gets %q", c.body, body)
		}
		if u := r.used(); u.Input != 7 || u.Unknown {
			t.Errorf("%.80s: %+v", c.body, u)
		}
		freed(t, r.room, room.Bytes)
	}
	r := start(t, model.OpenAI, serve, func(c *model.Config) { c.KeepStreams = true })
	if r.get("POST", "/v1/chat/completions", `{"model":"m","stream":true}`); sent != `{"model":"m","stream":true}` {
		t.Errorf("became %s", sent)
	}
}

// What is refused for its budget has the form of the API, and a status that clients show at once.
func TestBudget(t *testing.T) {
	for api, want := range map[model.API]string{model.Anthropic: "invalid_request_error", model.OpenAI: "insufficient_quota"} {
		path := map[model.API]string{model.Anthropic: "/v1/messages", model.OpenAI: "/v1/responses"}[api]
		book, err := budget.New(nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := book.Set("w", budget.Limits{Period: budget.Whole, Requests: 1}); err != nil {
			t.Fatal(err)
		}
		reached := 0
		r := start(t, api, func(w http.ResponseWriter, r *http.Request) {
			reached++
			answer("application/json", `{}`)(w, r)
		}, func(c *model.Config) {
			c.Reserve = func(_ context.Context, q model.Request) (model.Lease, error) {
				got, err := book.Reserve(time.Now(), q.Model, "w")
				if err != nil {
					return model.Lease{}, err
				}
				return model.Lease{Done: func(u model.Usage, _ model.Call) { got.Spend(time.Now(), u.Usage) }}, nil
			}
		})
		// Two at once: one is served.
		var all sync.WaitGroup
		refused := make(chan string, 2)
		for range 2 {
			all.Go(func() {
				r.do("POST", path, `{"model":"m"}`, func(res *http.Response) {
					b, _ := io.ReadAll(res.Body)
					if res.StatusCode == 400 && res.Header.Get("X-Should-Retry") == "false" {
						refused <- string(b)
					}
				})
			})
		}
		all.Wait()
		if reached != 1 || len(refused) != 1 {
			t.Fatalf("%d arrived, %d were refused", reached, len(refused))
		}
		if kind, message := problem(t, api, <-refused); kind != want || message != "carrel: the budget of 1 request is used up" {
			t.Errorf("%s: %s", kind, message)
		}
	}
	r := start(t, model.OpenAI, answer("application/json", `{}`), func(c *model.Config) {
		c.Reserve = func(context.Context, model.Request) (model.Lease, error) {
			return model.Lease{}, fmt.Errorf("nobody answers: %w", errdefs.ErrUnavailable)
		}
	})
	if status, body := r.get("GET", "/v1/models", ""); status != 503 || !strings.Contains(body, "carrel: nobody answers\"") {
		t.Errorf("%d %s", status, body)
	}
}

// What cannot be a model's is refused, without the key.
func TestConfig(t *testing.T) {
	fine := model.Config{
		API: model.OpenAI, Upstream: "https://example.com/v1", Key: redact.NewValue(key), Transport: http.NewFileTransport(http.Dir(".")),
		Reserve: func(context.Context, model.Request) (model.Lease, error) {
			return model.Lease{Done: func(model.Usage, model.Call) {}}, nil
		},
	}
	if _, err := model.New(fine); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(*model.Config){
		"api":       func(c *model.Config) { c.API = "gemini" },
		"no key":    func(c *model.Config) { c.Key = redact.Value{} },
		"line end":  func(c *model.Config) { c.Key = redact.NewValue(key + "\n") },
		"reserve":   func(c *model.Config) { c.Reserve = nil },
		"transport": func(c *model.Config) { c.Transport = nil },
	} {
		c := fine
		change(&c)
		if _, err := model.New(c); !errdefs.IsInvalidArgument(err) || strings.Contains(err.Error(), key) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, u := range []string{
		"", "example.com", "http://example.com", "https://", "https:///v1", "https://a:b@example.com", "https://example.com?x",
		"https://example.com#x",
		"https://example.com/a/../b", "https://example.com/%2e%2e/", "https://example.com/a b", "file:///etc", "https:example.com",
		"http://10.0.0.1/v1", "http://localhost:11434/v1", "http://[::1%25lo]/v1", "http://a:b@127.0.0.1/v1", "http://127.0.0.1?x",
		"http://127.0.0.1.example.com/v1", "http://0x7f.1/v1", "http://2130706433/v1", "http://127.1/v1",
	} {
		if _, err := model.ParseUpstream(u); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%q: %v", u, err)
		}
	}
	for text, authority := range map[string]string{
		"https://example.com/v1": "example.com:443", "https://example.com:8443": "example.com:8443",
		"http://127.0.0.1:11434/v1": "127.0.0.1:11434", "http://127.0.0.1": "127.0.0.1:80", "http://[::1]:8000/v1": "[::1]:8000",
	} {
		u, err := model.ParseUpstream(text)
		if err != nil || model.Authority(u) != authority || model.IsPlain(u) != strings.HasPrefix(text, "http:") {
			t.Errorf("%s: %v, %v", text, u, err)
		}
	}
	b, _ := json.Marshal(fine.Key)
	if strings.Contains(string(b)+fmt.Sprint(fine), key) {
		t.Error("the key is shown")
	}
}
