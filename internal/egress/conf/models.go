package conf

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/spec/budget"
	"github.com/carrel-dev/carrel/internal/spec/netrule"
)

// The APIs of models, as package model has them.
const (
	Anthropic = "anthropic"
	OpenAI    = "openai"
)

// Model is the API of a model that a workspace may use.
type Model struct {
	// Name is a label of a name.
	Name string
	// API is Anthropic or OpenAI, URL where it is.
	API, URL string
	// Key is the name of the variable that holds the key.
	Key string
	// KeepStreams leaves requests for streams as they are.
	KeepStreams bool
	// Limits hold for each run, and in a host's file for all workspaces together.
	Limits budget.Limits
	Prices budget.Prices
	// Secret is the name of root's secret that is the key for others too; "" is none. For are the owners who may use it,
	// as "uid:1000"; without any everybody may.
	Secret string
	For    []string
}

// SharedWith reports whether an owner may use the key of the host's administrator.
func (m *Model) SharedWith(owner string) bool {
	return m.Secret != "" && (len(m.For) == 0 || owner == SharedOwner || slices.Contains(m.For, owner))
}

// SharedOwner keeps the secrets that models of a host's file share.
const SharedOwner = "uid:0"

// Everybody is the name in model_budgets that stands for each owner without a budget of its own.
const Everybody = "everybody"

// builtInModels are those that need no file.
var builtInModels = map[string]Model{
	"anthropic": {Name: "anthropic", API: Anthropic, URL: "https://api.anthropic.com", Key: "ANTHROPIC_API_KEY"},
	"openai":    {Name: "openai", API: OpenAI, URL: "https://api.openai.com/v1", Key: "OPENAI_API_KEY"},
}

// BuiltInModels are the names of models that need no file.
func BuiltInModels() []string { return slices.Sorted(maps.Keys(builtInModels)) }

// fileModel is the form of a model in the file. What is left out of a built-in one is as built in.
type fileModel struct {
	API         string                       `yaml:"api"`
	URL         string                       `yaml:"url"`
	Key         string                       `yaml:"key"`
	KeepStreams bool                         `yaml:"keep_streams"`
	Budget      fileBudget                   `yaml:"budget"`
	Prices      map[string]map[string]string `yaml:"prices"`
	Secret      string                       `yaml:"secret"`
	For         []string                     `yaml:"for"`
}

type fileBudget struct {
	Requests *int64 `yaml:"requests"`
	Tokens   *int64 `yaml:"tokens"`
	Money    string `yaml:"money"`
	Per      string `yaml:"per"`
}

// read returns the limits of a budget; per is the period if it says none.
func (f fileBudget) read(per budget.Period) (l budget.Limits, err error) {
	l = budget.Limits{Period: cmp.Or(budget.Period(f.Per), per)}
	none := false // a limit of 0, which would be no limit at all
	for _, x := range []struct{ from, to *int64 }{{f.Requests, &l.Requests}, {f.Tokens, &l.Tokens}} {
		if x.from != nil {
			*x.to, none = *x.from, none || *x.from == 0
		}
	}
	if f.Money != "" {
		if l.Money, err = budget.ParseMoney(f.Money); err != nil {
			return l, fmt.Errorf("budget: %w", err)
		}
		none = none || l.Money == 0
	}
	if none {
		return l, fmt.Errorf("budget: a limit of 0 would allow nothing; write 1 or more, or leave it out for no limit: %w",
			errdefs.ErrInvalidArgument)
	}
	return l, l.Check()
}

// isOwner reports whether a text is an owner, as "uid:1000".
func isOwner(text string) bool {
	digits, ok := strings.CutPrefix(text, "uid:")
	n, err := strconv.ParseUint(digits, 10, 32)
	return ok && err == nil && strconv.FormatUint(n, 10) == digits
}

// modelBudgets reads the budgets of owners.
func modelBudgets(of map[string]fileBudget, all map[string]Model) (map[string]budget.Limits, error) {
	budgets := map[string]budget.Limits{}
	for _, who := range slices.Sorted(maps.Keys(of)) {
		if who != Everybody && !isOwner(who) {
			return nil, fmt.Errorf("model_budgets: %.40q is no owner; write uid:1000 or %s: %w", who, Everybody, errdefs.ErrInvalidArgument)
		}
		l, err := of[who].read(budget.Day)
		if err != nil {
			return nil, fmt.Errorf("model_budgets of %s: %w", who, err)
		}
		if l.Money > 0 {
			for name, m := range all {
				if len(m.Prices) > 0 {
					continue
				}
				if _, builtIn := builtInModels[name]; !builtIn || m.Secret != "" {
					return nil, fmt.Errorf("model_budgets of %s: the budget is in money, and the model %s has no prices; add prices: %w", who, name,
						errdefs.ErrInvalidArgument)
				}
			}
		}
		budgets[who] = l
	}
	return budgets, nil
}

