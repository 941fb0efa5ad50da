package proxy_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/egress/proxy"
)

func TestReadHead(t *testing.T) {
	for name, c := range map[string]struct {
		in   string
		want proxy.Head
	}{
		"origin":   {"GET /a?b HTTP/1.1\r\nHost: example.org\r\n\r\n", proxy.Head{Method: "GET", Target: "/a?b", Host: "example.org"}},
		"asterisk": {"OPTIONS * HTTP/1.1\r\nHost: example.org\r\n\r\n", proxy.Head{Method: "OPTIONS", Target: "*", Host: "example.org"}},
		"old":      {"GET / HTTP/1.0\r\n\r\n", proxy.Head{Method: "GET", Target: "/"}},
		"absolute": {
			"POST http://Example.org:8080/x HTTP/1.1\r\nhost:\tExample.org:8080 \r\nAccept: application/json\r\n\r\n",
			proxy.Head{
				Method: "POST", Target: "http://Example.org:8080/x", Form: proxy.Absolute, Authority: "Example.org:8080",
				Host: "Example.org:8080", Accept: "application/json",
			},
		},
		"no path": {
			"GET http://example.org?q HTTP/1.1\r\nHost: example.org\r\n\r\n",
			proxy.Head{Method: "GET", Target: "http://example.org?q", Form: proxy.Absolute, Authority: "example.org", Host: "example.org"},
		},
		"connect": {
			"CONNECT [2001:db8::1]:443 HTTP/1.1\r\nHost: [2001:db8::1]:443\r\n\r\n",
			proxy.Head{
				Method: "CONNECT", Target: "[2001:db8::1]:443", Form: proxy.Authority, Authority: "[2001:db8::1]:443", Host: "[2001:db8::1]:443",
			},
		},
		"body":    {"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\n", proxy.Head{Method: "PUT", Target: "/", Host: "a"}},
		"chunked": {"PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: Chunked\r\n\r\n", proxy.Head{Method: "PUT", Target: "/", Host: "a"}},
	} {
		t.Run(name, func(t *testing.T) {
			c.want.Size = len(c.in)
			for _, r := range []io.Reader{strings.NewReader(c.in + "body"), dribble{strings.NewReader(c.in + "body")}} {
				h, read, err := proxy.ReadHead(nil, r)
				if err != nil || h != c.want || !strings.HasPrefix(c.in+"body", string(read)) || len(read) < len(c.in) {
					t.Errorf("%+v, %q, %v", h, read, err)
				}
			}
			if h, _, err := proxy.ReadHead([]byte(c.in[:9]), strings.NewReader(c.in[9:])); err != nil || h != c.want {
				t.Errorf("in two parts: %+v, %v", h, err)
			}
		})
	}
}

