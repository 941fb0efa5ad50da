package egress_test

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/carrel-dev/carrel/internal/egress"
)

// Plain HTTP is judged by the same rules in every way, and what is refused says what to do.
func TestRequests(t *testing.T) {
	plain := web(t, false)
	w := start(t, rules(t, "GET example.com/v1/*", "!example.com/v1/secret"), nil)
	w.leads("example.com", public, 80, plain.Listener.Addr())
	for _, c := range []struct{ scheme, way string }{
		{"", egress.WayTransparent},
		{"http", egress.WayHTTP},
		{"socks5", egress.WaySOCKS},
	} {
		t.Run(c.way, func(t *testing.T) {
			client := w.client(c.scheme, nil)
			status, body, err := fetch(t, client, "http://example.com/v1/a?b=c;d")
			if err != nil || status != 200 || body != "GET /v1/a?b=c;d for example.com: " {
				t.Errorf("%d %q %v", status, body, err)
			}
			got := w.recorded(func(r egress.Connection) bool { return r.Way == c.way })
			if got.Rule != "GET example.com/v1/*" || got.Refused != "" || got.Sent < 50 || got.Received < 50 ||
				got.Address.String() != public+":80" {
				t.Errorf("recorded %+v", got)
			}
			for path, want := range map[string]string{
				"/v2":        "egress: a GET to example.com:80 is not allowed: no rule allows it\nAsk for 'GET example.com:80/v2'.\n",
				"/v2/it's":   "egress: a GET to example.com:80 is not allowed: no rule allows it\nAsk for 'GET example.com:80'.\n",
				"/v1/Secret": "egress: a GET to example.com:80 is not allowed: the rule example.com/v1/secret denies it\n",
				"/v1//a": "egress: a GET to example.com:80 is not allowed: its path has an empty segment, which servers read in different ways\n" +
					"Ask for example.com:80.\n",
			} {
				if status, body, err := fetch(t, client, "http://example.com"+path); err != nil || status != 403 || body != want {
					t.Errorf("%s: %d %q %v", path, status, body, err)
				}
			}
			if got := w.refused(c.way, "the rule example.com/v1/secret denies it"); got.Rule != "example.com/v1/secret" || got.Count != 1 ||
				strings.Contains(got.Refused, "Secret") {
				t.Errorf("recorded %+v", got)
			}
			if r, err := client.Post("http://example.com/v1/a", "text/plain", strings.NewReader("x")); err != nil || r.StatusCode != 403 {
				t.Errorf("POST: %v", err)
			} else {
				r.Body.Close()
			}
		})
	}
	if c := w.transparent(netip.AddrPortFrom(w.lookup("example.com"), 22)); c != nil {
		if text, err := w.exchange(c, "SSH-2.0-test\r\n"); err == nil || text != "" {
			t.Errorf("another port: %q", text)
		}
	}
}

// A request by the proxy is judged with its destination, and what comes behind its body changes nothing.
func TestRequestsBehind(t *testing.T) {
	got := make(chan string, 4)
	host := raw(t, func(c net.Conn) {
		r, err := http.ReadRequest(bufio.NewReader(c))
		if err != nil {
			return
		}
		_, _ = io.Copy(io.Discard, r.Body)
		got <- fmt.Sprint(r.Header, r.Trailer)
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
	})
	w := start(t, rules(t, "COPY,POST example.com/v1/*"), nil)
	w.leads("example.com", public, 80, host)
	const head, end = " http://example.com/v1/a HTTP/1.1\r\nHost: example.com\r\nConnection: close\r\n", "Content-Length: 0\r\n\r\n"
	const late = "Transfer-Encoding: chunked\r\nTrailer: A\r\n\r\n0\r\nA: b\r\nX-Http-Method: PUT\r\n\r\n"
	for _, c := range []struct{ say, want string }{
		{"COPY" + head + "Destination: http://example.com/v1/b\r\n" + end, "HTTP/1.1 200 "},
		{"COPY" + head + "Destination: http://example.com/v2/b\r\n" + end, "Ask for 'COPY example.com:80/v2/b'."},
		{"POST" + head + late, "HTTP/1.1 200 "},
	} {
		text, err := w.exchange(w.open(w.proxy.Addr()), c.say)
		if err != nil || !strings.Contains(text, c.want) {
			t.Errorf("%q: %q, %v", c.say, text, err)
		}
	}
	for range 2 {
		if all := <-got; strings.Contains(all, "PUT") || !strings.Contains(all, "A:[b]") && !strings.Contains(all, "Destination") {
			t.Errorf("the host got %s", all)
		}
	}
}

