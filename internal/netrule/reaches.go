package netrule

import "strings"

// Reaches reports whether Judge allows h on any port, for those who give a name an address before it is
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
	// The ports that are allowed begin where a rule with Allow does, or behind one with Deny.
	for _, t := range append(probe, r.any) {
		if t == nil {
			continue
		}
		for _, c := range t.cells {
			port := c.First
			if c.action == Deny {
				port = c.Last + 1 // 0 behind the last port, which Judge denies
			}
			if r.Judge(Target{h, port}).Action == Allow {
				return true
			}
		}
	}
	return false
}

// ReachesSome reports whether Judge allows some of the hosts that another rule is about, on any port. Of a name and all
// below it, it looks at one below.
func (r *Rules) ReachesSome(of Rule) bool {
	name := of.Name
	if of.Net.IsValid() {
		name = of.Net.Addr().String()
	}
	if of.Below {
		name = "any." + name
	}
	h, err := ParseHost(name)
	return err == nil && r.Reaches(h)
}
