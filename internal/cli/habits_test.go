package cli_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/internal/cli"
	"github.com/carrel-dev/carrel/internal/cli/habits"
)

// What is said to people who type another program's words is true: the commands and flags are there, and the words are not.
func TestHabits(t *testing.T) {
	root := cli.Command()
	has := func(words string) bool {
		c, rest, err := root.Find(strings.Fields(words))
		return err == nil && c != root && len(rest) == 0
	}
	named := regexp.MustCompile(`carrel ((?:[a-z]+ ?)+)`)
	for word, answer := range habits.Answers() {
		if command, flag, ok := strings.Cut(word, " --"); ok {
			c, _, err := root.Find([]string{command})
			if err != nil || len(flag) > 1 && c.Flags().Lookup(flag) != nil {
				t.Errorf("%s is there, or no command: %v", word, err)
			}
		} else if has(word) {
			t.Errorf("%s is a command", word)
		}
		for _, m := range named.FindAllStringSubmatch(answer, -1) {
			words := strings.Fields(m[1])
			if !has(words[0]) {
				t.Errorf("%s: there is no %s", word, words[0])
			}
		}
	}
	for _, c := range []struct{ args, want string }{
		{"info", `there is no command "info": carrel doctor shows`},
		{"pull x", `there is no command "pull": a workspace has the programs of this host`},
		{"inspekt x", `there is no command "inspekt"; did you mean "carrel inspect"?`},
		{"dwon", `there is no command "dwon"` + "\n"},
		{"run -d -- true", "cannot use -d: it would end with this command; carrel create NAME"},
		{"create --name x", "cannot use --name: the name stands alone: carrel create NAME"},
		{"create --memroy 1G x", "cannot use --memroy: carrel create has no such flag; did you mean --memory?"},
		{"exec -u root x true", "cannot use -u: a workspace has one user of its own"},
		{"ls --all", "cannot use --all: carrel ls lists all"},
	} {
		if r := run(t, "", strings.Fields(c.args)...); r.code == 0 || !strings.Contains(r.err, c.want) {
			t.Errorf("carrel %s: %+v", c.args, r)
		}
	}
}
