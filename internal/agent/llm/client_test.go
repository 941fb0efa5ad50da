package llm_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/iotest"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"

	"github.com/carrel-dev/carrel/internal/agent/llm"
)

// reply is an answer that a test makes.
type reply struct {
	status int
	header http.Header
	body   io.Reader
}

// tripper is a transport that is a function.
type tripper func(*http.Request) (*reply, error)

func (f tripper) RoundTrip(r *http.Request) (*http.Response, error) {
	x, err := f(r)
	if err != nil {
		return nil, err
	}
	return &http.Response{StatusCode: x.status, Header: x.header, Body: io.NopCloser(x.body)}, nil
}

// answered is an answer with a stream.
func answered(body io.Reader) *reply {
	return &reply{200, http.Header{"Content-Type": {"text/event-stream; charset=utf-8"}}, body}
}

// withStatus is an answer with an error of a status.
func withStatus(status int, body string, header ...string) *reply {
	h := http.Header{"Content-Type": {"application/json"}}
	for i := 0; i < len(header); i += 2 {
		h.Set(header[i], header[i+1])
	}
	return &reply{status, h, strings.NewReader(body)}
}

func client(t testing.TB, c llm.Config) *llm.Client {
	t.Helper()
	if c.Provider.Wire == "" {
		c.Provider = llm.Row{Name: "test", Wire: llm.Chat, MaxTokens: llm.MaxTokensParameter, KeyVariable: "TEST_API_KEY"}
	}
	if c.BaseURL == "" {
		c.BaseURL = "http://model.test" + root(c.Provider.Wire)
	}
	one, err := llm.New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(one.Close)
	return one
}

func hello() llm.Request {
	return llm.Request{Model: "m-1", Messages: []llm.Message{{Role: llm.User, Parts: []llm.Part{{Text: "hello"}}}}}
}

const (
	yes  = `{"choices":[{"index":0,"delta":{"content":"yes"},"finish_reason":"stop"}]}`
	used = `{"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":1}}`
)

var short = data(yes, used, "[DONE]")

// root is the path of the base URL of a wire, as programs have it.
func root(w llm.Wire) string {
	if w == llm.Messages {
		return ""
	}
	return "/v1"
}

// paths are where each wire is asked.
var paths = map[llm.Wire]string{llm.Chat: "/v1/chat/completions", llm.Responses: "/v1/responses", llm.Messages: "/v1/messages"}

// service answers as a provider does, with a transcript that it sends in small pieces, and checks what it is asked.
func service(t *testing.T, w llm.Wire, key string) *httptest.Server {
	t.Helper()
	text := transcript(t, w)
	s := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		var body struct {
			Model  string `json:"model"`
			Stream bool   `json:"stream"`
		}
		err := json.NewDecoder(r.Body).Decode(&body)
		auth := r.Header.Get("Authorization")
		if w == llm.Messages {
			auth = "Bearer " + r.Header.Get("X-Api-Key")
			if r.Header.Get("Anthropic-Version") != "2023-06-01" {
				t.Error("no version is named")
			}
		}
		if err != nil || !body.Stream || body.Model != "m-1" || r.Method != http.MethodPost || r.URL.Path != paths[w] ||
			r.Header.Get("Content-Type") != "application/json" || auth != "Bearer "+key {
			t.Errorf("%s %s %q %+v, %v", r.Method, r.URL, r.Header, body, err)
		}
		out.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
		for len(text) > 0 {
			n := min(997, len(text))
			_, _ = io.WriteString(out, text[:n])
			text = text[n:]
			_ = http.NewResponseController(out).Flush()
		}
	}))
	t.Cleanup(s.Close)
	return s
}

