package intercept_test

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/carrel-dev/carrel/internal/egress/ca"
	"github.com/carrel-dev/carrel/internal/egress/intercept"
	"github.com/carrel-dev/carrel/internal/spec/httprule"
)

// A request for another host is refused on the connection, whichever way it names that.
func TestMisdirected(t *testing.T) {
	p := newPlace(t, []string{"*.example.org", "api.example.org:8443"}, secret(t, "*.example.org"))
	host := &seen{}
	p.host("api.example.org:443", host)
	p.host("other.example.org:443", host)
	for _, test := range []struct {
		head   string
		status int
	}{
		{"GET / HTTP/1.1\r\nHost: other.example.org\r\n", 421},
		{"GET / HTTP/1.1\r\nHost: api.example.org:8443\r\n", 421},
		{"GET / HTTP/1.1\r\nHost: \r\n", 421},
		{"GET / HTTP/1.1\r\nHost: api.example.org.evil.example\r\n", 421},
		{"GET / HTTP/1.1\r\nHost: user@api.example.org\r\n", 400},
		{"GET / HTTP/1.0\r\n", 421},
		{"GET https://other.example.org/ HTTP/1.1\r\nHost: api.example.org\r\n", 421},
		{"GET http://api.example.org/ HTTP/1.1\r\nHost: api.example.org\r\n", 400},
		{"GET https://a:b@api.example.org/ HTTP/1.1\r\nHost: api.example.org\r\n", 400},
		{"OPTIONS * HTTP/1.1\r\nHost: other.example.org\r\n", 421},
		{"CONNECT other.example.org:443 HTTP/1.1\r\nHost: other.example.org:443\r\n", 405},
		{"CONNECT api.example.org:443 HTTP/1.1\r\nHost: api.example.org:443\r\n", 405},
		{"TRACE / HTTP/1.1\r\nHost: api.example.org\r\n", 405},
		{"GET / HTTP/1.1\r\n", 400},
		{"GET / HTTP/1.1\r\nHost: api.example.org\r\nHost: other.example.org\r\n", 400},
	} {
		c := p.secure("api.example.org:443", "http/1.1")
		fmt.Fprintf(c, "%sX-Key: %s\r\nConnection: close\r\n\r\n", test.head, placeholder)
		res, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Errorf("%q: %v", test.head, err)
			continue
		}
		res.Body.Close()
		if res.StatusCode != test.status || len(host.all) > 0 {
			t.Errorf("%q: status %d, the host got %d", test.head, res.StatusCode, len(host.all))
		}
		c.Close()
		if r := p.next(); res.StatusCode != 400 && (r.Refused == "" || strings.Contains(r.Refused, "other.")) {
			t.Errorf("%q: the record is %+v", test.head, r)
		}
	}
	for _, head := range []string{
		"GET / HTTP/1.1\r\nHost: api.example.org:443\r\n", "GET / HTTP/1.1\r\nHost: API.example.ORG.\r\n",
		"GET https://api.example.org/ HTTP/1.1\r\nHost: other.example.org\r\n", "OPTIONS * HTTP/1.1\r\nHost: api.example.org\r\n",
	} {
		c := p.secure("api.example.org:443", "http/1.1")
		fmt.Fprintf(c, "%sX-Key: %s\r\nConnection: close\r\n\r\n", head, placeholder)
		if b, err := io.ReadAll(c); err != nil || !strings.HasPrefix(string(b), "HTTP/1.1 200") {
			t.Errorf("%q: %q, %v", head, b, err)
			continue
		}
		if got, _ := host.only(t); got.Host != "api.example.org" || got.Header.Get("X-Key") != value {
			t.Errorf("%q: the host got %s", head, dump(got, ""))
		}
		p.next()
	}
}

