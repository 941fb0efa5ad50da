package intercept_test

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync"
	"testing"

	"github.com/carrel-dev/carrel/internal/spec/netrule"
)

// Events arrive one by one: the host sends the next when the program has read the last.
func TestEvents(t *testing.T) {
	for _, proto := range protos {
		t.Run(proto, func(t *testing.T) {
			p := newPlace(t, []string{"api.example.org"}, secret(t, "api.example.org"))
			read := make(chan struct{})
			p.host("api.example.org:443", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "text/event-stream")
				for i := range 5 {
					fmt.Fprintf(w, "data: %d %s\n\n", i, r.Header.Get("X-Key"))
					_ = http.NewResponseController(w).Flush()
					select {
					case <-read:
					case <-r.Context().Done():
						return
					}
				}
				// What may be the beginning of the secret is held until it is clear, and everything else is not.
				fmt.Fprint(w, "data: "+value[:20])
				_ = http.NewResponseController(w).Flush()
				<-read
				fmt.Fprint(w, value[20:]+"\n\ndata: "+value[:20])
			}))
			r, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://api.example.org/", nil)
			r.Header.Set("X-Key", placeholder)
			res, err := p.client(proto).Do(r)
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			lines := bufio.NewReader(res.Body)
			for i := range 5 {
				event, err := lines.ReadString('\n')
				if want := fmt.Sprintf("data: %d %s\n", i, placeholder); event != want || err != nil {
					t.Fatalf("event %d is %q, %v", i, event, err)
				}
				_, _ = lines.Discard(1)
				read <- struct{}{}
			}
			b := make([]byte, len("data: "))
			if _, err := io.ReadFull(lines, b); err != nil || string(b) != "data: " {
				t.Fatalf("before the held part: %q, %v", b, err)
			}
			read <- struct{}{}
			rest, err := io.ReadAll(lines)
			if string(rest) != placeholder+"\n\ndata: "+value[:20] || err != nil {
				t.Errorf("the rest is %q, %v", rest, err)
			}
		})
	}
}

// A request's body streams too: the host answers each part while the next is not yet sent.
func TestConversation(t *testing.T) {
	for _, proto := range protos {
		t.Run(proto, func(t *testing.T) {
			p := newPlace(t, []string{"api.example.org"}, secret(t, "api.example.org"))
			got := make(chan string)
			p.host("api.example.org:443", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				lines := bufio.NewReader(r.Body)
				for range 3 {
					s, err := lines.ReadString('\n')
					if err != nil {
						return
					}
					got <- s
				}
				w.Header().Set("Trailer", "X-End")
				_, _ = io.WriteString(w, "done")
				w.Header().Set("X-End", r.Header.Get("X-Key"))
			}))
			body, say := io.Pipe()
			r, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://api.example.org/", body)
			r.Header.Set("X-Key", placeholder)
			answered := make(chan error, 1)
			var res *http.Response
			c := p.client(proto)
			go func() {
				var err error
				res, err = c.Do(r) //nolint:bodyclose // below
				answered <- err
			}()
			for _, s := range []string{"one\n", "two\n", "three\n"} {
				if _, err := io.WriteString(say, s); err != nil {
					t.Fatal(err)
				}
				if g := wait(t, got, "part of the body"); g != s {
					t.Errorf("the host got %q, not %q", g, s)
				}
			}
			say.Close()
			if err := wait(t, answered, "answer"); err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			b, err := io.ReadAll(res.Body)
			if string(b) != "done" || err != nil || res.Trailer.Get("X-End") != placeholder {
				t.Errorf("%q, %v, trailer %q", b, err, res.Trailer)
			}
		})
	}
}

func TestLargeBodies(t *testing.T) {
	const size = 32 << 20
	for _, proto := range protos {
		for _, kind := range []string{"text/plain", "application/octet-stream"} {
			t.Run(proto+" "+kind, func(t *testing.T) {
				p := newPlace(t, []string{"api.example.org"}, secret(t, "api.example.org"))
				p.host("api.example.org:443", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					h := sha256.New()
					_, _ = io.Copy(h, r.Body)
					w.Header().Set("Content-Type", kind)
					w.Header().Set("X-Sum", hex.EncodeToString(h.Sum(nil)))
					_, _ = io.Copy(w, random(2, size))
				}))
				r, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://api.example.org/", random(1, size))
				res, err := p.client(proto).Do(r)
				if err != nil {
					t.Fatal(err)
				}
				defer res.Body.Close()
				h, sent, back := sha256.New(), sha256.New(), sha256.New()
				_, _ = io.Copy(sent, random(1, size))
				_, _ = io.Copy(back, random(2, size))
				if _, err := io.Copy(h, res.Body); err != nil {
					t.Fatal(err)
				}
				if res.Header.Get("X-Sum") != hex.EncodeToString(sent.Sum(nil)) || string(h.Sum(nil)) != string(back.Sum(nil)) {
					t.Error("a body arrived otherwise")
				}
			})
		}
	}
}

