package netrule

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/carrel-dev/carrel/internal/spec/httprule"
)

// narrow is a Rule with a protocol or requests, ready to be looked up.
type narrow struct {
	ranges   []Ports
	action   Action
	protocol Protocol
	requests bool
	methods  []string // empty for all
	path     *httprule.Pattern
	text     string
	exact    int // how exact its host is, for which rule is named
}

func newNarrow(r *Rule, text string) (*narrow, error) {
	n := &narrow{
		ranges: r.ranges(), action: r.Action, protocol: r.Protocol, requests: r.requests(), text: text, exact: len(r.Name),
	}
	if r.Name != "" && !r.Below {
		n.exact = 1 << 10
	}
	if r.Methods != "" {
		n.methods = strings.Split(r.Methods, ",")
	}
	if r.Path != "" {
		p, err := httprule.ParsePattern(r.Path)
		if err != nil {
			return nil, err
		}
		n.path = &p
	}
	return n, nil
}

// narrows are the rules with a protocol or requests.
type narrows struct {
	exact, below map[string][]*narrow
	any          []*narrow
	longest      int // bytes of the longest name in below
}

func (x *narrows) add(r *Rule, n *narrow) {
	switch {
	case r.Any:
		x.any = append(x.any, n)
	case r.Below:
		x.below[r.Name] = append(x.below[r.Name], n)
		x.longest = max(x.longest, len(r.Name))
	default:
		x.exact[r.Name] = append(x.exact[r.Name], n)
	}
}

// order has equal sets of rules name the same rule: the most exact first, then by text.
func (x *narrows) order() {
	sorted := func(all []*narrow) {
		slices.SortFunc(all, func(a, b *narrow) int {
			return cmp.Or(-cmp.Compare(a.exact, b.exact), cmp.Compare(a.text, b.text))
		})
	}
	sorted(x.any)
	for _, all := range x.exact {
		sorted(all)
	}
	for _, all := range x.below {
		sorted(all)
	}
}

// each calls f for each rule that names t, the most exact first, until f returns false.
func (x *narrows) each(t Target, f func(*narrow) bool) {
	x.on(t.Host, func(n *narrow) bool {
		for _, p := range n.ranges {
			if t.Port >= p.First && t.Port <= p.Last {
				return f(n)
			}
		}
		return true
	})
}

// on is each on every port.
func (x *narrows) on(h Host, f func(*narrow) bool) {
	if x == nil {
		return
	}
	on := func(all []*narrow) bool {
		for _, n := range all {
			if !f(n) {
				return false
			}
		}
		return true
	}
	if name := h.name; name != "" {
		if !on(x.exact[name]) {
			return
		}
		for dot := strings.IndexByte(name, '.'); dot >= 0; dot = strings.IndexByte(name, '.') {
			if name = name[dot+1:]; len(name) <= x.longest && !on(x.below[name]) {
				return
			}
		}
	}
	on(x.any)
}

// narrowed is the verdict on a target for which rules say whole without those that have a protocol or requests.
func (r *Rules) narrowed(t Target, c *cell, whole Verdict) Verdict {
	if c != nil && c.action == Deny || t.Host == (Host{}) {
		return whole
	}
	if c == nil {
		if a, literal := t.Host.Addr(); literal && !r.plain(a, t.Port) {
			return whole
		}
	}
	r.narrow.each(t, func(n *narrow) bool {
		whole.Narrow = true
		if c == nil && n.action == Allow && whole.Action == Deny {
			whole.Action, whole.Rule = Allow, n.text
		}
		return true
	})
	if whole.Action == Deny {
		whole.Narrow = false
	}
	return whole
}

// plain reports whether no rule keeps an address from those that are for every host.
func (r *Rules) plain(a netip.Addr, port uint16) bool {
	_, no := r.refuses(a, port)
	return no == nil && r.carries(a, port, Deny) == nil && r.carries(a, port, Ask) == nil
}

