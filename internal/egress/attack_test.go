package egress_test

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/carrel-dev/carrel/internal/boundary/sandbox/netns"
	"github.com/carrel-dev/carrel/internal/egress"
)

// A name that has a public address when it is judged and the metadata service's a moment later is resolved once,
// and the address that was judged is dialled.
func TestRebinding(t *testing.T) {
	plain := web(t, false)
	w := start(t, rules(t, "rebind.example.com"), nil)
	w.leads("rebind.example.com", public, 80, plain.Listener.Addr())
	w.names["rebind.example.com"] = append(w.names["rebind.example.com"], []netip.Addr{netip.MustParseAddr("169.254.169.254")})
	if status, _, err := fetch(t, w.client("http", nil), "http://rebind.example.com/"); err != nil || status != 200 {
		t.Errorf("%d, %v", status, err)
	}
	resolved, dialled := w.seen()
	if resolved != 1 || len(dialled) != 1 || dialled[0].String() != public+":80" {
		t.Errorf("resolved %d times, dialled %v", resolved, dialled)
	}
	status, body, err := fetch(t, w.client("http", nil), "http://rebind.example.com/")
	if err != nil || status != 403 || !strings.Contains(body, "169.254.169.254") {
		t.Errorf("%d %q %v", status, body, err)
	}
	if _, dialled := w.seen(); len(dialled) != 1 {
		t.Errorf("dialled %v", dialled)
	}
}

// Whatever a name that is allowed resolves to, and however an address is written, what is not public is not
// dialled, and neither are the addresses that stand for names.
func TestInnerAddresses(t *testing.T) {
	w := start(t, rules(t, "*", "*.example.com:*"), nil)
	for i, a := range []string{
		"127.0.0.1", "::1", "::ffff:127.0.0.1", "10.0.0.1", "192.168.1.1", "169.254.169.254", "fd00:ec2::254", "0.0.0.0", "::", "198.18.7.9",
		"fe80::1%lo", "64:ff9b::7f00:1", "2002:7f00:1::", "100.100.100.200", "224.0.0.1", "255.255.255.255",
	} {
		name := fmt.Sprintf("h%d.example.com", i)
		w.leads(name, a, 80, w.proxy.Addr())
		status, body, err := fetch(t, w.client("http", nil), "http://"+name+"/")
		if err != nil || status != 403 || !strings.Contains(body, "cannot reach "+name+":80 at ") {
			t.Errorf("%s: %d %q %v", a, status, body, err)
		}
	}
	for _, host := range []string{
		"127.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "0x7f.1", "2130706433", "0177.0.0.1", "127.1", "127.0.0.1.", "[fe80::1%25lo]", "0",
		"169.254.169.254", "198.18.7.9", "198.18.0.1", "198.19.255.254", "localhost", "localhost.", "a..b", "%31%32%37.0.0.1",
	} {
		text, err := w.exchange(w.open(w.proxy.Addr()), "CONNECT "+host+":80 HTTP/1.1\r\nHost: "+host+":80\r\n\r\n")
		if status := strings.TrimPrefix(text, "HTTP/1.1 "); err != nil || !slices.Contains([]string{"400 ", "403 ", "502 "}, status[:4]) {
			t.Errorf("%s: %q, %v", host, text, err)
		}
		socks := "\x05\x01\x00\x05\x01\x00\x03" + string(rune(len(host))) + host + "\x00\x50"
		text, err = w.exchange(w.open(w.proxy.Addr()), socks)
		if (err != nil && !errors.Is(err, io.EOF)) || len(text) != 12 || text[3] == 0 {
			t.Errorf("SOCKS %s: %q, %v", host, text, err)
		}
	}
	w.untouched()
	w.refused(egress.WayConnect, "the request names no valid host and port")
	for len(w.records) > 0 {
		if c := <-w.records; strings.Contains(c.Refused, "0x7f") || strings.Contains(c.Refused, "%31") {
			t.Errorf("recorded %+v", c)
		}
	}
}

