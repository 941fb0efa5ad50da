package egress_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/carrel-dev/carrel/internal/egress"
	"github.com/carrel-dev/carrel/internal/spec/netrule"
	"github.com/carrel-dev/carrel/test/leaks"
)

func TestMain(m *testing.M) { leaks.Main(m) }

// patience is how long a test waits for what must come.
const patience = 10 * time.Second

// workspace is a server with its sockets, and the world it sees: names have the addresses that it says, and
// addresses lead to sockets on loopback.
type workspace struct {
	t       testing.TB
	server  *egress.Server
	trans   *standIn
	proxy   net.Listener
	dns     net.PacketConn
	dnsTCP  net.Listener
	records chan egress.Connection

	mu       sync.Mutex
	names    map[string][][]netip.Addr // what each query returns, the last again and again
	hosts    map[netip.AddrPort]string
	resolved []string
	dialled  []netip.AddrPort
}

// rules reads rules; those that begin with ! deny, those with ? ask, and those with + are answers to that.
func rules(t testing.TB, texts ...string) *netrule.Rules {
	t.Helper()
	var all []netrule.Rule
	for _, text := range texts {
		action := netrule.Allow
		if other := map[byte]netrule.Action{'!': netrule.Deny, '?': netrule.Ask, '+': netrule.Approved}[text[0]]; other != "" {
			action, text = other, text[1:]
		}
		r, err := netrule.ParseRule(action, text)
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

func target(t testing.TB, s string) netrule.Target {
	t.Helper()
	got, err := netrule.ParseTarget(s)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// start serves a workspace until the test ends. change may be nil.
func start(t testing.TB, r *netrule.Rules, change func(*egress.Config)) *workspace {
	t.Helper()
	w := &workspace{
		t: t, records: make(chan egress.Connection, 10_000),
		names: map[string][][]netip.Addr{}, hosts: map[netip.AddrPort]string{},
	}
	listen := func() net.Listener {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	w.trans, w.proxy, w.dnsTCP = &standIn{Listener: listen(), to: make(chan netip.AddrPort, 100)}, listen(), listen()
	var err error
	if w.dns, err = net.ListenPacket("udp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	c := egress.Config{
		Rules:     r,
		Listeners: egress.Listeners{Transparent: w.trans, Proxy: w.proxy, DNS: w.dns, DNSTCP: w.dnsTCP},
		Resolve:   w.resolve, Dial: w.dial,
		Record: func(c egress.Connection) { w.records <- c },
		Remedy: func(what string) string { return "Ask for " + what + "." },
	}
	if change != nil {
		change(&c)
	}
	if w.server, err = egress.New(c); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.server.Serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("Serve: %v", err)
			}
		case <-time.After(patience):
			t.Error("Serve does not end")
		}
	})
	return w
}

// leads makes a name have an address, at which a port leads to a socket.
func (w *workspace) leads(name, address string, port uint16, to net.Addr) {
	w.mu.Lock()
	defer w.mu.Unlock()
	a := netip.MustParseAddr(address)
	w.names[name] = [][]netip.Addr{{a}}
	w.hosts[netip.AddrPortFrom(a, port)] = to.String()
}

func (w *workspace) resolve(_ context.Context, name string) ([]netip.Addr, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.resolved = append(w.resolved, name)
	all := w.names[name]
	if len(all) == 0 {
		return nil, &net.DNSError{Err: "no such host", Name: name, IsNotFound: true}
	}
	if len(all) > 1 {
		w.names[name] = all[1:]
	}
	return all[0], nil
}

func (w *workspace) dial(ctx context.Context, a netip.AddrPort) (net.Conn, error) {
	w.mu.Lock()
	w.dialled = append(w.dialled, a)
	to := w.hosts[a]
	w.mu.Unlock()
	if to == "" {
		<-ctx.Done() // nobody answers
		return nil, ctx.Err()
	}
	return new(net.Dialer).DialContext(ctx, "tcp", to)
}

// seen returns how many names were resolved, and the addresses that were dialled.
func (w *workspace) seen() (resolved int, dialled []netip.AddrPort) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.resolved), slices.Clone(w.dialled)
}

// untouched fails if anything was dialled.
func (w *workspace) untouched() {
	w.t.Helper()
	if _, dialled := w.seen(); len(dialled) > 0 {
		w.t.Errorf("dialled %v", dialled)
	}
}

// recorded waits for a record.
func (w *workspace) recorded(is func(egress.Connection) bool) egress.Connection {
	w.t.Helper()
	deadline := time.After(patience)
	var others []egress.Connection
	for {
		select {
		case c := <-w.records:
			if is(c) {
				return c
			}
			others = append(others, c)
		case <-deadline:
			w.t.Fatalf("not recorded; there are %+v", others)
		}
	}
}

