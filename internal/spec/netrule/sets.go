package netrule

import (
	_ "embed"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/containerd/errdefs"
)

// Sets maps names to rules in the form that ParseRule reads.
type Sets map[string][]string

//go:embed sets.txt
var builtIn string

var readBuiltIn = sync.OnceValues(func() (Sets, error) { return ParseSets(builtIn) })

// BuiltIn returns the sets that carrel ships: APIs of models, and hosts of source code and models. A
// workspace that may reach one can also send data there. The caller may change what is returned.
func BuiltIn() Sets {
	s, err := readBuiltIn()
	if err != nil {
		panic(err) // sets.txt is embedded, and a test parses it
	}
	sets := make(Sets, len(s))
	for name, of := range s {
		sets[name] = slices.Clone(of)
	}
	return sets
}

// ParseSets reads one set per line: a name, a colon, a space, and rules separated by single spaces. It
// skips empty lines and lines that begin with #. A name has lower-case letters, digits and hyphens, and
// occurs once. Rules are in their canonical form. Errors are of kind errdefs.ErrInvalidArgument and give
// the line.
func ParseSets(text string) (Sets, error) {
	s := Sets{}
	n := 0
	for line := range strings.Lines(text) {
		n++
		line = strings.TrimSuffix(line, "\n")
		if line == "" || line[0] == '#' {
			continue
		}
		name, rules, ok := strings.Cut(line, ": ")
		if !ok || !IsSetName(name) || s[name] != nil {
			return nil, fmt.Errorf("cannot read the sets at line %d: it has no name, or one that stood before; write for example "+
				"tools: example.org *.example.org: %w", n, errdefs.ErrInvalidArgument)
		}
		set, err := ParseSet(strings.Split(rules, " "))
		if err != nil {
			return nil, fmt.Errorf("cannot read the sets at line %d: %w", n, err)
		}
		s[name] = set
	}
	return s, nil
}

// ParseSet returns the rules of one set, each of which has to be in its canonical form and there once. Errors are of kind
// errdefs.ErrInvalidArgument.
func ParseSet(rules []string) (set []string, err error) {
	for _, rule := range rules {
		if r, err := ParseRule(Allow, rule); err != nil {
			return nil, err
		} else if r.Text != rule || slices.Contains(set, rule) {
			return nil, fmt.Errorf("%s stands twice, or is written %s: %w", quoted(rule), r.Text, errdefs.ErrInvalidArgument)
		}
		set = append(set, rule)
	}
	return set, nil
}

// IsSetName reports whether a text can be the name of a set: lower-case letters, digits and hyphens.
func IsSetName(s string) bool {
	return s != "" && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789-") == ""
}

// Expand returns the rules of the set @NAME with action a. The Text of each begins with the set, as in
// "@llm: api.example.org". For an unknown set the error is of kind errdefs.ErrNotFound and lists the known
// ones; for a rule that cannot be read it is of kind errdefs.ErrInvalidArgument.
func (s Sets) Expand(a Action, text string) ([]Rule, error) {
	name, ok := strings.CutPrefix(text, "@")
	if !ok {
		return nil, fmt.Errorf("cannot expand %s: a set is written @NAME: %w", quoted(text), errdefs.ErrInvalidArgument)
	}
	of, ok := s[name]
	if !ok {
		known := "there are none"
		if len(s) > 0 {
			known = "there are @" + strings.Join(slices.Sorted(maps.Keys(s)), ", @")
		}
		return nil, fmt.Errorf("cannot find the set %s: %s: %w", quoted(text), known, errdefs.ErrNotFound)
	}
	rules := make([]Rule, 0, len(of))
	for _, line := range of {
		r, err := ParseRule(a, line)
		if err != nil {
			return nil, fmt.Errorf("cannot use the set %s: %w", text, err)
		}
		r.Text = text + ": " + r.Text
		rules = append(rules, r)
	}
	return rules, nil
}
