package fleet

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
)

// All is what Resolve takes for every host.
const All = "*"

// Resolve returns the hosts that the names stand for: names of hosts, names of groups, "label=value", and All. They come
// in the order of the file, each once. A name that stands for no host is an error, which lists names like it; so is
// having no name. Names are exact: there are no patterns and no prefixes.
func (inv *Inventory) Resolve(names ...string) ([]Host, error) {
	if len(names) == 0 {
		return nil, invalid("cannot choose hosts: none is named; name hosts, groups or label=value, or %q for all", All)
	}
	chosen := map[int]bool{}
	for _, name := range names {
		found, err := inv.find(name)
		if err != nil {
			return nil, fmt.Errorf("cannot choose hosts: %w", err)
		}
		for _, i := range found {
			chosen[i] = true
		}
	}
	hosts := make([]Host, 0, len(chosen))
	for _, i := range slices.Sorted(maps.Keys(chosen)) {
		hosts = append(hosts, inv.hosts[i].clone())
	}
	return hosts, nil
}

func (inv *Inventory) find(name string) (found []int, err error) {
	none := func(format string, args ...any) error {
		return fmt.Errorf("%w: %w", fmt.Errorf(format, args...), errdefs.ErrNotFound)
	}
	if name == All {
		for i := range inv.hosts {
			found = append(found, i)
		}
		if found == nil {
			return nil, none("the inventory has no host")
		}
		return found, nil
	}
	if label, value, ok := strings.Cut(name, "="); ok {
		var known []string
		for i := range inv.hosts {
			for k, v := range inv.hosts[i].Labels {
				known = append(known, k+"="+v)
			}
			if v, ok := inv.hosts[i].Labels[label]; ok && v == value {
				found = append(found, i)
			}
		}
		if found == nil {
			return nil, none("no host has the label %.80q%s", name, near(name, known))
		}
		return found, nil
	}
	if i, ok := inv.byName[name]; ok {
		return []int{i}, nil
	}
	if members, ok := inv.groups[name]; ok {
		if len(members) == 0 {
			return nil, none("the group %s has no host", name)
		}
		return members, nil
	}
	known := slices.AppendSeq(slices.Collect(maps.Keys(inv.byName)), maps.Keys(inv.groups))
	return nil, none("no host and no group is named %.80q%s", name, near(name, known))
}

// near returns "; there is a, b" for the known names that are most like a name, "" if none is.
func near(name string, known []string) string {
	const most = 5
	type like struct {
		name string
		by   int
	}
	var all []like
	name = name[:min(len(name), 64)]
	slices.Sort(known)
	for _, k := range slices.Compact(known) {
		d := distance(strings.ToLower(name), strings.ToLower(k[:min(len(k), 64)]))
		if strings.HasPrefix(k, name) || len(k) > 2 && strings.HasPrefix(name, k) {
			d = min(d, 1)
		}
		if d <= 2 && d < max(len(name), len(k)) {
			all = append(all, like{k, d})
		}
	}
	if len(all) == 0 {
		return ""
	}
	slices.SortStableFunc(all, func(a, b like) int { return cmp.Compare(a.by, b.by) })
	var names []string
	for _, l := range all[:min(len(all), most)] {
		names = append(names, l.name)
	}
	return "; there is " + strings.Join(names, ", ")
}

// distance is the number of bytes to insert, remove or replace that make one text the other.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			d := diagonal
			if a[i] != b[j] {
				d = 1 + min(diagonal, row[j], row[j+1])
			}
			diagonal, row[j+1] = row[j+1], d
		}
	}
	return row[len(b)]
}
