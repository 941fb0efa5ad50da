package judge

import (
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/policy/rules"
	"github.com/carrel-dev/carrel/internal/spec/approval"
	"github.com/carrel-dev/carrel/internal/spec/operation"
)

// allowed are the rules by which people let commands pass unasked.
type allowed struct {
	rules    []allowedRule
	separate bool
}

type allowedRule struct {
	approval.Permission

	shape approval.Shape
}

// Allow puts rules in force in place of those before, for every decision that begins later. separate is
// approvals.separate.
func (j *Judge) Allow(list []approval.Permission, separate bool) error {
	next := &allowed{separate: separate}
	for _, p := range list {
		shape, err := approval.NewShape(p.Subject.Argv)
		if err != nil {
			return fmt.Errorf("cannot use the rule %s: %w", p.From, err)
		}
		next.rules = append(next.rules, allowedRule{p, shape})
	}
	j.allowed.Store(next)
	return nil
}

// pass is a judgement that asks as it is once rules have let through what they cover: nil if a part is left that a
// person has to be asked about.
func (a *allowed) pass(r *operation.Request, argv []string, asks *Judgement) (*Judgement, error) {
	ask := approval.Ask{
		Subject: approval.Subject{By: r.By.String(), Workspace: r.On.Name}, Owner: r.By.Owner(), Makers: r.By.Makers(),
		Written: SourceOf(r) != rules.User,
	}
	var speak []*allowedRule
	for i := range a.rules {
		if u := &a.rules[i]; u.Speaks(ask, r.On.Owner, a.separate) {
			speak = append(speak, u)
		}
	}
	if len(speak) == 0 {
		return nil, nil
	}
	d := asks.Decision
	d.Segments = slices.Clone(d.Segments)
	var used []*allowedRule
	whole := slices.IndexFunc(speak, func(u *allowedRule) bool { return u.shape.Exact() && u.shape.Matches(argv) && u.has(d.Capabilities) })
	var by *allowedRule
	for i := range d.Segments {
		s := &d.Segments[i]
		if !s.Inner {
			by = nil // what is in the words of a command passes with it
			n := slices.IndexFunc(speak, func(u *allowedRule) bool {
				return s.Words != nil && u.shape.Matches(s.Words) && u.has(s.Capabilities)
			})
			if n >= 0 {
				by = speak[n]
			}
		}
		if s.Level != rules.Confirm {
			continue
		}
		u := by
		if whole >= 0 {
			u = speak[whole]
		}
		if u == nil || s.NeverWhitelist || s.NoRule || !u.has(s.Capabilities) {
			return nil, nil
		}
		s.Level = rules.Safe
		s.MatchedRules = append(slices.Clone(s.MatchedRules), u.name())
		s.Reasons = append(slices.Clone(s.Reasons), u.reason())
		if !slices.Contains(used, u) {
			used = append(used, u)
		}
	}
	waits := func(s rules.Segment) bool { return s.Level != rules.Safe }
	if len(used) == 0 || (d.NeverWhitelist || d.NoRule) && slices.ContainsFunc(d.Segments, waits) {
		return nil, nil
	}
	d.Level, d.MatchedRules = rules.Safe, slices.Clone(d.MatchedRules)
	reasons := make([]string, 0, len(used)+len(d.Reasons))
	for _, u := range used {
		d.MatchedRules = append(d.MatchedRules, u.name())
		reasons = append(reasons, u.reason())
	}
	d.Reasons = append(reasons, d.Reasons...)
	return judgement(d, string(SourceOf(r)))
}

func (u *allowedRule) name() string { return "allow." + string(u.From) }

func (u *allowedRule) reason() string {
	return fmt.Sprintf("%s allowed it: %s", u.By, approval.Words(u.Subject.Argv))
}

// has reports whether the commands of a rule may have these capabilities. That a model wrote one is what rules are for.
func (u *allowedRule) has(names []string) bool {
	return !slices.ContainsFunc(names, func(n string) bool {
		return n != rules.Capabilities[rules.LLMGenerated].Name && !slices.Contains(u.Rule.Capabilities, n)
	})
}

// Shape judges commands of a shape before a rule for them is kept. It returns the capabilities that they have, or why
// they are never let pass unasked: permission_denied.
func (j *Judge) Shape(argv []string, shape approval.Shape) (capabilities []string, err error) {
	f, err := j.rules()
	if err != nil {
		return nil, err
	}
	inside := f.engine.Decide(rules.Question{Argv: argv, Profile: rules.Workspace, Verified: true, Source: rules.User, Home: "~"})
	host := f.engine.Decide(rules.Question{Argv: argv, Profile: rules.Host, Source: rules.User, Home: "~"})
	words := approval.Words(argv)
	for _, d := range []*rules.Decision{&inside, &host} {
		switch {
		case d.Level == rules.Block:
			return nil, never(words, "the policy blocks it", d, "an administrator sets the policy")
		case d.Level == rules.Confirm && (d.NeverWhitelist || d.NoRule) && (d == &inside || inside.Level == rules.Safe):
			return nil, never(words, "no answer to such a command is remembered", d,
				"have each one answered (\"carrel approvals\"), or make the rule of the policy milder (docs/policy/rules.md)")
		}
	}
	if inside.Level == rules.Safe && host.Level == rules.Safe {
		return nil, never(words, "the policy lets it pass unasked as it is", &host, "no rule is needed")
	}
	names := rules.NamesOf(&inside, &host)
	if !shape.Exact() {
		for _, n := range names {
			if slices.Contains(runs, n) {
				return nil, never(words, "it runs other commands or code ("+n+"), and a pattern in its words would let any pass", &host,
					"write the words out, or allow the command that it runs")
			}
		}
	}
	return names, nil
}

// runs are the capabilities under which a word may be code.
var runs = func() (names []string) {
	for _, c := range []rules.Capability{
		rules.CommandExecute, rules.CodeExecute, rules.RemoteCodeExecute, rules.ShellDynamic, rules.ShellObfuscated,
	} {
		names = append(names, rules.Capabilities[c].Name)
	}
	return names
}()

func never(words, why string, d *rules.Decision, next string) error {
	return fmt.Errorf("cannot allow %s: %s: %s; %s: %w", words, why, strings.Join(few(d.Reasons, 2), "; "), next, errdefs.ErrPermissionDenied)
}
