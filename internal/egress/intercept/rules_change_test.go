package intercept_test

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"
)

// Upgrades take a rule that allows the whole host, and end with it; nothing that follows one is taken for a request.
func TestRuledUpgrade(t *testing.T) {
	p := newRuled(t, "allow api.example.org", "deny DELETE api.example.org")
	p.host("api.example.org:443", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, both, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Errorf("no upgrade: %v", err)
			return
		}
		defer conn.Close()
		fmt.Fprintf(both, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", r.Header.Get("Upgrade"))
		both.Flush()
		_, _ = io.Copy(conn, both)
	}))
	open := func(what string) (net.Conn, *bufio.Reader, int) {
		t.Helper()
		c := p.secure("api.example.org:443", "http/1.1")
		fmt.Fprintf(c, "GET /ws HTTP/1.1\r\nHost: api.example.org\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", what)
		in := bufio.NewReader(c)
		res, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(err)
		}
		if res.StatusCode != 101 {
			res.Body.Close()
		}
		return c, in, res.StatusCode
	}
	for _, what := range []string{"h2c", "websocket, h2c", "TLS/1.3"} {
		if c, _, status := open(what); status != 403 {
			t.Errorf("%s: %d", what, status)
		} else {
			c.Close()
		}
	}
	c, in, status := open("websocket")
	defer c.Close()
	fmt.Fprint(c, "DELETE / HTTP/1.1\r\n")
	echo := make([]byte, 19)
	if _, err := io.ReadFull(in, echo); status != 101 || err != nil || string(echo) != "DELETE / HTTP/1.1\r\n" {
		t.Fatalf("%d %q %v", status, echo, err)
	}
	p.server.SetRules(ruled(t, "allow GET api.example.org"))
	fmt.Fprint(c, "more")
	if b, err := io.ReadAll(in); err == nil && len(b) > 0 {
		t.Errorf("it goes on: %q", b)
	}
	for {
		r := p.next()
		if r.Sent > 0 && strings.Contains(r.Refused,
			"the rules have changed: a GET to api.example.org:443 is not allowed: it asks for another protocol") {
			break
		}
	}
	if c, _, status := open("websocket"); status != 403 {
		t.Errorf("without the whole host: %d", status)
	} else {
		c.Close()
	}
}

// When SetRules returns, no byte of a request that is not allowed any more arrives; a connection without one goes on.
func TestRuledChange(t *testing.T) {
	for _, proto := range protos {
		t.Run(proto, func(t *testing.T) {
			p := newRuled(t, "allow api.example.org/*")
			begun, go_ := make(chan struct{}, 9), make(chan struct{})
			p.host("api.example.org:443", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				fmt.Fprint(w, "begun")
				_ = http.NewResponseController(w).Flush()
				if r.URL.Path != "/v1/quick" {
					begun <- struct{}{}
					select {
					case <-go_:
					case <-r.Context().Done():
					}
				}
				fmt.Fprint(w, "AFTER")
			}))
			defer close(go_)
			c := p.client(proto)
			stream := func(path string) io.Reader {
				r, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://api.example.org"+path, nil)
				res, err := c.Do(r)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { res.Body.Close() })
				wait(t, begun, "request")
				if _, err := io.ReadFull(res.Body, make([]byte, 5)); err != nil {
					t.Fatal(err)
				}
				return res.Body
			}
			// A connection that is idle, or has a request that is still allowed, goes on.
			kept := stream("/v1/slow")
			p.server.SetRules(ruled(t, "allow GET api.example.org/v1/*"))
			if status, body := get(t, c, "https://api.example.org/v1/quick", nil); status != 200 || body != "begunAFTER" {
				t.Errorf("%d %q", status, body)
			}
			if status, _ := get(t, c, "https://api.example.org/x", nil); status != 403 {
				t.Errorf("by the earlier rules: %d", status)
			}
			go_ <- struct{}{}
			if b, err := io.ReadAll(kept); err != nil || string(b) != "AFTER" {
				t.Errorf("one that is still allowed: %q, %v", b, err)
			}
			gone := stream("/v1/slow")
			p.server.SetRules(ruled(t, "allow GET api.example.org/v1/quick"))
			select {
			case go_ <- struct{}{}:
			case <-time.After(100 * time.Millisecond): // the host knows already
			}
			if b, err := io.ReadAll(gone); err == nil || len(b) > 0 {
				t.Errorf("one that is not: %q, %v", b, err)
			}
			for {
				if r := p.next(); r.Received > 0 && strings.Contains(r.Refused, "the rules have changed: a GET to api.example.org:443 is not allowed") {
					break
				}
			}
		})
	}
}

