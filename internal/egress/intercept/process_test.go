package intercept_test

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/boundary/sandbox/netns"
	"github.com/carrel-dev/carrel/internal/egress/ca"
	"github.com/carrel-dev/carrel/internal/egress/keeper"
	"github.com/carrel-dev/carrel/internal/spec/netrule"
	"github.com/carrel-dev/carrel/internal/wire/egressapi"
	"github.com/carrel-dev/carrel/test/built"
)

// The process itself, confined: it takes the CA and the secrets from the keeper, and its successor has the same.
func TestProcess(t *testing.T) {
	// The program as it is shipped: libc, which the race detector brings in, makes calls that are not allowed there.
	dir := t.TempDir()
	if err := built.Programs(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	authority, err := ca.Make("amber", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	key, err := authority.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	// The host is this machine, at an address that a rule names. No authority of the system vouches for it.
	public, _ := ca.Make("public", time.Hour)
	leaf, err := public.Leaves(func(netrule.Host) bool { return true }).Leaf(targetOf(t, "127.0.0.1:1").Host)
	if err != nil {
		t.Fatal(err)
	}
	host := tls.NewListener(listen(t), &tls.Config{Certificates: []tls.Certificate{*leaf}, MinVersion: tls.VersionTLS12})
	var hosting sync.WaitGroup
	hosting.Go(func() {
		for {
			c, err := host.Accept()
			if err != nil {
				return
			}
			_ = c.(*tls.Conn).HandshakeContext(t.Context())
			c.Close()
		}
	})
	defer hosting.Wait()
	defer host.Close()
	target := host.Addr().String()

	var sockets [4]*os.File
	proxy := listen(t)
	for s, open := range map[netns.Socket]interface{ File() (*os.File, error) }{
		netns.Transparent: listen(t).(*net.TCPListener), netns.HTTPAndSOCKS: proxy.(*net.TCPListener),
		netns.DNSOverTCP: listen(t).(*net.TCPListener), netns.DNSOverUDP: packets(t),
	} {
		f, err := open.File()
		if err != nil {
			t.Fatal(err)
		}
		sockets[s] = f
	}
	reports, troubles := make(chan egressapi.Connection, 10), make(chan error, 10)
	s := egressapi.Secret{Name: "key", Placeholder: placeholder, Value: egressapi.NewPrivate(value), Hosts: rules(t, target)}
	k, err := keeper.Start(t.Context(), keeper.Config{
		Starter:    &keeper.Child{Binary: filepath.Join(dir, "carrel-egress"), Sockets: sockets[:]},
		Connection: func(c egressapi.Connection) { reports <- c }, Trouble: func(err error) { troubles <- err },
		Setup: egressapi.Setup{Rules: rules(t, target), CA: egressapi.NewPrivate(string(key)), Secrets: []egressapi.Secret{s}},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()

	trust := x509.NewCertPool()
	trust.AppendCertsFromPEM(authority.PEM())
	issuer := func() string {
		t.Helper()
		c, err := net.Dial("tcp", proxy.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", target, target)
		const granted = "HTTP/1.1 200 Connection established\r\n\r\n"
		b := make([]byte, len(granted))
		if _, err := io.ReadFull(c, b); err != nil || string(b) != granted {
			t.Fatalf("CONNECT: %q, %v", b, err)
		}
		tc := tls.Client(c, &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12})
		if err := tc.HandshakeContext(t.Context()); err != nil {
			return err.Error()
		}
		got := tc.ConnectionState().PeerCertificates[0]
		if _, err := got.Verify(x509.VerifyOptions{Roots: trust, DNSName: "127.0.0.1"}); err != nil {
			return got.Issuer.CommonName
		}
		fmt.Fprintf(tc, "GET / HTTP/1.1\r\nHost: %s\r\nX-Key: %s\r\n\r\n", target, placeholder)
		res, err := http.ReadResponse(bufio.NewReader(tc), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		var body bytes.Buffer
		_, _ = body.ReadFrom(res.Body)
		return got.Issuer.CommonName + ": " + body.String()
	}
	untrusted := "carrel egress of amber: egress: cannot speak TLS with " + target +
		": its certificate is from no authority that this host trusts\n"
	check := func(when, want string) {
		t.Helper()
		if got := issuer(); got != want {
			t.Errorf("%s: %q", when, got)
		}
		r := wait(t, reports, "report")
		if r.Way == keeper.WayEnd {
			r = wait(t, reports, "report")
		}
		j, err := json.Marshal(r)
		if err != nil || strings.Contains(string(j), value) || r.Requests > 0 != (want == untrusted) {
			t.Errorf("%s: the report is %s", when, j)
		}
	}
	check("at first", untrusted)
	if err := k.SetRules(t.Context(), rules(t, target, "example.org")); err != nil {
		t.Fatal(err)
	}
	check("with other rules", untrusted)
	if err := unix.Kill(k.PID(), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	wait(t, troubles, "trouble")
	check("after a restart", untrusted)
	if err := k.SetSecrets(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	check("without secrets", "carrel egress of public")
	if err := k.SetSecrets(t.Context(), []egressapi.Secret{s}); err != nil {
		t.Fatal(err)
	}
	check("with secrets again", untrusted)
	if shown := fmt.Sprintf("%+v %#v %v", s, s, k); strings.Contains(shown, value) {
		t.Errorf("it prints %s", shown)
	}
	s.Value = egressapi.NewPrivate("line\nend-" + value)
	if err := k.SetSecrets(t.Context(), []egressapi.Secret{s}); err == nil || strings.Contains(err.Error(), value) {
		t.Errorf("a value with a line end: %v", err)
	}
	for range 2 { // of the process that ended, and of its successor
		if err := wait(t, troubles, "trouble"); strings.Contains(err.Error(), value) || !strings.Contains(err.Error(), "control character") {
			t.Errorf("a value with a line end: %v", err)
		}
	}
}

func packets(t *testing.T) *net.UDPConn {
	t.Helper()
	c, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}
