package egress_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/carrel-dev/carrel/internal/egress"
	"github.com/carrel-dev/carrel/internal/spec/netrule"
)

// public are addresses that no rule needs to name.
const public, publicToo = "93.184.215.14", "8.8.4.4"

// Every way leads to the host that was named, and is recorded.
func TestReach(t *testing.T) {
	plain, secure := web(t, false), web(t, true)
	w := start(t, rules(t, "example.com"), nil)
	w.leads("example.com", public, 80, plain.Listener.Addr())
	w.leads("example.com", public, 443, secure.Listener.Addr())
	for _, c := range []struct{ scheme, url, way string }{
		{"", "http://example.com/a?b=c;d", egress.WayTransparent},
		{"", "https://example.com/a?b=c;d", egress.WayTransparent},
		{"http", "http://example.com/a?b=c;d", egress.WayHTTP},
		{"http", "https://example.com/a?b=c;d", egress.WayConnect},
		{"socks5", "http://example.com/a?b=c;d", egress.WaySOCKS},
		{"socks5", "https://example.com/a?b=c;d", egress.WaySOCKS},
	} {
		t.Run(c.way+" "+c.url[:5], func(t *testing.T) {
			status, body, err := fetch(t, w.client(c.scheme, secure), c.url)
			if err != nil || status != 200 || body != "GET /a?b=c;d for example.com: " {
				t.Errorf("%d %q %v", status, body, err)
			}
			got := w.recorded(func(r egress.Connection) bool { return r.Way == c.way })
			port := map[bool]string{true: "443", false: "80"}[strings.HasPrefix(c.url, "https")]
			if got.Target != target(t, "example.com:"+port) || got.Address.String() != public+":"+port || got.Rule != "example.com" ||
				got.Refused != "" || got.Sent < 50 || got.Received < 50 || got.Count != 1 || got.Began.IsZero() || got.Duration <= 0 {
				t.Errorf("recorded %+v", got)
			}
		})
	}
	if resolved, dialled := w.seen(); resolved != 6 || len(dialled) != 6 {
		t.Errorf("resolved %d times, dialled %v", resolved, dialled)
	}
}

// What is not allowed is refused in the protocol that was spoken, with the reason and what to do about it.
func TestRefused(t *testing.T) {
	w := start(t, rules(t, "example.com:8443", "*.example.net", "!bad.example.net"), nil)
	const why = "egress: example.com:80 is not allowed: no rule names it\nAsk for example.com:80.\n"
	for _, scheme := range []string{"http", ""} {
		status, body, err := fetch(t, w.client(scheme, nil), "http://example.com/")
		if err != nil || status != 403 || body != why {
			t.Errorf("%q: %d %q %v", scheme, status, body, err)
		}
	}
	got := w.refused(egress.WayHTTP, "no rule names it")
	if got.Target != target(t, "example.com:80") || got.Address.IsValid() || got.Count != 1 {
		t.Errorf("recorded %+v", got)
	}
	w.refused(egress.WayTransparent, "no rule names it")
	if _, _, err := fetch(t, w.client("", nil), "https://example.com/"); err == nil || !strings.Contains(err.Error(), "access denied") {
		t.Errorf("TLS: %v", err)
	}
	if _, _, err := fetch(t, w.client("http", nil), "https://example.com/"); err == nil || !strings.Contains(err.Error(), "Forbidden") {
		t.Errorf("CONNECT: %v", err)
	}
	w.refused(egress.WayConnect, "example.com:443 is not allowed")
	_, _, err := fetch(t, w.client("socks5", nil), "https://bad.example.net/")
	if err == nil || !strings.Contains(err.Error(), "not allowed by ruleset") {
		t.Errorf("SOCKS: %v", err)
	}
	w.refused(egress.WaySOCKS, "bad.example.net:443 is not allowed: the rule bad.example.net denies it")
	text, err := w.exchange(w.open(w.proxy.Addr()),
		"GET http://example.com/ HTTP/1.1\r\nHost: example.com\r\nAccept: application/json\r\n\r\n")
	const object = `{"error":"egress: example.com:80 is not allowed: no rule names it","remedy":"Ask for example.com:80."}`
	if err != nil || !strings.Contains(text, object) {
		t.Errorf("JSON: %q, %v", text, err)
	}
	c := w.transparent(netip.AddrPortFrom(w.lookup("example.com"), 22))
	if text, err := w.exchange(c, "SSH-2.0-test\r\n"); err == nil || text != "" {
		t.Errorf("SSH is not reset: %q", text)
	}
	w.untouched()
}

