package rules_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/internal/policy/rules"
)

// The setting llm_first_run of a profile says whether a model's first run of a command that the rules judge SAFE asks.
func TestFirstRunOfProfiles(t *testing.T) {
	const asks, safe = rules.Confirm, rules.Safe
	for _, c := range []struct {
		profiles                string
		host, remote, workspace rules.Level
	}{
		{"", asks, asks, safe},
		{"host: {llm_first_run: ask}, workspace: {llm_first_run: judge}", asks, asks, safe},
		{"host: {llm_first_run: judge}", safe, asks, safe},
		{"remote: {llm_first_run: judge}", asks, safe, safe},
		{"host: {llm_first_run: judge}, remote: {llm_first_run: judge}", safe, safe, safe},
		{"workspace: {llm_first_run: ask}", asks, asks, asks},
		{"workspace: {}", asks, asks, safe},
	} {
		file := "rules: []\n"
		if c.profiles != "" {
			file += "profiles: {" + c.profiles + "}\n"
		}
		e, err := rules.New(rules.Config{Rules: &rules.Source{Name: "p.yaml", Data: []byte(file)}})
		if err != nil {
			t.Fatalf("%s: %v", c.profiles, err)
		}
		for p, want := range map[rules.Profile]rules.Level{rules.Host: c.host, rules.Remote: c.remote, rules.Workspace: c.workspace} {
			q := rules.Question{Command: "uptime", Profile: p, Verified: true, Source: rules.LLM}
			if d := e.Decide(q); d.Level != want ||
				slices.ContainsFunc(d.MatchedRules, func(id string) bool { return strings.HasSuffix(id, ".llm.first_run") }) != (want == asks) {
				t.Errorf("{%s} on %s: %s by %v", c.profiles, p, d.Level, d.MatchedRules)
			}
			// Approved before, or by a person.
			q.Seen = true
			if d := e.Decide(q); d.Level != safe {
				t.Errorf("{%s} on %s, approved before: %s", c.profiles, p, d.Level)
			}
			q.Seen, q.Source = false, rules.User
			if d := e.Decide(q); d.Level != safe {
				t.Errorf("{%s} on %s, by a person: %s", c.profiles, p, d.Level)
			}
			// What asks anyway does so in either case.
			q.Source, q.Command = rules.LLM, "git push"
			if d := e.Decide(q); d.Level != asks {
				t.Errorf("{%s} on %s, git push: %s", c.profiles, p, d.Level)
			}
		}
	}
	// Without the built-in rules nothing asks unless it is set.
	own := "rules: [{id: a, level: SAFE, risk_score: 0, reason: x, match: {command: [uptime]}}]\n"
	for file, want := range map[string]rules.Level{own: safe, own + "profiles: {host: {llm_first_run: ask}}\n": asks} {
		e, err := rules.New(rules.Config{NoBuiltin: true, Rules: &rules.Source{Name: "p.yaml", Data: []byte(file)}})
		if err != nil {
			t.Fatal(err)
		}
		if d := e.Decide(rules.Question{Command: "uptime", Profile: rules.Host, Source: rules.LLM}); d.Level != want {
			t.Errorf("%s: %s by %v", file, d.Level, d.MatchedRules)
		}
	}
	for file, want := range map[string]string{
		"profiles: {attic: {}}\nrules: []\n":                    `p.yaml:1:12: there is no profile "attic"`,
		"profiles: {host: {llm_first_run: never}}\nrules: []\n": `p.yaml:1:34: llm_first_run is ask or judge, not "never"`,
		"profiles: {host: {first: ask}}\nrules: []\n":           "p.yaml:1:19: ",
		"profiles: [host]\nrules: []\n":                         "p.yaml:1:11: profiles must be a mapping",
		"profiles: {host: {llm_first_run: judge}}\nrules: [{id: host.llm.first_run, level: SAFE, risk_score: 0, reason: x, " +
			"match: {llm_first_run: true}}]\n": "p.yaml:2:10: the rule host.llm.first_run and the setting",
	} {
		_, err := rules.New(rules.Config{Rules: &rules.Source{Name: "p.yaml", Data: []byte(file)}})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", file, err)
		}
	}
}