func random(seed uint64, size int64) io.Reader {
	return io.LimitReader(rand.NewChaCha8([32]byte{byte(seed)}), size)
}

// Many requests at once share one connection to the host, and each gets its own answer.
func TestStreams(t *testing.T) {
	p := newPlace(t, []string{"api.example.org"}, secret(t, "api.example.org"))
	const n = 90
	var arrived sync.WaitGroup
	arrived.Add(n)
	p.host("api.example.org:443", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/first" {
			return
		}
		arrived.Done()
		arrived.Wait() // all are open at once
		fmt.Fprint(w, r.URL.Path+r.Header.Get("X-Key"))
	}))
	c := p.client("h2")
	get(t, c, "https://api.example.org/first", nil)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			r, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, fmt.Sprintf("https://api.example.org/%d", i), nil)
			r.Header.Set("X-Key", placeholder)
			if status, body, err := do(c, r); status != 200 || err != nil || body != fmt.Sprintf("/%d%s", i, placeholder) {
				t.Errorf("%d: %d, %q, %v", i, status, body, err)
			}
		})
	}
	all.Wait()
	c.CloseIdleConnections()
	if r := p.next(); r.Requests != n+1 || p.dials() != 1 {
		t.Errorf("%d requests, %d connections", r.Requests, p.dials())
	}
}

func TestWebSocket(t *testing.T) {
	p := newPlace(t, []string{"api.example.org"}, secret(t, "api.example.org"))
	p.host("api.example.org:443", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, both, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Errorf("no upgrade: %v", err)
			return
		}
		defer conn.Close()
		fmt.Fprintf(both, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\nX-Echo: %s\r\n\r\nhello",
			r.Header.Get("Upgrade"), r.Header.Get("Authorization"))
		both.Flush()
		_, _ = io.Copy(both, io.TeeReader(io.LimitReader(both, 4), flusher{both}))
		both.Flush()
	}))
	conn := p.secure("api.example.org:443", "http/1.1")
	fmt.Fprintf(conn, "GET /ws HTTP/1.1\r\nHost: api.example.org\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n"+
		"Sec-WebSocket-Key: x\r\nAuthorization: Bearer %s\r\n\r\n", placeholder)
	in := bufio.NewReader(conn)
	res, err := http.ReadResponse(in, nil)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != 101 || res.Header.Get("Upgrade") != "websocket" || res.Header.Get("X-Echo") != "Bearer "+placeholder {
		t.Fatalf("%d %q", res.StatusCode, res.Header)
	}
	b := make([]byte, 5)
	if _, err := io.ReadFull(in, b); err != nil || string(b) != "hello" {
		t.Fatalf("%q, %v", b, err)
	}
	fmt.Fprint(conn, "\x00\xff12")
	if b, err := io.ReadAll(in); string(b) != "\x00\xff12" || err != nil {
		t.Errorf("%q, %v", b, err)
	}
	conn.Close()
	if r := p.next(); r.Requests != 1 || r.Refused != "" || len(r.Secrets) != 1 {
		t.Errorf("the record is %+v", r)
	}
}

type flusher struct{ w *bufio.ReadWriter }

func (f flusher) Write(b []byte) (int, error) { return len(b), f.w.Flush() }

// The host decides whether it wants the body, and its interim responses pass.
func TestContinue(t *testing.T) {
	for _, proto := range protos {
		t.Run(proto, func(t *testing.T) {
			p := newPlace(t, []string{"api.example.org"}, secret(t, "api.example.org"))
			p.host("api.example.org:443", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/no" {
					w.WriteHeader(http.StatusExpectationFailed)
					return
				}
				w.Header().Set("X-Hint", r.Header.Get("X-Key"))
				w.WriteHeader(http.StatusEarlyHints)
				b, _ := io.ReadAll(r.Body)
				_, _ = w.Write(b)
			}))
			c := p.client(proto)
			c.Transport.(*http.Transport).ExpectContinueTimeout = within
			for path, want := range map[string]int{"/yes": 200, "/no": 417} {
				hint := ""
				ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got1xxResponse: func(code int, h mimeHeader) error {
					if code == http.StatusEarlyHints {
						hint = h.Get("X-Hint")
					}
					return nil
				}})
				r, _ := http.NewRequestWithContext(ctx, http.MethodPut, "https://api.example.org"+path, strings.NewReader("body"))
				r.Header = http.Header{"Expect": {"100-continue"}, "X-Key": {placeholder}}
				status, body, err := do(c, r)
				if err != nil || status != want || want == 200 && (body != "body" || hint != placeholder) {
					t.Errorf("%s: %d %q, %v, hint %q", path, status, body, err, hint)
				}
			}
		})
	}
}

