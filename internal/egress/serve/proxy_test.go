package serve_test

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/carrel-dev/carrel/internal/egress/serve"
	"github.com/carrel-dev/carrel/internal/egressapi"
	"github.com/carrel-dev/carrel/internal/netrule"
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
		up, err := serve.UpstreamOf(t, &egressapi.Setup{Proxy: &egressapi.Proxy{Address: l.Addr().String()}})
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