// A tunnel that is copied is cut when rules come to be about its requests, and the next connection is read.
func TestRuledTunnelIsCut(t *testing.T) {
	p, host := newRuled(t, "allow api.example.org"), &seen{}
	p.host("api.example.org:443", host)
	open := p.secure("api.example.org:443", "http/1.1")
	silent := p.connect("api.example.org:443")
	fmt.Fprint(open, "GET /x HTTP/1.1\r\nHost: api.example.org\r\n\r\n")
	in := bufio.NewReader(open)
	res, err := http.ReadResponse(in, nil)
	if err != nil || res.StatusCode != 200 {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, res.Body)
	res.Body.Close()
	if name := open.ConnectionState().PeerCertificates[0].Issuer.CommonName; !strings.Contains(name, "public") {
		t.Fatalf("it is intercepted already, by %s", name)
	}
	host.only(t)
	for _, lines := range [][]string{{"allow api.example.org", "deny DELETE api.example.org"}} {
		p.server.SetRules(ruled(t, lines...))
		fmt.Fprint(open, "DELETE /x HTTP/1.1\r\nHost: api.example.org\r\n\r\n")
		if b, err := io.ReadAll(in); len(b) > 0 {
			t.Errorf("%q, %v", b, err)
		}
		fmt.Fprint(silent, "SSH-2.0-x\r\n") // it is cut, or held and judged now
		if b, err := io.ReadAll(silent); len(b) > 0 || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("one that has said nothing: %q, %v", b, err)
		}
	}
	if len(host.all) > 0 {
		t.Errorf("the host got %d", len(host.all))
	}
	if status, _ := get(t, p.client("http/1.1"), "https://api.example.org/x", nil); status != 200 {
		t.Errorf("the next one: %d", status)
	}
	host.only(t)
}

// Without an authority, nothing inside TLS can be judged, and so nothing is let through.
func TestRuledWithoutAuthority(t *testing.T) {
	p, host := newRuled(t, "allow api.example.org", "deny DELETE api.example.org"), &seen{}
	p.host("api.example.org:443", host)
	p.server.SetIntercept(nil)
	c := tls.Client(p.connect("api.example.org:443"), &tls.Config{
		RootCAs: p.trust, ServerName: "api.example.org",
		MinVersion: tls.VersionTLS12,
	})
	defer c.Close()
	if err := c.HandshakeContext(t.Context()); err == nil || len(host.all) > 0 {
		t.Errorf("%v; the host got %d", err, len(host.all))
	}
	if r := p.next(); !strings.Contains(r.Refused, "was started without an authority") || !strings.Contains(r.Refused, "stop the workspace") {
		t.Errorf("recorded %+v", r)
	}
}

// A protocol alone: TLS to another server, without a name, or no TLS is refused; the connection is not intercepted.
func TestRuledProtocol(t *testing.T) {
	p, host := newRuled(t, "allow tls://api.example.org", "allow tls://other.example.org"), &seen{}
	p.host("api.example.org:443", host)
	p.host("other.example.org:443", host)
	c := p.secure("api.example.org:443", "http/1.1")
	if name := c.ConnectionState().PeerCertificates[0].Issuer.CommonName; !strings.Contains(name, "public") {
		t.Errorf("it is intercepted by %s", name)
	}
	fmt.Fprint(c, "DELETE /any HTTP/1.1\r\nHost: api.example.org\r\nConnection: close\r\n\r\n")
	if b, err := io.ReadAll(c); err != nil || !strings.HasPrefix(string(b), "HTTP/1.1 200") {
		t.Errorf("%q, %v", b, err)
	}
	host.only(t)
	for _, name := range []string{"other.example.org", ""} {
		c := tls.Client(p.connect("api.example.org:443"), &tls.Config{ServerName: name, InsecureSkipVerify: true, MinVersion: tls.VersionTLS12})
		if err := c.HandshakeContext(t.Context()); err == nil {
			t.Errorf("the server name %q passes", name)
		}
		c.Close()
	}
	for _, first := range []string{"GET / HTTP/1.1\r\nHost: api.example.org\r\n\r\n", "SSH-2.0-x\r\n"} {
		c := p.connect("api.example.org:443")
		fmt.Fprint(c, first)
		if b, err := io.ReadAll(c); err == nil && strings.Contains(string(b), "200 OK") || len(host.all) > 0 {
			t.Errorf("%q: %q", first, b)
		}
	}
}

// A secret and rules for one host: the request is judged, and gets the secret.
func TestRuledSecret(t *testing.T) {
	p, host := newPlace(t, nil, secret(t, "api.example.org")), &seen{}
	p.server.SetRules(ruled(t, "allow POST api.example.org/v1/*"))
	p.host("api.example.org:443", host)
	c := p.client("h2")
	for path, want := range map[string]int{"/v1/x": 200, "/x": 403} {
		r, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://api.example.org"+path, nil)
		r.Header.Set("X-Key", placeholder)
		if status, body, err := do(c, r); status != want || err != nil || strings.Contains(body, value) {
			t.Errorf("%s: %d %q %v", path, status, body, err)
		}
	}
	if got, _ := host.only(t); got.Header.Get("X-Key") != value {
		t.Errorf("the host got %s", dump(got, ""))
	}
}