// BudgetOf returns the budget of all workspaces of an owner together: the owner's own, else everybody's. Without either
// nothing is bound; an own one that is empty exempts its owner.
func (c *Config) BudgetOf(owner string) budget.Limits {
	for _, of := range []string{owner, Everybody} {
		if l, there := c.ModelBudgets[of]; there {
			return l
		}
	}
	return budget.Limits{Period: budget.Day}
}

// models reads the models of a file, and adds the built-in ones.
func models(of map[string]fileModel) (map[string]Model, error) {
	all := maps.Clone(builtInModels)
	for _, name := range slices.Sorted(maps.Keys(of)) {
		f, m := of[name], all[name]
		m.Name = name
		if h, err := netrule.ParseHost(name + ".example"); err != nil || strings.Contains(name, ".") || h.Name() != name+".example" {
			return nil, fmt.Errorf("models: %.60q is not a name for one; use small letters, digits and \"-\": %w", name, errdefs.ErrInvalidArgument)
		}
		for _, part := range []struct {
			to   *string
			from string
		}{{&m.API, f.API}, {&m.URL, f.URL}, {&m.Key, f.Key}} {
			if part.from != "" {
				*part.to = part.from
			}
		}
		m.KeepStreams = f.KeepStreams
		if err := m.read(f); err != nil {
			return nil, fmt.Errorf("model %s: %w", name, err)
		}
		all[name] = m
	}
	return all, nil
}

// read reads what has to be checked.
func (m *Model) read(f fileModel) (err error) {
	switch {
	case m.API != Anthropic && m.API != OpenAI:
		return fmt.Errorf("there is no API %.30q; write api: %s or api: %s: %w", m.API, Anthropic, OpenAI, errdefs.ErrInvalidArgument)
	case m.URL == "":
		return fmt.Errorf("write url: https://HOST/PATH: %w", errdefs.ErrInvalidArgument)
	case !isVariable(m.Key): // it may be the key itself, and is not shown
		return fmt.Errorf("its key is not the name of a variable; write key: NAME, and never the key itself: %w", errdefs.ErrInvalidArgument)
	case f.Secret != "" && CheckSecretName(f.Secret) != nil:
		return fmt.Errorf("its secret is not the name of one; write secret: NAME, and never the key itself: %w", errdefs.ErrInvalidArgument)
	case f.Secret == "" && len(f.For) > 0:
		return fmt.Errorf("for names who may use the key that secret names, and there is none; add secret: NAME: %w", errdefs.ErrInvalidArgument)
	}
	if i := slices.IndexFunc(f.For, func(who string) bool { return !isOwner(who) }); i >= 0 {
		return fmt.Errorf("for: %.40q is no owner; write uid:1000: %w", f.For[i], errdefs.ErrInvalidArgument)
	}
	m.Secret, m.For = f.Secret, f.For
	if m.Limits, err = f.Budget.read(budget.Day); err != nil {
		return err
	}
	m.Prices = budget.Prices{}
	for model, parts := range f.Prices {
		var p budget.Price
		to := map[string]*budget.Money{
			"input": &p.Input, "output": &p.Output, "cached_input": &p.CachedInput, "cache_write": &p.CacheWrite,
		}
		given := map[string]bool{}
		for part, text := range parts {
			if to[part] == nil {
				return fmt.Errorf("price of %s: there is no %.30q; use input, output, cached_input and cache_write: %w", model, part,
					errdefs.ErrInvalidArgument)
			}
			if *to[part], err = budget.ParseMoney(text); err != nil {
				return fmt.Errorf("price of %s: %w", model, err)
			}
			given[part] = true
		}
		if !given["input"] || !given["output"] {
			return fmt.Errorf("price of %s: write input and output, for a million tokens: %w", model, errdefs.ErrInvalidArgument)
		}
		// What is left out costs no less than what was neither read from a cache nor written to one.
		for _, part := range []string{"cached_input", "cache_write"} {
			if !given[part] {
				*to[part] = p.Input
			}
		}
		m.Prices[model] = p
	}
	if m.Limits.Money > 0 && len(m.Prices) == 0 {
		return fmt.Errorf("its budget is in money, and there are no prices; add prices: %w", errdefs.ErrInvalidArgument)
	}
	return m.Prices.Check()
}

// AllModels returns the models that there are, by their names.
func (c *Config) AllModels() map[string]Model {
	if c.Models == nil {
		return builtInModels
	}
	return c.Models
}

// Model returns a model by its name.
func (c *Config) Model(name string) (Model, error) {
	all := c.AllModels()
	m, ok := all[name]
	if !ok {
		return m, fmt.Errorf("cannot use --model %.60q: there is no such model; use %s, or add it to egress.yaml: %w",
			name, strings.Join(slices.Sorted(maps.Keys(all)), ", "), errdefs.ErrInvalidArgument)
	}
	return m, nil
}
