package fleet

import (
	"maps"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/fanout"
)

// fanOut reads how a step reaches several hosts.
func (r *reader) fanOut(n node) (s fanout.Settings, err error) {
	f, err := r.mapping(n, "forks", "serial", "max_failures", "canary")
	if err != nil {
		return s, err
	}
	for _, key := range slices.Sorted(maps.Keys(f)) {
		if _, err := r.checked(f[key], func(text string) error {
			if err := s.Read(key, text); err != nil { // the line comes before it
				return invalid("%s", strings.TrimSuffix(strings.TrimPrefix(err.Error(), "cannot use "), ": "+errdefs.ErrInvalidArgument.Error()))
			}
			return nil
		}); err != nil {
			return s, err
		}
	}
	return s, nil
}

// group returns the hosts that a group lists, and takes its order. It is a list of hosts, or has hosts and fanout.
func (r *reader) group(inv *Inventory, e entry) (hosts []node, err error) {
	if !isMapping(e.value) {
		return r.items(e.value, MaxHosts)
	}
	f, err := r.mapping(e.value, "hosts", "fanout")
	if err != nil {
		return nil, err
	}
	if n, ok := f["fanout"]; ok {
		if len(inv.orders) == fanout.MaxGroups {
			return nil, r.errorf(n, "more than %d groups have a fanout", fanout.MaxGroups)
		}
		if inv.orders[e.key], err = r.fanOut(n); err != nil {
			return nil, err
		}
	}
	if n, ok := f["hosts"]; ok {
		return r.items(n, MaxHosts)
	}
	return nil, nil // hosts name it
}

// Order is how a step reaches several hosts, as the inventory says it for all of them.
func (inv *Inventory) Order() fanout.Settings { return inv.order }

// GroupOrder is what the inventory says for the hosts of one group.
type GroupOrder struct {
	Group string
	Hosts []string
	Order fanout.Settings
}

// GroupOrders returns what the inventory says for groups, in the order of their names.
func (inv *Inventory) GroupOrders() (all []GroupOrder) {
	for _, g := range slices.Sorted(maps.Keys(inv.orders)) {
		o := GroupOrder{Group: g, Order: inv.orders[g]}
		for _, i := range inv.groups[g] {
			o.Hosts = append(o.Hosts, inv.hosts[i].Name)
		}
		all = append(all, o)
	}
	return all
}
