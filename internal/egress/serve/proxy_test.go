package serve_test

import (
	"bufio"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/carrel-dev/carrel/internal/egress/serve"
	"github.com/carrel-dev/carrel/internal/spec/netrule"
	"github.com/carrel-dev/carrel/internal/wire/egressapi"
)

// A proxy that says nothing, or little by little, is given up when the time is over. What it says behind its head belongs
// to the host.
func TestUpstreamIsPatientForSoLong(t *testing.T) {
	host, err := netrule.ParseHost("a.example")
	if err != nil {
		t.Fatal(err)
	}
	to := netrule.Target{Host: host, Port: 22}
	connect := func(within time.Duration, proxy func(net.Conn)) (net.Conn, error) {
		l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		go func() {
			if c, err := l.Accept(); err == nil {
				if _, err := http.ReadRequest(bufio.NewReader(c)); err != nil { // all of it, or closing resets
					return
				}
				proxy(c)
				c.Close()
			}
		}()
		ctx, cancel := context.WithTimeout(t.Context(), within)
		defer cancel()
		up, err := serve.UpstreamOf(t, &egressapi.Setup{Proxy: &egressapi.Proxy{Address: l.Addr().String()}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if !up.Serves(to) {
			t.Error("the proxy is not for the target")
		}
		return up.Connect(ctx, to)
	}
	for what, proxy := range map[string]func(net.Conn){
		"silent": func(c net.Conn) { _, _ = io.Copy(io.Discard, c) },
		"slow": func(c net.Conn) {
			for _, err := io.WriteString(c, "HTTP/1.1 200 OK\r\n"); err == nil; _, err = io.WriteString(c, "A: b\r\n") {
				<-time.After(10 * time.Millisecond)
			}
		},
	} {
		if c, err := connect(200*time.Millisecond, proxy); err == nil || !strings.Contains(err.Error(), "does not answer") {
			t.Errorf("%s: %v, %v", what, c, err)
		}
	}
	for _, code := range []string{"401", "407"} {
		_, err := connect(10*time.Second, func(c net.Conn) { _, _ = io.WriteString(c, "HTTP/1.0 "+code+" Unauthorized\r\n\r\n") })
		if err == nil || !strings.Contains(err.Error(), "wants another login ("+code+"); set it in upstream_proxy") {
			t.Errorf("%s: %v", code, err)
		}
	}
	c, err := connect(10*time.Second, func(c net.Conn) {
		_, _ = io.WriteString(c, "HTTP/1.0 200 OK\r\n\r\nSSH-2.0-host\r\n")
	})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if b, err := io.ReadAll(c); err != nil || string(b) != "SSH-2.0-host\r\n" {
		t.Errorf("the host says %q, %v", b, err)
	}
}

// A proxy inside TLS gets the login once its certificate is checked, and nothing before. What the host sends, also after a
// wait, and a cut go through.
func TestUpstreamInsideTLS(t *testing.T) {
	asked := make(chan string, 4)
	at := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- r.Method + " " + r.Host + " " + r.Header.Get("Proxy-Authorization")
		c, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\nhello ")
		_, err = io.Copy(c, c) // until the other side has ended
		asked <- fmt.Sprint("ended: ", err)
	}))
	at.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	at.StartTLS()
	t.Cleanup(at.Close)
	trusted := x509.NewCertPool()
	trusted.AddCert(at.Certificate())
	host, err := netrule.ParseHost("a.example")
	if err != nil {
		t.Fatal(err)
	}
	connect := func(address string, roots *x509.CertPool) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		up, err := serve.UpstreamOf(t, &egressapi.Setup{
			Proxy: &egressapi.Proxy{Address: address, TLS: true, Login: egressapi.NewPrivate("me:hidden")},
		}, roots)
		if err != nil {
			t.Fatal(err)
		}
		return up.Connect(ctx, netrule.Target{Host: host, Port: 22})
	}
	address := at.Listener.Addr().String()
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	for at, why := range map[string]string{address: "from no authority", "localhost:" + port: "for other names"} {
		roots := trusted
		if at == address {
			roots = x509.NewCertPool()
		}
		if c, err := connect(at, roots); err == nil || !strings.Contains(err.Error(), why) || strings.Contains(err.Error(), "hidden") {
			t.Errorf("%s: %v, %v", at, c, err)
		}
	}
	if len(asked) > 0 {
		t.Errorf("a proxy that is not trusted was asked: %s", <-asked)
	}
	for _, cut := range []bool{false, true} {
		c, err := connect(address, trusted)
		if err != nil {
			t.Fatal(err)
		}
		if got := <-asked; got != "CONNECT a.example:22 Basic bWU6aGlkZGVu" {
			t.Errorf("the proxy is asked %q", got)
		}
		b := make([]byte, 6)
		if _, err := io.ReadFull(c, b); err != nil || string(b) != "hello " {
			t.Errorf("%q, %v", b, err)
		}
		// A reader is taken away and comes back, as when a connection begins to be intercepted.
		_ = c.SetReadDeadline(time.Unix(1, 0))
		if _, err := c.Read(b); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%v", err)
		}
		_ = c.SetReadDeadline(time.Time{})
		if _, err := io.WriteString(c, "again!"); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(c, b); err != nil || string(b) != "again!" {
			t.Errorf("%q, %v", b, err)
		}
		if _, ok := c.(syscall.Conn); !ok {
			t.Error("the kernel cannot be asked when bytes came last")
		}
		if cut {
			if err := c.(interface{ SetLinger(int) error }).SetLinger(0); err != nil {
				t.Fatal(err)
			}
		}
		_ = c.Close()
		if got := <-asked; strings.Contains(got, "reset") != cut {
			t.Errorf("cut %t: %s", cut, got)
		}
	}
}
