package intercept_test

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/net/http2"

	"github.com/carrel-dev/carrel/internal/egress"
	"github.com/carrel-dev/carrel/internal/spec/netrule"
)

// ruled reads lines "allow GET api.example.org/v1/*".
func ruled(t testing.TB, lines ...string) *netrule.Rules {
	t.Helper()
	var all []netrule.Rule
	for _, line := range lines {
		action, text, _ := strings.Cut(line, " ")
		r, err := netrule.ParseRule(netrule.Action(action), text)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, r)
	}
	r, err := netrule.New(all, netrule.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// newRuled is newPlace with these rules and without secrets.
func newRuled(t testing.TB, lines ...string) *place {
	t.Helper()
	p := newPlace(t, nil)
	p.server.SetRules(ruled(t, lines...))
	return p
}

// refusals takes records until one is of an ended connection, which it returns too.
func (p *place) refusals() (why []string, end egress.Connection) {
	p.t.Helper()
	for {
		c := p.next()
		if c.Refused == "" || c.Sent+c.Received > 0 {
			return why, c
		}
		why = append(why, c.Refused)
	}
}

// Each request is judged, and one that is refused says so, is recorded, and leaves the connection as it is.
func TestRuledRequests(t *testing.T) {
	const rule = "GET,HEAD api.example.org/v1/*"
	for _, proto := range protos {
		t.Run(proto, func(t *testing.T) {
			p, host := newRuled(t, "allow "+rule, "deny api.example.org/v1/secret/*"), &seen{}
			p.host("api.example.org:443", host)
			c := p.client(proto)
			ask := func(method, path string, h http.Header) (int, string, http.Header) {
				t.Helper()
				r, err := http.NewRequestWithContext(t.Context(), method, "https://api.example.org"+path, strings.NewReader("body of it"))
				if err != nil {
					t.Fatal(err)
				}
				maps.Copy(r.Header, h)
				res, err := c.Do(r)
				if err != nil {
					t.Fatal(err)
				}
				defer res.Body.Close()
				b, _ := io.ReadAll(res.Body)
				return res.StatusCode, string(b), res.Header
			}
			for _, test := range []struct {
				method, path string
				status       int
				why          string
			}{
				{"GET", "/v1/models?x=../..", 200, ""},
				{"POST", "/v1/models", 403, "egress: a POST to api.example.org:443 is not allowed: no rule allows it\n"},
				{"GET", "/v2/models", 403, "egress: a GET to api.example.org:443 is not allowed: no rule allows it\n"},
				{"GET", "/v1/Secret/x", 403, "a GET to api.example.org:443 is not allowed: the rule api.example.org/v1/secret/* denies it\n"},
				{"PROPFIND", "/v1/models", 403, "egress: a request to api.example.org:443 is not allowed: no rule allows it\n"},
				{"HEAD", "/v1/models", 200, ""},
				{"GET", "/v1/b%20c", 200, ""},
			} {
				status, body, _ := ask(test.method, test.path, nil)
				if status != test.status || !strings.Contains(body, test.why) || len(host.all) != map[bool]int{true: 1}[status == 200] {
					t.Errorf("%s %s: %d %q; the host got %d", test.method, test.path, status, body, len(host.all))
				}
				if status == 200 {
					if got, sent := host.only(t); got.RequestURI != test.path || sent != "body of it" {
						t.Errorf("the host got %s", dump(got, sent))
					}
				}
			}
			if status, body, h := ask("POST", "/", http.Header{"Accept": {"application/json"}}); status != 403 ||
				h.Get("Content-Type") != "application/json" || !strings.HasPrefix(body, `{"error":"egress: a POST to api.example.org:443 is`) {
				t.Errorf("JSON: %d %q %q", status, body, h)
			}
			c.CloseIdleConnections()
			why, end := p.refusals()
			slices.Sort(why)
			if len(why) != 4 || !strings.HasPrefix(why[0], "a GET to api.example.org:443 is not allowed: no rule") || end.Rule != rule ||
				end.Requests != 8 || end.Refused != "" {
				t.Errorf("recorded %q and %+v", why, end)
			}
		})
	}
}

// The same without a proxy.
func TestRuledTransparent(t *testing.T) {
	p, host := newRuled(t, "allow GET api.example.org/v1/*"), &seen{}
	p.host("api.example.org:443", host)
	raw, err := net.Dial("tcp", p.sock.String())
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	c := tls.Client(raw, &tls.Config{RootCAs: p.trust, ServerName: "api.example.org", MinVersion: tls.VersionTLS12})
	in := bufio.NewReader(c)
	for path, want := range map[string]int{"/v1/x": 200, "/x": 403} {
		fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: api.example.org\r\n\r\n", path)
		res, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, res.Body)
		res.Body.Close()
		if res.StatusCode != want {
			t.Errorf("%s: %d", path, res.StatusCode)
		}
	}
	host.only(t)
}

