package api_test

import (
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carrel-dev/carrel/internal/linux/cert"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/surface/api"
	"github.com/carrel-dev/carrel/internal/surface/api/apitest"
)

// from dials as another address of the loopback.
func (f *far) from(host int) net.Conn {
	f.t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, byte(host))}}
	c, err := d.DialContext(f.t.Context(), "tcp", f.addr)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { c.Close() })
	return c
}

// clientFrom returns a client with one connection from such an address.
func (f *far) clientFrom(host int) *http.Client {
	c := f.client(false)
	d := &tls.Dialer{NetDialer: &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, byte(host))}}, Config: cert.Pin(f.pin)}
	c.Transport.(*http.Transport).DialTLSContext = d.DialContext
	return c
}

// Those who come and say nothing take the places of each other, and not of those who have a token.
func TestStrangersKeepNobodyOut(t *testing.T) {
	f := overTLS(t)
	good := f.gate.Issue(t, alice, principal.Wanted{Roles: principal.Agent})
	for host := range 12 {
		for i := range 64 {
			c := f.from(10 + host)
			if i%8 == 0 { // some are more polite; those that came too late are closed meanwhile
				go func() { _ = tls.Client(c, cert.Pin(f.pin)).HandshakeContext(t.Context()) }()
			}
		}
	}
	for _, http2 := range []bool{true, false} {
		if code, body := f.post(f.client(http2), versionPath, bearer(good), "localhost"); code != http.StatusOK {
			t.Errorf("HTTP/2 %v: %d %s", http2, code, body)
		}
	}
}

// A connection on which no good token comes lasts seconds, whatever else is sent on it.
func TestStrangersEnd(t *testing.T) {
	g := &apitest.Gate{}
	addr, keys, _ := apitest.ServeTLS(t, g, api.Options{HeaderTimeout: 200 * time.Millisecond})
	conf := cert.Pin(keys.Fingerprint())
	conf.NextProtos = []string{"h2"}
	c, err := (&tls.Dialer{Config: conf}).DialContext(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	// The preface of HTTP/2 and settings, so that the server waits for requests, and then frames without end.
	_, _ = c.Write([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"))
	go func() {
		for {
			if _, err := c.Write([]byte("\x00\x00\x08\x06\x00\x00\x00\x00\x0012345678")); err != nil { // a ping
				return
			}
		}
	}()
	_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.Copy(io.Discard, c); err != nil && strings.Contains(err.Error(), "timeout") {
		t.Error("it is open still")
	}
}

// pipes is a listener whose connections come as fast as they are taken.
type pipes struct {
	net.Listener
	far chan net.Conn
}

func (p *pipes) Accept() (net.Conn, error) {
	near, far := net.Pipe()
	select {
	case p.far <- far:
	default:
	}
	return near, nil
}

// What no known request is for is read slowly.
func TestFramesOfNobodyAreReadSlowly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &pipes{far: make(chan net.Conn, 1)}
		c, err := api.Strangers(p).Accept()
		if err != nil {
			t.Fatal(err)
		}
		sender := <-p.far
		go func() {
			for frame := make([]byte, 1024); ; {
				if _, err := sender.Write(frame); err != nil {
					return
				}
			}
		}()
		const seconds, atOnce, rate = 10, 32 << 10, 16 << 10
		end, n := time.Now().Add(seconds*time.Second), 0
		for buf := make([]byte, 4096); time.Now().Before(end); {
			m, err := c.Read(buf)
			if err != nil {
				t.Fatal(err)
			}
			n += m
		}
		if want := atOnce + seconds*rate; n < want-8<<10 || n > want+8<<10 {
			t.Errorf("%d bytes were read in %d seconds, not about %d", n, seconds, want)
		}
		c.Close()
		sender.Close()
	})
}

// Who knocks without end is let in so often.
func TestAnAddressConnectsSoOften(t *testing.T) {
	for name, c := range map[string]struct {
		door     func(net.Listener) net.Listener
		most, in int
	}{"over TLS": {api.Strangers, 128, 32}, "without, on loopback": {api.Neighbours, 256, 1000}} {
		synctest.Test(t, func(t *testing.T) {
			l := &counted{Listener: &pipes{}}
			d := c.door(l)
			let := func() (n int) { // of those that come at one moment
				l.most = 1000
				for _, err := d.Accept(); err == nil; _, err = d.Accept() {
					n++
				}
				return n
			}
			if n := let(); n != c.most {
				t.Errorf("%s: %d of 1000 were let in", name, n)
			}
			time.Sleep(time.Second) //nolint:forbidigo // the bubble's
			if n := let(); n != min(c.in, c.most) {
				t.Errorf("%s: %d a second later", name, n)
			}
		})
	}
}

// counted ends after so many connections.
type counted struct {
	net.Listener
	most int
}

func (c *counted) Accept() (net.Conn, error) {
	if c.most--; c.most < 0 {
		return nil, net.ErrClosed
	}
	return c.Listener.Accept()
}

// Who is known sends as much as a request may have, at once and as the first thing.
func TestRequestsOfTheKnownAreNotSlowed(t *testing.T) {
	f := overTLS(t)
	good := f.gate.Issue(t, alice, principal.Wanted{Roles: principal.Agent})
	const size = 256 << 10 // encoded, at the rate of a stranger, it takes 19 seconds
	body := fmt.Sprintf(`{"workspace":"demo","command":{"argv":["true"]},"stdin":%q}`,
		base64.StdEncoding.EncodeToString(make([]byte, size)))
	for _, http2 := range []bool{true, false} {
		url := "https://" + f.addr + "/carrel.v1.CommandService/Exec"
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header, req.Host = bearer(good), "localhost"
		req.Header.Set("Content-Type", "application/json")
		c := f.client(http2)
		c.Timeout = 15 * time.Second
		res, err := c.Do(req)
		if err != nil {
			t.Fatalf("HTTP/2 %v: %v", http2, err)
		}
		answer, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err != nil || res.StatusCode != http.StatusNotFound { // all of it was read, and there is no workspace
			t.Errorf("HTTP/2 %v: %d %.300s %v", http2, res.StatusCode, answer, err)
		}
	}
}

// The connections of one owner are bounded wherever they come from, and others have theirs.
func TestConnectionsOfAnOwnerAreBounded(t *testing.T) {
	f := overTLS(t)
	bob := principal.Principal{Kind: principal.User, UID: 1001, GID: 1001}
	one := f.gate.Issue(t, alice, principal.Wanted{Roles: principal.Agent})
	other := f.gate.Issue(t, bob, principal.Wanted{Roles: principal.Agent})
	for i := range 64 {
		if code, body := f.post(f.clientFrom(20+i%2), versionPath, bearer(one), "localhost"); code != http.StatusOK {
			t.Fatalf("connection %d: %d %s", i, code, body)
		}
	}
	if code, body := f.post(f.clientFrom(20), versionPath, bearer(one), "localhost"); code != http.StatusTooManyRequests ||
		!strings.Contains(body, "as many open as may be") {
		t.Errorf("one too many: %d %s", code, body)
	}
	if code, body := f.post(f.clientFrom(20), versionPath, bearer(other), "localhost"); code != http.StatusOK {
		t.Errorf("of somebody else: %d %s", code, body)
	}
}