// The same with HTTP/2, where programs share connections between hosts (RFC 9113, 9.1.1).
func TestCoalescing(t *testing.T) {
	p := newPlace(t, []string{"*.example.org"}, secret(t, "*.example.org"))
	host := &seen{}
	p.host("api.example.org:443", host)
	get := []string{":method", "GET", ":scheme", "https", ":path", "/"}
	with := func(fields ...string) []string { return append(append([]string{}, get...), fields...) }
	for _, test := range []struct {
		fields []string
		want   string
	}{
		{with(":authority", "other.example.org", "x-key", placeholder), "421"},
		{with(":authority", "api.example.org", "host", "other.example.org", "x-key", placeholder), "421"},
		{with(":authority", "other.example.org", "host", "api.example.org", "x-key", placeholder), "421"},
		{with("host", "other.example.org"), "421"},
		{with("x-key", placeholder), "421"},
		{[]string{":method", "CONNECT", ":authority", "other.example.org:443"}, "405"},
		{with(":authority", "api.example.org", ":authority", "other.example.org"), "PROTOCOL_ERROR"},
		{with(":authority", "api.example.org", "x-key", "a\r\nhost: other.example.org"), "PROTOCOL_ERROR"},
		{with(":authority", "api.example.org", "X-Key", "upper"), "PROTOCOL_ERROR"},
		{with(":authority", "api.example.org", "transfer-encoding", "chunked"), "400"},
		{with(":authority", "api.example.org", "connection", "x-key"), "400"},
	} {
		if got := p.fields(test.fields...); got != test.want || len(host.all) > 0 {
			t.Errorf("%q: %s, the host got %d", test.fields, got, len(host.all))
		}
	}
	if got := p.fields(with(":authority", "api.example.org", "host", "api.example.org", "x-key", placeholder)...); got != "200" {
		t.Errorf("an honest request: %s", got)
	}
	if got, _ := host.only(t); got.Header.Get("X-Key") != value {
		t.Errorf("the host got %s", dump(got, ""))
	}
}

// The host gets at most one request for each that egress judged, in one framing.
func TestSmuggling(t *testing.T) {
	byPath := httprule.Sending{Inject: "header:X-Key", Paths: []string{"/*"}}
	for what, s := range map[string]intercept.Secret{"swap": secret(t, "api.example.org"), "inject": injected(t, byPath, "api.example.org")} {
		t.Run(what, func(t *testing.T) { smuggle(t, s) })
	}
}

func smuggle(t *testing.T, s intercept.Secret) {
	p := newPlace(t, []string{"api.example.org"}, s)
	var mu sync.Mutex
	var got bytes.Buffer
	ended, connections := make(chan struct{}, 1000), 0
	p.rawHost("api.example.org:443", func(c net.Conn) {
		defer func() { ended <- struct{}{} }()
		for in := bufio.NewReader(io.TeeReader(c, lockedWriter{&mu, &got})); ; {
			r, err := http.ReadRequest(in)
			if err != nil {
				return
			}
			_, _ = io.Copy(io.Discard, r.Body)
			fmt.Fprint(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
		}
	})
	const start, next = "POST /first HTTP/1.1\r\nHost: api.example.org\r\nX-Key: " + placeholder + "\r\n",
		"GET /smuggled HTTP/1.1\r\nHost: other.example.org\r\n\r\n"
	length := fmt.Sprintf("Content-Length: %d\r\n", len(next))
	for _, raw := range []string{
		start + length + "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + next,
		start + "Content-Length: 0\r\nContent-Length: 5\r\n\r\n" + next,
		start + "Content-Length: 0, 5\r\n\r\n" + next,
		start + "Content-Length: +0\r\n\r\n" + next,
		start + "Content-Length : 0\r\n\r\n" + next,
		start + "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n" + next,
		start + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + next,
		start + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n" + next,
		start + "Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n" + next,
		start + "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n" + next,
		start + "Transfer-Encoding: chunked\r\n\r\n0;x=\n\r\n" + next,
		start + "Transfer-Encoding: chunked\r\n\r\n0x0\r\n\r\n" + next,
		start + "Transfer-Encoding: chunked\r\n\r\nffffffffffffffff0\r\n\r\n" + next,
		start + "X-A: b\r\n continued: " + placeholder + "\r\nContent-Length: 0\r\n\r\n" + next,
		start + "X-A: b\nContent-Length: 0\n\n" + next,
		start + "X-A: b\rX-B: c\r\n\r\n" + next,
		start + "X-A\x00: b\r\n\r\n" + next,
		start + "X-A: b\x00c\r\n\r\n" + next,
		start + "X A: b\r\n\r\n" + next,
		start + ": b\r\n\r\n" + next,
		start + "Content-Length: 4\r\nConnection: content-length\r\n\r\nbody" + next,
		start + "Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\nContent-Length: 0\r\n\r\n" + next,
		"POST /first HTTP/1.0\r\nHost: api.example.org\r\nTransfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n" + next,
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + next,
		"GET /first\r\n HTTP/1.1\r\nHost: api.example.org\r\n\r\n" + next,
		"GET /first HTTP/1.1\r\nHost: api.example.org\r\nX-" + strings.Repeat("a", 1<<20) + ": b\r\n\r\n" + next,
	} {
		mu.Lock()
		got.Reset()
		mu.Unlock()
		c := p.secure("api.example.org:443", "http/1.1")
		go func() {
			_, _ = io.WriteString(c, raw)
			_, _ = io.WriteString(c, "GET /end HTTP/1.1\r\nHost: api.example.org\r\nConnection: close\r\n\r\n")
		}()
		answer, err := io.ReadAll(c)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%.120q: there is no answer", raw)
		}
		c.Close()
		p.next()
		for ; connections < p.dials(); connections++ {
			wait(t, ended, "end at the host")
		}
		mu.Lock()
		sent := got.String()
		mu.Unlock()
		show := fmt.Sprintf("%.120q", raw[min(len(start), len(raw)):])
		n := strings.Count(sent, " HTTP/1.1\r\n")
		if n > 1+strings.Count(sent, "GET /end") || strings.Contains(sent, "other.example.org") || strings.Count(sent, value) > n {
			t.Errorf("%s: the host got %d requests: %q", show, n, sent)
		}
		head, _, _ := strings.Cut(sent, "\r\n\r\n")
		if strings.Contains(head, "Content-Length") && strings.Contains(head, "Transfer-Encoding") {
			t.Errorf("%s: the host got two framings: %q", show, sent)
		}
		if sent == "" && !strings.HasPrefix(string(answer), "HTTP/1.1 4") && !strings.HasPrefix(string(answer), "HTTP/1.1 50") {
			t.Errorf("%s: the answer is %q", show, answer)
		}
		for line := range strings.SplitSeq(head, "\r\n") {
			if strings.ContainsAny(line, "\x00\r\n") || strings.HasPrefix(line, " ") {
				t.Errorf("%s: the host got the line %q", show, line)
			}
		}
	}
}

