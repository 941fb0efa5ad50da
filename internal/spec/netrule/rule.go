package netrule

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
)

// Ports is a range of ports, both ends included. The zero Ports stands for the default of the action: every
// port for Deny; for the others 80 and 443, or the one of the protocol.
type Ports struct{ First, Last uint16 }

// every is written "*".
var every = Ports{1, 65535}

// Rule is one rule as ParseRule reads it. Exactly one of Name, Net and Any says which hosts it names.
type Rule struct {
	Action Action
	// Name is a canonical name. A rule for a name says nothing about the addresses of that name.
	Name string
	// Below selects every name below Name, at any depth, but not Name itself.
	Below bool
	// Net is a network, or a single address as /32 or /128. Its host bits are zero, and it is not IPv4
	// mapped to IPv6.
	Net netip.Prefix
	// Any selects every name and every address. Unless with Deny, the address must be public.
	Any   bool
	Ports Ports
	// Protocol limits the rule to connections that speak it.
	Protocol Protocol `json:",omitempty"`
	// Methods and Path limit it to some requests of HTTP: methods in order with commas between them, and a pattern of paths as
	// httprule.Pattern has it. "" is each method, and each path.
	Methods string `json:",omitempty"`
	Path    string `json:",omitempty"`
	// Text is the rule in its canonical form, which verdicts and messages show.
	Text string
}

// ParseRule reads one rule. The forms are
//
//	example.org              a name, on ports 80 and 443; with Deny, on every port
//	example.org:22           on one port
//	example.org:8000-8100    on a range of ports
//	example.org:*            on every port
//	*.example.org            every name below example.org, not itself
//	192.0.2.7:5432           an address
//	10.1.0.0/16:5432         a network
//	[2001:db8::1]:443        an IPv6 address or network, always in brackets
//	[2001:db8::/32]:443
//	*, *:25                  every host; unless with Deny, every name and every public address
//	tls://example.org        TLS alone, on port 443; http:// is HTTP without TLS, on port 80, and tcp:// anything
//	GET,HEAD example.org     some methods of HTTP, with TLS or without
//	example.org:443/v1/*     some paths; httprule.ParsePattern reads them, and /** at the end is the same as /*
//	POST tls://example.org/x all of them together
//
// A protocol, methods and a path are for Allow and Deny, and for names. With them too, Deny without a port is for every one.
//
// Every form of host takes every form of ports. ParseHost reads the hosts. Ask and Approved name what Allow does. A rule
// for a network or an address allows targets that are written as an address; a target with a name needs a rule for the name,
// and one for the network too if its address is not public. IPv4 addresses are in no IPv6 network.
//
// Every error is of kind errdefs.ErrInvalidArgument.
func ParseRule(a Action, s string) (Rule, error) {
	r := Rule{Action: a}
	if a.rank() == 0 {
		return Rule{}, badRule(s, "the action %s is unknown; it is allow, ask or deny", quoted(string(a)))
	}
	if strings.HasPrefix(s, "@") {
		return Rule{}, badRule(s, "it names a set; expand the set first")
	}
	rest, err := r.cutPart(s)
	if err != nil {
		return Rule{}, err
	}
	host, ports, ok := cutPort(rest)
	switch {
	case !ok && strings.Count(rest, ":") > 1 && !strings.HasPrefix(rest, "["):
		return Rule{}, badRule(s, "it is unclear where a port would begin; write brackets, for example [2001:db8::1]:443 or [2001:db8::/32]")
	case ok:
		if r.Ports, ok = parsePorts(ports); !ok {
			return Rule{}, badRule(s, "the ports are not from 1 to 65535; write one as :22, a range as :8000-8100 or all as :*")
		}
	}
	switch below, isBelow := strings.CutPrefix(host, "*."); {
	case host == "*":
		r.Any = true
	case strings.Contains(host, "/"):
		r.Net, err = parseNet(s, host)
	default:
		var h Host
		if h, err = ParseHost(below); err == nil {
			r.Name, r.Below = h.name, isBelow
			if addr, ok := h.Addr(); ok {
				r.Net = netip.PrefixFrom(addr, addr.BitLen())
			}
		}
		switch {
		case err != nil && strings.Contains(below, "*"):
			err = badRule(s, "a * stands alone or before the first dot; write for example *.example.org")
		case err == nil && isBelow && r.Name == "":
			err = badRule(s, "addresses have no names below them; write a network, for example 10.1.0.0/16")
		}
	}
	if err == nil && r.Narrow() {
		err = r.checkPart(s)
	}
	if err != nil {
		return Rule{}, err
	}
	r.Text = r.canonical()
	return r, nil
}