// Refused requests of one kind are one record, however many there are, and a connection carries others between them.
func TestRequestsAreCounted(t *testing.T) {
	w := start(t, rules(t, "GET example.com/v1/*"), nil)
	w.leads("example.com", public, 80, web(t, false).Listener.Addr())
	c := w.transparent(netip.AddrPortFrom(w.lookup("example.com"), 80))
	in := bufio.NewReader(c)
	ask := func(path string) int {
		t.Helper()
		fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: example.com\r\n\r\n", path)
		res, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, res.Body)
		res.Body.Close()
		return res.StatusCode
	}
	for n := range 300 {
		if got := ask(fmt.Sprintf("/x/%d", n)); got != 403 {
			t.Fatal(got)
		}
	}
	if got := ask("/v1/x"); got != 200 {
		t.Errorf("after them: %d", got)
	}
	c.Close()
	var all []egress.Connection
	w.recorded(func(r egress.Connection) bool {
		all = append(all, r)
		return r.Received > 0 && r.Requests == 301
	})
	if len(all) != 2 || all[0].Refused == "" || all[0].Count != 1 {
		t.Errorf("recorded %+v", all)
	}
}

// A request that offers HTTP/2 goes on without it, as Java's client sends it, and any other upgrade is refused.
func TestRequestsOfJava(t *testing.T) {
	got := make(chan *http.Request, 10)
	host := raw(t, func(c net.Conn) {
		r, err := http.ReadRequest(bufio.NewReader(c))
		if err != nil {
			return
		}
		got <- r
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
	})
	w := start(t, rules(t, "GET example.com/v1/*"), nil)
	w.leads("example.com", public, 80, host)
	const upgrade = "Host: example.com\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAEAAEAAAAIAAAAB\r\nUpgrade: h2c\r\n\r\n"
	for _, ask := range []func() net.Conn{
		func() net.Conn {
			c := w.transparent(netip.AddrPortFrom(w.lookup("example.com"), 80))
			_, _ = io.WriteString(c, "GET /v1/a HTTP/1.1\r\n"+upgrade)
			return c
		},
		func() net.Conn {
			c := w.open(w.proxy.Addr())
			_, _ = io.WriteString(c, "GET http://example.com/v1/a HTTP/1.1\r\n"+upgrade)
			return c
		},
	} {
		if res, err := http.ReadResponse(bufio.NewReader(ask()), nil); err != nil || res.StatusCode != 200 {
			t.Errorf("%+v, %v", res, err)
			continue
		} else {
			_ = res.Body.Close()
		}
		if h := (<-got).Header; h.Get("Upgrade")+h.Get("Http2-Settings") != "" || strings.Contains(h.Get("Connection"), "pgrade") {
			t.Errorf("the host got %v", h)
		}
	}
	for _, other := range []string{"h2c, websocket", "TLS/1.0", "h2"} {
		c := w.transparent(netip.AddrPortFrom(w.lookup("example.com"), 80))
		_, _ = io.WriteString(c, "GET /v1/a HTTP/1.1\r\n"+strings.Replace(upgrade, "h2c", other, 1))
		if res, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil || res.StatusCode != 403 {
			t.Errorf("%s: %+v, %v", other, res, err)
		} else {
			_ = res.Body.Close()
		}
	}
}

