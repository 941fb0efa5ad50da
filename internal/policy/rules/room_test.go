package rules_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/carrel-dev/carrel/internal/policy/rules"
	"github.com/carrel-dev/carrel/internal/policy/shell"
)

// A decision is nobody else's memory: it stays as it is while the engine makes others, and is
// what an engine says that has made none before.
func TestDecisionsStay(t *testing.T) {
	t.Parallel()
	lines := loadCorpus(t, "dangerous", false)
	lines = append(lines, loadCorpus(t, "scripts", false)...)
	used := engine(t)
	kept := make([]rules.Decision, len(lines))
	ask := func(e *rules.Engine, i int) rules.Decision {
		return e.Decide(rules.Question{Command: lines[i].Command, Profile: rules.Host, Source: rules.User})
	}
	for i := range lines {
		kept[i] = ask(used, i)
	}
	for i := range lines {
		fresh := engine(t)
		if diff := cmp.Diff(ask(fresh, i), kept[i]); diff != "" {
			t.Fatalf("%q: the decision of an engine that made none before is another (-alone +among others):\n%s", lines[i].Command, diff)
		}
	}
}

// Facts that use the memory of others again are those that have their own.
func TestFactsInMemoryOfOthers(t *testing.T) {
	t.Parallel()
	var again shell.Facts
	for _, l := range append(loadCorpus(t, "dangerous", false), loadCorpus(t, "scripts", false)...) {
		again.Reset()
		shell.AnalyzeInto(&again, l.Command, shell.Limits{})
		if diff := cmp.Diff(shell.Analyze(l.Command, shell.Limits{}), again, cmpopts.IgnoreUnexported(shell.Facts{}),
			cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("%q has other facts in the memory of others:\n%s", l.Command, diff)
		}
	}
}
