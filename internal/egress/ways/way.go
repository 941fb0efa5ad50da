package ways

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/carrel-dev/carrel/internal/base/bucket"
	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/egress/conf"
	"github.com/carrel-dev/carrel/internal/egress/keeper"
	"github.com/carrel-dev/carrel/internal/egress/ways/recorder"
	"github.com/carrel-dev/carrel/internal/spec/netrule"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/wire/egressapi"
)

// setup returns what carrel-egress serves a workspace by. After an error it has no rules.
func setup(host *conf.Config, name id.Workspace, r workspace.Reach) (egressapi.Setup, error) {
	s := egressapi.Setup{
		Public: host.Public, Resolver: host.Resolver, Proxy: keeper.ProxyOf(host.Proxy),
		Remedy: fmt.Sprintf(`"carrel egress allow %s %%s" allows it`, name),
	}
	rules, err := host.Read(conf.Texts{Allow: r.Allow, Ask: r.Ask, Approved: r.Approved, Deny: r.Deny})
	if err != nil {
		return s, err
	}
	all := slices.Concat(rules, host.Rules)
	if _, err := netrule.New(all, netrule.Options{Public: host.Public}); err != nil {
		return s, err
	}
	full := s
	full.Rules = all
	if err := keeper.Check(full); err != nil {
		return s, err
	}
	return full, nil
}

// start starts carrel-egress for a way, whose turn the caller has.
func (w *Ways) start(ctx context.Context, x *way, r workspace.Reach, secrets egressapi.Secrets) error {
	s, err := setup(w.config(), x.name, r)
	if err != nil {
		return err
	}
	s.CA, s.Secrets, s.Models = secrets.CA, secrets.List, secrets.Models
	x.end()
	log := &limited{Logger: w.cfg.Log.With("workspace", string(x.name))}
	records := recorder.New(recorder.Config{
		Log: w.cfg.Records, Principal: principal.Self().String(), Workspace: x.name,
		Trouble: func(err error) {
			if log.may() {
				log.Warn("cannot record a connection", "error", err)
			}
		},
	})
	var ask func(context.Context, keeper.Question) keeper.Answer
	if w.cfg.Ask != nil {
		ask = func(ctx context.Context, q keeper.Question) keeper.Answer { return w.cfg.Ask(ctx, x.name, q) }
	}
	var reserve func(context.Context, string, string) (func(egressapi.Usage), error)
	if w.cfg.Reserve != nil {
		reserve = func(ctx context.Context, endpoint, model string) (func(egressapi.Usage), error) {
			return w.cfg.Reserve(ctx, x.name, endpoint, model)
		}
	}
	k, err := keeper.Start(ctx, keeper.Config{
		Starter: keeper.Remote(func(ctx context.Context) (*os.File, error) { return w.cfg.Open(ctx, x.name) }),
		Setup:   s, Retry: true, Ask: ask, Reserve: reserve, Pace: w.pacer(x.name),
		Connection: func(c egressapi.Connection) {
			w.cfg.Seen(c)
			w.recent.Add(x.name, c)
			records.Connection(c)
		},
		Trouble: func(err error) {
			if log.may() {
				log.Warn("the way out of a workspace is interrupted", "error", err)
			}
		},
	})
	if err != nil {
		go records.Close() // it may wait for the disk
		return err
	}
	x.reach, x.keeper, x.records = r, k, records
	return nil
}

// Bounds of the connections of all workspaces of an owner: twice what one may make. So one owner does not have all ports that a
// host has for one destination in a minute, some 28,000.
const (
	ownerBurst  = 4000
	ownerEvery  = 5 * time.Millisecond
	longestWait = 10 * time.Second
	// mostOwners bounds the owners that are told apart.
	mostOwners = 4096
)

// pacer is keeper.Config.Pace for a workspace, nil if its owner is not known. The connection has been made: those beyond the
// bound have the next ones wait for longer.
func (w *Ways) pacer(name id.Workspace) func() time.Duration {
	if w.cfg.Owner == nil {
		return nil
	}
	owner := w.cfg.Owner(name)
	if owner == "" {
		return nil
	}
	return func() time.Duration {
		now := time.Now()
		w.mu.Lock()
		defer w.mu.Unlock()
		full, known := w.paced[owner]
		if !known && len(w.paced) >= mostOwners {
			maps.DeleteFunc(w.paced, func(_ string, full time.Time) bool { return full.Before(now) })
		}
		if full.Before(now) {
			full = now
		}
		if most := now.Add(ownerBurst*ownerEvery + longestWait); full.Before(most) {
			full = full.Add(ownerEvery)
		}
		w.paced[owner] = full
		return max(full.Sub(now)-ownerBurst*ownerEvery, 0)
	}
}

// change has the process serve by other rules, and with other secrets unless those are nil.
func (x *way) change(ctx context.Context, s egressapi.Setup, secrets *egressapi.Secrets) error {
	return x.keeper.Change(ctx, func(now *egressapi.Setup) {
		now.Rules, now.Public, now.Resolver, now.Proxy = s.Rules, s.Public, s.Resolver, s.Proxy
		if secrets != nil {
			now.CA, now.Secrets, now.Models = secrets.CA, secrets.List, secrets.Models
		}
	})
}

// end ends the process, if there is one. written is closed when its connections have been recorded.
func (x *way) end() (written <-chan struct{}) {
	done := make(chan struct{})
	if x.keeper == nil {
		close(done)
		return done
	}
	x.keeper.Close()
	go func(r *recorder.Recorder) {
		defer close(done)
		r.Close() // it may wait for the disk
	}(x.records)
	x.reach, x.keeper, x.records = workspace.Reach{}, nil, nil
	return done
}

// warnings bounds what is logged of one way.
var warnings = bucket.Bound{Burst: 10, Every: time.Minute}

// limited is a log that a workspace cannot fill.
type limited struct {
	*slog.Logger

	mu   sync.Mutex // of full
	full time.Time
}

// may reports whether another line may be logged.
func (l *limited) may() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	then, wait := warnings.Take(l.full, time.Now())
	l.full = then
	return wait == 0
}
