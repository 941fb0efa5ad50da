package model_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/egress/model"
	"github.com/carrel-dev/carrel/internal/egress/room"
)

// A query does not make another call of a request.
func TestQueryWithMethod(t *testing.T) {
	r := start(t, model.OpenAI, func(http.ResponseWriter, *http.Request) { t.Error("it arrived") }, nil)
	for _, query := range []string{"_method=DELETE", "a=b&_METHOD[]=DELETE", "%5fmethod=PUT"} {
		if status, body := r.get("GET", "/v1/models/x?"+query, ""); status != 400 || !strings.Contains(body, "_method") {
			t.Errorf("%s: %d %s", query, status, body)
		}
	}
}

// A body that two programs could read as two objects, or that asks for what cannot be counted, does not reach the host.
func TestHostileBodies(t *testing.T) {
	r := start(t, model.OpenAI, func(http.ResponseWriter, *http.Request) { t.Error("it arrived") }, nil)
	for body, want := range map[string]string{
		``:                                                "not one JSON object",
		`[]`:                                              "not one JSON object",
		`{"model":"cheap"`:                                "not one JSON object",
		`{"model":"cheap"}{"model":"dear"}`:               "not one JSON object",
		`{"model":"cheap",/*"*/"model":"b"}`:              "not one JSON object",
		"{\"model\":\"cheap\",\"a\":\"\n\"}":              "not one JSON object",
		"\xef\xbb\xbf{\"model\":\"m\"}":                   "not one JSON object",
		"{\x00\"\x00m\x00":                                "not one JSON object",
		`{'model':'m'}`:                                   "not one JSON object",
		`{"a":` + strings.Repeat("[", 10_000):             "not one JSON object",
		`{"model":"cheap","model":"dear"}`:                "model twice",
		`{"model":"cheap","Model":"dear"}`:                "model twice",
		`{"model":"cheap","m\u006fdel":"d"}`:              "model twice",
		`{"MODEL":"dear"}`:                                "model twice",
		`{"stream":true,"stream":false,"model":"m"}`:      "stream twice",
		`{"model":"m","models":["a","b"]}`:                "several models",
		`{"model":"m","background":true}`:                 "in the background",
		`{"model":"m","background":1}`:                    "in the background",
		`{}`:                                              "no model",
		`{"model":""}`:                                    "no model",
		`{"model":7}`:                                     "no model",
		`{"model":"a\nb"}`:                                "no model",
		`{"model":"` + strings.Repeat("m", 200) + `"}`:    "no model",
		`{"model":"` + strings.Repeat("m", 20_000) + `"}`: "great length",
		`{"model":"m","x":"` + strings.Repeat("x", 1<<20) + `","model":"dear"}`:              "model twice",
		`{"messages":{"model":"m"},"x":[{"model":"m"}],"models":null,"background":null}`:     "no model",
		`{"model":"m","stream_options":` + strings.Repeat(" ", 20_000) + `{},"stream":true}`: "",
	} {
		status, answer := 0, ""
		if want == "" {
			continue // what is around a value has no bound
		}
		if status, answer = r.get("POST", "/v1/responses", body); status != 400 {
			t.Errorf("%.60q: %d", body, status)
		}
		if _, message := problem(t, model.OpenAI, answer); !strings.Contains(message, want) {
			t.Errorf("%.60q: %s", body, message)
		}
	}
	if status, _ := r.get("POST", "/v1/responses", `{"model":"m"}`, "Content-Encoding: gzip"); status != 400 {
		t.Errorf("a compressed body: %d", status)
	}
	if len(r.asked()) > 0 {
		t.Errorf("%v", r.asked())
	}
	freed(t, r.room, room.Bytes)
}

// endless is a reader of spaces after a beginning.
type endless struct{ head io.Reader }

func (e endless) Read(b []byte) (int, error) {
	if n, err := e.head.Read(b); err == nil {
		return n, nil
	}
	for i := range b {
		b[i] = ' '
	}
	return len(b), nil
}

