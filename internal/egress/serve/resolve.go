package serve

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/carrel-dev/carrel/internal/base/bucket"
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
	of  *net.Resolver // for other records, which are not kept

	mu    sync.Mutex
	known map[string]answer
	full  time.Time // see pace
}

// pace bounds the names that are asked for, so that one workspace does not have the host's name server refuse all. Those beyond
// it wait.
var pace = bucket.Bound{Burst: 200, Every: 20 * time.Millisecond}

// may waits until another name may be asked for.
func (a *answers) may(ctx context.Context) error {
	for {
		a.mu.Lock()
		full, wait := pace.Take(a.full, time.Now())
		a.full = full
		a.mu.Unlock()
		if wait == 0 {
			return nil
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return errPaced
		}
	}
}

var errPaced = errors.New("this workspace asks for too many names")

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
	if err := a.may(ctx); err != nil {
		return nil, err
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
	return &answers{known: map[string]answer{}, ask: egress.Lookup(r), of: r}
}

// services returns the records SRV of a name.
func (a *answers) services(ctx context.Context, name string) ([]*net.SRV, error) {
	if err := a.may(ctx); err != nil {
		return nil, err
	}
	_, all, err := a.of.LookupSRV(ctx, "", "", name+".")
	for _, x := range all {
		x.Target = strings.TrimSuffix(x.Target, ".")
	}
	return all, err
}

// text returns the records TXT of a name.
func (a *answers) text(ctx context.Context, name string) ([]string, error) {
	if err := a.may(ctx); err != nil {
		return nil, err
	}
	return a.of.LookupTXT(ctx, name+".")
}