// What could be another request to the host than to a rule is refused, and the host gets nothing of it.
func TestRuledTricks(t *testing.T) {
	p, host := newRuled(t, "allow GET,POST api.example.org/v1/*", "deny POST api.example.org/v1/x"), &seen{}
	p.host("api.example.org:443", host)
	p.host("other.example.org:443", host)
	for _, head := range []string{
		"GET /v1/../admin HTTP/1.1\r\n", "GET /v1/%2e%2e/admin HTTP/1.1\r\n", "GET /v1/..%2fadmin HTTP/1.1\r\n", "GET /v1/..;/admin HTTP/1.1\r\n",
		"GET /v1/a;b HTTP/1.1\r\n", "GET /v1\\..\\admin HTTP/1.1\r\n", "GET /v1/%5c..%5cadmin HTTP/1.1\r\n", "GET //v1/a HTTP/1.1\r\n",
		"GET /v1//a HTTP/1.1\r\n", "GET /v1/%252e%252e/admin HTTP/1.1\r\n", "GET /v1/a%00 HTTP/1.1\r\n", "GET /v1/a%3f/../ HTTP/1.1\r\n",
		"GET /v1/%c0%ae%c0%ae/admin HTTP/1.1\r\n", "GET /V1/a HTTP/1.1\r\n", "GET /v1 HTTP/1.1\r\n", "get /v1/a HTTP/1.1\r\n",
		"Get /v1/a HTTP/1.1\r\n", "POST /v1/X HTTP/1.1\r\n", "POST /v1/x/ HTTP/1.1\r\n", "POST /v1/x%2e HTTP/1.1\r\n",
		"POST /v1/x%20 HTTP/1.1\r\n",
		"GET /v1/a HTTP/1.1\r\nX-HTTP-Method-Override: DELETE\r\n", "POST /v1/a HTTP/1.1\r\nX_Method_Override: PUT\r\n",
		"GET /v1/a?_method=DELETE HTTP/1.1\r\n", "GET /v1/a HTTP/1.1\r\nX-Original-URL: /admin\r\n",
		"GET /v1/a HTTP/1.1\r\nX-Rewrite-URL: /admin\r\n", "GET /v1/a HTTP/1.1\r\nX.HTTP!Method~Override: DELETE\r\n",
		"GET /v1/a HTTP/1.1\r\nx-http-verb: DELETE\r\n", "GET /v1/a HTTP/1.1\r\nX_Original_Path: /admin\r\n",
		"POST /v1/a HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTrailer: X-Method-Override\r\n",
		"POST /v1/a HTTP/1.1\r\nX-Copy-From: /admin\r\n",
		"GET https://api.example.org/admin HTTP/1.1\r\n", "GET https://other.example.org/v1/a HTTP/1.1\r\n",
		"GET http://api.example.org/v1/a HTTP/1.1\r\n",
		"OPTIONS * HTTP/1.1\r\n", "CONNECT api.example.org:443 HTTP/1.1\r\n", "CONNECT /v1/a HTTP/1.1\r\n", "TRACE /v1/a HTTP/1.1\r\n",
		"GET /v1/a HTTP/1.1\r\nUpgrade: websocket\r\nConnection: upgrade\r\n",
		"GET /v1/a HTTP/1.1\r\nUpgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\n",
		"GET /v1/a HTTP/1.1\r\nConnection: close, uPgrade\r\n", "GET /v1/a HTTP/1.1\r\nUpgrade: TLS/1.0\r\n",
	} {
		c := p.secure("api.example.org:443", "http/1.1")
		fmt.Fprintf(c, "%sHost: api.example.org\r\nConnection: close\r\n\r\n", head)
		if strings.Contains(head, "chunked") {
			fmt.Fprint(c, "0\r\n\r\n")
		}
		b, err := io.ReadAll(c)
		if err != nil || !strings.HasPrefix(string(b), "HTTP/1.1 4") || len(host.all) > 0 {
			t.Errorf("%q: %q, %v; the host got %d", head, b, err, len(host.all))
		}
		c.Close()
	}
	// The last segment of what is denied is told from a longer one.
	c := p.secure("api.example.org:443", "http/1.1")
	fmt.Fprint(c, "POST /v1/xy HTTP/1.1\r\nHost: api.example.org\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
	if b, err := io.ReadAll(c); err != nil || !strings.HasPrefix(string(b), "HTTP/1.1 200") {
		t.Errorf("an honest request: %q, %v", b, err)
	}
}

// The destination of a request is judged as its path is, and has one reading too.
func TestRuledDestination(t *testing.T) {
	p, host := newRuled(t, "allow COPY,MOVE,PUT api.example.org/v1/*", "deny api.example.org/v1/secret/*", "allow MOVE api.example.org/old/*"),
		&seen{}
	p.host("api.example.org:443", host)
	for fields, want := range map[string]string{
		"Destination: https://api.example.org/v1/b\r\n":                       "",
		"Destination: https://api.example.org:443/v1/b%20c\r\n":               "",
		"destination: /v1/b\r\n":                                              "",
		"Destination: https://api.example.org/admin\r\n":                      "at its destination no rule allows it",
		"Destination: /old/b\r\n":                                             "at its destination no rule allows it",
		"Destination: https://api.example.org/v1/Secret/b\r\n":                "at its destination the rule api.example.org/v1/secret/* denies",
		"Destination: https://api.example.org/v1/../admin\r\n":                "a segment of dots",
		"Destination: https://api.example.org/v1/a?x\r\n":                     "must be encoded",
		"Destination: https://other.example.org/v1/b\r\n":                     "not one path of the same host",
		"Destination: https://api.example.org:8443/v1/b\r\n":                  "not one path of the same host",
		"Destination: https://user@api.example.org/v1/b\r\n":                  "not one path of the same host",
		"Destination: ftp://api.example.org/v1/b\r\n":                         "not one path of the same host",
		"Destination: v1/b\r\n":                                               "not one path of the same host",
		"Destination:\r\n":                                                    "not one path of the same host",
		"Destination: /v1/b\r\nDestination: /admin\r\n":                       "not one path of the same host",
		"Destination: /v1/b\r\nDESTINATION: /admin\r\n":                       "not one path of the same host",
		"Transfer-Encoding: chunked\r\nTrailer: Destination\r\n":              "not one path of the same host",
		"Destination: https://api.example.org/v1/b\r\nX-Original-URL: /a\r\n": "names another path",
	} {
		c := p.secure("api.example.org:443", "http/1.1")
		fmt.Fprintf(c, "COPY /v1/a HTTP/1.1\r\nHost: api.example.org\r\n%sConnection: close\r\n\r\n", fields)
		if strings.Contains(fields, "chunked") {
			fmt.Fprint(c, "0\r\n\r\n")
		}
		b, err := io.ReadAll(c)
		if want != "" {
			if err != nil || !strings.HasPrefix(string(b), "HTTP/1.1 403") || !strings.Contains(string(b), want) || len(host.all) > 0 {
				t.Errorf("%q: %q, %v; the host got %d", fields, b, err, len(host.all))
			}
			continue
		}
		if err != nil || !strings.HasPrefix(string(b), "HTTP/1.1 200") {
			t.Errorf("%q: %q, %v", fields, b, err)
			continue
		}
		if r, _ := host.only(t); r.Header.Get("Destination") == "" {
			t.Errorf("%q: the host got %s", fields, dump(r, ""))
		}
	}
}

// What comes behind the body, announced or not, does not change what was judged.
func TestRuledTrailers(t *testing.T) {
	p := newRuled(t, "allow POST api.example.org/v1/*")
	got := make(chan string, 1)
	p.rawHost("api.example.org:443", func(c net.Conn) {
		r, err := http.ReadRequest(bufio.NewReader(c))
		if err != nil {
			return
		}
		_, _ = io.Copy(io.Discard, r.Body)
		got <- dump(r, "")
		fmt.Fprint(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
	})
	c := p.secure("api.example.org:443", "http/1.1")
	fmt.Fprint(c, "POST /v1/a HTTP/1.1\r\nHost: api.example.org\r\nTransfer-Encoding: chunked\r\nTrailer: X-Other\r\n"+
		"Connection: close\r\n\r\n1\r\na\r\n0\r\nX-Other: kept\r\nX-HTTP-Method-Override: DELETE\r\nX_Original_URL: /bad\r\n"+
		"Destination: /bad\r\n\r\n")
	if b, err := io.ReadAll(c); err != nil || !strings.HasPrefix(string(b), "HTTP/1.1 200") {
		t.Errorf("%q, %v", b, err)
	}
	if all := wait(t, got, "request"); strings.Contains(all, "DELETE") || strings.Contains(all, "bad") || !strings.Contains(all, "kept") {
		t.Errorf("the host got %s", all)
	}
}

// Where all but some paths is allowed, a path that could be one of those is refused too.
func TestRuledDenials(t *testing.T) {
	p, host := newRuled(t, "allow api.example.org", "deny api.example.org/admin/*", "deny DELETE api.example.org"), &seen{}
	p.host("api.example.org:443", host)
	for _, test := range []struct {
		head string
		ok   bool
	}{
		{"GET /v1/../admin HTTP/1.1\r\n", false},
		{"GET /%2e/admin HTTP/1.1\r\n", false},
		{"GET //admin/x HTTP/1.1\r\n", false},
		{"GET /x;/admin HTTP/1.1\r\n", false},
		{"GET /ADMIN/x HTTP/1.1\r\n", false},
		{"GET /%61dmin/x HTTP/1.1\r\n", false},
		{"GET /%2561dmin/x HTTP/1.1\r\n", false},
		{"GET /x\\admin HTTP/1.1\r\n", false},
		{"OPTIONS * HTTP/1.1\r\n", false},
		{"GET /x HTTP/1.1\r\nX-Original-URI: /admin/x\r\n", false},
		{"delete /x HTTP/1.1\r\n", false},
		{"Delete /x HTTP/1.1\r\n", false},
		{"POST /x HTTP/1.1\r\nX-HTTP-Method: DELETE\r\n", false},
		{"POST /x?a&_METHOD=DELETE HTTP/1.1\r\n", false},
		{"GET /administrator HTTP/1.1\r\n", true},
		{"GET /x/admin HTTP/1.1\r\n", true},
		{"PURGE /x?../admin HTTP/1.1\r\n", true},
	} {
		c := p.secure("api.example.org:443", "http/1.1")
		fmt.Fprintf(c, "%sHost: api.example.org\r\nConnection: close\r\nContent-Length: 0\r\n\r\n", test.head)
		b, err := io.ReadAll(c)
		if got := strings.HasPrefix(string(b), "HTTP/1.1 200"); err != nil || got != test.ok || got != (len(host.all) == 1) {
			t.Errorf("%q: %q, %v; the host got %d", test.head, b, err, len(host.all))
		}
		if test.ok {
			host.only(t)
		}
		c.Close()
	}
}

// With HTTP/2, where the parts of a request are fields.
func TestRuledHTTP2(t *testing.T) {
	p, host := newRuled(t, "allow GET api.example.org/v1/*"), &seen{}
	p.host("api.example.org:443", host)
	with := func(method, path string, more ...string) []string {
		return append([]string{":method", method, ":scheme", "https", ":path", path, ":authority", "api.example.org"}, more...)
	}
	for _, fields := range [][]string{
		with("POST", "/v1/a"), with("GET", "/v1/../admin"), with("GET", "/v1/%2e%2e/admin"), with("GET", "//v1/a"), with("GET", "/v1/a/..;/"),
		with("GET", "/v1/a", ":path", "/admin"), with("GET", "/v1/a", ":method", "POST"), with("get", "/v1/a"), with("GET", "v1/a"),
		with("GET", "*"),
		with("GET", "/v1/a", "x-http-method-override", "PUT"), with("GET", "/v1/a", "x-original-url", "/admin"),
		with("GET", "https://api.example.org/admin"), with("GET", "https://other.example.org/v1/a"), with("GET", "/v1/a", "upgrade",
			"websocket", "connection", "upgrade"),
		{":method", "CONNECT", ":authority", "api.example.org:443"},
		with("CONNECT", "/v1/a", ":protocol", "websocket"),
		with("GET", "/v1/a", "host", "other.example.org"), with("GET /v1/a HTTP/1.1\r\nX: ", "/v1/a"), with("GET", "/v1/a HTTP/1.1\r\nHost: x"),
	} {
		if got := p.fields(fields...); got == "200" || strings.HasPrefix(got, "5") || len(host.all) > 0 {
			t.Errorf("%q: %s, the host got %d", fields, got, len(host.all))
		}
	}
	if got := p.fields(with("GET", "/v1/a")...); got != "200" {
		t.Errorf("an honest request: %s", got)
	}
	host.only(t)
}

// A second request cannot be hidden in the first, and one that is refused does not stop those that follow.
func TestRuledPipelined(t *testing.T) {
	p := newRuled(t, "allow POST api.example.org/v1/*")
	var mu sync.Mutex
	var got bytes.Buffer
	p.rawHost("api.example.org:443", func(c net.Conn) {
		for in := bufio.NewReader(io.TeeReader(c, lockedWriter{&mu, &got})); ; {
			r, err := http.ReadRequest(in)
			if err != nil {
				return
			}
			_, _ = io.Copy(io.Discard, r.Body)
			fmt.Fprint(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
		}
	})
	const first, hidden = "POST /v1/a HTTP/1.1\r\nHost: api.example.org\r\n", "DELETE /hidden HTTP/1.1\r\nHost: api.example.org\r\n\r\n"
	const last = "POST /v1/last HTTP/1.1\r\nHost: api.example.org\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
	length := fmt.Sprintf("Content-Length: %d\r\n", len(hidden))
	for raw, want := range map[string]string{
		first + "Content-Length: 0\r\n\r\n" + hidden + last:                                       "200 403 200",
		first + length + "\r\n" + hidden + last:                                                   "200 200",
		first + "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + hidden + last:                     "200 403 200",
		"POST /no HTTP/1.1\r\nHost: api.example.org\r\n" + length + "\r\n" + hidden + last:        "403 200",
		first + length + "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + hidden + last:            "",
		first + "Content-Length: 0\r\nContent-Length: 60\r\n\r\n" + hidden + last:                 "400",
		first + "X-A: b\r\n continued\r\nContent-Length: 0\r\n\r\n" + hidden + last:               "",
		first + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + hidden + last:                    "501",
		first + "Upgrade: websocket\r\nConnection: upgrade\r\n" + length + "\r\n" + hidden + last: "403 200",
	} {
		mu.Lock()
		got.Reset()
		mu.Unlock()
		c := p.secure("api.example.org:443", "http/1.1")
		go func() { _, _ = io.WriteString(c, raw) }()
		in, status := bufio.NewReader(c), []string{}
		for {
			res, err := http.ReadResponse(in, nil)
			if err != nil {
				break
			}
			_, _ = io.Copy(io.Discard, res.Body)
			res.Body.Close()
			status = append(status, fmt.Sprint(res.StatusCode))
		}
		c.Close()
		mu.Lock()
		sent := got.String()
		mu.Unlock()
		body := strings.ReplaceAll(sent, "\r\n\r\n"+hidden, "") // as a body of the length that it was sent with
		if strings.Contains(body, "DELETE /hidden") || want != "" && strings.Join(status, " ") != want {
			t.Errorf("%q: %q, and the host got %q", raw, status, sent)
		}
	}
}

// What is not HTTP inside TLS reaches nobody.
func TestRuledNotHTTP(t *testing.T) {
	p := newRuled(t, "allow GET api.example.org/v1/*")
	got := make(chan string, 10)
	p.rawHost("api.example.org:443", func(c net.Conn) {
		fmt.Fprint(c, "220 mail.example.org\r\n")
		b, _ := io.ReadAll(c)
		got <- string(b)
	})
	c := p.secure("api.example.org:443")
	fmt.Fprint(c, "EHLO there\r\nMAIL FROM: <me>\r\n\r\n")
	if b, err := io.ReadAll(c); err != nil || !strings.HasPrefix(string(b), "HTTP/1.1 400") || strings.Contains(string(b), "mail") {
		t.Errorf("%q, %v", b, err)
	}
	c.Close()
	if b := wait(t, got, "end"); b != "" {
		t.Errorf("the host got %q", b)
	}
	raw := tls.Client(p.connect("api.example.org:443"), &tls.Config{
		RootCAs: p.trust, ServerName: "api.example.org",
		NextProtos: []string{"imap"},
	})
	if err := raw.HandshakeContext(t.Context()); err == nil {
		t.Error("another protocol was agreed upon")
	}
	raw.Close()
	for n, first := range []string{
		"SSH-2.0-x\r\n", http2.ClientPreface, "\x80\x2e\x01\x03\x01\x00",
		"PROXY TCP4 1.2.3.4 1.2.3.4 1 2\r\n", "\x00",
	} {
		c := p.connect("api.example.org:443")
		fmt.Fprint(c, first)
		if b, err := io.ReadAll(c); err == nil && len(b) > 0 {
			t.Errorf("%q: %q", first, b)
		}
		for n == 0 { // those that follow are counted
			if r := p.next(); strings.Contains(r.Refused, "what was sent is neither HTTP nor TLS") {
				break
			}
		}
		c.Close()
	}
}
