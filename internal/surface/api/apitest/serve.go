package apitest

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/carrel-dev/carrel/internal/base/token"
	"github.com/carrel-dev/carrel/internal/linux/cert"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/surface/api"
	"github.com/carrel-dev/carrel/internal/surface/authn"
)

// Serve serves the API over g on a Unix socket until the test ends, and returns the
// socket's path. Every connection is that of caller, or of the peer itself if
// caller is nil.
func Serve(t testing.TB, g api.Gate, caller *principal.Principal, opts api.Options) (socket string, server *api.Server) {
	t.Helper()
	if caller == nil {
		return ServeAs(t, g, nil, opts)
	}
	return ServeAs(t, g, func() principal.Principal { return *caller }, opts)
}

// ServeAs is Serve for connections of whoever caller says when they are accepted, in a goroutine of the
// server's.
func ServeAs(t testing.TB, g api.Gate, caller func() principal.Principal, opts api.Options) (socket string, server *api.Server) {
	t.Helper()
	// A test's own directory may have a path too long for a socket.
	dir, err := os.MkdirTemp("", "carrel")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket = filepath.Join(dir, "carrel.sock")
	l, err := new(net.ListenConfig).Listen(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	peers, err := authn.New("")
	if err != nil {
		t.Fatal(err)
	}
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	server = api.NewServer(g, opts)
	who := peers.ConnContext
	if caller != nil {
		who = func(ctx context.Context, _ net.Conn) context.Context { return authn.NewContext(ctx, caller()) }
	}
	h := server.HTTPServer(who)
	served := make(chan struct{})
	go func() {
		defer close(served)
		if err := h.Serve(l); err != http.ErrServerClosed {
			t.Errorf("serve: %v", err)
		}
	}()
	t.Cleanup(func() {
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		server.Drain(ended)
		h.Close()
		<-served
	})
	return socket, server
}

// Remote is a gate that knows tokens: a Gate, or a Recorder.
type Remote interface {
	api.Gate
	authn.Book
	Issue(t testing.TB, p principal.Principal, w principal.Wanted) token.Secret
	tell(revoked func(ids []string))
}

func (g *Gate) tell(revoked func(ids []string)) { g.TokensRevoked = revoked }

// ServeTLS serves the API over g with tokens on a TCP port of the loopback until the test
// ends, and returns its address as HOST:PORT and its keys.
func ServeTLS(t testing.TB, g Remote, opts api.Options) (address string, keys *cert.Keeper, server *api.Server) {
	t.Helper()
	keys, err := cert.Open(cert.Config{Dir: t.TempDir(), Names: []string{"localhost", "127.0.0.1", "carrel.test"}})
	if err != nil {
		t.Fatal(err)
	}
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	opts.Tokens = authn.NewTokens(g)
	g.tell(opts.Tokens.Revoked)
	opts.Address, opts.Fingerprint, opts.Hosts = "https://"+l.Addr().String(), keys.Fingerprint(), keys.IsFor
	server = api.NewServer(g, opts)
	h := server.TLSServer(keys.Certificate)
	served := make(chan struct{})
	go func() {
		defer close(served)
		if err := h.ServeTLS(api.Strangers(l), "", ""); err != http.ErrServerClosed {
			t.Errorf("serve: %v", err)
		}
	}()
	t.Cleanup(func() {
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		server.Drain(ended)
		h.Close()
		<-served
	})
	return l.Addr().String(), keys, server
}

// Issue makes a token for p's owner and returns it.
func (g *Gate) Issue(t testing.TB, p principal.Principal, w principal.Wanted) token.Secret {
	t.Helper()
	_, secret, err := g.CreateToken(t.Context(), p, w)
	if err != nil {
		t.Fatal(err)
	}
	return secret
}
