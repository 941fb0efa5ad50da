package rules

import "slices"

// firstRun says what becomes of a command by a model that no person approved earlier in the same thread: the setting
// llm_first_run of a profile.
type firstRun string

const (
	// askFirst asks a person, also about what the rules judge SAFE.
	askFirst firstRun = "ask"
	// judgeFirst treats it like any other command.
	judgeFirst firstRun = "judge"
)

// firstRunRules are the rules that ask about a model's first run. The built-in rules have the first of them.
var firstRunRules = []struct {
	id       string
	profiles []Profile
}{{"host.llm.first_run", []Profile{Host, Remote}}, {"workspace.llm.first_run", []Profile{Workspace}}}

// profiles reads the settings of profiles.
func (r *ruleReader) profiles(t *tree) error {
	if t.kind != mapping {
		return r.errorf(t, "profiles must be a mapping of profiles to settings, this is %s", t.kind)
	}
	r.file.firstRun = map[Profile]firstRun{}
	for i, k := range t.keys {
		p := Profile(k.text)
		if !slices.Contains(Profiles, p) {
			return r.errorf(k, "there is no profile %q: it is one of host, remote, workspace", k.text)
		}
		err := r.fields(t.items[i], "a profile", nil, field{"llm_first_run", func(t *tree) error {
			s, err := r.str(t, "llm_first_run")
			if err == nil && firstRun(s) != askFirst && firstRun(s) != judgeFirst {
				return r.errorf(t, "llm_first_run is ask or judge, not %q", s)
			}
			r.file.firstRun[p] = firstRun(s)
			return err
		}})
		if err != nil {
			return err
		}
	}
	return nil
}

// checkProfiles refuses a file that has both a setting and a rule in its place.
func (r *ruleReader) checkProfiles() error {
	for _, f := range firstRunRules {
		at := slices.IndexFunc(r.file.rules, func(u *rule) bool { return u.id == f.id })
		for _, p := range f.profiles {
			if at >= 0 && r.file.firstRun[p] != "" {
				return r.errorf(&r.file.rules[at].at, "the rule %s and the setting llm_first_run of profile %s contradict each other; leave one out",
					f.id, p)
			}
		}
	}
	return nil
}

// firstRuns puts the settings of profiles in force.
func (e *Engine) firstRuns(set map[Profile]firstRun, b *builtin) {
	built := b.ruleFile().rules
	from := built[slices.IndexFunc(built, func(r *rule) bool { return r.id == firstRunRules[0].id })]
	for _, f := range firstRunRules {
		if !slices.ContainsFunc(f.profiles, func(p Profile) bool { return set[p] != "" }) {
			continue
		}
		r := *from
		r.id, r.should, r.not, r.match.profile = f.id, nil, nil, nil
		at := slices.IndexFunc(e.rules, func(r *rule) bool { return r.id == f.id })
		for _, p := range f.profiles {
			if set[p] == askFirst || set[p] == "" && at >= 0 {
				r.match.profile = append(r.match.profile, p)
			}
		}
		if at >= 0 {
			e.rules = slices.Delete(e.rules, at, at+1)
		}
		if len(r.match.profile) > 0 {
			e.rules = append(e.rules, &r)
		}
	}
}