// A body is bounded, and all of them together are.
func TestLargeBodies(t *testing.T) {
	r := start(t, model.Anthropic, answer(jsn, `{}`), nil)
	post := func(body io.Reader, length int64) int {
		ctx, cancel := context.WithTimeout(t.Context(), 6*patience)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.front.URL+"/v1/messages", body)
		if err != nil {
			t.Fatal(err)
		}
		req.ContentLength = length
		res, err := r.front.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		_, _ = io.Copy(io.Discard, res.Body)
		return res.StatusCode
	}
	if status := post(io.LimitReader(endless{strings.NewReader(`{"model":"m"`)}, model.MaxBody+1), model.MaxBody+1); status != 413 {
		t.Errorf("one that says it is too large: %d", status)
	}
	if status := post(endless{strings.NewReader(`{"model":"m"`)}, -1); status != 413 {
		t.Errorf("one without an end: %d", status)
	}
	freed(t, r.room, room.Bytes)
	// Two of them wait in the middle, so a third has no room.
	small := room.Of(8 << 20)
	r = start(t, model.Anthropic, answer(jsn, `{}`), func(c *model.Config) { c.Room = small })
	var waiting sync.WaitGroup
	var writers []*io.PipeWriter
	for range 2 {
		in, out := io.Pipe()
		writers = append(writers, out)
		waiting.Go(func() {
			if status := post(in, -1); status != 200 {
				t.Errorf("one that waits: %d", status)
			}
		})
		waiting.Go(func() { _, _ = io.CopyN(out, endless{strings.NewReader(`{"model":"m"`)}, 5<<19) })
	}
	for deadline := time.Now().Add(patience); small.Left() >= 3<<20 && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond) //nolint:forbidigo // there is no event for what a server has read
	}
	if status := post(io.LimitReader(endless{strings.NewReader(`{"model":"m"`)}, 4<<20), -1); status != 503 {
		t.Errorf("one for which there is no room: %d", status)
	}
	for _, w := range writers {
		_, _ = io.WriteString(w, "}")
		_ = w.Close()
	}
	waiting.Wait()
	freed(t, small, 8<<20)
}

// raw writes a request by hand.
func (r *rig) raw(text string) net.Conn {
	r.t.Helper()
	c, err := net.Dial("tcp", r.front.Listener.Addr().String())
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(c, text); err != nil {
		r.t.Fatal(err)
	}
	return c
}

func post(path, body string) string {
	return fmt.Sprintf("POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", path, len(body), body)
}

// A program that sends its body without an end is refused in time.
func TestSlowBody(t *testing.T) {
	r := start(t, model.Anthropic, func(http.ResponseWriter, *http.Request) { t.Error("it arrived") },
		func(c *model.Config) { c.Slow = 50 * time.Millisecond })
	for request, want := range map[string]string{"POST /v1/messages": "408", "POST /v1/other": "404", "GET /v1/models": "400"} {
		c := r.raw(request + " HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{\"mod")
		b, err := io.ReadAll(c)
		if err != nil || !strings.HasPrefix(string(b), "HTTP/1.1 "+want) {
			t.Errorf("%s: %q, %v", request, b, err)
		}
	}
}

// When a program goes away the host hears of it, and what there was is counted.
func TestProgramGoesAway(t *testing.T) {
	gone := make(chan bool)
	r := start(t, model.Anthropic, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, seen+strings.Repeat(piece, 50))
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
		gone <- true
	}, nil)
	c := r.raw(post("/v1/messages", `{"model":"m","stream":true}`))
	if _, err := io.ReadFull(c, make([]byte, 1000)); err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	select {
	case <-gone:
	case <-time.After(patience):
		t.Fatal("the host does not hear of it")
	}
	if u := r.used(); !u.Unknown || u.Input != 25 || u.Output < 250 {
		t.Errorf("%+v", u)
	}
}

// So it is before the host has answered.
func TestProgramGoesAwayEarly(t *testing.T) {
	arrived, gone := make(chan bool), make(chan bool)
	r := start(t, model.Anthropic, func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		arrived <- true
		<-r.Context().Done()
		gone <- true
	}, nil)
	body := `{"model":"m","x":"` + strings.Repeat("x", 1000) + `"}`
	c := r.raw(post("/v1/messages", body))
	<-arrived
	_ = c.Close()
	<-gone
	if u := r.used(); !u.Unknown || u.Input != int64(len(body)+1)/2 {
		t.Errorf("%+v", u)
	}
}