// Each of these has more than one reading, or none.
func TestReadHeadRefuses(t *testing.T) {
	for name, in := range map[string]string{
		"LF alone":               "GET / HTTP/1.1\nHost: a\n\n",
		"LF alone in the middle": "GET / HTTP/1.1\r\nHost: a\nX: b\r\n\r\n",
		"CR alone":               "GET / HTTP/1.1\r\nHost: a\rX: b\r\n\r\n",
		"CR CR LF":               "GET / HTTP/1.1\r\nHost: a\r\r\n\r\n",
		"empty line before":      "\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
		"folded":                 "GET / HTTP/1.1\r\nHost: a\r\nX: b\r\n c\r\n\r\n",
		"folded first":           "GET / HTTP/1.1\r\n Host: a\r\n\r\n",
		"space before colon":     "GET / HTTP/1.1\r\nHost: a\r\nContent-Length : 5\r\n\r\n",
		"no colon":               "GET / HTTP/1.1\r\nHost: a\r\nX\r\n\r\n",
		"no name":                "GET / HTTP/1.1\r\nHost: a\r\n: x\r\n\r\n",
		"NUL":                    "GET / HTTP/1.1\r\nHost: a\x00.example.org\r\n\r\n",
		"NUL in the URL":         "GET http://a\x00b/ HTTP/1.1\r\nHost: a\r\n\r\n",
		"no Host":                "GET / HTTP/1.1\r\n\r\n",
		"two Hosts":              "GET / HTTP/1.1\r\nHost: a\r\nhost: a\r\n\r\n",
		"Host with a login":      "GET / HTTP/1.1\r\nHost: a@b\r\n\r\n",
		"Host with a path":       "GET / HTTP/1.1\r\nHost: a/b\r\n\r\n",
		"Hosts in one field":     "GET / HTTP/1.1\r\nHost: a, b\r\n\r\n",
		"CL and TE":              "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
		"two CL":                 "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\n",
		"CL list":                "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5, 5\r\n\r\n",
		"CL with a sign":         "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +5\r\n\r\n",
		"CL empty":               "POST / HTTP/1.1\r\nHost: a\r\nContent-Length:\r\n\r\n",
		"two TE":                 "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n",
		"another TE":             "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
		"vertical tab in TE":     "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: \x0bchunked\r\n\r\n",
		"TE in 1.0":              "POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n",
		"HTTP/2":                 "GET / HTTP/2.0\r\nHost: a\r\n\r\n",
		"HTTP/1.10":              "GET / HTTP/1.10\r\nHost: a\r\n\r\n",
		"lower case":             "GET / http/1.1\r\nHost: a\r\n\r\n",
		"HTTP/0.9":               "GET /\r\n\r\n",
		"two spaces":             "GET  / HTTP/1.1\r\nHost: a\r\n\r\n",
		"tabs":                   "GET\t/\tHTTP/1.1\r\nHost: a\r\n\r\n",
		"space in the target":    "GET /a b HTTP/1.1\r\nHost: a\r\n\r\n",
		"space at the end":       "GET / HTTP/1.1 \r\nHost: a\r\n\r\n",
		"method":                 "G(T / HTTP/1.1\r\nHost: a\r\n\r\n",
		"login":                  "GET http://user:pass@a/ HTTP/1.1\r\nHost: a\r\n\r\n",
		"login that is a host":   "GET http://a:80@evil.example/ HTTP/1.1\r\nHost: a\r\n\r\n",
		"backslash":              "GET http://evil.example\\@a/ HTTP/1.1\r\nHost: a\r\n\r\n",
		"fragment":               "GET http://a/#b HTTP/1.1\r\nHost: a\r\n\r\n",
		"fragment as a host":     "GET http://evil.example#@a/ HTTP/1.1\r\nHost: a\r\n\r\n",
		"https":                  "GET https://a/ HTTP/1.1\r\nHost: a\r\n\r\n",
		"no slashes":             "GET http:a/ HTTP/1.1\r\nHost: a\r\n\r\n",
		"no host in the URL":     "GET http:///a HTTP/1.1\r\nHost: a\r\n\r\n",
		"relative":               "GET a HTTP/1.1\r\nHost: a\r\n\r\n",
		"CONNECT with a URL":     "CONNECT http://a:443/ HTTP/1.1\r\nHost: a\r\n\r\n",
		"CONNECT with a login":   "CONNECT u@a:443 HTTP/1.1\r\nHost: a\r\n\r\n",
		"too long":               "GET / HTTP/1.1\r\nHost: a\r\nX: " + strings.Repeat("x", proxy.MaxHead) + "\r\n\r\n",
	} {
		if h, _, err := proxy.ReadHead(nil, strings.NewReader(in)); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: %+v, %v", name, h, err)
		}
	}
	if _, _, err := proxy.ReadHead(nil, strings.NewReader("GET / HTTP/1.1\r\nHost")); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("one that ends early: %v", err)
	}
}

func TestRefusal(t *testing.T) {
	read := func(b []byte) (status int, kind, text string) {
		r, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(b)), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Fatal(err)
		}
		if !r.Close {
			t.Error("the connection does not end")
		}
		return r.StatusCode, r.Header.Get("Content-Type"), string(body)
	}
	const why, what = "example.org:443 is not allowed: no rule names it", `Ask for it: "carrel net allow example.org".`
	status, kind, body := read(proxy.Refusal(403, "*/*", why, what))
	if status != 403 || body != "egress: "+why+"\n"+what+"\n" || kind != "text/plain; charset=utf-8" {
		t.Errorf("%d %s %q", status, kind, body)
	}
	_, kind, body = read(proxy.Refusal(403, "text/html, application/json;q=0.9", why, what))
	var got struct{ Error, Remedy string }
	err := json.Unmarshal([]byte(body), &got)
	if err != nil || got.Error != "egress: "+why || got.Remedy != what || kind != "application/json" {
		t.Errorf("%s %q: %v", kind, body, err)
	}
	if _, _, body := read(proxy.Refusal(502, "", why, "")); body != "egress: "+why+"\n" {
		t.Errorf("%q", body)
	}
}

// What is taken for one request by ReadHead is the same one for net/http.
func FuzzReadHead(f *testing.F) {
	f.Add([]byte("GET http://example.org/ HTTP/1.1\r\nHost: example.org\r\n\r\n"))
	f.Add([]byte("CONNECT example.org:443 HTTP/1.1\r\nHost: example.org:443\r\n\r\n"))
	f.Add([]byte("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		h, read, err := proxy.ReadHead(nil, bytes.NewReader(in))
		if len(read) > proxy.MaxHead {
			t.Fatalf("read %d bytes", len(read))
		}
		if err != nil {
			return
		}
		if got := proxy.Detect(in); got != proxy.HTTP && got != proxy.Opaque {
			t.Errorf("the request is detected as %v", got)
		} else if got == proxy.Opaque {
			t.Errorf("the request passes unseen")
		}
		r, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(read[:h.Size])))
		if err != nil {
			return // net/http refuses more, such as bad escapes
		}
		defer r.Body.Close()
		host := h.Host
		if h.Form != proxy.Origin {
			host = h.Authority
		}
		if r.Method != h.Method || r.RequestURI != h.Target || r.Host != host {
			t.Errorf("%+v, but net/http reads %s %s for %s", h, r.Method, r.RequestURI, r.Host)
		}
	})
}
