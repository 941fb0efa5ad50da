package serve

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/egress"
	"github.com/carrel-dev/carrel/internal/egress/model"
	"github.com/carrel-dev/carrel/internal/spec/netrule"
	"github.com/carrel-dev/carrel/internal/wire/egressapi"
)

// models serves the models of a Setup. It is used by one goroutine, but for the connections.
type models struct {
	p      *process
	server *egress.Server
	leases *leases
	now    map[string]*served

	mu   sync.Mutex
	open map[*outside]struct{}
}

// served is a model and what serves it.
type served struct {
	egressapi.Model
	handler   *model.Handler
	transport *http.Transport
}

// outside is a connection to the host of a model.
type outside struct {
	net.Conn
	of      *models
	target  netrule.Target
	address netip.Addr
}

// Close implements net.Conn.
func (c *outside) Close() error {
	c.of.mu.Lock()
	delete(c.of.open, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}

func newModels(p *process, server *egress.Server, l *leases) *models {
	return &models{p: p, server: server, leases: l, now: map[string]*served{}, open: map[*outside]struct{}{}}
}

// set puts the models of the Setup in force, which the process has adopted. When it returns nothing passes by others, and no
// connection is left that the rules refuse.
func (m *models) set(s *egressapi.Setup) error {
	if len(s.Models) > egressapi.MaxModels {
		return fmt.Errorf("cannot serve %d models: at most %d: %w", len(s.Models), egressapi.MaxModels, errdefs.ErrInvalidArgument)
	}
	next, list := map[string]*served{}, []egress.Model{}
	for _, one := range s.Models {
		x := m.now[one.Name]
		if x == nil || !sameModel(x.Model, one) {
			var err error
			if x, err = m.serve(one); err != nil {
				return err
			}
		}
		next[one.Name] = x
		list = append(list, egress.Model{Name: one.Name, Handler: x.handler})
	}
	if err := m.server.SetModels(list); err != nil {
		return err
	}
	for name, x := range m.now {
		if next[name] != x {
			x.transport.CloseIdleConnections()
		}
	}
	m.now = next
	m.judge()
	return nil
}

func sameModel(a, b egressapi.Model) bool {
	return a.Name == b.Name && a.API == b.API && a.Upstream == b.Upstream && a.Key.Reveal() == b.Key.Reveal() && a.KeepStreams == b.KeepStreams
}

// serve makes what serves a model.
func (m *models) serve(one egressapi.Model) (*served, error) {
	if err := m.p.readRoots(); err != nil {
		return nil, err
	}
	t, rule, err := upstreamOf(one.Upstream)
	if err != nil {
		return nil, err
	}
	x := &served{Model: one}
	dial := func(ctx context.Context) (net.Conn, error) { return m.dial(ctx, t, rule) }
	if u, err := model.ParseUpstream(one.Upstream); err == nil && model.IsPlain(u) {
		x.transport = model.NewPlainTransport(dial)
	} else {
		x.transport = model.NewTransport(t.Host.String(), m.p.roots, dial)
	}
	x.handler, err = model.New(model.Config{
		API: model.API(one.API), Upstream: one.Upstream, Key: one.Key.Value, KeepStreams: one.KeepStreams, Transport: x.transport, Room: m.p.room,
		Reserve: func(ctx context.Context, r model.Request) (model.Lease, error) {
			return m.leases.reserve(ctx, one.Name, r)
		},
	})
	return x, err
}

// upstreamOf returns the target of a model's URL, and the rule that allows it, without a question too.
func upstreamOf(text string) (t netrule.Target, rule netrule.Rule, err error) {
	u, err := model.ParseUpstream(text)
	if err != nil {
		return t, rule, err
	}
	if t, err = netrule.ParseTarget(model.Authority(u)); err != nil {
		return t, rule, err
	}
	rule, err = netrule.ParseRule(netrule.Approved, t.String())
	return t, rule, err
}

// rules are those of the Setup in force, and one that allows a model's host. So what a rule denies is denied here too, and an
// address that is not public has to be in the model's URL or in a rule. One of this host's own takes a rule: see judgeOwn.
func (m *models) rules(own netrule.Rule) (*netrule.Rules, error) {
	s := m.p.setup.Load()
	return netrule.New(append(slices.Clone(s.Rules), own), netrule.Options{Public: s.Public})
}

// dial connects to the host of a model.
func (m *models) dial(ctx context.Context, t netrule.Target, rule netrule.Rule) (net.Conn, error) {
	rules, err := m.rules(rule)
	if err != nil {
		return nil, err
	}
	raw, to, err := m.server.Connect(ctx, rules, t)
	if err != nil {
		return nil, err
	}
	c := &outside{Conn: raw, of: m, target: t, address: to.Addr()}
	m.mu.Lock()
	m.open[c] = struct{}{}
	m.mu.Unlock()
	if rules, err = m.rules(rule); err == nil { // they may have changed meanwhile
		err = allowed(rules, c)
	}
	if err != nil {
		_ = c.Close()
		return nil, err
	}
	return c, nil
}

func allowed(rules *netrule.Rules, c *outside) error {
	if v := rules.Judge(c.target); v.Action != netrule.Allow {
		return fmt.Errorf("%s: %w", v.Reason(c.target), errdefs.ErrPermissionDenied)
	}
	// The requests of models are not judged, and so a rule that denies some of them denies all.
	if l := rules.Limits(c.target); l.Denies() != "" {
		return fmt.Errorf("%s is not allowed: the rule %s denies a part of what is sent to it: %w", c.target, l.Denies(),
			errdefs.ErrPermissionDenied)
	}
	if !c.address.IsValid() { // a proxy has connected
		return nil
	}
	return rules.Address(c.target, c.address)
}

// judge closes connections that the rules do not allow any more.
func (m *models) judge() {
	var victims []*outside
	m.mu.Lock()
	for c := range m.open {
		rule, err := netrule.ParseRule(netrule.Approved, c.target.String())
		var rules *netrule.Rules
		if err == nil {
			rules, err = m.rules(rule)
		}
		if err != nil || allowed(rules, c) != nil {
			victims = append(victims, c)
		}
	}
	m.mu.Unlock()
	for _, c := range victims {
		_ = c.Close()
	}
}
