package models

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/egress/conf"
	"github.com/carrel-dev/carrel/internal/egress/ways/endpoints"
	"github.com/carrel-dev/carrel/internal/spec/budget"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/wire/egressapi"
)

// Subjects are PERIOD KIND NAME. No name has a space.
const (
	kindWorkspace = "workspace"
	kindOwner     = "owner"
	kindModel     = "model"
)

// pair is what is counted for one subject: today, and in all. Its limits hold in one of the two.
func pair(kind, name string, limits budget.Limits) []subject {
	all := make([]subject, 0, 2)
	for _, period := range []budget.Period{budget.Day, budget.Whole} {
		s := subject{key: keyOf(period, kind, name), limits: budget.Limits{Period: period}}
		if limits.Period == period {
			s.limits = limits
		}
		if kind == kindWorkspace {
			s.workspace = id.Workspace(name)
		}
		all = append(all, s)
	}
	return all
}

func keyOf(period budget.Period, kind, name string) string {
	return string(period) + " " + kind + " " + name
}

// limitsOf are those of a workspace's own budget.
func limitsOf(b workspace.ModelBudget) budget.Limits {
	l := budget.Limits{Period: budget.Day, Requests: b.Requests, Tokens: b.Tokens, Money: budget.Money(b.Money)}
	if b.Per == workspace.PerWhole {
		l.Period = budget.Whole
	}
	return l
}

// budgetOf is limitsOf for what the host's file has.
func budgetOf(l budget.Limits) workspace.ModelBudget {
	return workspace.ModelBudget{Requests: l.Requests, Tokens: l.Tokens, Money: int64(l.Money), Per: string(l.Period)}
}

func ofWorkspace(name id.Workspace, b workspace.ModelBudget) []subject {
	return pair(kindWorkspace, string(name), limitsOf(b))
}

// Reserve asks whether a workspace may make a request to one of its models: see keeper.Config. It waits for the disk if
// the request has to be counted there first.
func (m *Models) Reserve(ctx context.Context, name id.Workspace, endpoint, model string) (done func(egressapi.Usage), err error) {
	k, lives := m.cfg.Store.ByName(name)
	host := m.cfg.Conf()
	of, err := host.Model(endpoint)
	if !lives || err != nil || !k.Models.Has(endpoint) {
		return nil, fmt.Errorf("there is no such model any more: %w", errdefs.ErrNotFound)
	}
	if err := m.prepare(host, name); err != nil {
		return nil, err
	}
	subjects := slices.Concat(
		ofWorkspace(name, k.Models.Budget), pair(kindOwner, k.Owner, host.BudgetOf(k.Owner)), pair(kindModel, endpoint, of.Limits),
	)
	counted := endpoints.Subject(endpoint, model)
	r, err := m.ledger.reserve(ctx, counted, subjects)
	if err != nil {
		err = explain(err, subjects, k, of)
		m.cfg.Counted(endpoint, true, 0)
		m.told.refused(k, of, err)
		return nil, err
	}
	return func(x egressapi.Usage) {
		u := budget.Usage{Input: x.Input, Output: x.Output, CachedInput: x.CachedInput, CacheWrite: x.CacheWrite}
		m.ledger.spend(r, u, subjects)
		money, _ := m.ledger.book.Cost(counted, u)
		m.cfg.Counted(endpoint, false, u.Tokens())
		m.told.used(k, of, model, budget.Sum{Requests: 1, Tokens: u.Tokens(), Money: money}, x)
	}, nil
}

// prepare has the prices of the host hold, and refuses a workspace that asks faster than it may.
func (m *Models) prepare(host *conf.Config, name id.Workspace) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if wait := m.paced.Take(name, pace, time.Now()); wait > 0 {
		return fmt.Errorf("this workspace makes too many requests to models at once; try again later: %w", errdefs.ErrUnavailable)
	}
	if m.priced == host {
		return nil
	}
	if err := m.ledger.price(endpoints.Prices(slices.Collect(maps.Values(host.AllModels())))); err != nil {
		return err
	}
	m.priced = host
	return nil
}

// explain says whose the budget is that is used up, and who can change it.
func explain(err error, subjects []subject, k workspace.Kept, of conf.Model) error {
	var no *budget.Refused
	if !errors.As(err, &no) {
		return err
	}
	switch slices.IndexFunc(subjects, func(s subject) bool { return s.key == no.Subject }) / 2 {
	case 0:
		return fmt.Errorf("%w; it is that of this workspace: \"carrel update %s\" with --model-requests, --model-tokens or --model-money "+
			"changes it", err, k.Name)
	case 1:
		return fmt.Errorf("%w; it is that of %s for all workspaces: an administrator can change it (model_budgets in the host's "+
			"egress.yaml)", err, k.Owner)
	}
	return fmt.Errorf("%w; it is that of the model %s for all workspaces of this host: an administrator can change it", err, of.Name)
}
