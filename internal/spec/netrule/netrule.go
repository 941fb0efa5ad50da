// Package netrule decides which hosts a workspace may reach. It has the one parser of hosts, ports and
// rules, so that a proxy, a name server and the command line never read one text differently, and it
// says which addresses a name may resolve to. Rules may be about one protocol or some requests of HTTP: what is spoken on
// a connection, and each request, is then decided by Limits.
//
// A connection is decided in two steps. Rules.Judge decides on what the program asked for, before any
// name is resolved. Rules.Address then decides on each address that the name resolved to; the caller
// dials the address that was judged, and resolves nothing again in between.
//
// It must not resolve names, open connections or read the clock: the same question always gets the
// same answer.
package netrule

// Action is what a rule does with the targets that it names.
type Action string

// The actions. The strictest wins, whatever their order: Deny, then Approved, then Ask, then Allow. What no rule names is
// denied.
const (
	Allow Action = "allow"
	// Ask lets a target be reached once a person has said so.
	Ask Action = "ask"
	// Approved is an Allow that a person gave for good when they were asked. It is the answer to Ask, and so wins over it.
	Approved Action = "approved"
	Deny     Action = "deny"
)

// rank orders actions by which wins. It is 0 for what is none.
func (a Action) rank() int {
	switch a {
	case Allow:
		return 1
	case Ask:
		return 2
	case Approved:
		return 3
	case Deny:
		return 4
	}
	return 0
}

// Verdict is the decision on one target.
type Verdict struct {
	// Action is Allow, Ask or Deny.
	Action Action
	// Rule is the text of the rule that decided; empty if no rule names the target.
	Rule string
	// Narrow: rules that have a protocol or requests name the target too, or alone. Rules.Limits has what they say.
	Narrow bool
}

// Unnamed reports whether it is only because no rule names the target that it is refused: a rule that allows it lifts that.
func (v Verdict) Unnamed() bool { return v.Action == Deny && v.Rule == "" }

// Reason says in one line why t was decided so, for a person: `example.org:443 is not allowed: no rule
// names it`.
func (v Verdict) Reason(t Target) string {
	switch {
	case v.Action == Allow:
		return t.String() + " is allowed by the rule " + v.Rule
	case v.Action == Ask:
		return t.String() + " is not allowed yet: the rule " + v.Rule + " has a person asked"
	case v.Rule != "":
		return t.String() + " is not allowed: the rule " + v.Rule + " denies it"
	}
	why := t.String() + " is not allowed: no rule names it"
	if a, ok := t.Host.Addr(); ok {
		if c := classOf(a); c != nil {
			why += "; " + a.String() + " is " + c.what + ", which only a rule with its address or network allows"
		}
	}
	return why
}
