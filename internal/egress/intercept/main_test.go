package intercept_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/textproto"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/carrel-dev/carrel/internal/base/redact"
	"github.com/carrel-dev/carrel/internal/egress"
	"github.com/carrel-dev/carrel/internal/egress/ca"
	"github.com/carrel-dev/carrel/internal/egress/intercept"
	"github.com/carrel-dev/carrel/internal/spec/netrule"
	"github.com/carrel-dev/carrel/test/leaks"
)

func TestMain(m *testing.M) {
	leaks.Main(m)
}

const (
	value       = "sk-live-0Secret1Value2That3Nobody4Sees5"
	placeholder = "sk-live-PLACEHOLDERplaceholderPLACEHOLD"
	within      = 20 * time.Second
)

// place is a workspace with its egress, and the hosts around it.
type place struct {
	t           testing.TB
	server      *egress.Server
	proxy, sock net.Addr
	dns         net.Addr
	authority   *ca.CA         // of the workspace
	trust       *x509.CertPool // of a program: the workspace's CA and the public one
	public      *ca.CA
	stop        func()

	mu       sync.Mutex
	leads    map[netip.AddrPort]net.Addr
	names    map[string]netip.Addr
	dialled  []netip.AddrPort
	records  []egress.Connection
	recorded chan struct{}
	settled  chan struct{} // egress.Config.Settled was called
}

// newPlace starts egress with these rules and secrets.
func newPlace(t testing.TB, allowed []string, secrets ...intercept.Secret) *place {
	t.Helper()
	p := &place{
		t: t, leads: map[netip.AddrPort]net.Addr{}, names: map[string]netip.Addr{}, recorded: make(chan struct{}, 1000),
		settled: make(chan struct{}, 1),
	}
	var err error
	if p.authority, err = ca.Make("amber", time.Hour); err != nil {
		t.Fatal(err)
	}
	if p.public, err = ca.Make("public", time.Hour); err != nil {
		t.Fatal(err)
	}
	p.trust = x509.NewCertPool()
	p.trust.AppendCertsFromPEM(p.authority.PEM())
	p.trust.AppendCertsFromPEM(p.public.PEM())
	l, sock := listen(t), listen(t)
	p.proxy, p.sock = l.Addr(), sock.Addr()
	dns, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p.dns = dns.LocalAddr()
	p.server, err = egress.New(egress.Config{
		Rules: rulesOf(t, allowed...), Listeners: egress.Listeners{Proxy: l, Transparent: &transparent{sock, p}, DNS: dns},
		Intercept: p.interceptor(secrets...), Resolve: p.resolve, Dial: p.dial, Record: p.record,
		Limits: egress.Limits{Settle: time.Millisecond},
		Settled: func() {
			select {
			case p.settled <- struct{}{}:
			default:
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- p.server.Serve(ctx) }()
	p.stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-served:
			if err != nil {
				t.Errorf("Serve: %v", err)
			}
		case <-time.After(within):
			t.Errorf("Serve does not end")
		}
	})
	t.Cleanup(p.stop)
	return p
}

// interceptor returns one that checks hosts by the public CA.
func (p *place) interceptor(secrets ...intercept.Secret) *intercept.Interceptor {
	p.t.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(p.public.PEM())
	i, err := intercept.New(intercept.Config{CA: p.authority, Secrets: secrets, Roots: roots})
	if err != nil {
		p.t.Fatal(err)
	}
	return i
}

func secret(t testing.TB, hosts ...string) intercept.Secret {
	t.Helper()
	return intercept.Secret{Name: "key", Placeholder: placeholder, Value: redact.NewValue(value), Hosts: rules(t, hosts...)}
}

func rules(t testing.TB, texts ...string) (all []netrule.Rule) {
	t.Helper()
	for _, s := range texts {
		r, err := netrule.ParseRule(netrule.Allow, s)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, r)
	}
	return all
}