// A program that takes nothing of what the host sends is cut.
func TestProgramDoesNotRead(t *testing.T) {
	r := start(t, model.Anthropic, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for r.Context().Err() == nil {
			_, _ = io.WriteString(w, strings.Repeat(piece, 1000))
		}
	}, func(c *model.Config) { c.Slow = 100 * time.Millisecond })
	r.raw(post("/v1/messages", `{"model":"m","stream":true}`))
	if u := r.used(); !u.Unknown || u.Output < 10_000 {
		t.Errorf("%+v", u)
	}
}

// A response may take longer than a program may take to read a part of it.
func TestLongResponse(t *testing.T) {
	r := start(t, model.Anthropic, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		for range 20 {
			_, _ = io.WriteString(w, piece)
			_ = http.NewResponseController(w).Flush()
			time.Sleep(20 * time.Millisecond) //nolint:forbidigo // it is a slow host
		}
	}, func(c *model.Config) { c.Slow = 200 * time.Millisecond })
	if _, body := r.get("POST", "/v1/messages", `{"model":"m","stream":true}`); body != strings.Repeat(piece, 20) {
		t.Errorf("%q", body)
	}
}

// What a host may do, and what the program gets then.
func TestHostileHosts(t *testing.T) {
	long := strings.Repeat("x", 2<<20)
	hijack := func(text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			c, _, err := http.NewResponseController(w).Hijack()
			if err == nil {
				_, _ = io.WriteString(c, text)
				_ = c.Close()
			}
		}
	}
	for name, c := range map[string]struct {
		serve  http.HandlerFunc
		status int // 0 for a response that breaks off
		want   string
	}{
		"redirect":     {http.RedirectHandler("https://elsewhere.example/", http.StatusTemporaryRedirect).ServeHTTP, 502, "another address"},
		"no HTTP":      {hijack("hello\r\n\r\n"), 502, "no HTTP response"},
		"nothing":      {hijack(""), 502, "no HTTP response"},
		"large head":   {hijack("HTTP/1.1 200 OK\r\nX: " + long + "\r\n\r\n"), 502, "no HTTP response"},
		"many interim": {hijack(strings.Repeat("HTTP/1.1 103 Early Hints\r\n\r\n", 100_000)), 502, "no HTTP response"},
		"upgrade":      {hijack("HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n"), 502, ""},
		"compressed":   {hijack("HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc"), 502, "compresses"},
		"breaks off":   {hijack("HTTP/1.1 200 OK\r\nContent-Length: 30\r\n\r\nabc"), 0, "abc"},
		"idle": {func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			<-r.Context().Done()
		}, 502, "nothing came"},
		"idle in the middle": {func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			_, _ = io.WriteString(w, "abc")
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}, 0, "abc"},
	} {
		r := start(t, model.Anthropic, c.serve, func(c *model.Config) { c.Idle = 200 * time.Millisecond })
		r.do("POST", "/v1/messages", `{"model":"m"}`, func(res *http.Response) {
			b, err := io.ReadAll(res.Body)
			switch {
			case c.status == 0:
				if err == nil || string(b) != c.want {
					t.Errorf("%s: %q, %v", name, b, err)
				}
			case err != nil || res.StatusCode != c.status:
				t.Errorf("%s: %d, %v", name, res.StatusCode, err)
			default:
				if _, message := problem(t, model.Anthropic, string(b)); !strings.Contains(message, c.want) || strings.Contains(message, key) {
					t.Errorf("%s: %s", name, message)
				}
			}
		})
		if u := r.used(); !u.Unknown {
			t.Errorf("%s: %+v", name, u)
		}
	}
}

// answers is a transport of a host that answers, or ends its answer, because its connection is being closed.
type answers struct{ begun bool }

func (a answers) RoundTrip(r *http.Request) (*http.Response, error) {
	_, _ = io.Copy(io.Discard, r.Body)
	if !a.begun {
		<-r.Context().Done()
	}
	return &http.Response{StatusCode: 200, Header: http.Header{}, ContentLength: -1, Body: io.NopCloser(ends{r.Context()})}, nil
}