// A refusal names the rule that lifts it, and none if there is none.
func TestRemedy(t *testing.T) {
	host := web(t, false)
	for _, c := range []struct {
		why, url, address, remedy string
		rules                     []string
	}{
		{"no rule", "http://example.com/", public, "Ask for example.com:80.", nil},
		{"denied", "http://example.com/", public, "", []string{"example.com", "!*.com"}},
		{"an address that is not public", "http://example.com/", "10.0.0.7", "Ask for 10.0.0.7:80.", []string{"example.com"}},
		{"one that carries it", "http://example.com/", "64:ff9b::a00:7", "Ask for 10.0.0.7:80.", []string{"*"}},
		{"the host's own, known when it is dialled", "http://example.com/", own, "Ask for " + own + ":80.", []string{"example.com"}},
		{"a literal address that is not public", "http://10.0.0.7/", "", "Ask for 10.0.0.7:80.", []string{"*"}},
		{"another protocol", "http://example.com/", public, "Ask for 'GET example.com:80/'.", []string{"tls://example.com:80"}},
		{"a rule about requests that denies", "http://example.com/", public, "", []string{"!GET example.com", "example.com"}},
	} {
		w := start(t, rules(t, c.rules...), func(cfg *egress.Config) {
			dial := cfg.Dial
			cfg.Dial = func(ctx context.Context, a netip.AddrPort) (net.Conn, error) {
				if a.Addr().String() != own {
					return dial(ctx, a)
				}
				r, err := netrule.New(nil, netrule.Options{Own: []netip.Addr{a.Addr()}})
				if err != nil {
					return nil, err
				}
				return nil, r.Address(target(t, a.String()), a.Addr())
			}
		})
		if c.address != "" {
			w.leads("example.com", c.address, 80, host.Listener.Addr())
		}
		status, body, err := fetch(t, w.client("http", nil), c.url)
		first, rest, _ := strings.Cut(body, "\n")
		if err != nil || status != 403 || strings.TrimSpace(rest) != c.remedy {
			t.Errorf("%s: %d %q, then %q, %v", c.why, status, first, rest, err)
		}
		named := c.address == "" || c.address == public || strings.HasPrefix(first, "egress: cannot reach example.com:80 at ")
		if strings.Contains(first, "permission denied") || !named {
			t.Errorf("%s: %q", c.why, first)
		}
	}
}

// own stands for an address of the host.
const own = "9.9.9.9"

// The bytes of a host that speaks first arrive before the client has sent any.
func TestServerFirst(t *testing.T) {
	ssh := raw(t, func(c net.Conn) {
		_, _ = io.WriteString(c, "SSH-2.0-server\r\n")
		_, _ = io.Copy(c, c)
	})
	w := start(t, rules(t, "git.example.com:22"), nil)
	w.leads("git.example.com", public, 22, ssh)
	c := w.transparent(netip.AddrPortFrom(w.lookup("git.example.com"), 22))
	r := bufio.NewReader(c)
	if line, err := r.ReadString('\n'); err != nil || line != "SSH-2.0-server\r\n" {
		t.Fatalf("%q, %v", line, err)
	}
	_, _ = io.WriteString(c, "SSH-2.0-client\r\nand more")
	_ = c.(*net.TCPConn).CloseWrite()
	rest, err := io.ReadAll(r)
	if err != nil || string(rest) != "SSH-2.0-client\r\nand more" {
		t.Errorf("%q, %v", rest, err)
	}
	got := w.recorded(func(c egress.Connection) bool { return c.Way == egress.WayTransparent })
	if got.Sent != 24 || got.Received != 40 || got.Refused != "" {
		t.Errorf("recorded %+v", got)
	}
}

// Each direction is closed on its own, even before the first byte, and large bodies arrive complete.
func TestHalfClose(t *testing.T) {
	blob := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	upload := make(chan int, 2)
	host := raw(t, func(c net.Conn) {
		n, _ := io.Copy(io.Discard, c)
		upload <- int(n)
		_, _ = c.Write(blob)
	})
	w := start(t, rules(t, "example.com:9000"), nil)
	w.leads("example.com", public, 9000, host)
	for _, size := range []int{0, len(blob)} {
		c := w.transparent(netip.AddrPortFrom(w.lookup("example.com"), 9000))
		if size > 0 {
			if _, err := c.Write(append([]byte("blob\n"), blob...)); err != nil {
				t.Fatal(err)
			}
		}
		_ = c.(*net.TCPConn).CloseWrite()
		back, err := io.ReadAll(c)
		if sent := <-upload; err != nil || !bytes.Equal(back, blob) || size == 0 && sent != 0 || size > 0 && sent != size+5 {
			t.Errorf("%d bytes there, %d back, %v", sent, len(back), err)
		}
		got := w.recorded(func(c egress.Connection) bool { return c.Received == int64(len(blob)) })
		if size > 0 && got.Sent != int64(size+5) {
			t.Errorf("recorded %+v", got)
		}
	}
}