func rulesOf(t testing.TB, texts ...string) *netrule.Rules {
	t.Helper()
	r, err := netrule.New(rules(t, texts...), netrule.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func targetOf(t testing.TB, s string) netrule.Target {
	t.Helper()
	x, err := netrule.ParseTarget(s)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

func listen(t testing.TB) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// transparent gives connections the address that stands for the name api.example.org.
type transparent struct {
	net.Listener
	p *place
}

type transparentConn struct {
	*net.TCPConn
	p *place
}

func (l *transparent) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return transparentConn{c.(*net.TCPConn), l.p}, nil
}

func (c transparentConn) LocalAddr() net.Addr {
	return net.TCPAddrFromAddrPort(netip.AddrPortFrom(c.p.lookup("api.example.org"), 443))
}

// lookup asks egress for the address that stands for a name.
func (p *place) lookup(name string) netip.Addr {
	r := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "udp", p.dns.String())
	}}
	all, err := r.LookupNetIP(context.Background(), "ip4", name+".")
	if err != nil || len(all) != 1 {
		p.t.Errorf("%s is %v, %v", name, all, err)
		return netip.Addr{}
	}
	return all[0]
}

// put places a host at a public address of its own. target is HOST:PORT.
func (p *place) put(target string, real net.Addr) netip.AddrPort {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := targetOf(p.t, target)
	a, literal := t.Host.Addr()
	if !literal {
		if p.names[t.Host.Name()].IsValid() {
			a = p.names[t.Host.Name()]
		} else {
			a = netip.AddrFrom4([4]byte{93, 184, 216, byte(len(p.names) + 1)})
			p.names[t.Host.Name()] = a
		}
	}
	p.leads[netip.AddrPortFrom(a, t.Port)] = real
	return netip.AddrPortFrom(a, t.Port)
}

func (p *place) resolve(_ context.Context, name string) ([]netip.Addr, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if a, ok := p.names[name]; ok {
		return []netip.Addr{a}, nil
	}
	return nil, &net.DNSError{Err: "no such host", Name: name, IsNotFound: true}
}

func (p *place) dial(ctx context.Context, a netip.AddrPort) (net.Conn, error) {
	p.mu.Lock()
	to := p.leads[a]
	p.dialled = append(p.dialled, a)
	p.mu.Unlock()
	if to == nil {
		return nil, errors.New("nothing is there")
	}
	return (&net.Dialer{}).DialContext(ctx, "tcp", to.String())
}

func (p *place) dials() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.dialled)
}

func (p *place) record(c egress.Connection) {
	p.mu.Lock()
	p.records = append(p.records, c)
	p.mu.Unlock()
	p.recorded <- struct{}{}
}

// next returns the next connection that ended.
func (p *place) next() egress.Connection {
	p.t.Helper()
	wait(p.t, p.recorded, "record")
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.records[0]
	p.records = p.records[1:]
	return c
}

func wait[T any](t testing.TB, c <-chan T, what string) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(within):
		t.Fatalf("there is no %s", what)
	}
	return v
}

// host serves a target with a certificate of the public CA.
func (p *place) host(target string, h http.Handler) *httptest.Server {
	p.t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.EnableHTTP2 = true
	s.TLS = &tls.Config{Certificates: []tls.Certificate{p.certificate(p.public, target)}, MinVersion: tls.VersionTLS12}
	s.Config.ErrorLog, s.Config.DisableGeneralOptionsHandler = silent, true
	s.StartTLS()
	p.t.Cleanup(s.Close)
	p.put(target, s.Listener.Addr())
	return s
}

func (p *place) certificate(by *ca.CA, target string) tls.Certificate {
	p.t.Helper()
	leaf, err := by.Leaves(func(netrule.Host) bool { return true }).Leaf(targetOf(p.t, target).Host)
	if err != nil {
		p.t.Fatal(err)
	}
	return *leaf
}

// plainHost serves a target without TLS.
func (p *place) plainHost(target string, h http.Handler) {
	s := httptest.NewServer(h)
	p.t.Cleanup(s.Close)
	p.put(target, s.Listener.Addr())
}

