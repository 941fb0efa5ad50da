package fanout

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
)

// Bounds of the groups of Orders.
const (
	MaxGroups = 64
	// MaxGrouped bounds the hosts of all groups together; one of two groups counts twice.
	MaxGrouped = 2 * MaxHosts
)

// Settings are the parts of an order that somebody has set. The zero value of a part leaves it to others.
type Settings struct {
	Forks               int
	Serial, MaxFailures string
	Canary              *bool
}

// Over returns s, with the parts of base where s has none.
func (s Settings) Over(base Settings) Settings {
	return Settings{
		Forks: cmp.Or(s.Forks, base.Forks), Serial: cmp.Or(s.Serial, base.Serial), MaxFailures: cmp.Or(s.MaxFailures, base.MaxFailures),
		Canary: cmp.Or(s.Canary, base.Canary),
	}
}

// Order returns the order that has these parts, and the defaults for the others.
func (s Settings) Order() Order {
	return Order{Forks: s.Forks, Serial: s.Serial, MaxFailures: s.MaxFailures, NoCanary: s.Canary != nil && !*s.Canary}
}

// String is the order in the words in which it is set.
func (o Order) String() string {
	text := fmt.Sprintf("forks %d, serial %s", cmp.Or(o.Forks, DefaultForks), cmp.Or(o.Serial, "100%"))
	if o.MaxFailures != "" {
		text += ", max_failures " + o.MaxFailures
	}
	return fmt.Sprintf("%s, canary %v", text, !o.NoCanary)
}

// Orders say how steps reach hosts of which some have an order of their own.
type Orders struct {
	// All is for the hosts that are in no group.
	All Order
	// Groups take its place for their hosts.
	Groups []Group
}

// Group is some hosts, by their names, with their order. Its own name is for people, and may be missing.
type Group struct {
	Name  string
	Hosts []string
	Order Order
}

// Check says what is wrong with orders, as an invalid argument.
func (o Orders) Check() error {
	if len(o.Groups) > MaxGroups {
		return fmt.Errorf("cannot use the orders of %d groups of hosts: give at most %d: %w", len(o.Groups), MaxGroups,
			errdefs.ErrInvalidArgument)
	}
	hosts := 0
	for _, g := range o.Groups {
		if hosts += len(g.Hosts); hosts > MaxGrouped {
			return fmt.Errorf("cannot use the orders of groups: they have more than %d hosts in all: %w", MaxGrouped, errdefs.ErrInvalidArgument)
		}
		if err := g.Order.Check(); err != nil {
			return err
		}
	}
	return o.All.Check()
}

// Of is the way of a step on some hosts: of all orders that are for one of them, the strictest in each part.
func (o Orders) Of(hosts []string) (w Way, err error) {
	known := map[string]bool{}
	of := []Order{}
	for _, g := range o.Groups {
		with := false
		for _, h := range g.Hosts {
			if slices.Contains(hosts, h) {
				known[h], with = true, true
			}
		}
		if with {
			of = append(of, g.Order)
		}
	}
	if len(of) == 0 || slices.ContainsFunc(hosts, func(h string) bool { return !known[h] }) {
		of = append(of, o.All)
	}
	for i, order := range of {
		next, err := order.Of(len(hosts))
		if err != nil {
			return w, err
		}
		if i == 0 {
			w = next
		} else {
			w = w.and(next)
		}
	}
	return w, nil
}

// Read reads one part of settings, by its name in an inventory.
func (s *Settings) Read(name, text string) error {
	if text == "" {
		return fmt.Errorf("cannot use an empty %.40s: give it a value, or leave it out: %w", name, errdefs.ErrInvalidArgument)
	}
	switch name {
	case "forks":
		k, ok := share(text, 1, 0)
		if !ok || strings.HasSuffix(text, "%") || k > MaxForks {
			return fmt.Errorf("cannot use forks %.40q: give 1 to %d: %w", text, MaxForks, errdefs.ErrInvalidArgument)
		}
		s.Forks = k
	case "serial":
		s.Serial = text
	case "max_failures":
		s.MaxFailures = text
	case "canary":
		if text != "true" && text != "false" {
			return fmt.Errorf("cannot use canary %.40q: give true or false: %w", text, errdefs.ErrInvalidArgument)
		}
		yes := text == "true"
		s.Canary = &yes
	default:
		return fmt.Errorf("cannot set %.40q: there are forks, serial, max_failures and canary: %w", name, errdefs.ErrInvalidArgument)
	}
	return s.Order().Check()
}
