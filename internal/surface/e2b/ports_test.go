package e2b_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
)

// inside is a service on a port of every sandbox of a rig.
type inside struct {
	mu   sync.Mutex
	seen []*http.Request
}

func (i *inside) requests() []*http.Request {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.seen
}

// serves has h answer on the port of all sandboxes.
func (r *rig) serves(h http.Handler) *inside {
	i := &inside{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		i.mu.Lock()
		i.seen = append(i.seen, r)
		i.mu.Unlock()
		h.ServeHTTP(w, r)
	}))
	r.t.Cleanup(s.Close)
	r.gate.Port = s.Listener.Addr().(*net.TCPAddr).Port
	return i
}

// withTraffic makes a sandbox, and returns the token for its ports too.
func (r *rig) withTraffic() (s sandbox, traffic string) {
	r.t.Helper()
	status, text := r.send("POST", "/sandboxes", `{"templateID":"base"}`, "X-Api-Key", r.key)
	var made struct{ SandboxID, EnvdAccessToken, TrafficAccessToken string }
	if err := json.Unmarshal([]byte(text), &made); status != 201 || err != nil || made.TrafficAccessToken == "" ||
		made.TrafficAccessToken == made.EnvdAccessToken {
		r.t.Fatalf("%d %s", status, text)
	}
	return sandbox{made.SandboxID, made.EnvdAccessToken}, made.TrafficAccessToken
}

// on is an HTTP/1.1 request for a port of a sandbox by its host.
func (r *rig) on(s sandbox, path string, headers ...string) answered {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, "GET", r.url+path, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	req.Host, req.Close = "8000-"+s.id+".sandboxes.test", true
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Add(headers[i], headers[i+1])
	}
	res, err := new(http.Transport).RoundTrip(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return answered{res.StatusCode, res.Header, string(b)}
}

// answered is a response that has been read.
type answered struct {
	status int
	header http.Header
	text   string
}

func TestPortsByHost(t *testing.T) {
	r := start(t, 0)
	s, traffic := r.withTraffic()
	in := r.serves(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Add("Set-Cookie", "a=1; Path=/; Domain=sandboxes.test; HttpOnly")
		w.Header().Add("Set-Cookie", "b=2;domain = .sandboxes.test")
		w.Header().Set("Alt-Svc", `h2="other.test:443"`)
		w.Header().Set("X-Own", "yes")
		fmt.Fprint(w, "page of "+r.Host)
	}))
	res := r.on(s, "/a%2Fb?x=1;y=%zz", "E2b-Traffic-Access-Token", traffic, "X-Api-Key", r.key, "Authorization", "Bearer "+r.key,
		"Cookie", "own=1", "X-Forwarded-For", "192.0.2.1", "Forwarded", "for=192.0.2.1", "Origin", "https://a.example")
	if res.status != 200 || res.text != "page of 8000-"+s.id+".sandboxes.test" || res.header.Get("X-Own") != "yes" {
		t.Fatalf("%d %s %v", res.status, res.text, res.header)
	}
	if got := strings.Join(res.header.Values("Set-Cookie"), " | "); got != "a=1; Path=/; HttpOnly | b=2" || res.header.Get("Alt-Svc") != "" {
		t.Errorf("a cookie for others: %q, Alt-Svc %q", got, res.header.Get("Alt-Svc"))
	}
	got := in.requests()[0]
	if got.RequestURI != "/a%2Fb?x=1;y=%zz" || got.Header.Get("Cookie") != "own=1" || got.Header.Get("X-Forwarded-For") != "127.0.0.1" ||
		got.Header.Get("Forwarded") != "" || got.Header.Get("X-Forwarded-Proto") != "http" {
		t.Errorf("it is sent %s %v", got.RequestURI, got.Header)
	}
	for _, name := range []string{"E2b-Traffic-Access-Token", "X-Access-Token", "X-Api-Key", "E2b-Sandbox-Id", "Authorization"} {
		if v := got.Header.Values(name); len(v) > 0 {
			t.Errorf("the sandbox is sent %s", name)
		}
	}
	if res = r.on(s, "/", "X-Access-Token", s.access, "Authorization", "Basic b3duOm93bg=="); res.status != 200 {
		t.Errorf("with the access token: %d", res.status)
	}
	if v := in.requests()[1].Header.Get("Authorization"); v != "Basic b3duOm93bg==" {
		t.Errorf("what is for the sandbox does not arrive: %q", v)
	}
}

