package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/carrel-dev/carrel/internal/linux/cert"
	"github.com/carrel-dev/carrel/internal/state/config"
)

// remote is where the API is served over TLS.
type remote struct {
	net.Listener
	keys *cert.Keeper
	// address is what clients are told: https://HOST:PORT.
	address string
}

// listenTLS opens the configured listener, or returns nil if there is none. The API cannot be
// served over TCP without TLS.
func listenTLS(ctx context.Context, cfg *config.Config, log *slog.Logger) (*remote, error) {
	if cfg.Listen == "" {
		return nil, nil
	}
	host, _, err := net.SplitHostPort(cfg.Listen)
	if err != nil {
		return nil, fmt.Errorf("cannot listen on %q: %w", cfg.Listen, err) // the configuration was checked
	}
	if ip, err := netip.ParseAddr(host); host == "" || err == nil && ip.IsUnspecified() {
		if host, err = os.Hostname(); err != nil {
			return nil, fmt.Errorf("cannot tell the name of this host, which the certificate is to be for: %w; name an address in listen", err)
		}
	}
	keys, err := openKeys(cfg, host, log)
	if err != nil {
		return nil, err
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", cfg.Listen)
	if err != nil {
		return nil, fmt.Errorf("cannot serve the API over TLS on %s: %w; choose another address with listen, or leave it empty", cfg.Listen, err)
	}
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		return nil, fmt.Errorf("cannot tell where the API is served: %w", err)
	}
	return &remote{Listener: l, keys: keys, address: "https://" + net.JoinHostPort(host, port)}, nil
}

func openKeys(cfg *config.Config, host string, log *slog.Logger) (*cert.Keeper, error) {
	c := cert.Config{
		CertFile: cfg.TLSCert, KeyFile: cfg.TLSKey, Names: []string{"localhost", "127.0.0.1", "::1", host},
		Warn: func(err error) { log.Error("the certificate for TLS stays as it is", "error", err) },
	}
	if c.CertFile == "" && c.KeyFile == "" {
		c.Dir = filepath.Join(stateDir(cfg), "tls")
		if err := privateDir(c.Dir); err != nil {
			return nil, err
		}
	}
	return cert.Open(c)
}
