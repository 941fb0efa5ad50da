package netrule

import (
	"math"
	"strings"
)

// Reaches reports whether Judge allows h on any port, or has a person asked, for those who give a name an address before it is
// known which port is wanted.
func (r *Rules) Reaches(h Host) bool {
	var probe []*table
	if a, ok := h.Addr(); ok {
		for i := r.inner(a); i >= 0; i = r.nets[i].parent {
			probe = append(probe, r.nets[i].ports)
		}
	} else if h.name == "" {
		return false
	} else {
		for name, set := h.name, r.exact; ; set = r.below {
			probe = append(probe, set[name])
			dot := strings.IndexByte(name, '.')
			if dot < 0 {
				break
			}
			name = name[dot+1:]
		}
	}
	// The ports that may be reached begin where a rule without Deny does, or behind one with it.
	for _, t := range append(probe, r.any) {
		if t == nil {
			continue
		}
		for _, c := range t.cells {
			port := c.First
			if c.action == Deny {
				port = c.Last + 1 // 0 behind the last port, which Judge denies
			}
			if r.Judge(Target{h, port}).Action != Deny {
				return true
			}
		}
	}
	found := false
	r.narrow.on(h, func(n *narrow) bool {
		for _, p := range n.ranges {
			found = found || r.Judge(Target{h, p.First}).Action != Deny
		}
		return !found
	})
	return found
}

// ReachesSome reports whether Judge allows some port of the hosts that a rule with Allow is about. Of the names below one,
// it looks at one. It may take some milliseconds.
func (r *Rules) ReachesSome(of Rule) bool {
	name := of.Name
	if of.Net.IsValid() {
		name = of.Net.Addr().String()
	}
	if of.Below {
		name = "any." + name
	}
	h, err := ParseHost(name)
	if err != nil || !r.Reaches(h) {
		return false
	}
	alone, err := New([]Rule{of}, Options{})
	if err != nil {
		return false
	}
	for port := 1; port <= math.MaxUint16; port++ {
		t := Target{h, uint16(port)}
		if alone.Judge(t).Action == Allow && r.Judge(t).Action == Allow {
			return true
		}
	}
	return false
}