// By headers all sandboxes are at one host, so cookies go neither way.
func TestPortsByHeaders(t *testing.T) {
	r := start(t, 0)
	s, traffic := r.withTraffic()
	in := r.serves(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Header().Add("Set-Cookie", "a=1") }))
	res := r.on(s, "/", "E2b-Sandbox-Id", s.id, "E2b-Sandbox-Port", "8000", "E2b-Traffic-Access-Token", traffic, "Cookie", "b=2")
	if res.status != 200 || len(res.header.Values("Set-Cookie")) > 0 {
		t.Errorf("%d %v", res.status, res.header)
	}
	if v := in.requests()[0].Header.Get("Cookie"); v != "" {
		t.Errorf("a cookie of another sandbox could arrive: %q", v)
	}
}

func TestPortsAreRefused(t *testing.T) {
	r := start(t, 0)
	s, traffic := r.withTraffic()
	_, others := r.withTraffic()
	in := r.serves(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for what, headers := range map[string][]string{
		"no token":                          nil,
		"a token of another sandbox":        {"E2b-Traffic-Access-Token", others},
		"a wrong token":                     {"E2b-Traffic-Access-Token", traffic[:len(traffic)-1] + "x"},
		"two":                               {"E2b-Traffic-Access-Token", traffic, "E2b-Traffic-Access-Token", traffic},
		"an API key":                        {"X-Api-Key", r.key},
		"a token for ports as access token": {"X-Access-Token", traffic},
		"an access token for ports":         {"E2b-Traffic-Access-Token", s.access},
	} {
		if res := r.on(s, "/", headers...); res.status != 401 {
			t.Errorf("%s: %d %s", what, res.status, res.text)
		}
	}
	if n := len(in.requests()); n > 0 {
		t.Errorf("%d of those requests arrived", n)
	}
	// The token for ports is for nothing else.
	if status, text := r.send("GET", "/files?path=a", "", "Host", "49983-"+s.id+".sandboxes.test", "X-Access-Token", traffic); status != 401 {
		t.Errorf("files with the token for ports: %d %s", status, text)
	}
	r.gate.Port = 0
	if res := r.on(s, "/", "E2b-Traffic-Access-Token", traffic); res.status != 502 || !strings.Contains(res.text, "nothing listens there") {
		t.Errorf("where nothing listens: %d %s", res.status, res.text)
	}
}

// What is sent as one request is one request to the sandbox, however its length is written; what stands behind it is another,
// without a token.
func TestPortsSmuggleNothing(t *testing.T) {
	r := start(t, 0)
	s, traffic := r.withTraffic()
	in := r.serves(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) }))
	const second = "GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
	head := "POST /first HTTP/1.1\r\nHost: 8000-" + s.id + ".sandboxes.test\r\nE2b-Traffic-Access-Token: " + traffic + "\r\n"
	for _, text := range []string{
		"Content-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + second,
		"Transfer-Encoding: chunked\r\nContent-Length: 60\r\n\r\n0\r\n\r\n" + second,
		"Transfer-Encoding: xchunked\r\nContent-Length: 3\r\n\r\nabc" + second,
		"Transfer-Encoding:\tchunked\r\n\r\n0\r\n\r\n" + second,
		"Content-Length: 3\r\nContent-Length: 40\r\n\r\nabc" + second,
		"Content-Length: +3\r\n\r\nabc" + second,
		"Content-Length : 3\r\n\r\nabc" + second,
		"Transfer-Encoding: chunked\r\n\r\n3;a=\n" + second + "\r\nabc\r\n0\r\n\r\n",
		"Connection: close, E2b-Traffic-Access-Token\r\nContent-Length: 0\r\n\r\n" + second,
		"X: a\r\n b: c\r\nContent-Length: 0\r\n\r\n" + second,
	} {
		c, err := net.Dial("tcp", strings.TrimPrefix(r.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		_ = c.SetDeadline(time.Now().Add(patience))
		_, _ = io.WriteString(c, head+text) // it may have been refused before its end
		answers := bufio.NewReader(c)
		if res, err := http.ReadResponse(answers, nil); err != nil {
			t.Errorf("%q: no answer: %v", text, err)
		} else {
			_, _ = io.Copy(io.Discard, res.Body)
			res.Body.Close()
		}
		_ = c.(*net.TCPConn).CloseWrite()
		_, _ = io.Copy(io.Discard, answers) // until the server has done with it
		c.Close()
	}
	for _, req := range in.requests() {
		if req.URL.Path != "/first" {
			t.Errorf("the sandbox was sent %s %s", req.Method, req.URL)
		}
	}
	if len(in.requests()) == 0 {
		t.Error("no request arrived, so nothing was tried")
	}
}

// A response is passed on as it comes, and a WebSocket goes through until it ends.
func TestPortsStream(t *testing.T) {
	r := start(t, 0)
	s, traffic := r.withTraffic()
	more := make(chan struct{})
	r.serves(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.Header.Get("Upgrade") == "" {
			fmt.Fprint(w, "first ")
			w.(http.Flusher).Flush()
			<-more
			fmt.Fprint(w, "second")
			return
		}
		ws, err := websocket.Accept(w, req, nil)
		if err != nil {
			return
		}
		defer ws.CloseNow()
		for {
			kind, b, err := ws.Read(req.Context())
			if err != nil {
				return
			}
			_ = ws.Write(req.Context(), kind, append([]byte("echo "), b...))
		}
	}))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, "GET", r.url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Host, req.Close = "8000-"+s.id+".sandboxes.test", true
	req.Header.Set("E2b-Traffic-Access-Token", traffic)
	res, err := new(http.Transport).RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	first := make([]byte, 6)
	if _, err := io.ReadFull(res.Body, first); err != nil || string(first) != "first " {
		t.Fatalf("before the end: %q (%v)", first, err)
	}
	close(more)
	if b, err := io.ReadAll(res.Body); string(b) != "second" || err != nil {
		t.Errorf("then %q (%v)", b, err)
	}

	u, err := url.Parse(r.url)
	if err != nil {
		t.Fatal(err)
	}
	u.Scheme = "ws"
	ws, _, err := websocket.Dial(ctx, u.String(), //nolint:bodyclose // Dial says that it needs no closing
		&websocket.DialOptions{
			Host: req.Host, HTTPHeader: http.Header{"E2b-Traffic-Access-Token": {traffic}},
		})
	if err != nil {
		t.Fatal(err)
	}
	defer ws.CloseNow()
	for _, text := range []string{"one", strings.Repeat("two", 5000)} {
		if err := ws.Write(ctx, websocket.MessageText, []byte(text)); err != nil {
			t.Fatal(err)
		}
		if _, b, err := ws.Read(ctx); err != nil || string(b) != "echo "+text {
			t.Errorf("%.20q (%v)", b, err)
		}
	}
	if err := ws.Close(websocket.StatusNormalClosure, ""); err != nil {
		t.Errorf("its end: %v", err)
	}
}

// What answers may be no HTTP, or more than is taken.
func TestPortsOfNoServer(t *testing.T) {
	r := start(t, 0)
	s, traffic := r.withTraffic()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	r.gate.Port = l.Addr().(*net.TCPAddr).Port
	answers := []string{
		"\x1b]0;owned\x07 no HTTP\r\n\r\n", "", "HTTP/1.1 200 OK\r\nA: " + strings.Repeat("a", 1<<20) + "\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nabc", "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n",
	}
	go func() {
		for _, a := range answers {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = http.ReadRequest(bufio.NewReader(c))
			_, _ = io.WriteString(c, a)
			c.Close()
		}
	}()
	for _, a := range answers {
		if res := r.on(s, "/", "E2b-Traffic-Access-Token", traffic); res.status != 502 || strings.ContainsAny(res.text, "\x1b\x07") {
			t.Errorf("%.40q: %d %q", a, res.status, res.text)
		}
	}
}
