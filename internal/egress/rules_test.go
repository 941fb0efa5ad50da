package egress_test

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/internal/egress"
)

// When SetRules has returned, no byte of a connection that is not allowed any more arrives, in either direction,
// and one that is still allowed goes on.
func TestSetRules(t *testing.T) {
	hosts := make(chan net.Conn)
	host := raw(t, func(c net.Conn) {
		hosts <- c
		<-t.Context().Done() // the test closes it
	})
	closed := make(chan netip.AddrPort, 10)
	w := start(t, rules(t, "example.com:9000", "kept.example.com:9000"), func(c *egress.Config) {
		inner := c.Dial
		c.Dial = func(ctx context.Context, a netip.AddrPort) (net.Conn, error) {
			conn, err := inner(ctx, a)
			if err != nil {
				return nil, err
			}
			return &closing{conn.(*net.TCPConn), func() { closed <- a }}, nil
		}
	})
	w.leads("example.com", public, 9000, host)
	w.leads("kept.example.com", publicToo, 9000, host)
	open := func(name string) (near, far net.Conn) {
		near = w.transparent(netip.AddrPortFrom(w.lookup(name), 9000))
		far = <-hosts
		t.Cleanup(func() { _ = far.Close() })
		if _, err := io.WriteString(near, "hello\n"); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(far, make([]byte, 6)); err != nil {
			t.Fatal(err)
		}
		return near, far
	}
	near, far := open("example.com")
	keptNear, keptFar := open("kept.example.com")
	// Both sides send as fast as they can until they are told to stop.
	stop := make(chan struct{})
	pumped := make(chan struct{}, 2)
	for _, c := range []net.Conn{near, far} {
		go func() {
			defer func() { pumped <- struct{}{} }()
			block := []byte(strings.Repeat("x", 4096))
			for {
				select {
				case <-stop:
					return
				default:
				}
				if _, err := c.Write(block); err != nil {
					return
				}
			}
		}()
	}
	for _, c := range []net.Conn{near, far} {
		if _, err := io.ReadFull(c, make([]byte, 1<<20)); err != nil {
			t.Fatal(err)
		}
	}
	w.server.SetRules(rules(t, "kept.example.com:9000"))
	select {
	case a := <-closed:
		if a.Addr().String() != public {
			t.Errorf("%s is closed", a)
		}
	default:
		t.Error("the connection to the host is still open when SetRules returns")
	}
	close(stop)
	<-pumped
	<-pumped
	for _, c := range []net.Conn{near, far} {
		_, _ = io.WriteString(c, "AFTER")
	}
	for name, c := range map[string]net.Conn{"the program": near, "the host": far} {
		rest, err := io.ReadAll(c)
		if strings.Contains(string(rest), "AFTER") {
			t.Errorf("%s reads %d bytes more, %v", name, len(rest), err)
		}
	}
	got := w.refused(egress.WayTransparent, "the rules have changed: example.com:9000 is not allowed: no rule names it")
	if got.Address.String() != public+":9000" {
		t.Errorf("recorded %+v", got)
	}
	_, _ = io.WriteString(keptNear, "still\n")
	if line, err := bufio.NewReader(keptFar).ReadString('\n'); err != nil || line != "still\n" {
		t.Errorf("%q, %v", line, err)
	}
	// A rule for the address alone cuts too.
	w.server.SetRules(rules(t, "kept.example.com:9000", "!"+publicToo))
	if rest, err := io.ReadAll(keptNear); err == nil {
		t.Errorf("%q arrives after the address is denied", rest)
	}
	w.refused(egress.WayTransparent, "the rule "+publicToo+" denies it")
}

// closing is a connection that tells when it has been closed.
type closing struct {
	*net.TCPConn
	closed func()
}

func (c *closing) Close() error {
	defer c.closed()
	return c.TCPConn.Close()
}

// A connection that was judged by the old rules and is dialled when they change is judged again.
func TestSetRulesWhileDialling(t *testing.T) {
	dialling, dialled := make(chan struct{}), make(chan struct{})
	plain := web(t, false)
	w := start(t, rules(t, "example.com"), func(c *egress.Config) {
		inner := c.Dial
		c.Dial = func(ctx context.Context, a netip.AddrPort) (net.Conn, error) {
			conn, err := inner(ctx, a)
			close(dialling)
			<-dialled
			return conn, err
		}
	})
	w.leads("example.com", public, 80, plain.Listener.Addr())
	c := w.open(w.proxy.Addr())
	go func() {
		<-dialling
		w.server.SetRules(rules(t))
		close(dialled)
	}()
	text, err := w.exchange(c, "GET http://example.com/ HTTP/1.1\r\nHost: example.com\r\n\r\n")
	if err != nil || !strings.HasPrefix(text, "HTTP/1.1 403 ") {
		t.Errorf("%q, %v", text, err)
	}
	if got := w.refused(egress.WayHTTP, "no rule names it"); got.Address.IsValid() {
		t.Errorf("recorded %+v", got)
	}
}

// A response that is being received is cut, and so is an upgraded connection.
func TestSetRulesWeb(t *testing.T) {
	for _, upgrade := range []string{"", "Connection: Upgrade\r\nUpgrade: echo\r\n"} {
		host := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Upgrade") == "" {
				_, _ = io.WriteString(w, "begun\n")
				_ = http.NewResponseController(w).Flush()
				<-r.Context().Done()
				return
			}
			c, buf, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\nbegun\n")
			_, _ = io.Copy(c, buf)
		}))
		w := start(t, rules(t, "example.com"), nil)
		w.leads("example.com", public, 80, host.Listener.Addr())
		c := w.open(w.proxy.Addr())
		_, _ = io.WriteString(c, "GET http://example.com/ HTTP/1.1\r\nHost: example.com\r\n"+upgrade+"\r\n")
		r := bufio.NewReader(c)
		for line := ""; line != "begun\n"; {
			var err error
			if line, err = r.ReadString('\n'); err != nil {
				t.Fatal(err)
			}
		}
		if upgrade != "" {
			_, _ = io.WriteString(c, "ping\n")
			if line, err := r.ReadString('\n'); err != nil || line != "ping\n" {
				t.Errorf("%q, %v", line, err)
			}
		}
		w.server.SetRules(rules(t, "example.com:443"))
		if rest, err := io.ReadAll(r); err == nil {
			t.Errorf("the connection ends as if it were complete: %q", rest)
		}
		w.refused(egress.WayHTTP, "the rules have changed")
		host.Close()
	}
}

// New rules are for names too, and names keep their addresses.
func TestSetRulesNames(t *testing.T) {
	w := start(t, rules(t, "example.com"), nil)
	before := w.lookup("example.com")
	ask := func(name string) error {
		_, err := w.resolver("udp").LookupNetIP(t.Context(), "ip4", name+".")
		return err
	}
	if ask("example.net") == nil {
		t.Error("example.net has an address")
	}
	w.server.SetRules(rules(t, "example.net:22"))
	if ask("example.com") == nil {
		t.Error("example.com still has an address")
	}
	_ = w.lookup("example.net")
	w.server.SetRules(rules(t, "example.com", "example.net"))
	if after := w.lookup("example.com"); after != before {
		t.Errorf("%s became %s", before, after)
	}
}
