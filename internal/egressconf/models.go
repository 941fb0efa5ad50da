package egressconf

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/budget"
	"github.com/carrel-dev/carrel/internal/netrule"
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
	// Limits hold for each run.
	Limits budget.Limits
	Prices budget.Prices
}

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
}

type fileBudget struct {
	Requests int64  `yaml:"requests"`
	Tokens   int64  `yaml:"tokens"`
	Money    string `yaml:"money"`
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
	}
	m.Limits = budget.Limits{Period: budget.Whole, Requests: f.Budget.Requests, Tokens: f.Budget.Tokens}
	if f.Budget.Money != "" {
		if m.Limits.Money, err = budget.ParseMoney(f.Budget.Money); err != nil {
			return fmt.Errorf("budget: %w", err)
		}
	}
	if err := m.Limits.Check(); err != nil {
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

// Model returns a model by its name.
func (c *Config) Model(name string) (Model, error) {
	all := c.Models
	if all == nil {
		all = builtInModels
	}
	m, ok := all[name]
	if !ok {
		return m, fmt.Errorf("cannot use --model %.60q: there is no such model; use %s, or add it to egress.yaml: %w",
			name, strings.Join(slices.Sorted(maps.Keys(all)), ", "), errdefs.ErrInvalidArgument)
	}
	return m, nil
}