// On a connection that is read, no other host and no other protocol is asked for.
func TestRequestsMisdirected(t *testing.T) {
	w := start(t, rules(t, "GET,POST *.example.com/v1/*"), nil)
	var mu sync.Mutex
	var got strings.Builder
	host := raw(t, func(c net.Conn) {
		for in := bufio.NewReader(io.TeeReader(c, locked{&mu, &got})); ; {
			r, err := http.ReadRequest(in)
			if err != nil {
				return
			}
			_, _ = io.Copy(io.Discard, r.Body)
			fmt.Fprint(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
		}
	})
	w.leads("a.example.com", public, 80, host)
	const first = "GET /v1/a HTTP/1.1\r\nHost: a.example.com\r\n\r\n"
	const hidden = "GET /hidden HTTP/1.1\r\nHost: a.example.com\r\n\r\n"
	for _, second := range []string{
		"GET /v1/a HTTP/1.1\r\nHost: b.example.com\r\n\r\n",
		"GET http://b.example.com/v1/a HTTP/1.1\r\nHost: a.example.com\r\n\r\n",
		"GET https://a.example.com/v1/a HTTP/1.1\r\nHost: a.example.com\r\n\r\n",
		"CONNECT a.example.com:80 HTTP/1.1\r\nHost: a.example.com:80\r\n\r\n" + hidden,
		"GET /v1/../hidden HTTP/1.1\r\nHost: a.example.com\r\n\r\n",
		"POST /v1/a HTTP/1.1\r\nHost: a.example.com\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + hidden,
		"POST /v1/a HTTP/1.1\r\nHost: a.example.com\r\nContent-Length: 0\r\nX: y\r\n z\r\n\r\n" + hidden,
		"GET /v1/a HTTP/1.1\r\nHost: a.example.com\r\nUpgrade: h2c, x\r\nConnection: Upgrade\r\n\r\nPRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
		"SSH-2.0-x\r\n",
		hidden,
	} {
		mu.Lock()
		got.Reset()
		mu.Unlock()
		c := w.transparent(netip.AddrPortFrom(w.lookup("a.example.com"), 80))
		go func() { _, _ = io.WriteString(c, first+second+"\r\n\r\n") }()
		in := bufio.NewReader(c)
		for n := 0; ; n++ {
			res, err := http.ReadResponse(in, nil)
			if err != nil {
				break
			}
			_, _ = io.Copy(io.Discard, res.Body)
			res.Body.Close()
			if n > 0 && res.StatusCode == 200 && !strings.HasPrefix(second, "POST") {
				t.Errorf("%q: status %d", second, res.StatusCode)
			}
			if n > 0 && res.StatusCode >= 400 {
				break
			}
		}
		c.Close()
		mu.Lock()
		if s := got.String(); strings.Count(s, first[:9]) != 1 || strings.Contains(s, "hidden") || strings.Contains(s, "b.example.com") ||
			strings.Contains(s, "PRI") || strings.Contains(s, "SSH") {
			t.Errorf("%q: the host got %q", second, s)
		}
		mu.Unlock()
	}
	w.refused(egress.WayTransparent, "a GET to a.example.com:80 is not allowed")
}

type locked struct {
	mu *sync.Mutex
	w  io.Writer
}

func (l locked) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(b)
}

// Nothing that the host says passes before it is known what is spoken, and a port scan is no refusal.
func TestHeld(t *testing.T) {
	w := start(t, rules(t, "example.com:*", "!DELETE example.com"), nil)
	said := make(chan struct{}, 2)
	w.leads("example.com", public, 22, raw(t, func(c net.Conn) {
		_, _ = io.WriteString(c, "SSH-2.0-server\r\n")
		said <- struct{}{}
		_, _ = io.Copy(io.Discard, c)
	}))
	at := netip.AddrPortFrom(w.lookup("example.com"), 22)
	c := w.transparent(at)
	<-said
	if text, err := w.exchange(c, "SSH-2.0-client\r\n"); text != "" {
		t.Errorf("%q, %v", text, err)
	}
	w.refused(egress.WayTransparent, "the rule DELETE example.com is about requests or a protocol, and what was sent is neither HTTP nor TLS")
	c = w.transparent(at)
	_ = c.(*net.TCPConn).CloseWrite()
	if text, err := io.ReadAll(c); len(text) > 0 {
		t.Errorf("%q, %v", text, err)
	}
	if got := w.recorded(func(r egress.Connection) bool { return r.Way == egress.WayTransparent }); got.Refused != "" {
		t.Errorf("recorded %+v", got)
	}
}

// What rules say of a name is not got around by its address.
func TestByAddress(t *testing.T) {
	w := start(t, rules(t, "*", "!DELETE a.example.com", "!b.example.com", "GET c.example.com/v1/*"), nil)
	w.leads("unused.example.com", public, 80, web(t, false).Listener.Addr())
	w.leads("unused.example.com", public, 443, web(t, true).Listener.Addr())
	ask := func(first string, port int) string {
		t.Helper()
		c := w.open(w.proxy.Addr())
		fmt.Fprintf(c, "CONNECT %s:%d HTTP/1.1\r\nHost: %s:%d\r\n\r\n", public, port, public, port)
		if _, err := io.ReadFull(c, make([]byte, len("HTTP/1.1 200 Connection established\r\n\r\n"))); err != nil {
			t.Fatal(err)
		}
		if port == 443 {
			s := tls.Client(c, &tls.Config{ServerName: first, InsecureSkipVerify: true})
			if err := s.HandshakeContext(t.Context()); err != nil {
				return "refused"
			}
			return "through"
		}
		text, _ := w.exchange(c, "DELETE /v1/x HTTP/1.1\r\nHost: "+first+"\r\nConnection: close\r\n\r\n")
		if strings.HasPrefix(text, "HTTP/1.1 403") && strings.Contains(text, "connect to it by its name") {
			return "refused"
		}
		return "through"
	}
	for name, want := range map[string]string{
		"a.example.com": "refused", "b.example.com": "refused", "c.example.com": "refused", "d.example.com": "through", public: "through",
	} {
		if got := ask(name, 80); got != want {
			t.Errorf("%s is %s", name, got)
		}
		if got := ask(name, 443); got != want {
			t.Errorf("%s is %s by TLS", name, got)
		}
	}
}
