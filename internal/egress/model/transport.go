package model

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/egress/intercept"
	"github.com/carrel-dev/carrel/internal/egress/proxy"
)

const (
	tlsWithin  = 10 * time.Second
	keptWithin = 90 * time.Second
)

// NewTransport returns a Config.Transport for the host of an upstream URL. dial connects to that host and port; its
// errors are of kind permission denied or unavailable, and have a text for people. nil roots are the system's. The
// caller closes idle connections when the transport is no longer used.
func NewTransport(host string, roots *x509.CertPool, dial func(context.Context) (net.Conn, error)) *http.Transport {
	secure := &tls.Config{ServerName: host, RootCAs: roots, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}}
	t := transport()
	t.DialContext = func(context.Context, string, string) (net.Conn, error) {
		return nil, fmt.Errorf("nothing is sent without TLS: %w", errdefs.ErrPermissionDenied)
	}
	t.DialTLSContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
		raw, err := dial(ctx)
		if err != nil {
			return nil, err
		}
		ctx, cancel := context.WithTimeout(ctx, tlsWithin)
		defer cancel()
		c := tls.Client(raw, secure)
		if err := c.HandshakeContext(ctx); err != nil {
			_ = raw.Close()
			return nil, fmt.Errorf("cannot speak TLS with %s: %s: %w", host, intercept.Reason(err), errdefs.ErrUnavailable)
		}
		return c, nil
	}
	return t
}

// NewPlainTransport is NewTransport for an upstream that IsPlain.
func NewPlainTransport(dial func(context.Context) (net.Conn, error)) *http.Transport {
	t := transport()
	t.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) }
	return t
}

func transport() *http.Transport {
	protocols := &http.Protocols{}
	protocols.SetHTTP1(true) // one request a connection: an answer that is not read holds no other up
	return &http.Transport{
		Protocols: protocols, DisableCompression: true, MaxResponseHeaderBytes: 4 * proxy.MaxHead,
		IdleConnTimeout: keptWithin, MaxIdleConnsPerHost: 8,
	}
}
