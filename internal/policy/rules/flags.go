package rules

import (
	"slices"
	"strings"
)

// flags reads a block with one option a line: its names, then =role if it takes a value or
// =?role if it takes an attached value only, then :capabilities, !skip and !stop. An indented
// line continues the line before it. A semicolon ends an option as a newline does.
func (c *compiler) flags(s *spec, t *tree) error {
	text, err := c.str(t, "flags")
	if err != nil {
		return err
	}
	s.short, s.long = map[byte]*flag{}, map[string]*flag{}
	type entry struct {
		text string
		at   *tree
	}
	var entries []entry
	for n, line := range strings.Split(text, "\n") {
		at := &tree{line: t.line + n, col: t.col}
		if strings.Contains(text, "\n") {
			at.line++ // a block's text begins in the next line
		}
		if n := len(entries); n > 0 && strings.HasPrefix(line, " ") {
			entries[n-1].text += line
			continue
		}
		for one := range strings.SplitSeq(line, ";") {
			entries = append(entries, entry{one, at})
		}
	}
	for _, e := range entries {
		line, at := e.text, e.at
		f := &flag{role: roles["text"]}
		var names []string
		for word := range strings.FieldsSeq(line) {
			switch word[0] {
			case '-', '+':
				names = append(names, word)
			case '=':
				f.value = true
				var name string
				name, f.optional = strings.CutPrefix(word[1:], "?")
				if name != "" {
					ro, ok := roles[name]
					if !ok {
						return c.errorf(at, "%s: there is no role %q", line, name)
					}
					f.role = ro
				}
			case ':':
				caps, err := c.capabilityNames(at, strings.Split(word[1:], ","))
				if err != nil {
					return err
				}
				f.caps |= caps
			default:
				switch word {
				case "!skip":
					f.skip = true
				case "!stop":
					f.stop = true
				default:
					return c.errorf(at, "cannot read %q of the flag %q", word, strings.TrimSpace(line))
				}
			}
		}
		if len(names) == 0 {
			if strings.TrimSpace(line) == "" {
				continue
			}
			return c.errorf(at, "the flag %q has no name", strings.TrimSpace(line))
		}
		f.name = names[0]
		for _, name := range names {
			if s.long[name] != nil {
				return c.errorf(at, "the flag %q of %s is defined twice", name, s.name)
			}
			s.long[name] = f
			if len(name) == 2 {
				s.short[name[1]] = f
			}
		}
	}
	return nil
}

func (s *spec) lookupShort(b byte) *flag {
	for at := s; at != nil; at = at.parent {
		if f := at.short[b]; f != nil {
			return f
		}
	}
	return nil
}

// abbreviated finds the flags that a shortened option may stand for.
func (s *spec) abbreviated(name string) []*flag {
	var found []*flag
	for at := s; at != nil; at = at.parent {
		for n, f := range at.long {
			if strings.HasPrefix(n, name) && !slices.Contains(found, f) {
				found = append(found, f)
			}
		}
	}
	slices.SortFunc(found, func(a, b *flag) int { return strings.Compare(a.name, b.name) })
	return found
}
