package rules

import (
	"slices"
	"strings"

	"github.com/carrel-dev/carrel/internal/policy/shell"
)

// plainWords are the words of a command, nil if one is not known as it is written or if its assignments or redirects
// change what it does.
func plainWords(c *shell.Command) []string {
	if len(c.Argv) == 0 || len(c.Assigns) > 0 {
		return nil
	}
	for i := range c.Redirects {
		r := &c.Redirects[i]
		duplicates := r.Mode == shell.Duplicate && !r.Target.Dynamic && strings.Trim(r.Target.Text, "0123456789-") == ""
		discards := (r.Mode == shell.Write || r.Mode == shell.Append) && r.Target.Text == "/dev/null"
		if !duplicates && !discards {
			return nil
		}
	}
	words := make([]string, len(c.Argv))
	for i := range c.Argv {
		w := &c.Argv[i]
		if w.Dynamic || w.Glob || w.Many || w.Hidden {
			return nil
		}
		words[i] = w.Text
	}
	return words
}

// NamesOf returns the capabilities of decisions about one command, each once.
func NamesOf(decisions ...*Decision) []string {
	var names []string
	for _, d := range decisions {
		names = append(names, d.Capabilities...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}