// An address that stands for a name means that name in every way, and one that stands for none is no way out.
func TestStandIns(t *testing.T) {
	plain := web(t, false)
	w := start(t, rules(t, "example.com"), nil)
	w.leads("example.com", public, 80, plain.Listener.Addr())
	a := w.lookup("example.com")
	for _, scheme := range []string{"http", "socks5"} {
		status, body, err := fetch(t, w.client(scheme, nil), "http://"+a.String()+"/x")
		if scheme == "socks5" {
			// The tunnel carries a field Host with the address: that is not the name.
			if err != nil || status != 403 {
				t.Errorf("%s: %d %q %v", scheme, status, body, err)
			}
			continue
		}
		if err != nil || status != 200 || body != "GET /x for example.com: " {
			t.Errorf("%s: %d %q %v", scheme, status, body, err)
		}
	}
	for to, why := range map[string]string{
		"198.18.9.9:80": "no name has this address", "127.0.0.1:80": "no rule names it", "[::1]:80": "no rule names it",
		"93.184.215.14:80": "no rule names it", "169.254.169.254:80": "no rule names it", "[::ffff:93.184.215.14]:443": "no rule names it",
	} {
		c := w.transparent(netip.MustParseAddrPort(to))
		text, err := w.exchange(c, "GET / HTTP/1.1\r\nHost: example.com\r\n\r\n")
		to = strings.Replace(to, "[::ffff:93.184.215.14]", "93.184.215.14", 1)
		if err != nil || !strings.Contains(text, to+" is not allowed: "+why) {
			t.Errorf("%s: %q, %v", to, text, err)
		}
		got := w.refused(egress.WayTransparent, to+" is not allowed: "+why)
		if got.Target.String() != to {
			t.Errorf("recorded %+v", got)
		}
	}
	if _, dialled := w.seen(); len(dialled) != 2 {
		t.Errorf("dialled %v", dialled)
	}
}

// A connection to an address is judged as one to a host is: a rule that names it lets it through, and a name beside it is as it
// is with a proxy.
func TestAddressOfARule(t *testing.T) {
	host := web(t, false)
	w := start(t, rules(t, public+":80", "10.1.0.0/16:80", "!denied.example.com"), nil)
	for _, to := range []string{public, "10.1.2.3"} {
		w.leads("of.example.com", to, 80, host.Listener.Addr())
		text, err := w.exchange(w.transparent(netip.AddrPortFrom(netip.MustParseAddr(to), 80)),
			"GET /x HTTP/1.1\r\nHost: "+to+"\r\nConnection: close\r\n\r\n")
		if err != nil || !strings.HasSuffix(text, "GET /x for "+to+": ") {
			t.Errorf("%s: %q, %v", to, text, err)
		}
		got := w.recorded(func(c egress.Connection) bool { return c.Way == egress.WayTransparent && c.Target.Host.String() == to })
		if got.Refused != "" || got.Address.String() != to+":80" || got.Rule == "" {
			t.Errorf("recorded %+v", got)
		}
	}
	text, err := w.exchange(w.transparent(netip.MustParseAddrPort(public+":80")), "GET / HTTP/1.1\r\nHost: denied.example.com\r\n\r\n")
	if err != nil || !strings.Contains(text, "rules name that host") {
		t.Errorf("a host that is denied: %q, %v", text, err)
	}
	for _, to := range []string{public + ":81", publicToo + ":80", "10.2.0.1:80"} {
		text, err := w.exchange(w.transparent(netip.MustParseAddrPort(to)), "GET / HTTP/1.1\r\nHost: x.example\r\n\r\n")
		if err != nil || !strings.Contains(text, to+" is not allowed: no rule names it") || !strings.Contains(text, "Ask for "+to+".") {
			t.Errorf("%s: %q, %v", to, text, err)
		}
	}
	// The proof's own address is reset whatever the rules are, and not recorded.
	w.server.SetRules(rules(t, "*:*", "240.0.0.1:*"))
	w.trans.to <- netip.AddrPortFrom(netns.Refused, 443)
	c, err := net.Dial("tcp", w.trans.Addr().String())
	if errors.Is(err, syscall.ECONNRESET) {
		return // the reset came before this side had seen that it is connected
	}
	if err != nil {
		t.Fatal(err)
	}
	_ = c.SetDeadline(time.Now().Add(patience))
	if text, err := w.exchange(c, "\x00"); text != "" {
		t.Errorf("%q, %v", text, err)
	}
}

