package rules_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/internal/policy/rules"
)

var (
	docExample = regexp.MustCompile("(?s)```yaml\n(.*?)```\n(.*?)(?:\n#|$)")
	docRow     = regexp.MustCompile("(?m)^\\| `(.+)` \\| `(SAFE|CONFIRM|BLOCK)`(?:, `([a-z_.]+)`)? \\|$")
)

// TestDocumentedKnowledge judges the examples of the document for contributors as it says.
func TestDocumentedKnowledge(t *testing.T) {
	text, err := os.ReadFile("../../../docs/policy/commands.md")
	if err != nil {
		t.Fatal(err)
	}
	judged := 0
	for _, m := range docExample.FindAllStringSubmatch(string(text), -1) {
		var e *rules.Engine
		if strings.HasPrefix(m[1], "rules:") {
			e = rulesOf(t, m[1])
		} else if e, err = knowing(m[1]); err != nil {
			t.Errorf("%v in:\n%s", err, m[1])
			continue
		}
		for _, row := range docRow.FindAllStringSubmatch(m[2], -1) {
			judged++
			d := e.Decide(host(row[1]))
			if d.Level.String() != row[2] || row[3] != "" && !slices.Contains(d.Capabilities, row[3]) {
				t.Errorf("%s: %s %v, not %s %s", row[1], d.Level, d.Capabilities, row[2], row[3])
			}
		}
	}
	if judged < 30 {
		t.Errorf("only %d examples are in the document", judged)
	}
}