func badRule(s, why string, args ...any) error {
	return fmt.Errorf("cannot read the rule %s: %s: %w", quoted(s), fmt.Sprintf(why, args...), errdefs.ErrInvalidArgument)
}

// parseNet reads a network, in brackets if it is IPv6.
func parseNet(rule, s string) (netip.Prefix, error) {
	inner, v6 := strings.CutPrefix(s, "[")
	if v6 {
		inner, v6 = strings.CutSuffix(inner, "]")
	}
	p, err := netip.ParsePrefix(inner)
	switch {
	case err != nil:
		return p, badRule(rule, "it is not a network; write for example 10.1.0.0/16:5432 or [2001:db8::/32]:443")
	case v6 == p.Addr().Is4():
		return p, badRule(rule, "brackets are for IPv6; write for example 10.1.0.0/16:5432 or [2001:db8::/32]:443")
	case p.Addr().Is4In6():
		return p, badRule(rule, "it is IPv4 in IPv6; write the IPv4 network")
	case p != p.Masked():
		return p, badRule(rule, "its address has bits behind the /%d; write %s", p.Bits(), netText(p.Masked()))
	}
	return p, nil
}

// parsePorts reads "*", a port, or two with a hyphen, the lower first.
func parsePorts(s string) (Ports, bool) {
	if s == "*" {
		return every, true
	}
	from, to, ok := strings.Cut(s, "-")
	first, okFirst := parsePort(from)
	if !ok {
		return Ports{first, first}, okFirst
	}
	last, okLast := parsePort(to)
	return Ports{first, last}, okFirst && okLast && first <= last
}

// canonical is the rule in the form that ParseRule reads back as the same rule.
func (r Rule) canonical() string {
	var b strings.Builder
	if r.Methods != "" {
		b.WriteString(r.Methods + " ")
	}
	if r.Protocol != "" {
		b.WriteString(string(r.Protocol) + scheme)
	}
	switch {
	case r.Any:
		b.WriteByte('*')
	case r.Net.IsValid():
		b.WriteString(netText(r.Net))
	default:
		if r.Below {
			b.WriteString("*.")
		}
		b.WriteString(r.Name)
	}
	switch p := r.Ports; p {
	case Ports{}:
	case every:
		b.WriteString(":*")
	default:
		b.WriteByte(':')
		b.WriteString(strconv.Itoa(int(p.First)))
		if p.Last != p.First {
			b.WriteByte('-')
			b.WriteString(strconv.Itoa(int(p.Last)))
		}
	}
	b.WriteString(r.Path)
	return b.String()
}

func netText(p netip.Prefix) string {
	text := p.String()
	if p.IsSingleIP() {
		text = p.Addr().String()
	}
	if p.Addr().Is6() {
		text = "[" + text + "]"
	}
	return text
}

// ranges returns the ports that the rule names.
func (r Rule) ranges() []Ports {
	switch {
	case r.Ports != Ports{}:
		return []Ports{r.Ports}
	case r.Action == Deny:
		return []Ports{every}
	case r.Protocol == TLS:
		return []Ports{{443, 443}}
	case r.Protocol == HTTP:
		return []Ports{{80, 80}}
	}
	return []Ports{{80, 80}, {443, 443}}
}
