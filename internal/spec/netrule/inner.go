package netrule

import (
	"net/netip"
	"slices"
)

// Inner returns what a rule lets be reached that is not public on this host, as "a private address (RFC 1918)"; "" if
// it names nothing of the kind. Only a rule without Deny for a network that is no wider than that of a class does so.
func (r Rule) Inner(o Options) string {
	if r.Action == Deny || !r.Net.IsValid() {
		return ""
	}
	holds := func(p netip.Prefix) bool { return p.Bits() <= r.Net.Bits() && p.Contains(r.Net.Addr()) }
	var of *class
	for i := range classes {
		if c := &classes[i]; holds(c.net) && (of == nil || c.net.Bits() > of.net.Bits()) {
			of = c
		}
	}
	if of != nil && !of.open && (of.always || !slices.ContainsFunc(o.Public, holds)) {
		return of.what
	}
	if r.Net.IsSingleIP() && slices.Contains(o.Own, r.Net.Addr()) {
		return "an address of this host"
	}
	return ""
}
