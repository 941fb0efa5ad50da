package ways_test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/carrel-dev/carrel/internal/base/redact"
	"github.com/carrel-dev/carrel/internal/egress/conf"
	"github.com/carrel-dev/carrel/internal/egress/ways"
	"github.com/carrel-dev/carrel/internal/spec/netrule"
	"github.com/carrel-dev/carrel/test/nameserver"
)

// hop is a proxy that joins every connection to one address, whatever it is asked for.
type hop struct {
	to string

	mu    sync.Mutex
	asked []string
	// answer is said instead, if it is set.
	answer string
}

func (h *hop) set(answer string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.answer = answer
}

func (h *hop) got() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := strings.Join(h.asked, ", ")
	h.asked = nil
	return all
}

// serve serves one connection.
func (h *hop) serve(t *testing.T, c net.Conn) {
	defer c.Close()
	in := bufio.NewReader(c)
	r, err := http.ReadRequest(in)
	if err != nil {
		return
	}
	h.mu.Lock()
	h.asked = append(h.asked, r.Method+" "+r.RequestURI+" "+r.Header.Get("Proxy-Authorization"))
	answer := h.answer
	h.mu.Unlock()
	if answer != "" {
		_, _ = io.WriteString(c, answer)
		return
	}
	up, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", h.to)
	if err != nil {
		return
	}
	defer up.Close()
	_, _ = io.WriteString(c, "HTTP/1.1 200 Connected\r\nX: y\r\n\r\n")
	go func() {
		_, _ = io.Copy(up, in)
		_ = up.(*net.TCPConn).CloseWrite()
	}()
	_, _ = io.Copy(c, up)
}

// Behind a proxy, hosts are reached by it, whether this host knows their names or not, but for those that are direct. What
// this host knows of a name is judged all the same.
func TestUpstreamProxy(t *testing.T) {
	names, stop, err := nameserver.Start(t.Context(), nameserver.Zone{"inner.test": "10.1.2.3"})
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	h := &hop{}
	l, f := listen(t)
	f.Close()
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go h.serve(t, c)
		}
	}()
	direct, err := netrule.ParseRule(netrule.Deny, "127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	host := conf.Default()
	host.Resolver, err = netip.ParseAddrPort(names)
	if err != nil {
		t.Fatal(err)
	}
	host.Proxy = &conf.Proxy{Address: l.Addr().String(), Login: redact.NewValue("me:word"), Direct: []netrule.Rule{direct}}
	w := newWorld(t, ways.Config{Conf: host})
	h.to = w.echo
	_, port, err := net.SplitHostPort(w.echo)
	if err != nil {
		t.Fatal(err)
	}
	rules := []string{"outside.test:" + port, "inner.test:" + port, w.echo, "192.0.2.7:80"}
	w.must(w.Open(t.Context(), one, rules, nil))
	c, no := w.connectTo(one, "outside.test:"+port)
	if no != "" {
		t.Fatalf("by the proxy: %s", no)
	}
	if err := echo(c); err != nil {
		t.Error(err)
	}
	if got := h.got(); got != "CONNECT outside.test:"+port+" Basic bWU6d29yZA==" {
		t.Errorf("the proxy was asked for %q", got)
	}
	w.reaches(one)
	if got := h.got(); got != "" {
		t.Errorf("what is direct went to the proxy: %q", got)
	}
	if _, no := w.connectTo(one, "inner.test:"+port); !strings.Contains(no, "private") || h.got() != "" {
		t.Errorf("a name of an inner address: %q", no)
	}
	if _, no := w.connectTo(one, "other.test:"+port); !strings.Contains(no, "no rule names it") || h.got() != "" {
		t.Errorf("a name that no rule allows: %q", no)
	}
	for answer, want := range map[string]string{
		"HTTP/1.1 403 Forbidden\r\n\r\n":                       `refuses it with "403"`,
		"HTTP/1.1 407 Login\r\n\r\n":                           "wants another login",
		"SSH-2.0-x\r\n\r\n":                                    "does not speak HTTP",
		"HTTP/1.1 200 OK\r\n":                                  "does not answer",
		"HTTP/1.1 200 OK\r\nA: " + strings.Repeat("x", 20<<10): "more than",
	} {
		h.set(answer)
		if _, no := w.connectTo(one, "outside.test:"+port); !strings.Contains(no, want) {
			t.Errorf("the proxy says %.30q: %q, not %q", answer, no, want)
		}
	}
	// A change of the rules cuts what goes by the proxy too.
	h.set("")
	if c, no = w.connectTo(one, "outside.test:"+port); no != "" {
		t.Fatal(no)
	}
	w.must(w.Change(t.Context(), one, rules[1:], nil))
	if err := echo(c); err == nil {
		t.Error("a connection that is denied now goes on")
	}
	// Without the proxy the name is nowhere.
	w.must(w.Change(t.Context(), one, rules, nil))
	without := conf.Default()
	without.Resolver = host.Resolver
	w.must(w.Reload(without))
	_ = h.got()
	if _, no := w.connectTo(one, "outside.test:"+port); !strings.Contains(no, "no such host") || h.got() != "" {
		t.Errorf("without the proxy: %q", no)
	}
}
