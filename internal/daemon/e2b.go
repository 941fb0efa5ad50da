package daemon

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"net"
	"net/http"
	"net/netip"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/linux/cert"
	"github.com/carrel-dev/carrel/internal/state/config"
	"github.com/carrel-dev/carrel/internal/surface/api"
	"github.com/carrel-dev/carrel/internal/surface/e2b"
)

// e2bListener is where workspaces are served to programs of E2B.
type e2bListener struct {
	net.Listener
	keys *cert.Keeper // nil without TLS
	host string
}

// listenE2B opens the configured listener, or returns nil if there is none. Without TLS it is on a loopback address.
func listenE2B(ctx context.Context, cfg *config.Config, far *remote) (*e2bListener, error) {
	if cfg.E2BListen == "" {
		return nil, nil
	}
	host, _, err := net.SplitHostPort(cfg.E2BListen)
	if err != nil {
		return nil, fmt.Errorf("cannot listen on %q: %w", cfg.E2BListen, err) // the configuration was checked
	}
	at := &e2bListener{host: host}
	if ip, err := netip.ParseAddr(host); err != nil || !ip.IsLoopback() {
		if far == nil {
			return nil, fmt.Errorf("cannot serve programs of E2B on %s without TLS: it is no loopback address; set listen too, whose "+
				"certificate is used, or choose 127.0.0.1: %w", cfg.E2BListen, errdefs.ErrInvalidArgument)
		}
		at.keys = far.keys
	}
	if at.Listener, err = new(net.ListenConfig).Listen(ctx, "tcp", cfg.E2BListen); err != nil {
		return nil, fmt.Errorf("cannot serve programs of E2B on %s: %w; choose another address with e2b_listen, or leave it empty",
			cfg.E2BListen, err)
	}
	return at, nil
}

// url is where clients are to ask, "" for nowhere.
func (l *e2bListener) url() string {
	if l == nil {
		return ""
	}
	scheme := "http"
	if l.keys != nil {
		scheme = "https"
	}
	_, port, _ := net.SplitHostPort(l.Addr().String()) // it is a TCP address
	return scheme + "://" + net.JoinHostPort(l.host, port)
}

// e2bKey is under which name the key of access tokens is kept.
const e2bKey = "e2b_key"

// metas keeps texts by name.
type metas interface {
	Meta(ctx context.Context, name string) (string, error)
	SetMeta(ctx context.Context, name, value string) error
}

// server returns the server of the listener. end is for when it has ended.
func (l *e2bListener) server(ctx context.Context, surface *api.Server, o e2b.Options, kept metas) (
	server *http.Server, end func(), err error,
) {
	text, err := kept.Meta(ctx, e2bKey)
	if err == nil && text == "" {
		var b [32]byte
		rand.Read(b[:]) // never fails
		text = hex.EncodeToString(b[:])
		err = kept.SetMeta(ctx, e2bKey, text)
	}
	if err == nil {
		o.Key, err = hex.DecodeString(text)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("cannot get the key of access tokens: %w", err)
	}
	s := e2b.New(o)
	if l.keys == nil {
		return surface.RemoteServer(s, nil), s.Close, nil
	}
	return surface.RemoteServer(s, l.keys.Certificate), s.Close, nil
}

func (l *e2bListener) serve(server *http.Server) error {
	if l.keys == nil {
		return server.Serve(api.Neighbours(l))
	}
	return server.ServeTLS(api.Strangers(l), "", "")
}

// closeFar closes a listener, if there is one.
func closeFar(far *remote) error {
	if far == nil {
		return nil
	}
	return far.Close()
}
