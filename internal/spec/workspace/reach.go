package workspace

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/containerd/errdefs"
)

// Reach is what commands may reach of the network, as texts of rules: HOST, *.SUFFIX, HOST:PORT, NETWORK, @SET,
// tls://HOST or METHODS HOST/PATH (docs/egress.md). The zero value is nothing. Each list is in the order given, without repetition.
//
// A Reach is not changed in place: it is shared by those who have read it.
type Reach struct {
	Allow []string `json:"allow,omitempty"`
	// Ask has a person asked about each connection, whatever Allow says.
	Ask []string `json:"ask,omitempty"`
	// Approved are the answers that were given for good, each for one host and port. They hold whatever Ask says.
	Approved []string `json:"approved,omitempty"`
	// Deny holds whatever the others say.
	Deny []string `json:"deny,omitempty"`
}

// ReachVerdict is what the rules in force say of one host.
type ReachVerdict struct {
	// Host is HOST:PORT in its canonical form.
	Host string
	// Action is allow, ask or deny.
	Action string
	// Rule decides; it is "" if no rule names the host.
	Rule, Reason string
	// Secrets are the names of those that the host gets.
	Secrets []string
}

// MaxReachQuestions bounds the hosts that are asked about at once.
const MaxReachQuestions = 100

// Bounds of the rules of a workspace. Together they fit a record of the audit log.
const (
	MaxReachRules = 1000
	// MaxReachRule bounds one rule, and MaxReachBytes all of them together, in bytes.
	MaxReachRule  = 300
	MaxReachBytes = 24 << 10
)

// Unique returns the same rules, each once.
func (r Reach) Unique() Reach {
	return Reach{unique(r.Allow), unique(r.Ask), unique(r.Approved), unique(r.Deny)}
}

// Any reports whether it lets anything be reached, be it after a question.
func (r Reach) Any() bool { return len(r.Allow)+len(r.Ask)+len(r.Approved) > 0 }

// Empty reports whether it has no rules.
func (r Reach) Empty() bool { return !r.Any() && len(r.Deny) == 0 }

// Equal reports whether the rules are the same. Their order has no influence.
func (r Reach) Equal(o Reach) bool {
	return sameTexts(r.Allow, o.Allow) && sameTexts(r.Ask, o.Ask) && sameTexts(r.Approved, o.Approved) && sameTexts(r.Deny, o.Deny)
}

// Texts are the rules for people and records: "allow RULE", "ask RULE", "approved RULE" and "deny RULE".
func (r Reach) Texts() (all []string) {
	for _, l := range []struct {
		action string
		rules  []string
	}{{"allow ", r.Allow}, {"ask ", r.Ask}, {"approved ", r.Approved}, {"deny ", r.Deny}} {
		for _, text := range l.rules {
			all = append(all, l.action+text)
		}
	}
	return all
}

// Has reports whether a rule with this text is in any of the lists.
func (r Reach) Has(text string) bool {
	return slices.Contains(r.Allow, text) || slices.Contains(r.Ask, text) || slices.Contains(r.Approved, text) || slices.Contains(r.Deny, text)
}

// Validate reports what is out of bounds. Whether the rules can be read is for package netrule to say.
func (r Reach) Validate() error { return checkRules(r.Allow, r.Ask, r.Approved, r.Deny) }

// ReachChange adds rules and removes some. The zero value changes nothing.
type ReachChange struct {
	Allow, Ask, Approved, Deny []string
	// Remove are texts of rules that there are, in whichever lists they are. They are removed before others are added.
	Remove []string
}

// Empty reports whether it changes nothing.
func (c ReachChange) Empty() bool { return !c.Adds() && len(c.Remove) == 0 }

// Adds reports whether it adds rules.
func (c ReachChange) Adds() bool { return !c.Added().Empty() }

// Added are the rules that it adds.
func (c ReachChange) Added() Reach { return Reach{c.Allow, c.Ask, c.Approved, c.Deny} }

// Validate reports what is out of bounds.
func (c ReachChange) Validate() error {
	return checkRules(c.Allow, c.Ask, c.Approved, c.Deny, c.Remove)
}

// With returns the rules after a change.
//
// Errors: not_found if Remove names a rule that is not there, invalid_argument if there would be too many.
func (r Reach) With(c ReachChange) (Reach, error) {
	for _, text := range c.Remove {
		if !r.Has(text) {
			return r, fmt.Errorf("cannot remove the rule %q: there is none; %s: %w", text, r.there(), errdefs.ErrNotFound)
		}
	}
	left := func(rules []string) []string {
		return slices.DeleteFunc(slices.Clone(rules), func(text string) bool { return slices.Contains(c.Remove, text) })
	}
	now := Reach{
		Allow: append(left(r.Allow), c.Allow...), Ask: append(left(r.Ask), c.Ask...),
		Approved: append(left(r.Approved), c.Approved...), Deny: append(left(r.Deny), c.Deny...),
	}.Unique()
	return now, now.Validate()
}

// there names the rules for a person, the first of many.
func (r Reach) there() string {
	const shown = 20
	all := r.Texts()
	switch n := len(all); {
	case n == 0:
		return "there are no rules"
	case n > shown:
		return fmt.Sprintf("there are %s and %d more", strings.Join(all[:shown], ", "), n-shown)
	}
	return "there are " + strings.Join(all, ", ")
}

// checkRules checks the bounds of rules that are kept or sent together.
func checkRules(lists ...[]string) error {
	n, size := 0, 0
	for _, text := range slices.Concat(lists...) {
		if err := checkRule(text); err != nil {
			return err
		}
		n, size = n+1, size+len(text)
	}
	if n > MaxReachRules || size > MaxReachBytes {
		return fmt.Errorf("cannot use %d rules of %d bytes: at most %d rules and %d bytes of them are allowed; name networks, *.SUFFIX or "+
			"sets instead: %w", n, size, MaxReachRules, MaxReachBytes, errdefs.ErrInvalidArgument)
	}
	return nil
}

// escaped are characters that no rule has and that JSON makes longer.
const escaped = `"\<>&`

func checkRule(text string) error {
	why := ""
	switch {
	case text == "":
		why = "it is empty"
	case len(text) > MaxReachRule:
		why = fmt.Sprintf("it has %d bytes, and at most %d are allowed", len(text), MaxReachRule)
	case !utf8.ValidString(text) || strings.ContainsAny(text, escaped) ||
		strings.ContainsFunc(strings.TrimPrefix(text, methods(text)), func(c rune) bool { return !unicode.IsPrint(c) || unicode.IsSpace(c) }):
		why = "it has a character that no host, network, path or set has"
	default:
		return nil
	}
	return fmt.Errorf("cannot use the rule %.40q: %s; give it as example.org, *.example.org:443, 192.0.2.0/24:5432, @github or "+
		"\"GET example.org/v1/*\": %w",
		text, why, errdefs.ErrInvalidArgument)
}

// methods is what stands before the host in a rule about some methods, with the space behind it.
func methods(text string) string {
	if before, _, ok := strings.Cut(text, " "); ok && before != "" && strings.Trim(before, "ABCDEFGHIJKLMNOPQRSTUVWXYZ-,") == "" {
		return before + " "
	}
	return ""
}

// unique returns texts without repeats, nil for none.
func unique(texts []string) (all []string) {
	seen := make(map[string]bool, len(texts))
	for _, text := range texts {
		if !seen[text] {
			seen[text], all = true, append(all, text)
		}
	}
	return all
}

func sameTexts(a, b []string) bool {
	return len(a) == len(b) && slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}