func TestStream(t *testing.T) {
	for _, w := range wires {
		s := service(t, w, "sk-test")
		c := client(t, llm.Config{Provider: llm.Row{Wire: w}, BaseURL: s.URL + root(w) + "/", Key: func() string { return "sk-test" }})
		var all []llm.Event
		a, err := c.Stream(t.Context(), hello(), func(e llm.Event) error {
			all = append(all, e)
			return nil
		})
		if err != nil {
			t.Errorf("%s: %v", w, err)
			continue
		}
		if d := cmp.Diff(whole(w), a); d != "" {
			t.Errorf("%s (-want +got):\n%s", w, d)
		}
		agrees(t, a, all)
		if last := all[len(all)-1]; last.Kind != llm.Ended || last.Stop != llm.StopTools || last.Usage != a.Usage {
			t.Errorf("%s: the last event is %+v", w, last)
		}
	}
}

// Without a key no header says who asks: the way out puts it in.
func TestNoKey(t *testing.T) {
	for _, w := range wires {
		c := client(t, llm.Config{Provider: llm.Row{Wire: w}, Transport: tripper(func(r *http.Request) (*reply, error) {
			for _, name := range []string{"Authorization", "X-Api-Key", "Cookie", "Proxy-Authorization"} {
				if r.Header.Get(name) != "" {
					t.Errorf("%s: %s is sent", w, name)
				}
			}
			return answered(strings.NewReader(transcript(t, w))), nil
		})})
		if _, err := c.Stream(t.Context(), hello(), nil); err != nil {
			t.Errorf("%s: %v", w, err)
		}
	}
}

const secret = "k3y-of-nobody/else+here="

func TestRefusedRequests(t *testing.T) {
	body := `{"error":{"message":"it says \u001b[31mno\u0007 to ` + secret + ` and sk-proj-abcdefghijklmnop","type":"some_error","code":null}}`
	for _, c := range []struct {
		status int
		body   string
		kind   error
		says   []string
	}{
		{400, body, errdefs.ErrInvalidArgument, []string{"refuses the request with 400", "it says [31mno to *** and ***", "some_error"}},
		{401, body, errdefs.ErrUnauthenticated, []string{"does not take the key", "TEST_API_KEY"}},
		{402, body, errdefs.ErrResourceExhausted, []string{"no money"}},
		{403, body, errdefs.ErrPermissionDenied, []string{"forbids", "it says", "m-1"}},
		{404, body, errdefs.ErrNotFound, []string{"no model m-1", "/chat/completions"}},
		{404, "<html>nginx</html>", errdefs.ErrNotFound, []string{"no model m-1"}},
		{413, body, errdefs.ErrInvalidArgument, []string{"too large"}},
		{422, `{"detail":"x is no y"}`, errdefs.ErrInvalidArgument, []string{"refuses the request with 422", "x is no y"}},
		{400, `{"error":"a text","other":1}`, errdefs.ErrInvalidArgument, []string{"a text"}},
		{400, `{"message":"another text"}`, errdefs.ErrInvalidArgument, []string{"another text"}},
		{429, `{"error":{"message":"pay","code":"insufficient_quota"}}`, errdefs.ErrResourceExhausted, []string{"quota", "pay"}},
		{
			400, `{"error":{"message":"carrel: 5 of 5 requests","type":"insufficient_quota","code":"billing_hard_limit_reached"}}`,
			errdefs.ErrResourceExhausted,
			[]string{"budget", "carrel: 5 of 5 requests"},
		},
		{200, `{"error":{"message":"a text","code":7}}`, errdefs.ErrFailedPrecondition, []string{"without a stream and says: a text (7)"}},
		{500, body, errdefs.ErrUnavailable, []string{"fails with 500"}},
		{502, "", errdefs.ErrUnavailable, []string{"fails with 502"}},
		{408, body, errdefs.ErrUnavailable, []string{"408"}},
		{301, "", errdefs.ErrFailedPrecondition, []string{"a redirect"}},
		{307, "", errdefs.ErrFailedPrecondition, []string{"a redirect"}},
		{204, "", errdefs.ErrFailedPrecondition, []string{"without a stream"}},
		{200, `{"choices":[{"message":{"content":"x"}}]}`, errdefs.ErrFailedPrecondition, []string{"without a stream"}},
		{700, body, errdefs.ErrUnavailable, []string{"700"}},
		{
			400, `{"error":{"message":"deep"},"x":` + strings.Repeat("[", 200) + strings.Repeat("]", 200) + `}`, errdefs.ErrInvalidArgument,
			[]string{"refuses the request with 400;"},
		},
		{400, `{"error":{"message":"` + strings.Repeat("long ", 10_000) + `"}}`, errdefs.ErrInvalidArgument, []string{"long long"}},
	} {
		asked := 0
		one := client(t, llm.Config{Key: func() string { return secret }, Transport: tripper(func(*http.Request) (*reply, error) {
			asked++
			return withStatus(c.status, c.body, "Location", "http://elsewhere.test/", "Set-Cookie", "a="+secret), nil
		})})
		a, err := one.Stream(t.Context(), hello(), nil)
		if !errors.Is(err, c.kind) || asked != 1 || a.Usage.Tokens() != 0 {
			t.Errorf("%d %.40s: %v after %d requests, %+v", c.status, c.body, err, asked, a)
			continue
		}
		text := err.Error()
		for _, want := range c.says {
			if !strings.Contains(text, want) {
				t.Errorf("%d: %q does not say %q", c.status, text, want)
			}
		}
		if !strings.HasPrefix(text, "cannot ask m-1 at model.test: ") || len(text) > 700 || strings.ContainsAny(text, "\x1b\a\n") {
			t.Errorf("%d: %q", c.status, text)
		}
		for _, no := range []string{secret, "abcdefghijklmnop", "elsewhere", "Bearer"} {
			if strings.Contains(text, no) {
				t.Errorf("%d: %q shows %q", c.status, text, no)
			}
		}
	}
}

