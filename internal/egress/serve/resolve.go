package serve

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/carrel-dev/carrel/internal/egress"
)

const (
	// keepAnswers is how long the addresses of a name are used again: a program that makes connection after
	// connection does not wait for the name server each time. They are judged for each connection.
	keepAnswers = 5 * time.Second
	// mostAnswers bounds how many are kept.
	mostAnswers = 1024
)

// answers keeps what a resolver says for a short time.
type answers struct {
	ask func(ctx context.Context, name string) ([]netip.Addr, error)

	mu    sync.Mutex
	known map[string]answer
}

type answer struct {
	addresses []netip.Addr
	until     time.Time
}

// resolve returns the addresses of a name. The caller must not change them.
func (a *answers) resolve(ctx context.Context, name string) ([]netip.Addr, error) {
	now := time.Now()
	a.mu.Lock()
	k, known := a.known[name]
	a.mu.Unlock()
	if known && now.Before(k.until) {
		return k.addresses, nil
	}
	addresses, err := a.ask(ctx, name)
	if err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.known) >= mostAnswers {
		clear(a.known)
	}
	a.known[name] = answer{addresses, now.Add(keepAnswers)}
	return addresses, nil
}

// resolver asks one name server, or the host's resolver if that is not set.
func resolver(at netip.AddrPort) *answers {
	r := &net.Resolver{PreferGo: true}
	if at.IsValid() {
		r.Dial = func(ctx context.Context, network, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, network, at.String())
		}
	}
	return &answers{known: map[string]answer{}, ask: egress.Lookup(r)}
}
