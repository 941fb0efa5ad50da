package plan

import "strings"

// Shape returns the members of an answer of one type, but for the type itself, for the prompt of a model: "" if there is no such type.
// It is what a model needs to write an answer that Parse takes, in a fraction of the schema's length: the name of each member, "?" where
// it may be left out, and its kind where that is no text. What may stand in a member Parse says where it refuses one.
func Shape(t Type) string {
	if f := formOf(t); f != nil {
		return shape(f.members)
	}
	return ""
}

// StepShape returns the members of what Shape calls a STEP.
func StepShape() string { return shape(stepMembers) }

func shape(members []member) string {
	var all []string
	for i := range members {
		m := &members[i]
		name := m.name
		if m.optional {
			name += "?"
		}
		if kind := m.shape(); kind != "" {
			name += ":" + kind
		}
		all = append(all, name)
	}
	return "{" + strings.Join(all, ",") + "}"
}

// shape is the kind of a member in a word or two, "" for text.
func (m *member) shape() string {
	switch m.kind {
	case objects:
		switch &m.of[0] {
		case &stepMembers[0]:
			return "[STEP]"
		case &callMembers[0]:
			return "[{target,tool,the tool's parameters}]"
		}
		return "[" + shape(m.of) + "]"
	case texts:
		return "[text]"
	case flag:
		return "bool"
	case number:
		return "int"
	case choice:
		return strings.Join(m.words, "|")
	default:
		return ""
	}
}