// rawHost serves each connection to a target inside TLS with HTTP/1.1.
func (p *place) rawHost(target string, serve func(c net.Conn)) {
	p.t.Helper()
	l := tls.NewListener(listen(p.t), &tls.Config{
		Certificates: []tls.Certificate{p.certificate(p.public, target)}, NextProtos: []string{"http/1.1"}, MinVersion: tls.VersionTLS12,
	})
	var conns sync.WaitGroup
	conns.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			conns.Go(func() {
				defer c.Close()
				serve(c)
			})
		}
	})
	p.t.Cleanup(func() {
		p.stop()
		l.Close()
		conns.Wait()
	})
	p.put(target, l.Addr())
}

// client returns a program's client, by CONNECT, with this protocol.
func (p *place) client(proto string) *http.Client {
	t := &http.Transport{
		Proxy:              http.ProxyURL(&url.URL{Scheme: "http", Host: p.proxy.String()}),
		TLSClientConfig:    &tls.Config{RootCAs: p.trust, MinVersion: tls.VersionTLS12},
		Protocols:          &http.Protocols{},
		DisableCompression: true,
	}
	t.Protocols.SetHTTP1(proto != "h2")
	t.Protocols.SetHTTP2(proto != "http/1.1")
	p.t.Cleanup(t.CloseIdleConnections)
	return &http.Client{Transport: t}
}

// connect opens a tunnel to a target by CONNECT.
func (p *place) connect(target string) net.Conn {
	p.t.Helper()
	c, err := net.Dial("tcp", p.proxy.String())
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(within))
	fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", target, target)
	const granted = "HTTP/1.1 200 Connection established\r\n\r\n"
	b := make([]byte, len(granted))
	if _, err := io.ReadFull(c, b); err != nil || string(b) != granted {
		p.t.Fatalf("CONNECT: %q, %v", b, err)
	}
	return c
}

// secure opens a tunnel to a target and TLS in it.
func (p *place) secure(target string, protos ...string) *tls.Conn {
	p.t.Helper()
	name := targetOf(p.t, target).Host.String()
	c := tls.Client(p.connect(target), &tls.Config{RootCAs: p.trust, ServerName: name, NextProtos: protos, MinVersion: tls.VersionTLS12})
	if err := c.HandshakeContext(p.t.Context()); err != nil {
		p.t.Fatal(err)
	}
	return c
}

// get does one request and returns status and body.
func get(t testing.TB, c *http.Client, u string, h http.Header) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, u, nil)
	if err != nil {
		t.Fatal(err)
	}
	if h != nil {
		r.Header = h
	}
	status, body, err := do(c, r)
	if err != nil {
		t.Fatal(err)
	}
	return status, body
}

func do(c *http.Client, r *http.Request) (int, string, error) {
	res, err := c.Do(r)
	if err != nil {
		return 0, "", err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return res.StatusCode, string(b), err
}

// seen keeps what a host got, with all bytes.
type seen struct {
	mu   sync.Mutex
	all  []*http.Request
	body []string
}

func (s *seen) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b, _ := io.ReadAll(r.Body)
	s.mu.Lock()
	s.all = append(s.all, r)
	s.body = append(s.body, string(b))
	s.mu.Unlock()
	w.Header().Set("Content-Type", "application/octet-stream")
	fmt.Fprintf(w, "%s %s", r.Proto, strconv.Itoa(len(b)))
}

func (s *seen) only(t testing.TB) (*http.Request, string) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.all) != 1 {
		t.Fatalf("the host got %d requests", len(s.all))
	}
	r, b := s.all[0], s.body[0]
	s.all, s.body = nil, nil
	return r, b
}

// dump is everything that a request is made of.
func dump(r *http.Request, body string) string {
	var b bytes.Buffer
	_ = r.Header.Write(&b)
	_ = r.Trailer.Write(&b)
	return strings.Join([]string{r.Method, r.RequestURI, r.Host, b.String(), body}, "\n")
}

type (
	conn       = net.Conn
	mimeHeader = textproto.MIMEHeader
)

var addrPort = netip.AddrPortFrom

type (
	interceptor = intercept.Interceptor
	secretType  = intercept.Secret
)

var replaced = redact.NewValue("short-value")
