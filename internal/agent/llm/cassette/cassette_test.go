package cassette_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/agent/llm/cassette"
)

const key = "sk-very-secret"

// say sends a request and returns the status and the body of the answer.
func say(t *testing.T, via http.RoundTripper, method, url, body string) (int, string, http.Header, error) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+key)
	r.Header.Set("Cookie", "session="+key)
	res, err := via.RoundTrip(r)
	if err != nil {
		return 0, "", nil, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(text), res.Header, nil
}

// echo answers with what it was sent, and how often it was asked.
func echo(t *testing.T) *httptest.Server {
	n := 0
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		n++
		w.Header().Set("Content-Type", "text/event-stream")
		w.Header().Set("Set-Cookie", "session="+key)
		w.Header().Set("Retry-After", "3")
		if string(body) == "busy" {
			w.WriteHeader(http.StatusTooManyRequests)
		}
		_, _ = io.WriteString(w, "data: "+string(body)+strings.Repeat("!", n)+"\n\n")
	}))
	t.Cleanup(s.Close)
	return s
}

func record(t *testing.T, secrets ...string) (*cassette.Recorder, string, string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "c.jsonl")
	wire := &http.Transport{}
	t.Cleanup(wire.CloseIdleConnections)
	c, err := cassette.Record(file, wire, secrets...)
	if err != nil {
		t.Fatal(err)
	}
	return c, file, echo(t).URL
}

// What was said is said again, in the order of like requests, without a network, and nothing else is.
func TestReplay(t *testing.T) {
	c, file, url := record(t, key)
	for _, body := range []string{"a < b & ü", "busy", "a < b & ü"} {
		if _, _, _, err := say(t, c, "POST", url+"/v1/x", body); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil || strings.Contains(string(text), key) || strings.Contains(string(text), "Bearer") ||
		strings.Count(string(text), "\n") != 3 {
		t.Errorf("%s, %v", text, err)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	p, err := cassette.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	const elsewhere = "http://nowhere.invalid"
	for _, x := range []struct{ method, path, body, want, says string }{
		{"POST", "/v1/x", "a < b & ü", "data: a < b & ü!\n\n", ""},
		{"POST", "/v1/x", "a < b & ü", "data: a < b & ü!!!\n\n", ""},
		{"POST", "/v1/x", "a < b & ü", "", "played already"},
		{"POST", "/v1/x", "a < c", "", `differs from byte 4: "b & ü" in the cassette, "c" here`},
		{"GET", "/v1/x", "busy", "", "no exchange for GET /v1/x;"},
		{"POST", "/v1/y", "busy", "", "no exchange for POST /v1/y;"},
		{"POST", "/v1/x?a=b", "busy", "", "no exchange"},
	} {
		_, got, _, err := say(t, p, x.method, elsewhere+x.path, x.body)
		if got != x.want || (err == nil) != (x.says == "") || err != nil && (!errdefs.IsNotFound(err) || !strings.Contains(err.Error(), x.says)) {
			t.Errorf("%+v: %q, %v", x, got, err)
		}
	}
	if err := p.Left(); err == nil || !strings.Contains(err.Error(), "exchange 2") {
		t.Errorf("what is left: %v", err)
	}
	status, got, header, err := say(t, p, "POST", elsewhere+"/v1/x", "busy")
	if err != nil || status != 429 || got != "data: busy!!\n\n" || header.Get("Retry-After") != "3" || header.Get("Set-Cookie") != "" {
		t.Errorf("%d %q %v, %v", status, got, header, err)
	}
	if err := p.Left(); err != nil {
		t.Errorf("all was played: %v", err)
	}
}

// A secret is not written, wherever it stands, and the person who records is told.
func TestSecrets(t *testing.T) {
	for _, body := range []string{"it is " + key, `in "quotes" ` + key} {
		c, file, url := record(t, "other", key)
		if _, _, _, err := say(t, c, "POST", url+"/", body); err != nil {
			t.Fatal(err)
		}
		if err := c.Close(); !errdefs.IsFailedPrecondition(err) || strings.Contains(err.Error(), key) {
			t.Errorf("%v", err)
		}
		if text, err := os.ReadFile(file); err != nil || len(text) > 0 {
			t.Errorf("%q, %v", text, err)
		}
	}
	c, file, url := record(t, `with "quotes"`)
	if _, _, _, err := say(t, c, "POST", url+"/", `say with "quotes" now`); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("a secret with quotes: %v", err)
	}
	c2, err := cassette.Record(file, &http.Transport{})
	if !errdefs.IsAlreadyExists(err) || c2 != nil {
		t.Errorf("a cassette is written over: %v", err)
	}
	c, _, url = record(t)
	if _, _, _, err := say(t, c, "POST", url+"/?key="+key, "x"); !errdefs.IsInvalidArgument(err) || strings.Contains(err.Error(), key) {
		t.Errorf("a query: %v", err)
	}
}

func TestNotText(t *testing.T) {
	c, _, url := record(t)
	if _, _, _, err := say(t, c, "POST", url+"/", "\xff\xfe"); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); !errdefs.IsInvalidArgument(err) {
		t.Errorf("%v", err)
	}
}

// A failed request is no exchange, and its error comes back.
func TestFailed(t *testing.T) {
	c, file, _ := record(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r, _ := http.NewRequestWithContext(ctx, http.MethodPost, "http://127.0.0.1:1/", strings.NewReader("x"))
	if res, err := c.RoundTrip(r); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
		_ = res.Body.Close()
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if p, err := cassette.Open(file); err != nil || p.Left() != nil {
		t.Errorf("%v", err)
	}
}

func TestOpenRefuses(t *testing.T) {
	good := `{"method":"POST","path":"/","request":"","status":200,"answer":""}` + "\n"
	for _, text := range []string{
		"x", "[]", `{"method":"POST"}`, `{"method":"POST","path":"/","status":99}`,
		`{"path":"/","status":200}`, `{"method":"POST","path":"x","status":200}`,
		strings.TrimSuffix(good, "}\n") + `,"authorization":"x"}`, good + "{", strings.Repeat(good, cassette.MaxExchanges+1),
	} {
		if _, err := cassette.Read([]byte(text)); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%.80q: %v", text, err)
		}
	}
	if p, err := cassette.Read([]byte("\n" + good + "\n")); err != nil || p.Left() == nil {
		t.Errorf("%v", err)
	}
	if _, err := cassette.Open(filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v", err)
	}
}

// Many may record and play at once.
func TestAtOnce(t *testing.T) {
	c, file, _ := record(t)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) }))
	defer s.Close()
	var all sync.WaitGroup
	ask := func(via http.RoundTripper, url string) {
		for range 20 {
			all.Go(func() {
				if _, got, _, err := say(t, via, "POST", url+"/", "x"); err != nil || got != "x" {
					t.Errorf("%q, %v", got, err)
				}
			})
		}
		all.Wait()
	}
	ask(c, s.URL)
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	p, err := cassette.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	ask(p, "http://nowhere.invalid")
	if err := p.Left(); err != nil {
		t.Error(err)
	}
}
