// Package habits answers words that people bring from other programs (docker, kubectl, E2B, Daytona): which command or flag of carrel
// does what they mean, or why there is none. It also finds the name that somebody meant to type.
//
// It must not run anything, and suggests no command that ends or removes something for a word that is merely like it.
package habits

import (
	"cmp"
	"maps"
	"slices"
	"strings"
)

// Command says what to do instead of a command that carrel does not have, "" if nobody is known to have it.
func Command(word string) string { return commands[strings.ToLower(word)] }

// Answers are all answers, by word, and those of flags by command and flag, for tests that hold them true.
func Answers() map[string]string {
	all := maps.Clone(commands)
	for _, row := range flags {
		for of := range strings.FieldsSeq(cmp.Or(row.of, "run")) {
			for name := range strings.FieldsSeq(row.names) {
				all[of+" --"+name] = row.answer
			}
		}
	}
	return all
}

// Flag says what to do instead of a flag that a command does not have, "" if nothing is known. name has no dashes.
func Flag(command, name string) string {
	for _, row := range flags {
		if slices.Contains(strings.Fields(row.names), name) && (row.of == "" || slices.Contains(strings.Fields(row.of), command)) {
			return row.answer
		}
	}
	return ""
}

// Set is the set of hosts that somebody means by the name of a registry, a language or a program, and else the one whose name is
// nearest, of those there are. Names begin with @.
func Set(name string, there []string) string {
	if s := sets[strings.ToLower(name)]; s != "" && slices.Contains(there, s) {
		return s
	}
	return Near(name, there)
}

// Near is the name that is nearest to a word, "" if none is near: one slip of the fingers in a short word, two in one of six letters
// or more. Of those that are equally near it is the first.
func Near(word string, names []string) (near string) {
	most := 1
	if len(word) >= 6 {
		most = 2
	}
	if len(word) < 3 || len(word) > 64 {
		return ""
	}
	for _, n := range names {
		if d := distance(word, n); d <= most {
			near, most = n, d-1
		}
	}
	return near
}

// NearCommand is Near for names of commands. One that ends or removes something is not suggested: it would be typed from the error.
func NearCommand(word string, names []string) string {
	return Near(word, slices.DeleteFunc(slices.Clone(names), func(n string) bool { return harmful[n] }))
}

// harmful are the commands that end or remove something.
var harmful = map[string]bool{
	"kill": true, "destroy": true, "rm": true, "down": true, "discard": true, "undo": true, "apply": true, "stop": true,
}

// distance counts what was inserted, left out, replaced or exchanged with its neighbour to get from one word to the other.
func distance(a, b string) int {
	before, last, now := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		now[0] = i
		for j := 1; j <= len(b); j++ {
			other := 1
			if a[i-1] == b[j-1] {
				other = 0
			}
			now[j] = min(last[j]+1, now[j-1]+1, last[j-1]+other)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				now[j] = min(now[j], before[j-2]+1)
			}
		}
		before, last, now = last, now, before
	}
	return last[len(b)]
}
