package plan

import (
	"fmt"
	"strings"
)

// Grammar returns what an answer of each type looks like, for the prompt of a model. It says less than Schema, in a fifth of its
// length: of each member its name, what it is, and where it may be left out ("?" behind the name).
func Grammar() string {
	var b strings.Builder
	fmt.Fprintf(&b, "STEP is {%s}\n", inWords(stepMembers))
	for i := range forms {
		f := &forms[i]
		fmt.Fprintf(&b, "- %s: {\"type\":%q,%s}", f.doc, f.typ, inWords(f.members))
		if f.either[0] != "" {
			fmt.Fprintf(&b, " with exactly one of %s and %s", f.either[0], f.either[1])
		}
		b.WriteString("\n")
	}
	return b.String()
}

func inWords(members []member) string {
	var all []string
	for i := range members {
		m := &members[i]
		name := str(m.name)
		if m.optional {
			name += "?"
		}
		all = append(all, name+":"+m.inWords())
	}
	return strings.Join(all, ",")
}

// inWords is what a member holds.
func (m *member) inWords() string {
	switch m.kind {
	case objects:
		if &m.of[0] == &stepMembers[0] {
			return "[STEP…] " + m.doc
		}
		if &m.of[0] == &callMembers[0] {
			return "[{" + inWords(callMembers[:callOwn]) + ",and the parameters of that tool}…]"
		}
		return "[{" + inWords(m.of) + "}…] " + m.doc
	case texts:
		return "[text…] " + m.doc
	case flag:
		return "true|false " + m.doc
	case number:
		return fmt.Sprintf("%d to %d, %s", m.min, m.max, m.doc)
	case choice:
		return strings.Join(m.words, "|")
	case where:
		return "one of the targets below"
	default:
		return "text, " + m.doc
	}
}