// refused waits for the record of a refusal whose reason has a text.
func (w *workspace) refused(way, text string) egress.Connection {
	w.t.Helper()
	return w.recorded(func(c egress.Connection) bool {
		return c.Way == way && c.Refused != "" && strings.Contains(c.Refused, text)
	})
}

// standIn is a listener whose connections have the local address that the client dialled, as with IP_TRANSPARENT.
type standIn struct {
	net.Listener
	to chan netip.AddrPort
}

type standInConn struct {
	*net.TCPConn
	local net.Addr
}

func (c *standInConn) LocalAddr() net.Addr { return c.local }

func (l *standIn) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	tc, _ := c.(*net.TCPConn)
	return &standInConn{tc, net.TCPAddrFromAddrPort(<-l.to)}, nil
}

// transparent dials an address as a program does that knows no proxy.
func (w *workspace) transparent(to netip.AddrPort) net.Conn {
	w.t.Helper()
	w.trans.to <- to
	return w.open(w.trans.Addr())
}

// open dials a socket, and closes the connection with the test.
func (w *workspace) open(a net.Addr) net.Conn {
	w.t.Helper()
	c, err := net.Dial("tcp", a.String())
	if err != nil {
		w.t.Fatal(err)
	}
	_ = c.SetDeadline(time.Now().Add(patience))
	w.t.Cleanup(func() { _ = c.Close() })
	return c
}

// resolver asks the server's DNS over "udp" or "tcp".
func (w *workspace) resolver(network string) *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		to := w.dns.LocalAddr()
		if network == "tcp" {
			to = w.dnsTCP.Addr()
		}
		return new(net.Dialer).DialContext(ctx, network, to.String())
	}}
}

// lookup returns the address that stands for a name.
func (w *workspace) lookup(name string) netip.Addr {
	w.t.Helper()
	all, err := w.resolver("udp").LookupNetIP(w.t.Context(), "ip4", name+".")
	if err != nil || len(all) != 1 {
		w.t.Fatalf("%s: %v, %v", name, all, err)
	}
	return all[0].Unmap()
}

// client is a client of HTTP that uses a proxy of a scheme, or none for "". It trusts a server of httptest.
func (w *workspace) client(scheme string, trust *httptest.Server) *http.Client {
	tr := &http.Transport{DisableKeepAlives: true}
	if scheme != "" {
		tr.Proxy = http.ProxyURL(&url.URL{Scheme: scheme, Host: w.proxy.Addr().String()})
	} else {
		tr.DialContext = func(ctx context.Context, _, address string) (net.Conn, error) {
			host, port, err := net.SplitHostPort(address)
			if err != nil {
				return nil, err
			}
			all, err := w.resolver("udp").LookupNetIP(ctx, "ip4", host+".")
			if err != nil {
				return nil, err
			}
			w.trans.to <- netip.MustParseAddrPort(all[0].Unmap().String() + ":" + port)
			return new(net.Dialer).DialContext(ctx, "tcp", w.trans.Addr().String())
		}
	}
	if trust != nil && trust.TLS != nil {
		tr.TLSClientConfig = &tls.Config{RootCAs: trust.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs}
	}
	return &http.Client{Transport: tr, Timeout: patience}
}

// fetch gets a URL, and returns status and body.
func fetch(t testing.TB, c *http.Client, url string) (int, string, error) {
	t.Helper()
	r, err := c.Get(url)
	if err != nil {
		return 0, "", err
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	return r.StatusCode, string(body), err
}

// exchange writes bytes to a socket, returns everything that comes back and why no more does, and closes it.
func (w *workspace) exchange(c net.Conn, say string) (string, error) {
	w.t.Helper()
	if _, err := io.WriteString(c, say); err != nil {
		return "", err
	}
	defer c.Close()
	b, err := io.ReadAll(c)
	return string(b), err
}

// web is a server that says which host it was asked for.
func web(t testing.TB, secure bool) *httptest.Server {
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "%s %s for %s: %s", r.Method, r.URL, r.Host, body)
	})
	s := httptest.NewUnstartedServer(h)
	if secure {
		s.StartTLS()
	} else {
		s.Start()
	}
	t.Cleanup(s.Close)
	return s
}

// raw is a server that runs a function for each connection.
func raw(t testing.TB, serve func(net.Conn)) net.Addr {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer c.Close()
				_ = c.SetDeadline(time.Now().Add(patience))
				serve(c)
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		all.Wait()
	})
	return l.Addr()
}