// TLS or HTTP for another name does not reach the host in any way.
func TestServerName(t *testing.T) {
	var got atomic.Int64
	host := raw(t, func(c net.Conn) {
		n, _ := io.Copy(io.Discard, c)
		got.Add(n)
	})
	w := start(t, rules(t, "front.example.com:*"), nil)
	w.leads("front.example.com", public, 443, host)
	tunnels := map[string]func() net.Conn{
		egress.WayTransparent: func() net.Conn { return w.transparent(netip.AddrPortFrom(w.lookup("front.example.com"), 443)) },
		egress.WayConnect: func() net.Conn {
			c := w.open(w.proxy.Addr())
			_, _ = io.WriteString(c, "CONNECT front.example.com:443 HTTP/1.1\r\nHost: front.example.com:443\r\n\r\n")
			_, _ = io.ReadFull(c, make([]byte, len("HTTP/1.1 200 Connection established\r\n\r\n")))
			return c
		},
		egress.WaySOCKS: func() net.Conn {
			c := w.open(w.proxy.Addr())
			_, _ = io.WriteString(c, "\x05\x01\x00\x05\x01\x00\x03\x11front.example.com\x01\xbb")
			_, _ = io.ReadFull(c, make([]byte, 12))
			return c
		},
	}
	evil := clientHello("evil.example.com")
	for way, open := range tunnels {
		c := open()
		err := tls.Client(c, &tls.Config{ServerName: "evil.example.com"}).Handshake()
		_ = c.Close()
		if err == nil || !strings.Contains(err.Error(), "unrecognized name") {
			t.Errorf("%s: %v", way, err)
		}
		r := w.refused(way, "front.example.com:443 is not allowed: its TLS server name is that of evil.example.com")
		if !r.Address.IsValid() || r.Sent != 0 {
			t.Errorf("recorded %+v", r)
		}
		for _, say := range []string{
			"GET / HTTP/1.1\r\nHost: evil.example.com\r\n\r\n",
			"GET http://evil.example.com/ HTTP/1.1\r\nHost: front.example.com\r\n\r\n",
			"\r\nGET / HTTP/1.1\r\nHost: evil.example.com\r\n\r\n",
			"GET / HTTP/1.1\r\nHost: front.example.com\r\nHost: evil.example.com\r\n\r\n",
			"GET / HTTP/1.1\r\nX: y\r\n Host: evil.example.com\r\nHost: front.example.com\r\n\r\n",
			"GET / HTTP/1.1\nHost: evil.example.com\n\n",
			"\x16\x03\x01\x00\x05hello",
			"\x14\x03\x03\x00\x01\x01" + evil,     // a change of keys, which servers skip
			"\x15\x03\x01\x00\x02\x01\x5a" + evil, // a warning
			"\x17\x03\x03\x00\x01\x00" + evil,
			"\x18\x03\x03\x00\x01\x00" + evil,
		} {
			text, err := w.exchange(open(), say)
			if err == nil && !strings.Contains(text, "egress: ") && !strings.HasPrefix(text, "\x15\x03") {
				t.Errorf("%s: %q is answered %q, %v", way, say, text, err)
			}
		}
	}
	if n := got.Load(); n != 0 {
		t.Errorf("%d bytes have arrived", n)
	}
}

// clientHello is what a client of TLS sends first.
func clientHello(name string) string {
	near, far := net.Pipe()
	defer far.Close()
	go func() { _ = tls.Client(near, &tls.Config{ServerName: name}).Handshake() }()
	b := make([]byte, 8<<10)
	n, _ := far.Read(b)
	return string(b[:n])
}