// A redirect is not followed, so the conversation goes nowhere else.
func TestRedirect(t *testing.T) {
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the redirect was followed") }))
	defer other.Close()
	for _, status := range []int{301, 302, 303, 307, 308} {
		s := httptest.NewServer(http.RedirectHandler(other.URL, status))
		_, err := client(t, llm.Config{BaseURL: s.URL}).Stream(t.Context(), hello(), nil)
		if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "redirect") {
			t.Errorf("%d: %v", status, err)
		}
		s.Close()
	}
}

// An error in a stream ends it. It is not asked again, as the answer had begun.
func TestErrorInStream(t *testing.T) {
	for _, c := range []struct {
		wire llm.Wire
		text string
		kind error
		says string
	}{
		{
			llm.Messages, "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"Overloaded\"}}\n\n",
			errdefs.ErrUnavailable, "Overloaded (overloaded_error)",
		},
		{
			llm.Messages, messagesTurn("end_turn", `{"type":"error","error":{"type":"rate_limit_error","message":"slow"}}`),
			errdefs.ErrResourceExhausted, "slow",
		},
		{llm.Messages, data(`{"type":"error"}`), errdefs.ErrUnavailable, "failed while it answered;"},
		{
			llm.Responses, data(`{"type":"error","code":"server_error","message":"oops","param":null,"sequence_number":3}`),
			errdefs.ErrUnavailable, "oops (server_error)",
		},
		{
			llm.Responses, data(`{"type":"error","error":{"type":"invalid_request_error","code":"x","message":"odd"}}`),
			errdefs.ErrInvalidArgument, "odd",
		},
		{
			llm.Responses, data(`{"type":"response.failed","response":{"status":"failed","error":{"code":"rate_limit_exceeded","message":"slow"}}}`),
			errdefs.ErrResourceExhausted, "slow",
		},
		{llm.Responses, data(`{"type":"response.failed","response":{}}`), errdefs.ErrUnavailable, "failed while it answered;"},
		{llm.Chat, data(yes, `{"error":{"message":"worker died","code":502}}`), errdefs.ErrUnavailable, "worker died (502)"},
		{llm.Chat, data(yes, `{"error":"worker died"}`), errdefs.ErrUnavailable, "worker died"},
		{llm.Chat, "event: error\ndata: {}\n\n", errdefs.ErrUnavailable, "failed while it answered;"},
	} {
		asked := 0
		one := client(t, llm.Config{Provider: llm.Row{Wire: c.wire}, Transport: tripper(func(*http.Request) (*reply, error) {
			asked++
			return answered(strings.NewReader(c.text)), nil
		})})
		a, err := one.Stream(t.Context(), hello(), nil)
		if !errors.Is(err, c.kind) || !strings.Contains(err.Error(), c.says) || asked != 1 || a.Stop != "" {
			t.Errorf("%s %s: %q, %v after %d", c.wire, c.text, a.Stop, err, asked)
		}
	}
}