// Request is what rules look at in a request of HTTP.
type Request struct {
	// Method is as it was sent.
	Method string
	Path   httprule.Path
	// Destination is a second path that it acts on, nil if there is none.
	Destination *httprule.Path
	// NoMethod and NoPath say why servers may take another method or path than these, "" if none does.
	NoMethod, NoPath string
	// Upgrade is the protocol to which it asks to change the connection, "" if it does not.
	Upgrade string
}

// Rule is the narrowest rule that would allow the request to t, quoted for a shell; HOST:PORT if no rule for a request would.
func (q *Request) Rule(t Target) string {
	if q.Upgrade != "" || q.NoMethod != "" || q.NoPath != "" {
		return t.String()
	}
	path := ""
	if p, err := httprule.ParsePattern(q.Path.Text()); err == nil && !strings.ContainsAny(p.Text(), "'*&") {
		path = p.Text()
	}
	r, err := ParseRule(Allow, q.Method+" "+t.String()+path)
	if err != nil || len(r.Text) > mostKept {
		return t.String()
	}
	return "'" + r.Text + "'"
}

// mostKept is how long a rule can be that a workspace keeps, in bytes.
const mostKept = 300

// Limits are what the rules say of the connections to one target.
type Limits struct {
	target Target
	whole  Verdict // without rules that have a protocol or requests
	rules  []*narrow
}

// Limits returns what the rules say of the connections to t. The caller has judged t, and judges each connection, and
// each request if Connection says so, by it.
func (r *Rules) Limits(t Target) Limits {
	l := Limits{target: t, whole: r.decides(t).verdict()}
	r.narrow.each(t, func(n *narrow) bool {
		l.rules = append(l.rules, n)
		return true
	})
	return l
}

// None reports whether no rule has a protocol or requests: what Judge says is all there is.
func (l *Limits) None() bool { return len(l.rules) == 0 }

// Connection judges a connection by what is spoken on it; Anything stands for what is neither TLS nor HTTP. With
// requests, the caller reads the connection and judges each request by Request. approved: a person let it through. The
// verdict is Allow or Deny, and its Reason is that of Why.
func (l *Limits) Connection(p Protocol, approved bool) (v Verdict, requests bool) {
	var allowed, denied *narrow
	for _, n := range l.rules {
		switch {
		case p == Anything && (n.requests || n.action == Deny): // it may be one of the others in a form that is not known here
			return Verdict{Action: Deny, Rule: n.text}, false
		case n.protocol != Anything && n.protocol != p || p == Anything:
		case n.requests:
			requests = true
		case n.action == Deny:
			denied = first(denied, n)
		default:
			allowed = first(allowed, n)
		}
	}
	switch {
	case denied != nil:
		return Verdict{Action: Deny, Rule: denied.text}, false
	case requests, l.Wholly(approved):
		return Verdict{Action: Allow, Rule: l.whole.Rule}, requests
	case allowed != nil:
		return Verdict{Action: Allow, Rule: allowed.text}, false
	}
	return Verdict{Action: Deny}, false
}

func first(a, b *narrow) *narrow {
	if a == nil {
		return b
	}
	return a
}

// Wholly reports whether everything that no rule denies may be sent. approved: a person let the connection through.
func (l *Limits) Wholly(approved bool) bool {
	return l.whole.Action == Allow || l.whole.Action == Ask && approved
}

// Why says why a connection with this verdict of Connection is refused.
func (l *Limits) Why(p Protocol, v Verdict) string {
	what := map[Protocol]string{TLS: "TLS", HTTP: "HTTP without TLS"}[p]
	switch {
	case v.Rule != "" && p == Anything:
		return l.target.String() + " is not allowed: the rule " + v.Rule +
			" is about requests or a protocol, and what was sent is neither HTTP nor TLS"
	case v.Rule != "":
		return l.target.String() + " is not allowed: the rule " + v.Rule + " denies " + what
	case p == Anything:
		return l.target.String() + " is not allowed: no rule allows what is neither HTTP nor TLS"
	}
	return l.target.String() + " is not allowed: no rule allows " + what
}

