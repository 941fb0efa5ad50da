package rules

import (
	"fmt"
	"slices"
	"strings"
)

// Overridden is a rule with level SAFE of a file of rules that a stricter rule overrides: the strictest level wins, so it
// lets nothing pass.
type Overridden struct {
	// Rule is its id, At its place as "file:line:column".
	Rule, At string
	// Sample is a command that it matches, "" if it matches by capability; Profile is where that is judged.
	Sample  string
	Profile Profile
	Level   Level
	// By are the ids of the rules that override it.
	By []string
}

// String says it for people, with what to do.
func (o Overridden) String() string {
	return o.What() + "; replace that rule by its id, or let such commands pass with \"carrel policy allow\""
}

// What says it for people.
func (o Overridden) What() string {
	what := "what it matches"
	if o.Sample != "" {
		what = fmt.Sprintf("%q", o.Sample)
	}
	return fmt.Sprintf("%s: the rule %s says SAFE and has no effect: %s stays %s on %s by %s", o.At, o.Rule, what, o.Level, o.Profile,
		strings.Join(o.By, ", "))
}

// Overridden returns the rules of the file with level SAFE that stricter rules override, each once for a profile. They
// are found by their examples, by commands made of their words, and by their capabilities; a rule of patterns alone is
// found by its examples only.
func (e *Engine) Overridden() []Overridden {
	var list []Overridden
	for i := range e.Rules() {
		r := e.rule(int32(i))
		if !r.own || r.level != Safe {
			continue
		}
		profiles := r.match.profile
		if len(profiles) == 0 {
			profiles = []Profile{Host, Workspace}
		}
		for _, p := range profiles {
			if o, ok := e.overridden(r, p); ok {
				list = append(list, o)
			}
		}
	}
	return list
}

func (e *Engine) overridden(r *rule, p Profile) (Overridden, bool) {
	o := Overridden{Rule: r.id, At: fmt.Sprintf("%s:%d:%d", r.source, r.at.line, r.at.col), Profile: p}
	q := Question{Profile: p, Verified: true, Source: User, Hosts: r.match.hostAny}
	if len(r.match.origin) > 0 && !slices.Contains(r.match.origin, User) {
		q.Source = LLM
	}
	if len(r.match.workspace) > 0 {
		q.Workspace = r.match.workspace[0]
	}
	for _, sample := range r.samples() {
		q.Command = sample
		d := e.Decide(q)
		for _, s := range d.Segments {
			if s.Level == Safe || !slices.Contains(s.MatchedRules, r.id) {
				continue
			}
			o.Sample, o.Level = sample, s.Level
			for _, id := range s.MatchedRules {
				if id != r.id && e.levelOf(id) > Safe {
					o.By = append(o.By, id)
				}
			}
			return o, true
		}
	}
	if r.match.capabilityAny == 0 || len(r.samples()) > 0 {
		return o, false
	}
	for i := range e.Rules() {
		x := e.rule(int32(i))
		if m := &x.match; x.level > Safe && m.capabilityAny&r.match.capabilityAny != 0 &&
			(len(m.profile) == 0 || slices.Contains(m.profile, p)) && (len(m.origin) == 0 || slices.Contains(m.origin, q.Source)) {
			o.By, o.Level = append(o.By, x.id), max(o.Level, x.level)
		}
	}
	return o, len(o.By) > 0
}

// levelOf is the level of a rule by its id; what no rule covers is CONFIRM.
func (e *Engine) levelOf(id string) Level {
	for i := range e.Rules() {
		if r := e.rule(int32(i)); r.id == id {
			return r.level
		}
	}
	return Confirm
}

// samples are commands that the rule should match: its examples, and its words put together.
func (r *rule) samples() []string {
	var list []string
	for _, x := range r.should {
		list = append(list, x.text)
	}
	m := &r.match
	var rest []string
	for _, words := range [][]string{m.subcommandAny, m.argsAny, m.pathAny} {
		rest = append(rest, words[:min(1, len(words))]...)
	}
	begin := func(words ...string) {
		line := strings.Join(slices.Concat(words, rest), " ")
		// Some programs do nothing without an operand.
		list = append(list, line, line+" x", line+" https://example.org/x")
	}
	for _, c := range m.command {
		begin(c)
	}
	for _, a := range m.argv {
		if len(a.prefix) > 0 {
			begin(a.prefix...)
		}
	}
	return list
}