type lockedWriter struct {
	mu *sync.Mutex
	w  io.Writer
}

func (w lockedWriter) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.w.Write(b)
}

// A host whose certificate is not that of the target gets no request, and the program is told why.
func TestUntrustedHost(t *testing.T) {
	for name, test := range map[string]struct {
		serve func(p *place, l net.Listener) net.Listener
		want  string
	}{
		"another authority": {func(p *place, l net.Listener) net.Listener {
			return tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{p.certificate(p.other(), "api.example.org:443")}})
		}, "its certificate is from no authority that this host trusts"},
		"the workspace's own CA": {func(p *place, l net.Listener) net.Listener {
			return tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{p.certificate(p.authority, "api.example.org:443")}})
		}, "its certificate is from no authority that this host trusts"},
		"another name": {func(p *place, l net.Listener) net.Listener {
			return tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{p.certificate(p.public, "evil.example.org:443")}})
		}, "its certificate is for other names"},
		"no TLS": {func(_ *place, l net.Listener) net.Listener { return l }, "it closed the connection, or does not speak TLS 1.2 or later"},
		"a client certificate": {func(p *place, l net.Listener) net.Listener {
			return tls.NewListener(l, &tls.Config{
				Certificates: []tls.Certificate{p.certificate(p.public, "api.example.org:443")},
				ClientAuth:   tls.RequireAnyClientCert, MaxVersion: tls.VersionTLS12,
			})
		}, "it refused the connection: tls: certificate required"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t, []string{"api.example.org"}, secret(t, "api.example.org"))
			l := test.serve(p, listen(t))
			var mu sync.Mutex
			var got bytes.Buffer
			served := make(chan struct{})
			go func() {
				defer close(served)
				c, err := l.Accept()
				if err != nil {
					return
				}
				defer c.Close()
				if _, secure := c.(*tls.Conn); secure {
					_, _ = io.Copy(lockedWriter{&mu, &got}, c)
				} else {
					_, _ = c.Read(make([]byte, 1))
					fmt.Fprint(c, "HTTP/1.0 400 Bad Request\r\n\r\n")
				}
			}()
			p.put("api.example.org:443", l.Addr())
			for range 1 {
				status, body := get(t, p.client("h2,http/1.1"), "https://api.example.org/", http.Header{"X-Key": {placeholder}})
				want := "egress: cannot speak TLS with api.example.org:443: " + test.want + "\n"
				if status != 502 || body != want && name != "a client certificate" || !strings.HasPrefix(body, "egress: cannot speak TLS with") {
					t.Errorf("%d %q", status, body)
				}
			}
			wait(t, served, "end at the host")
			mu.Lock()
			defer mu.Unlock()
			if got.Len() > 0 {
				t.Errorf("the host got %q", got.String())
			}
			if r := p.next(); !strings.HasPrefix(r.Refused, "cannot speak TLS with api.example.org:443") || len(r.Secrets) > 0 {
				t.Errorf("the record is %+v", r)
			}
		})
	}
}

func (p *place) other() *ca.CA {
	c, err := ca.Make("other", time.Hour)
	if err != nil {
		p.t.Fatal(err)
	}
	return c
}