// Request judges one request that is made by p, TLS or HTTP, with its destination. The strictest action wins, whatever the order
// of the rules. A rule that denies is compared loosely, see httprule.Pattern.Covers, one that allows exactly.
func (l *Limits) Request(p Protocol, q *Request, approved bool) (v Verdict, why string) {
	v, why = l.request(p, q, approved, "")
	if why == "" && q.Destination != nil {
		if w, no := l.request(p, q.at(*q.Destination), approved, "at its destination "); no != "" {
			return w, no
		}
	}
	return v, why
}

// Missing is the narrowest rule that would allow what Request refuses of a request without a rule that denies it: see Request.Rule.
func (l *Limits) Missing(p Protocol, q *Request, approved bool) string {
	if q.Destination != nil {
		if _, why := l.request(p, q, approved, ""); why == "" {
			q = q.at(*q.Destination)
		}
	}
	return q.Rule(l.target)
}

// at is the same request with another path.
func (q *Request) at(p httprule.Path) *Request {
	other := *q
	other.Path, other.Destination = p, nil
	return &other
}

// request is Request for one path. where begins the reason.
func (l *Limits) request(p Protocol, q *Request, approved bool, where string) (v Verdict, why string) {
	no := func(rule, why string) (Verdict, string) {
		return Verdict{Action: Deny, Rule: rule}, fmt.Sprintf("%s to %s is not allowed: %s%s", q.what(), l.target, where, why)
	}
	var byMethod, byPath, any bool
	for _, n := range l.rules {
		if n.protocol == Anything || n.protocol == p {
			any = any || n.requests || n.action == Deny
			byMethod, byPath = byMethod || n.methods != nil, byPath || n.path != nil
		}
	}
	switch {
	case byMethod && q.NoMethod != "":
		return no("", q.NoMethod)
	case byMethod && strings.Trim(q.Method, "ABCDEFGHIJKLMNOPQRSTUVWXYZ-") != "":
		return no("", "its method is not written in capital letters, which servers read in different ways")
	case byPath && q.NoPath != "":
		return no("", q.NoPath)
	case any && q.Upgrade != "" && !strings.EqualFold(q.Upgrade, "websocket"):
		return no("", "it asks for another protocol on the connection than WebSocket")
	}
	var allowed *narrow
	whole := l.Wholly(approved)
	rule := l.whole.Rule
	for _, n := range l.rules {
		switch {
		case n.protocol != Anything && n.protocol != p:
		case n.action == Deny:
			if n.covers(q) {
				return no(n.text, "the rule "+n.text+" denies it")
			}
		case !n.requests && !whole:
			whole, rule = true, n.text
		case n.requests && n.matches(q):
			allowed = first(allowed, n)
		}
	}
	switch {
	case whole:
		return Verdict{Action: Allow, Rule: rule}, ""
	case q.Upgrade != "":
		return no("", "it asks for another protocol on the connection, which takes a rule that allows the whole host")
	case allowed != nil:
		return Verdict{Action: Allow, Rule: allowed.text}, ""
	}
	return no("", "no rule allows it")
}

// Denies returns the text of a rule that denies a part of what is sent, "" if there is none.
func (l *Limits) Denies() string {
	for _, n := range l.rules {
		if n.action == Deny {
			return n.text
		}
	}
	return ""
}

// what names a request without anything that is not the server's own or one of a few methods.
func (q *Request) what() string {
	if slices.Contains(common, q.Method) {
		return "a " + q.Method
	}
	return "a request"
}

var common = []string{"DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"}

func (n *narrow) matches(q *Request) bool {
	return (n.methods == nil || slices.Contains(n.methods, q.Method)) && (n.path == nil || n.path.Matches(q.Path))
}

func (n *narrow) covers(q *Request) bool {
	return (n.methods == nil || slices.Contains(n.methods, strings.ToUpper(q.Method))) && (n.path == nil || n.path.Covers(q.Path))
}