// A program that goes away ends its request at the host.
func TestProgramGone(t *testing.T) {
	for _, proto := range protos {
		p := newPlace(t, []string{"api.example.org"}, secret(t, "api.example.org"))
		began, ended := make(chan struct{}), make(chan struct{})
		p.host("api.example.org:443", http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			close(began)
			<-r.Context().Done()
			close(ended)
		}))
		ctx, cancel := context.WithCancel(t.Context())
		r, _ := http.NewRequestWithContext(ctx, http.MethodGet, "https://api.example.org/", nil)
		go func() {
			<-began
			cancel()
		}()
		if _, _, err := do(p.client(proto), r); err == nil {
			t.Error("the request succeeded")
		}
		wait(t, ended, "end of the request at the host")
	}
}

// What is taken back stops at once, in the middle of a stream.
func TestCut(t *testing.T) {
	for what, test := range map[string]struct {
		cut func(p *place)
		why string
	}{
		"rules":   {func(p *place) { p.server.SetRules(rulesOf(p.t, "other.example.org")) }, "the rules have changed"},
		"secrets": {func(p *place) { p.server.SetIntercept(nil) }, "the secrets have changed"},
		"value":   {func(p *place) { p.server.SetIntercept(p.interceptor(secret(p.t, "api.example.org"))) }, "the secrets have changed"},
		"end":     {func(p *place) { p.stop() }, "the workspace's egress has ended"},
	} {
		for _, proto := range protos {
			t.Run(what+" "+proto, func(t *testing.T) {
				p := newPlace(t, []string{"api.example.org"}, secret(t, "api.example.org"))
				gone := make(chan struct{})
				p.host("api.example.org:443", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					defer close(gone)
					_, _ = io.WriteString(w, "first")
					_ = http.NewResponseController(w).Flush()
					<-r.Context().Done()
				}))
				r, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://api.example.org/", nil)
				r.Header.Set("X-Key", placeholder)
				res, err := p.client(proto).Do(r)
				if err != nil {
					t.Fatal(err)
				}
				defer res.Body.Close()
				if _, err := io.ReadFull(res.Body, make([]byte, 5)); err != nil {
					t.Fatal(err)
				}
				test.cut(p)
				if b, err := io.ReadAll(res.Body); err == nil || len(b) > 0 {
					t.Errorf("the stream goes on or ends well: %q", b)
				}
				wait(t, gone, "end at the host")
				if r := p.next(); !strings.HasPrefix(r.Refused, test.why) || len(r.Secrets) != 1 || r.Requests != 1 {
					t.Errorf("the record is %+v", r)
				}
			})
		}
	}
}

// Connections that are made later are cut like the first one.
func TestCutLater(t *testing.T) {
	p := newPlace(t, []string{"api.example.org"}, secret(t, "api.example.org"))
	p.rawHost("api.example.org:443", func(c conn) {
		in := bufio.NewReader(c)
		r, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		if r.URL.Path == "/close" {
			fmt.Fprint(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
			return
		}
		fmt.Fprint(c, "HTTP/1.1 200 OK\r\nContent-Type: x/y\r\n\r\nfirst")
		_, _ = in.ReadByte()
	})
	c := p.secure("api.example.org:443")
	in := bufio.NewReader(c)
	fmt.Fprint(c, "GET /close HTTP/1.1\r\nHost: api.example.org\r\n\r\n")
	res, err := http.ReadResponse(in, nil)
	if err != nil || res.StatusCode != 200 {
		t.Fatalf("%v", err)
	}
	res.Body.Close()
	p.mu.Lock()
	old := p.names["api.example.org"]
	later := old.Next()
	p.names["api.example.org"], p.leads[addrPort(later, 443)] = later, p.leads[addrPort(old, 443)]
	p.mu.Unlock()
	fmt.Fprint(c, "GET / HTTP/1.1\r\nHost: api.example.org\r\n\r\n")
	res, err = http.ReadResponse(in, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if _, err := io.ReadFull(res.Body, make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	deny, err := netrule.ParseRule(netrule.Deny, later.String())
	if err != nil {
		t.Fatal(err)
	}
	r, err := netrule.New(append(rules(t, "api.example.org"), deny), netrule.Options{})
	if err != nil {
		t.Fatal(err)
	}
	p.server.SetRules(r)
	if b, err := io.ReadAll(res.Body); err == nil || len(b) > 0 {
		t.Errorf("the stream goes on: %q, %v", b, err)
	}
	if r := p.next(); !strings.Contains(r.Refused, "the rule "+deny.Text+" denies it") {
		t.Errorf("the record is %+v", r)
	}
}
