package rootless_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A rule of the user's that says SAFE and is overridden is named once, before the command runs or is refused. One that is overridden on
// hosts only is not: nothing that this file judges runs on the host.
func TestRulesWithoutEffect(t *testing.T) {
	u := newUser(t)
	rules := `version: 1
rules:
  - {id: mine.push, level: SAFE, risk_score: 0, reason: I do that all day, match: {command: [git], subcommand_any: [push]}}
  - {id: mine.curl, level: SAFE, risk_score: 0, reason: I do that all day, match: {command: [curl]}}
`
	if err := os.WriteFile(filepath.Join(u.home, ".config/carrel/policy.yaml"), []byte(rules), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args  []string
		code  int
		after string
	}{
		{[]string{"--", "sh", "-c", "echo ran >&2"}, 0, "ran\n"},
		{[]string{"--", "git", "push", "x"}, 125, "a person has to approve it"},
		{[]string{"--accept", "nothing", "--", "true"}, 125, "no such control"},
	} {
		r := u.run(c.args...)
		note, rest, found := strings.Cut(r.err, "\n")
		if r.code != c.code || !found || !strings.HasPrefix(note, "carrel: "+u.home+"/.config/carrel/policy.yaml:3:6: the rule mine.push says SAFE and has no effect: ") ||
			!strings.HasSuffix(note, "by workspace.network.out; replace that rule by its id") || !strings.Contains(rest, c.after) ||
			strings.Contains(rest, "mine.") && c.code == 0 || strings.Contains(r.err, "mine.curl") {
			t.Errorf("%v: %+v", c.args, r)
		}
	}
}
