// Package conf reads what a person wrote about the network: a file of rules, sets and networks, and the
// values of --allow, --ask and --deny.
//
// It must not decide anything: package netrule does.
package conf

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/goccy/go-yaml"

	"github.com/carrel-dev/carrel/internal/spec/budget"
	"github.com/carrel-dev/carrel/internal/spec/netrule"
)

// Config is what holds for a host or a user.
type Config struct {
	// Rules hold for every workspace that may reach anything.
	Rules []netrule.Rule
	// Profiles are the rules that a workspace has from the start, by its profile; "default" is for one without.
	Profiles map[string]Texts
	// Sets are the built-in sets and those of the file, which replace built-in ones with their name.
	Sets netrule.Sets
	// Public are networks that count as public.
	Public []netip.Prefix
	// Resolver is the name server to ask; the zero value is the host's own resolver.
	Resolver netip.AddrPort
	// Proxy is by which other hosts are reached; nil is none.
	Proxy *Proxy
	// Models are the built-in ones and those of the file; nil is the built-in ones.
	Models map[string]Model
	// ModelBudgets are those of owners and Everybody, in a host's file: see BudgetOf.
	ModelBudgets map[string]budget.Limits
	// Clients finds the sets of package clients, which Sets replace. Optional.
	Clients Lookup
}

// MaxFile bounds a file in bytes.
const MaxFile = 4 << 20

// file is the form of the file.
type file struct {
	Allow         []string            `yaml:"allow"`
	Ask           []string            `yaml:"ask"`
	Deny          []string            `yaml:"deny"`
	Sets          map[string][]string `yaml:"sets"`
	TreatAsPublic []string            `yaml:"treat_as_public"`
	Resolver      string              `yaml:"resolver"`
	UpstreamProxy string              `yaml:"upstream_proxy"`
	NoProxy       []string            `yaml:"no_proxy"`

	Profiles map[string]struct {
		Allow []string `yaml:"allow"`
		Ask   []string `yaml:"ask"`
		Deny  []string `yaml:"deny"`
	} `yaml:"profiles"`

	Models       map[string]fileModel  `yaml:"models"`
	ModelBudgets map[string]fileBudget `yaml:"model_budgets"`
}

// Default is the configuration without a file.
func Default() *Config { return &Config{Sets: netrule.BuiltIn()} }

// Parse reads a file. Its name is for errors, which have the line where that is known. The file names no set of a
// package client; see ParseWith.
func Parse(name string, b []byte) (*Config, error) { return ParseWith(name, b, nil) }

// ParseWith is Parse for a file that may name the sets of package clients. The caller must be who the file belongs
// to: clients may be run.
func ParseWith(name string, b []byte, clients Lookup) (*Config, error) {
	bad := func(err error) error {
		return fmt.Errorf("cannot use %s: %w", name, err)
	}
	if len(b) > MaxFile {
		return nil, bad(fmt.Errorf("it has more than %d bytes: %w", MaxFile, errdefs.ErrInvalidArgument))
	}
	var f file
	if err := yaml.NewDecoder(bytes.NewReader(b), yaml.Strict()).Decode(&f); err != nil && !errors.Is(err, io.EOF) { // an empty file is one
		shown := !bytes.Contains(b, []byte("upstream_proxy")) // it may have a password
		return nil, bad(fmt.Errorf("%s: %w", strings.TrimSpace(yaml.FormatError(err, false, shown)), errdefs.ErrInvalidArgument))
	}
	c := Default()
	c.Clients = clients
	c.Sets = maps.Clone(c.Sets)
	for set, hosts := range f.Sets {
		one, err := netrule.ParseSet(hosts)
		if err == nil && (len(hosts) == 0 || !netrule.IsSetName(set)) {
			err = fmt.Errorf("it is empty, or its name has more than small letters, digits and hyphens: %w", errdefs.ErrInvalidArgument)
		}
		if err != nil {
			return nil, bad(fmt.Errorf("set %s: %w", set, err))
		}
		c.Sets[set] = one
	}
	for _, n := range f.TreatAsPublic {
		p, err := netip.ParsePrefix(n)
		if err != nil {
			return nil, bad(fmt.Errorf("treat_as_public: %q is not a network, as 192.0.2.0/24: %w", n, errdefs.ErrInvalidArgument))
		}
		c.Public = append(c.Public, p)
	}
	var err error
	if f.Resolver != "" {
		if c.Resolver, err = netip.ParseAddrPort(f.Resolver); err != nil {
			return nil, bad(fmt.Errorf("resolver: %q is not an address and a port, as 192.0.2.1:53: %w", f.Resolver, errdefs.ErrInvalidArgument))
		}
	}
	if c.Proxy, err = parseProxy(f.UpstreamProxy, f.NoProxy); err != nil {
		return nil, bad(err)
	}
	if c.Rules, err = c.Read(Texts{Allow: f.Allow, Ask: f.Ask, Deny: f.Deny}); err != nil {
		return nil, bad(err)
	}
	if c.Models, err = models(f.Models); err != nil {
		return nil, bad(err)
	}
	if c.ModelBudgets, err = modelBudgets(f.ModelBudgets, c.Models); err != nil {
		return nil, bad(err)
	}
	for name, p := range f.Profiles {
		texts := Texts{Allow: p.Allow, Ask: p.Ask, Deny: p.Deny}
		rules, err := c.Read(texts)
		if err == nil {
			_, err = netrule.New(slices.Concat(c.Rules, rules), netrule.Options{Public: c.Public})
		}
		if err != nil {
			return nil, bad(fmt.Errorf("profiles: %s: %w", name, err))
		}
		if c.Profiles == nil {
			c.Profiles = map[string]Texts{}
		}
		c.Profiles[name] = texts
	}
	// What cannot be used together is found now, and not when something runs.
	if _, err := netrule.New(c.Rules, netrule.Options{Public: c.Public}); err != nil {
		return nil, bad(err)
	}
	return c, nil
}

// Texts are rules as a person writes them, by their action.
type Texts struct{ Allow, Ask, Approved, Deny []string }

// Read returns the rules that texts mean.
func (c *Config) Read(t Texts) (rules []netrule.Rule, err error) {
	for _, l := range []struct {
		action netrule.Action
		texts  []string
	}{{netrule.Allow, t.Allow}, {netrule.Ask, t.Ask}, {netrule.Approved, t.Approved}, {netrule.Deny, t.Deny}} {
		for _, text := range l.texts {
			if strings.HasPrefix(text, "@") {
				set, err := c.expand(l.action, text)
				if err != nil {
					return nil, err
				}
				rules = append(rules, set...)
				continue
			}
			r, err := netrule.ParseRule(l.action, text)
			if err != nil {
				return nil, err
			}
			rules = append(rules, r)
		}
	}
	return rules, nil
}

// expand returns the rules of a set. The caller's and the built-in sets win over those of package clients.
func (c *Config) expand(action netrule.Action, text string) ([]netrule.Rule, error) {
	name := strings.TrimPrefix(text, "@")
	if _, ok := c.Sets[name]; ok || c.Clients == nil {
		return c.Sets.Expand(action, text)
	}
	hosts, err := c.Clients(name)
	sets := netrule.Sets{name: hosts}
	if _, known := clients[name]; !known { // the error lists those that there are
		sets = maps.Clone(c.Sets)
		for _, other := range ClientNames() {
			sets[other] = nil
		}
	} else if err != nil {
		return nil, err
	}
	return sets.Expand(action, text)
}
