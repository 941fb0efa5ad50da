// Package recommend says what may be worth doing, from what a person's own turns of their agent were: a few lines of advice.
//
// It is pure, and nothing follows from what it says: it runs nothing, allows nothing, and what it says is told to no model. It uses what
// the person asked, which commands they approved and which tools were called, and nothing that a model says in its own words.
package recommend

import (
	"crypto/rand"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/carrel-dev/carrel/internal/agent/runbooks"
	"github.com/carrel-dev/carrel/internal/base/redact"
)

const (
	// Most is how many things are recommended at once.
	Most = 3
	// often is how often a command has to have been approved.
	often = 3
	// maxCommand bounds a command that is recommended, in bytes: it is one line.
	maxCommand = 200
)

// Turn is one of a person's turns.
type Turn struct {
	// Question is what they asked.
	Question string
	// Approved are the commands that they approved, by hand, and that ran.
	Approved []Command
	// Read are the runbooks that were read.
	Read []string
}

// Command is a command on its target, as a plan names it.
type Command struct{ Target, Text string }

// Kind is what is recommended.
type Kind int

// The kinds.
const (
	// Threshold: Text is over it.
	Threshold Kind = iota
	// Allow: Text was approved Count times on Target, and Line is a command that lets it pass from now on.
	Allow
	// Session is Allow where there is no such line: it can be allowed for a session.
	Session
	// Runbook: that with the name Text fits the question.
	Runbook
)

// Advice is one recommendation, without secrets that can be seen.
type Advice struct {
	Kind         Kind
	Text, Target string
	Count        int
	Line         string
}

// Of returns at most Most recommendations. turns are the person's, the newest first; over is what is over a threshold, a line each.
func Of(turns []Turn, books []*runbooks.Runbook, over []string) []Advice {
	var out []Advice
	if len(over) > 0 {
		out = append(out, Advice{Kind: Threshold, Text: over[0]})
	}
	if a, ok := approvedOften(turns); ok {
		out = append(out, a)
	}
	if len(turns) > 0 {
		if r := fitting(&turns[0], books); r != nil {
			out = append(out, Advice{Kind: Runbook, Text: r.Name})
		}
	}
	key := make([]byte, 32)
	_, _ = rand.Read(key) // it never fails; the digests in masks tell nobody anything
	clean := redact.New(key)
	for i := range out {
		for _, s := range []*string{&out[i].Text, &out[i].Target} {
			*s = clean.Text(*s)
		}
		if clean.Text(out[i].Line) != out[i].Line {
			out[i].Kind, out[i].Line = Session, "" // a rule is no place for a secret
		}
	}
	return out[:min(len(out), Most)]
}

// approvedOften is the command that was approved most often, if that was often enough.
func approvedOften(turns []Turn) (a Advice, ok bool) {
	count := map[Command]int{}
	var order []Command
	for _, t := range turns {
		for _, c := range t.Approved {
			if count[c]++; count[c] == 1 {
				order = append(order, c)
			}
		}
	}
	best := Command{}
	for _, c := range order { // of equal ones the newest
		if count[c] > count[best] && len(c.Text) <= maxCommand && !strings.ContainsFunc(c.Text, unicode.IsControl) {
			best = c
		}
	}
	if count[best] < often {
		return a, false
	}
	a = Advice{Kind: Session, Text: best.Text, Target: best.Target, Count: count[best]}
	if name, ok := strings.CutPrefix(best.Target, "workspace "); ok && plain.MatchString(best.Text) && word.MatchString(name) {
		a.Kind, a.Line = Allow, fmt.Sprintf("carrel policy allow --workspace %s -- %s", name, best.Text)
	}
	return a, true
}

// plain is a command of words that a shell takes as they are, so that a rule can name them.
var plain = regexp.MustCompile(`^[A-Za-z0-9_./:@%+,-]+( [A-Za-z0-9_./:@%+,=-]+)*$`)

// word is the name of a workspace that stands in a line as it is.
var word = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_./-]*$`)

// fitting is the first runbook of which a word is in the question, nil if there is none or one that fits was read.
func fitting(t *Turn, books []*runbooks.Runbook) (found *runbooks.Runbook) {
	asked := strings.FieldsFunc(strings.ToLower(t.Question), func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) })
	for _, b := range books {
		fits := slices.ContainsFunc(b.Match, func(word string) bool { return slices.Contains(asked, strings.ToLower(word)) })
		switch {
		case fits && slices.Contains(t.Read, b.Name):
			return nil
		case fits && found == nil:
			found = b
		}
	}
	return found
}