// A program that does not trust the workspace's CA, or names another host, is not served.
func TestProgramTLS(t *testing.T) {
	p := newPlace(t, []string{"api.example.org"}, secret(t, "api.example.org"))
	host := &seen{}
	p.host("api.example.org:443", host)
	c := tls.Client(p.connect("api.example.org:443"), &tls.Config{ServerName: "api.example.org", MinVersion: tls.VersionTLS12})
	if err := c.HandshakeContext(t.Context()); err == nil {
		t.Error("the certificate is trusted")
	}
	c.Close()
	if r := p.next(); !strings.Contains(r.Refused, "the program refused the certificate of the workspace's CA") {
		t.Errorf("the record is %+v", r)
	}
	c = tls.Client(p.connect("api.example.org:443"), &tls.Config{
		ServerName: "other.example.org", RootCAs: p.trust, MinVersion: tls.VersionTLS12,
	})
	if err := c.HandshakeContext(t.Context()); err == nil {
		t.Error("another server name is served")
	}
	if r := p.next(); !strings.Contains(r.Refused, "its TLS server name is that of other.example.org") {
		t.Errorf("the record is %+v", r)
	}
	c = tls.Client(p.connect("api.example.org:443"), &tls.Config{
		ServerName: "api.example.org", RootCAs: p.trust, NextProtos: []string{"smtp"}, MinVersion: tls.VersionTLS12,
	})
	if err := c.HandshakeContext(t.Context()); err == nil {
		t.Error("another protocol is served")
	}
	p.next()
	if len(host.all) > 0 {
		t.Errorf("the host got %d requests", len(host.all))
	}
}

// A host that speaks before TLS is served as without a binding, and never gets a secret.
func TestHostFirst(t *testing.T) {
	p := newPlace(t, []string{"api.example.org"}, secret(t, "api.example.org"))
	l := listen(t)
	var got bytes.Buffer
	served := make(chan struct{})
	go func() {
		defer close(served)
		for range 2 {
			c, err := l.Accept()
			if err != nil {
				return
			}
			fmt.Fprint(c, "220 hello\r\n")
			_, _ = io.Copy(&got, c)
			c.Close()
		}
	}()
	p.put("api.example.org:443", l.Addr())
	banner := make([]byte, len("220 hello\r\n"))
	c := p.connect("api.example.org:443")
	if _, err := io.ReadFull(c, banner); err != nil || string(banner) != "220 hello\r\n" {
		t.Fatalf("%q, %v", banner, err)
	}
	fmt.Fprint(c, "EHLO "+placeholder+"\r\n")
	c.(*net.TCPConn).CloseWrite()
	if b, err := io.ReadAll(c); len(b) > 0 || err != nil {
		t.Errorf("%q, %v", b, err)
	}
	if r := p.next(); r.Refused != "" {
		t.Errorf("the record is %+v", r)
	}
	c = p.connect("api.example.org:443")
	if _, err := io.ReadFull(c, banner); err != nil {
		t.Fatal(err)
	}
	tc := tls.Client(c, &tls.Config{RootCAs: p.trust, ServerName: "api.example.org", MinVersion: tls.VersionTLS12})
	if err := tc.HandshakeContext(t.Context()); err == nil {
		t.Error("TLS after a banner is served")
	}
	if r := p.next(); !strings.Contains(r.Refused, "spoke before the program began TLS") {
		t.Errorf("the record is %+v", r)
	}
	wait(t, served, "end at the host")
	if got.String() != "EHLO "+placeholder+"\r\n" {
		t.Errorf("the host got %q", got.String())
	}
}

// fields sends one request of these fields over HTTP/2, and returns the status, or the error with which its stream or connection ends.
func (p *place) fields(fields ...string) string {
	p.t.Helper()
	c := p.secure("api.example.org:443", "h2")
	defer c.Close()
	fmt.Fprint(c, http2.ClientPreface)
	f := http2.NewFramer(c, c)
	_ = f.WriteSettings()
	var block bytes.Buffer
	e := hpack.NewEncoder(&block)
	for i := 0; i < len(fields); i += 2 {
		_ = e.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
	}
	_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndStream: true, EndHeaders: true})
	f.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	for {
		frame, err := f.ReadFrame()
		if err != nil {
			return err.Error()
		}
		switch frame := frame.(type) {
		case *http2.MetaHeadersFrame:
			return frame.PseudoValue("status")
		case *http2.RSTStreamFrame:
			return frame.ErrCode.String()
		case *http2.GoAwayFrame:
			return frame.ErrCode.String()
		}
	}
}