// ends is a body that ends with its request.
type ends struct{ ctx context.Context }

func (e ends) Read([]byte) (int, error) {
	<-e.ctx.Done()
	return 0, io.EOF
}

// What a host answers to the end of its connection is no response.
func TestAnswerToTheEnd(t *testing.T) {
	for begun, want := range map[bool]string{false: "502 nothing came", true: "0 "} {
		r := start(t, model.Anthropic, nil, func(c *model.Config) { c.Idle, c.Transport = 50*time.Millisecond, answers{begun} })
		got := "0 "
		r.do("POST", "/v1/messages", `{"model":"m"}`, func(res *http.Response) {
			if b, err := io.ReadAll(res.Body); err == nil {
				got = fmt.Sprint(res.StatusCode, " ", string(b))
				if strings.Contains(got, "nothing came") {
					got = "502 nothing came"
				}
			}
		})
		if got != want {
			t.Errorf("begun %t: %s", begun, got)
		}
		if u := r.used(); u.Unknown != begun { // this transport does not say that it has sent anything
			t.Errorf("begun %t: %+v", begun, u)
		}
	}
}

// A response without an end is ended.
func TestEndless(t *testing.T) {
	r := start(t, model.Anthropic, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "text/event-stream")
		for r.Context().Err() == nil {
			_, _ = io.WriteString(w, piece)
			_ = http.NewResponseController(w).Flush()
			time.Sleep(time.Millisecond) //nolint:forbidigo // it is a slow host
		}
	}, func(c *model.Config) { c.Longest = 300 * time.Millisecond })
	r.do("POST", "/v1/messages", `{"model":"m","stream":true}`, func(res *http.Response) {
		if _, err := io.ReadAll(res.Body); err == nil {
			t.Error("it ends as if it were complete")
		}
	})
	if u := r.used(); !u.Unknown || u.Output == 0 {
		t.Errorf("%+v", u)
	}
}

// What was never sent uses nothing, and what the host refuses neither.
func TestNothingUsed(t *testing.T) {
	r := start(t, model.Anthropic, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.WriteHeader(http.StatusTooManyRequests)
		_, _ = io.WriteString(w, `{"type":"error","error":{"type":"rate_limit_error","message":"slow down"}}`)
	}, nil)
	if status, body := r.get("POST", "/v1/messages", `{"model":"m"}`); status != 429 || !strings.Contains(body, "slow down") {
		t.Errorf("%d %s", status, body)
	}
	if u := r.used(); u != (model.Usage{}) {
		t.Errorf("%+v", u)
	}
	for want, err := range map[int]error{
		403: fmt.Errorf("10.0.0.1 is private: %w", errdefs.ErrPermissionDenied), 502: fmt.Errorf("no such host: %w", errdefs.ErrUnavailable),
	} {
		r := start(t, model.Anthropic, nil, func(c *model.Config) {
			c.Transport = model.NewTransport("example.com", nil, func(context.Context) (net.Conn, error) { return nil, err })
		})
		status, body := r.get("POST", "/v1/messages", `{"model":"m"}`)
		_, message := problem(t, model.Anthropic, body)
		if status != want || !strings.HasPrefix(err.Error(), strings.TrimPrefix(message, "carrel: ")) {
			t.Errorf("%d %s", status, message)
		}
		if u := r.used(); u != (model.Usage{}) {
			t.Errorf("%+v", u)
		}
	}
	// A host that has another certificate gets nothing, not even the key.
	r = start(t, model.Anthropic, func(http.ResponseWriter, *http.Request) { t.Error("it arrived") }, nil)
	other := start(t, model.Anthropic, nil, func(c *model.Config) {
		c.Transport = model.NewTransport("example.com", nil, func(ctx context.Context) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", r.host.Listener.Addr().String())
		})
	})
	status, body := other.get("POST", "/v1/messages", `{"model":"m"}`)
	if status != 502 || !strings.Contains(body, "no authority that this host trusts") {
		t.Errorf("%d %s", status, body)
	}
}
