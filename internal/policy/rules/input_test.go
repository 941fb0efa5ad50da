package rules_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/internal/policy/rules"
)

// A program that runs what it reads is not judged by what it is called: nothing of the input
// is seen. On a host a person is asked, also where a way of naming the input hides it, and in a
// verified workspace it runs.
func TestCodeFromAnInputThatIsNotSeen(t *testing.T) {
	e := engine(t)
	for _, line := range []string{
		"bash", "sh -s", "sh -s -- a b", "bash -", "bash - x.sh", "bash /dev/stdin", "bash -x /dev/stdin", "sh /dev/fd/0",
		"dash /proc/self/fd/0", "bash --norc -", "sudo sh -", "env -i bash -",
		"busybox sh", "nice bash /dev/stdin", "sh -c bash", "sh -c . /dev/stdin", "python3 -", "python3", "python3 /dev/stdin",
		"python3 /proc/self/fd/0", "perl", "perl -", "ruby -", "node -", "node /dev/stdin",
		"php", "lua -", "psql", "psql -h db", "mysql", "sqlite3 x.db", "pwsh -", "awk -f -", "awk -f /dev/stdin", "make -f -",
		"xargs -0 sh -c", "parallel", "ssh host bash",
	} {
		words := strings.Fields(line)
		if i := slices.Index(words, "-c"); i >= 0 && words[0] == "sh" { // what follows is one text
			words = append(words[:i+1:i+1], strings.Join(words[i+1:], " "))
		}
		for _, q := range []rules.Question{{Argv: words}, {Command: line}} {
			if q.Command != "" && strings.HasPrefix(line, "sh -c ") {
				continue
			}
			for profile, want := range map[rules.Profile]rules.Level{rules.Host: rules.Confirm, rules.Remote: rules.Confirm} {
				q.Profile, q.Source = profile, rules.User
				d := e.Decide(q)
				seen := slices.ContainsFunc(d.Capabilities, func(c string) bool {
					return c == "code.execute" || c == "shell.dynamic" ||
						c == "remote_code.execute"
				})
				if d.Level < want || !seen {
					t.Errorf("%s: %v %v on %s", line, d.Level, d.Capabilities, profile)
				}
			}
			q.Profile, q.Verified = rules.Workspace, true
			reachesOut := strings.HasPrefix(line, "ssh ") || strings.Contains(line, "-h db")
			if d := e.Decide(q); (d.Level == rules.Safe) == reachesOut {
				t.Errorf("%s: %v %v in a workspace", line, d.Level, d.Reasons)
			}
			// Where the boundary is not verified it is as on a host.
			q.Verified = false
			if d := e.Decide(q); d.Level < rules.Confirm {
				t.Errorf("%s: %v in a workspace that is not verified", line, d.Level)
			}
		}
	}
	// Checks and version options run nothing.
	for _, line := range []string{"bash -n /dev/stdin", "bash --version", "python3 --version", "psql --version"} {
		if d := e.Decide(host(line)); slices.Contains(d.Capabilities, "code.execute") {
			t.Errorf("%s: %v", line, d.Capabilities)
		}
	}
}