// What two servers read as different requests is never passed on.
func TestSmuggling(t *testing.T) {
	w := start(t, rules(t, "example.com"), nil)
	w.leads("example.com", public, 80, w.dnsTCP.Addr())
	const post = "POST http://example.com/ HTTP/1.1\r\nHost: example.com\r\n"
	for name, text := range map[string]string{
		"CL and TE":        post + "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"TE twice":         post + "Transfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n\r\n0\r\n\r\n",
		"TE with a space":  post + "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
		"CL twice":         post + "Content-Length: 0\r\nContent-Length: 5\r\n\r\nhello",
		"obs-fold":         "GET http://example.com/ HTTP/1.1\r\nHost: example.com\r\nX: a\r\n b\r\n\r\n",
		"LF":               "GET http://example.com/ HTTP/1.1\nHost: example.com\n\n",
		"Host differs":     "GET http://example.com/ HTTP/1.1\r\nHost: evil.example.com\r\n\r\n",
		"port differs":     "GET http://example.com/ HTTP/1.1\r\nHost: example.com:81\r\n\r\n",
		"login":            "GET http://example.com@evil.example.com/ HTTP/1.1\r\nHost: example.com\r\n\r\n",
		"no URL":           "GET / HTTP/1.1\r\nHost: example.com\r\n\r\n",
		"https":            "GET https://example.com/ HTTP/1.1\r\nHost: example.com\r\n\r\n",
		"HTTP/2":           "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
		"NUL":              "CONNECT example.com\x00.evil.example:80 HTTP/1.1\r\nHost: example.com:80\r\n\r\n",
		"CONNECT, Host":    "CONNECT example.com:80 HTTP/1.1\r\nHost: evil.example.com:80\r\n\r\n",
		"CONNECT, no port": "CONNECT example.com HTTP/1.1\r\nHost: example.com\r\n\r\n",
		"SOCKS4":           "\x04\x01\x00\x50\x5d\xb8\xd7\x0e\x00\r\n\r\n",
	} {
		got, err := w.exchange(w.open(w.proxy.Addr()), text)
		if err != nil || !strings.HasPrefix(got, "HTTP/1.1 400 Bad Request\r\n") || !strings.Contains(got, "egress: ") {
			t.Errorf("%s is answered %q, %v", name, got, err)
		}
	}
	socks := "\x05\x01\x00\x05\x01\x00\x03\x0eevil\x00.example.\x00\x50"
	if got, err := w.exchange(w.open(w.proxy.Addr()), socks); err != nil || got != "\x05\x00\x05\x01\x00\x01\x00\x00\x00\x00\x00\x00" {
		t.Errorf("NUL in SOCKS is answered %q, %v", got, err)
	}
	w.untouched()
	// The record does not wait for the client, which may take two seconds to read why.
	c := w.open(w.proxy.Addr())
	if _, err := io.WriteString(c, "CONNECT late.example.com:443 HTTP/1.1\r\nHost: late.example.com:443\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if got := w.refused(egress.WayConnect, "late.example.com:443 is not allowed"); got.Duration >= 2*time.Second {
		t.Errorf("recorded after %s", got.Duration)
	}
}

// The second of two requests on one connection is never read, whatever hides it.
func TestOneRequest(t *testing.T) {
	var asked atomic.Int64
	host := http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		if r.Host != "example.com" || r.URL.Path != "/first" {
			t.Errorf("asked for %s %s", r.Host, r.URL)
		}
		_, _ = io.Copy(io.Discard, r.Body)
	})}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = host.Serve(l) }()
	t.Cleanup(func() { _ = host.Close() })
	w := start(t, rules(t, "example.com"), nil)
	w.leads("example.com", public, 80, l.Addr())
	second := "GET http://evil.example.com/second HTTP/1.1\r\nHost: evil.example.com\r\n\r\n"
	for _, first := range []string{
		"GET http://example.com/first HTTP/1.1\r\nHost: example.com\r\n\r\n",
		"POST http://example.com/first HTTP/1.1\r\nHost: example.com\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
		"GET http://example.com/first HTTP/1.1\r\nHost: example.com\r\nContent-Length: 0\r\nConnection: keep-alive\r\n\r\n",
	} {
		got, _ := w.exchange(w.open(w.proxy.Addr()), first+second)
		if strings.Count(got, "HTTP/1.1 ") != 1 || !strings.HasPrefix(got, "HTTP/1.1 200 OK\r\n") || !strings.Contains(got, "Connection: close") {
			t.Errorf("answered %q", got)
		}
	}
	if asked.Load() != 3 {
		t.Errorf("asked %d times", asked.Load())
	}
}

