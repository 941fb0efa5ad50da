package rules_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/internal/policy/rules"
)

// A rule with level SAFE that a stricter one overrides is named, with the one that does; one that has an effect is not.
func TestOverridden(t *testing.T) {
	head := "rules:\n  - {id: team.safe, level: SAFE, risk_score: 0, reason: we do that all day, "
	for rule, by := range map[string]string{
		"match: {command: [curl]}}":                                                   "host.network.in",
		"match: {command: [git], subcommand_any: [push]}}":                            "host.network.out",
		"match: {argv: [{prefix: [npm, publish]}]}}":                                  "host.cloud.mutate",
		"match: {capability_any: [network.out], profile: [workspace]}}":               "workspace.network.out",
		"match: {command_regex: ['^kube']}, examples: {match: [kubectl apply -f x]}}": "host.cluster.mutate",
		"match: {command: [git], subcommand_any: [push], profile: [workspace]}}":      "workspace.network.out",
		"match: {command: [ls]}}":                                                     "",
		"match: {command: [curl], profile: [workspace]}}":                             "",
		"match: {capability_any: [network.in], profile: [workspace]}}":                "",
		"match: {command: [curl]}}\n  - {id: host.network.in, level: SAFE, risk_score: 0, reason: x, match: {capability_any: [network.in]}}": "",
	} {
		e, err := rules.New(rules.Config{Rules: &rules.Source{Name: "p.yaml", Data: []byte(head + rule)}})
		if err != nil {
			t.Fatalf("%s: %v", rule, err)
		}
		list := e.Overridden()
		if by == "" {
			if len(list) > 0 {
				t.Errorf("%s: %v", rule, list)
			}
			continue
		}
		if len(list) == 0 || !slices.Contains(list[0].By, by) || !strings.HasPrefix(list[0].String(), "p.yaml:2:6: the rule team.safe") {
			t.Errorf("%s: %v", rule, list)
			continue
		}
		if list[0].Sample == "" {
			continue
		}
		d := e.Decide(rules.Question{Command: list[0].Sample, Profile: list[0].Profile, Verified: true, Source: rules.User})
		said := slices.ContainsFunc(d.Reasons, func(r string) bool {
			return strings.HasPrefix(r, "we do that all day") && strings.Contains(r, "has no effect here: ")
		})
		if !said {
			t.Errorf("%s: explained as %v", rule, d.Reasons)
		}
	}
	e, err := rules.New(rules.Config{})
	if err != nil || len(e.Overridden()) > 0 {
		t.Errorf("the built-in rules: %v %v", e.Overridden(), err)
	}
}