// The next address is tried if one does not answer, and only those that the rules take.
func TestAddresses(t *testing.T) {
	plain := web(t, false)
	w := start(t, rules(t, "example.com", "closed.example.com", "silent.example.com", "gone.example.com"), func(c *egress.Config) {
		c.Limits.Dial = 100 * time.Millisecond
	})
	w.leads("example.com", public, 80, plain.Listener.Addr())
	w.names["example.com"] = [][]netip.Addr{{
		netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("::ffff:127.0.0.1"), netip.MustParseAddr("fe80::1"),
		netip.MustParseAddr("::ffff:" + public),
	}}
	if status, body, err := fetch(t, w.client("http", nil), "http://example.com/"); err != nil || status != 200 {
		t.Errorf("%d %q %v", status, body, err)
	}
	if _, dialled := w.seen(); len(dialled) != 1 || dialled[0].String() != public+":80" {
		t.Errorf("dialled %v", dialled)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close() // its port refuses now
	w.leads("closed.example.com", publicToo, 80, l.Addr())
	w.leads("silent.example.com", "1.1.1.1", 81, l.Addr())
	for name, why := range map[string]string{
		"closed": "cannot connect to closed.example.com:80: connection refused",
		"silent": "cannot connect to silent.example.com:80: no answer in time",
		"gone":   "cannot resolve gone.example.com: no such host",
	} {
		status, body, err := fetch(t, w.client("http", nil), "http://"+name+".example.com/")
		if err != nil || status != 502 || body != "egress: "+why+"\n" {
			t.Errorf("%d %q %v", status, body, err)
		}
		w.refused(egress.WayHTTP, why)
	}
	_, _, err = fetch(t, w.client("socks5", nil), "http://closed.example.com/")
	if err == nil || !strings.Contains(err.Error(), "connection refused") {
		t.Error(err)
	}
	_, _, err = fetch(t, w.client("socks5", nil), "http://gone.example.com/")
	if err == nil || !strings.Contains(err.Error(), "host unreachable") {
		t.Error(err)
	}
}

// Without Resolve and Dial the host's own are used.
func TestDefaults(t *testing.T) {
	plain := web(t, false)
	port := plain.Listener.Addr().(*net.TCPAddr).AddrPort().Port()
	at := func(host string) string { return fmt.Sprintf("%s:%d", host, port) }
	w := start(t, rules(t, at("localhost"), at("127.0.0.1"), at("[::1]")), func(c *egress.Config) {
		c.Resolve, c.Dial = nil, nil
	})
	for _, host := range []string{"127.0.0.1", "localhost"} {
		status, body, err := fetch(t, w.client("http", nil), "http://"+at(host)+"/")
		if err != nil || status != 200 || body != "GET / for "+at(host)+": " {
			t.Errorf("%s: %d %q %v", host, status, body, err)
		}
	}
}

// A server without sockets ends, and one that has lost a socket says so.
func TestServe(t *testing.T) {
	if _, err := egress.New(egress.Config{}); err == nil {
		t.Error("there are no rules")
	}
	none, err := egress.New(egress.Config{Rules: rules(t)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := none.Serve(ctx); err != nil {
		t.Error(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	lost, err := egress.New(egress.Config{Rules: rules(t), Listeners: egress.Listeners{Proxy: l}})
	if err != nil {
		t.Fatal(err)
	}
	if err := lost.Serve(t.Context()); !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}

// Serve cuts open connections at its end.
func TestServeCuts(t *testing.T) {
	begun, ended := make(chan struct{}), make(chan error, 1)
	hang := raw(t, func(c net.Conn) {
		_, _ = io.ReadFull(c, make([]byte, 1))
		close(begun)
		_, err := io.Copy(io.Discard, c)
		ended <- err
	})
	t.Run("", func(t *testing.T) {
		w := start(t, rules(t, "example.com:9000"), nil)
		w.leads("example.com", public, 9000, hang)
		c := w.transparent(netip.AddrPortFrom(w.lookup("example.com"), 9000))
		if _, err := io.WriteString(c, "line\n"); err != nil {
			t.Fatal(err)
		}
		w.open(w.proxy.Addr()) // says nothing
		<-begun
	})
	select {
	case <-ended:
	case <-time.After(patience):
		t.Error("the connection to the host stands")
	}
}

// What is open is told with the bytes that have passed so far, and only what has reached a host.
func TestOpenConnections(t *testing.T) {
	got := make(chan struct{})
	ssh := raw(t, func(c net.Conn) {
		_, _ = io.WriteString(c, "hello")
		_, _ = io.ReadFull(c, make([]byte, 100_000))
		close(got)
		_, _ = io.Copy(io.Discard, c)
	})
	w := start(t, rules(t, "git.example.com:22"), nil)
	w.leads("git.example.com", public, 22, ssh)
	idle := w.open(w.proxy.Addr()) // has asked for nothing yet
	defer idle.Close()
	if open := w.server.Open(); len(open) != 0 {
		t.Errorf("open are %+v", open)
	}
	c := w.transparent(netip.AddrPortFrom(w.lookup("git.example.com"), 22))
	if _, err := io.ReadFull(c, make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(c, "SSH-2.0-x\r\n"+strings.Repeat("x", 100_000-11)); err != nil {
		t.Fatal(err)
	}
	<-got
	open := w.server.Open()
	if len(open) != 1 || open[0].Target != target(t, "git.example.com:22") || open[0].Sent != 100_000 || open[0].Received != 5 ||
		open[0].Address.Port() != 22 || open[0].Way != egress.WayTransparent || open[0].Duration <= 0 {
		t.Errorf("open are %+v", open)
	}
	c.Close()
	w.recorded(func(egress.Connection) bool { return true })
	if open := w.server.Open(); len(open) != 0 {
		t.Errorf("after its end, open are %+v", open)
	}
}