// A cut answer is never taken for a whole one, and what it has used is counted.
func TestCutAnswer(t *testing.T) {
	for _, w := range wires {
		text := transcript(t, w)
		for name, body := range map[string]io.Reader{
			"ends":  strings.NewReader(text[:len(text)*3/4]),
			"fails": io.MultiReader(strings.NewReader(text[:len(text)*3/4]), iotest.ErrReader(net.ErrClosed)),
		} {
			asked := 0
			one := client(t, llm.Config{Provider: llm.Row{Wire: w}, Transport: tripper(func(*http.Request) (*reply, error) {
				asked++
				return answered(body), nil
			})})
			a, err := one.Stream(t.Context(), hello(), func(e llm.Event) error {
				if e.Kind == llm.Ended {
					t.Errorf("%s %s: it is told to have ended", w, name)
				}
				return nil
			})
			if !errdefs.IsDataLoss(err) || !strings.Contains(err.Error(), "cut") || asked != 1 || a.Stop != "" {
				t.Errorf("%s %s: %q, %v after %d", w, name, a.Stop, err, asked)
			}
			if a.Text == "" || !a.Usage.Estimated || a.Usage.Output < int64(len(a.Text))/4 || a.Usage.Input == 0 {
				t.Errorf("%s %s: %+v", w, name, a)
			}
		}
	}
}

// An answer without an end is read no further than its bound.
func TestHugeAnswer(t *testing.T) {
	for _, event := range []string{
		data(`{"choices":[{"delta":{"content":"` + strings.Repeat("x", 1000) + `"}}]}`),
		data(`{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"` + strings.Repeat("x", 1000) + `"}}]}}]}`),
		": ping\n\n",
	} {
		e := &endless{text: event}
		one := client(t, llm.Config{Transport: tripper(func(*http.Request) (*reply, error) { return answered(e), nil })})
		_, err := one.Stream(t.Context(), hello(), nil)
		if !errdefs.IsDataLoss(err) || !strings.Contains(err.Error(), "more than 16777216 bytes") || e.n > llm.MaxAnswer+(64<<10) {
			t.Errorf("%.40q: %v after %d bytes", event, err, e.n)
		}
	}
	e := &endless{text: "x"}
	one := client(t, llm.Config{Transport: tripper(func(*http.Request) (*reply, error) {
		res := withStatus(400, "")
		res.body = e
		return res, nil
	})})
	if _, err := one.Stream(t.Context(), hello(), nil); !errdefs.IsInvalidArgument(err) || e.n > 128<<10 {
		t.Errorf("an endless error: %v after %d bytes", err, e.n)
	}
}

// A compressed stream could be much larger than what is read of it.
func TestCompressed(t *testing.T) {
	one := client(t, llm.Config{Transport: tripper(func(*http.Request) (*reply, error) {
		res := answered(strings.NewReader(short))
		res.header.Set("Content-Encoding", "gzip")
		return res, nil
	})})
	if _, err := one.Stream(t.Context(), hello(), nil); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("%v", err)
	}
}

// The caller ends a stream by an error of its own, which comes back.
func TestCallerEnds(t *testing.T) {
	mine := errors.New("that is enough")
	for _, at := range []llm.EventKind{llm.TextDelta, llm.CallDone, llm.UsageTold, llm.Ended} {
		for _, w := range wires {
			one := client(t, llm.Config{Provider: llm.Row{Wire: w}, Transport: tripper(func(*http.Request) (*reply, error) {
				return answered(strings.NewReader(transcript(t, w))), nil
			})})
			seen := 0
			a, err := one.Stream(t.Context(), hello(), func(e llm.Event) error {
				if e.Kind == at {
					seen++
					return mine
				}
				return nil
			})
			if !errors.Is(err, mine) || seen != 1 || a.Stop != "" {
				t.Errorf("%s %s: %v, %q, %d times", w, at, err, a.Stop, seen)
			}
		}
	}
}