// A client that does not complete its request in time is cut off.
func TestSlowloris(t *testing.T) {
	w := start(t, rules(t, "example.com:*"), func(c *egress.Config) { c.Limits.Handshake = 50 * time.Millisecond })
	hang := raw(t, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
	port := uint16(9000) // each its own, so that the refusals are not equal
	tunnel := func() net.Conn {
		port++
		w.leads("example.com", public, port, hang)
		return w.transparent(netip.AddrPortFrom(w.lookup("example.com"), port))
	}
	proxy := func() net.Conn { return w.open(w.proxy.Addr()) }
	proxyRefused := false // the second one is counted, not recorded
	for name, c := range map[string]struct {
		open func() net.Conn
		say  string
		way  string
	}{
		"nothing":       {proxy, "", egress.WayProxy},
		"HTTP":          {proxy, "GET http://example.com/ HTTP/1.1\r\nHost: exam", egress.WayProxy},
		"SOCKS":         {proxy, "\x05\x01\x00\x05\x01\x00\x03\x0bexam", egress.WaySOCKS},
		"TLS in tunnel": {tunnel, "\x16\x03\x01\x00\xff\x01", egress.WayTransparent},
		"HTTP in it":    {tunnel, "GET / HTTP/1.1\r\nHost: exam", egress.WayTransparent},
		"half a word":   {tunnel, "GE", egress.WayTransparent},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := w.exchange(c.open(), c.say); errors.Is(err, os.ErrDeadlineExceeded) {
				t.Error("the connection stands")
			}
			if c.way != egress.WayProxy || !proxyRefused {
				w.refused(c.way, "in time")
			}
			proxyRefused = proxyRefused || c.way == egress.WayProxy
		})
	}
	if _, err := w.exchange(w.open(w.dnsTCP.Addr()), "\x00\x20"); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the connection to DNS stands")
	}
}

// Connections beyond the limit are closed at once. One that ends makes room for another.
func TestFlood(t *testing.T) {
	hang := raw(t, func(c net.Conn) { _, _ = io.Copy(c, c) })
	w := start(t, rules(t, "example.com:9000"), func(c *egress.Config) { c.Limits.Connections = 3 })
	w.leads("example.com", public, 9000, hang)
	a := netip.AddrPortFrom(w.lookup("example.com"), 9000)
	var open []net.Conn
	for range 3 {
		c := w.transparent(a)
		if _, err := io.WriteString(c, "\n\x00"); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(c, make([]byte, 2)); err != nil {
			t.Fatal(err)
		}
		open = append(open, c)
	}
	for range 20 {
		c, err := net.Dial("tcp", w.proxy.Addr().String())
		if err != nil {
			continue // reset before connect has returned
		}
		_ = c.SetDeadline(time.Now().Add(patience))
		if text, err := w.exchange(c, ""); text != "" || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%q, %v", text, err)
		}
	}
	if got := w.refused(egress.WayProxy, "there are 3 connections already"); got.Count != 1 {
		t.Errorf("recorded %+v", got)
	}
	_ = open[0].Close()
	w.recorded(func(c egress.Connection) bool { return c.Way == egress.WayTransparent })
	c := w.transparent(a)
	if _, err := io.WriteString(c, "\n\x00"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, make([]byte, 2)); err != nil {
		t.Error(err)
	}
}

// A tunnel on which nothing arrives is cut.
func TestIdle(t *testing.T) {
	hang := raw(t, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
	w := start(t, rules(t, "example.com:9000"), func(c *egress.Config) { c.Limits.Idle = 30 * time.Millisecond })
	w.leads("example.com", public, 9000, hang)
	c := w.transparent(netip.AddrPortFrom(w.lookup("example.com"), 9000))
	if _, err := w.exchange(c, "line\n"); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the tunnel stands")
	}
	if got := w.refused(egress.WayTransparent, "nothing came from either side for 30ms"); got.Sent != 5 {
		t.Errorf("recorded %+v", got)
	}
}

// A tunnel that is used stays, also if only one side speaks.
func TestNotIdle(t *testing.T) {
	const idle = time.Second
	talk := raw(t, func(c net.Conn) {
		for {
			if _, err := io.WriteString(c, "x"); err != nil {
				return
			}
		}
	})
	w := start(t, rules(t, "example.com:9000"), func(c *egress.Config) { c.Limits.Idle = idle })
	w.leads("example.com", public, 9000, talk)
	c := w.transparent(netip.AddrPortFrom(w.lookup("example.com"), 9000))
	for began, b := time.Now(), make([]byte, 4096); time.Since(began) < 3*idle/2; {
		if _, err := c.Read(b); err != nil {
			t.Fatalf("cut after %s: %v", time.Since(began), err)
		}
	}
	_ = c.Close()
	if got := w.recorded(func(c egress.Connection) bool { return c.Way == egress.WayTransparent }); got.Refused != "" {
		t.Errorf("recorded %+v", got)
	}
}
