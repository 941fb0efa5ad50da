package rules_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/internal/policy/rules"
)

// grammar has each form in which a long row is wrapped.
const grammar = `version: 1
programs:
  ? wrapped other
    third-name
  :
    flags: |
      -a --all --everything
        --no-limit :database.mutate
      -f --file =read
    sub:
      ? list show
        print
      :
        operands: text*
    other:
      operands: text*
      caps: [service.mutate]
      when:
        - first_matches:
            - get|count
            - (?i)stat(?:us)?
          drop: [service.mutate]
`

// knowing makes an engine with knowledge beside the built-in.
func knowing(texts ...string) (*rules.Engine, error) {
	var b strings.Builder
	b.WriteString("rules: []\nknowledge:\n")
	for _, text := range texts {
		for line := range strings.Lines(text) {
			b.WriteString("  " + line)
		}
	}
	return rules.New(rules.Config{Rules: &rules.Source{Name: "policy.yaml", Data: []byte(b.String())}})
}

func TestWrappedKnowledge(t *testing.T) {
	e, err := knowing(grammar)
	if err != nil {
		t.Fatal(err)
	}
	for command, capability := range map[string]string{
		"wrapped list a": "", "other show": "", "third-name print": "", "wrapped get a": "", "wrapped STATUS": "", "wrapped count": "",
		"wrapped --all list": "database.mutate", "other --no-limit print": "database.mutate",
		"wrapped drop a": "service.mutate", "wrapped statuses": "service.mutate", "third-name --file /etc/shadow list": "secret.read",
	} {
		d := e.Decide(host(command))
		if capability == "" && d.Level != rules.Safe || capability != "" && !slices.Contains(d.Capabilities, capability) {
			t.Errorf("%s: %v %v, not %q", command, d.Level, d.Capabilities, capability)
		}
	}
	for name, text := range map[string]string{
		"a pattern that is a mapping": strings.Replace(grammar, "- get|count", "- {get: count}", 1),
		"a broken pattern":            strings.Replace(grammar, "- get|count", "- get|(count", 1),
		"a flag without a name":       strings.Replace(grammar, "        --no-limit :database", "      :database", 1),
	} {
		if _, err := knowing(text); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}
