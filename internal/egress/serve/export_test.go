package serve

import (
	"context"
	"crypto/x509"
	"net/netip"

	"github.com/carrel-dev/carrel/internal/egress"
	"github.com/carrel-dev/carrel/internal/spec/netrule"
	"github.com/carrel-dev/carrel/internal/wire/egressapi"
)

// KeepAnswers and MostAnswers bound what is kept of a resolver.
const (
	KeepAnswers = keepAnswers
	MostAnswers = mostAnswers
)

// Answers keeps what ask says, as resolver does.
func Answers(ask func(context.Context, string) ([]netip.Addr, error)) func(context.Context, string) ([]netip.Addr, error) {
	return (&answers{known: map[string]answer{}, ask: ask}).resolve
}

// UpstreamOf is the proxy of a Setup in force. roots are the host's authorities, nil those of the system.
func UpstreamOf(t interface{ Helper() }, s *egressapi.Setup, roots *x509.CertPool) (egress.Upstream, error) {
	t.Helper()
	p := &process{roots: roots}
	return upstream{p}, p.adopt(s)
}

// ModelAllowed judges a connection to the host of a model, which a proxy has made.
func ModelAllowed(rules *netrule.Rules, t netrule.Target) error {
	return allowed(rules, &outside{target: t})
}
