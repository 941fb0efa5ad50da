package root_test

import (
	"crypto/tls"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/carrel-dev/carrel/internal/egress/ca"
	"github.com/carrel-dev/carrel/internal/spec/netrule"
)

// secureWeb is a server with TLS of a test's own on loopback, of every name.
type secureWeb struct {
	port      string
	authority []byte // PEM, vouches for it
}

func newSecureWeb(t *testing.T, h http.Handler) secureWeb {
	t.Helper()
	authority, err := ca.Make("public", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	leaves := authority.Leaves(func(netrule.Host) bool { return true })
	web := httptest.NewUnstartedServer(h)
	web.TLS = &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: func(h *tls.ClientHelloInfo) (*tls.Certificate, error) {
		name, err := netrule.ParseHost(h.ServerName)
		if err != nil {
			return nil, err
		}
		return leaves.Leaf(name)
	}}
	web.StartTLS()
	t.Cleanup(web.Close)
	_, port, err := net.SplitHostPort(web.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return secureWeb{port, authority.PEM()}
}