// The cause with which a caller ends its context comes back, whether the head or a piece is waited for.
func TestCallerCancels(t *testing.T) {
	mine := errors.New("the person went away")
	for _, begun := range []bool{false, true} {
		ctx, cancel := context.WithCancelCause(t.Context())
		var asked sync.WaitGroup
		asked.Add(1)
		one := client(t, llm.Config{Transport: tripper(func(r *http.Request) (*reply, error) {
			defer asked.Done()
			wait := readerFunc(func([]byte) (int, error) {
				<-r.Context().Done()
				return 0, r.Context().Err()
			})
			if begun {
				return answered(io.MultiReader(strings.NewReader(data(yes)), wait)), nil
			}
			go cancel(mine)
			<-r.Context().Done()
			return nil, r.Context().Err()
		})})
		_, err := one.Stream(ctx, hello(), func(llm.Event) error {
			cancel(mine)
			return nil
		})
		if !errors.Is(err, mine) {
			t.Errorf("begun %t: %v", begun, err)
		}
		asked.Wait()
	}
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }

// closer is a body that notes that it was closed.
type closer struct {
	io.Reader
	closed bool
}

func (c *closer) Close() error {
	c.closed = true
	return nil
}

// raw is a transport whose answers a test makes itself.
type raw func(*http.Request) (*http.Response, error)

func (f raw) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// However a request ends, its body is closed and its context has ended.
func TestEndsAll(t *testing.T) {
	for name, text := range map[string]string{"whole": short, "cut": data(yes), "broken": data("{"), "no stream": "{}"} {
		var asked context.Context
		body := &closer{Reader: strings.NewReader(text)}
		one := client(t, llm.Config{Transport: raw(func(r *http.Request) (*http.Response, error) {
			asked = r.Context()
			kind := "text/event-stream"
			if name == "no stream" {
				kind = "application/json"
			}
			return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {kind}}, Body: body}, nil
		})})
		_, err := one.Stream(t.Context(), hello(), nil)
		if (err == nil) != (name == "whole") || !body.closed || asked.Err() == nil {
			t.Errorf("%s: %v, closed %t, %v", name, err, body.closed, asked.Err())
		}
	}
}

// A service that dies in the middle of an answer cuts it, in HTTP/1.1 and HTTP/2.
func TestAborted(t *testing.T) {
	for _, two := range []bool{false, true} {
		for _, w := range wires {
			half := transcript(t, w)
			half = half[:len(half)/2]
			s := httptest.NewUnstartedServer(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
				if (r.ProtoMajor == 2) != two {
					t.Errorf("it is asked in %s", r.Proto)
				}
				out.Header().Set("Content-Type", "text/event-stream")
				_, _ = io.WriteString(out, half)
				_ = http.NewResponseController(out).Flush()
				panic(http.ErrAbortHandler)
			}))
			s.EnableHTTP2, s.Config.ErrorLog = two, slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
			s.StartTLS()
			a, err := client(t, llm.Config{Provider: llm.Row{Wire: w}, BaseURL: s.URL + root(w), Transport: s.Client().Transport}).Stream(
				t.Context(), hello(), nil)
			if !errdefs.IsDataLoss(err) || !strings.Contains(err.Error(), "cut") || a.Stop != "" || a.Model == "" {
				t.Errorf("%s, HTTP/2 %t: %+v, %v", w, two, a, err)
			}
			// A client of its own does not trust the server's certificate.
			_, err = client(t, llm.Config{Provider: llm.Row{Wire: w}, BaseURL: s.URL + root(w)}).Stream(t.Context(), hello(), nil)
			if !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), "certificate") {
				t.Errorf("an unknown certificate: %v", err)
			}
			s.Close()
		}
	}
}
