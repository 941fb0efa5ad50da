package ways

import (
	"context"
	"fmt"
	"log/slog"
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
		Setup:   s, Retry: true, Ask: ask, Reserve: reserve,
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
