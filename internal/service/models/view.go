package models

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/carrel-dev/carrel/internal/spec/budget"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// ListModels returns the models of the host as p's owner may use them, by name, and what all workspaces of that owner have
// used of their budget. p sees the latter if it reaches all of them.
func (m *Models) ListModels(ctx context.Context, p principal.Principal) ([]workspace.ModelOffer, workspace.ModelUsage, error) {
	own := workspace.ModelUsage{Owner: p.Owner()}
	if _, err := m.cfg.Gate.Authorise(ctx, operation.Request{By: p, Op: operation.Simple(operation.ListModels)}, nil); err != nil {
		return nil, own, err
	}
	conf := m.cfg.Conf()
	all := conf.AllModels()
	offers := make([]workspace.ModelOffer, 0, len(all))
	for _, name := range slices.Sorted(maps.Keys(all)) {
		of := all[name]
		x := workspace.ModelOffer{Name: name, API: of.API, URL: of.URL, Budget: budgetOf(of.Limits)}
		use := choose(of, workspace.ModelUse{Name: name}, p.Owner())
		x.Key, x.Secret = workspace.KeyOwn, use.Secret
		switch _, err := m.key(ctx, of, use, p.Owner()); {
		case ctx.Err() != nil:
			return nil, own, ctx.Err()
		case err != nil:
			x.Key = workspace.KeyMissing
		case use.Shared:
			x.Key = workspace.KeyShared
		}
		if limited(of.Limits) { // of others' use only what says how much is left
			key := keyOf(of.Limits.Period, kindModel, name)
			used, err := m.ledger.look(ctx, []string{key})
			if err != nil {
				return nil, own, err
			}
			x.Used = workspace.ModelSums{Requests: used[key].Requests, Tokens: used[key].Tokens, Money: int64(used[key].Money)}
		}
		offers = append(offers, x)
	}
	if !p.MayReach(p.Owner()) {
		return offers, own, nil
	}
	own, err := m.usage(ctx, kindOwner, p.Owner())
	own.Owner, own.Budget = p.Owner(), budgetOf(conf.BudgetOf(p.Owner()))
	return offers, own, err
}

func limited(l budget.Limits) bool { return l.Requests+l.Tokens+int64(l.Money) > 0 }

// ModelUsage returns what was used of models: by the workspace that ref names, or, if it is "", by each that p reaches and
// that has used some or may, and by the owners whose workspaces p reaches.
func (m *Models) ModelUsage(ctx context.Context, p principal.Principal, ref string) ([]workspace.ModelUsage, error) {
	var find func() (operation.Target, error)
	if ref != "" {
		find = func() (operation.Target, error) { return m.cfg.Find(ref) }
	}
	a, err := m.cfg.Gate.Authorise(ctx, operation.Request{By: p, Op: operation.Simple(operation.ModelUsage)}, find)
	if err != nil {
		return nil, err
	}
	var all []workspace.ModelUsage
	for _, k := range m.cfg.Store.Workspaces() {
		on := operation.Target{Kind: operation.Workspace, Name: k.Name, Key: k.Key, Owner: k.Owner}
		if ref != "" && k.Name != a.On().Name || !operation.Reaches(p, on) {
			continue
		}
		u, err := m.usage(ctx, kindWorkspace, string(k.Name))
		if err != nil {
			return nil, err
		}
		u.Workspace, u.Key, u.Owner, u.Models, u.Budget = k.Name, k.Key, k.Owner, k.Models.Uses, k.Models.Budget
		if ref != "" || k.Models.Any() || u.Whole.Requests > 0 {
			all = append(all, u)
		}
	}
	if ref != "" {
		return all, nil
	}
	owners, err := m.owners(ctx, p)
	if err != nil {
		return nil, err
	}
	for _, owner := range owners {
		u, err := m.usage(ctx, kindOwner, owner)
		if err != nil {
			return nil, err
		}
		u.Owner, u.Budget = owner, budgetOf(m.cfg.Conf().BudgetOf(owner))
		all = append(all, u)
	}
	return all, nil
}

// owners are those whose workspaces p all reaches, and that have used something.
func (m *Models) owners(ctx context.Context, p principal.Principal) (owners []string, err error) {
	prefix := keyOf(budget.Whole, kindOwner, "")
	keys, err := m.ledger.subjects(ctx, prefix)
	if err != nil {
		return nil, err
	}
	for _, key := range keys {
		if owner := strings.TrimPrefix(key, prefix); p.MayReach(owner) {
			owners = append(owners, owner)
		}
	}
	return owners, nil
}

// usage returns what was used of one kind of subject.
func (m *Models) usage(ctx context.Context, kind, name string) (u workspace.ModelUsage, err error) {
	day, whole := keyOf(budget.Day, kind, name), keyOf(budget.Whole, kind, name)
	all, err := m.ledger.look(ctx, []string{day, whole})
	if err != nil {
		return u, err
	}
	u.Today, u.Whole = sumsOf(all[day]), sumsOf(all[whole])
	return u, nil
}

func sumsOf(a budget.Account) workspace.ModelSums {
	s := workspace.ModelSums{Requests: a.Requests, Tokens: a.Tokens, Money: int64(a.Money)}
	for _, name := range slices.Sorted(maps.Keys(a.Models)) {
		x := a.Models[name]
		s.By = append(s.By, workspace.ModelSum{Model: name, Requests: x.Requests, Tokens: x.Tokens, Money: int64(x.Money)})
	}
	return s
}
