package plan

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// checker holds a decoded answer against the table.
type checker struct {
	problems []string
}

func (c *checker) say(at, what, allowed string) {
	if len(c.problems) < maxProblems {
		c.problems = append(c.problems, at+": "+what+"; "+allowed)
	}
}

func (c *checker) form(f *form, o map[string]any) {
	rest := maps.Clone(o)
	delete(rest, "type")
	c.object("", f.members, rest)
	if f.either[0] == "" {
		return
	}
	switch a, b := o[f.either[0]], o[f.either[1]]; {
	case a == nil && b == nil:
		c.say(f.either[0], "is missing", "give either "+f.either[0]+" or "+f.either[1])
	case a != nil && b != nil:
		c.say(f.either[1], "is there beside "+f.either[0], "give one of the two")
	}
}

// object checks the members of an object whose place begins with a prefix.
func (c *checker) object(prefix string, members []member, o map[string]any) {
	names := make([]string, 0, len(members))
	for i := range members {
		m := &members[i]
		names = append(names, m.name)
		v, ok := o[m.name]
		switch {
		case !ok && !m.optional:
			c.say(prefix+m.name, "is missing", "give "+m.allowed())
		case !ok || v == nil && m.optional:
		default:
			c.value(prefix+m.name, m, v)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(o)) {
		if !slices.Contains(names, name) {
			c.say(prefix+short(name), "is not known", "the members are "+strings.Join(names, ", "))
		}
	}
}

func (c *checker) value(at string, m *member, v any) {
	wrong := func(what string) { c.say(at, what, "give "+m.allowed()) }
	switch m.kind {
	case objects, texts:
		list, ok := v.([]any)
		switch {
		case !ok:
			wrong("is " + describe(v))
		case len(list) < m.min:
			wrong("is an empty list")
		case len(list) > m.max:
			wrong(fmt.Sprintf("has %d elements", len(list)))
		default:
			c.elements(at, m, list)
		}
	case flag:
		if _, ok := v.(bool); !ok {
			wrong("is " + describe(v))
		}
	case number:
		n, ok := v.(json.Number)
		if !ok {
			wrong("is " + describe(v))
		} else if i, err := strconv.Atoi(n.String()); err != nil || i < m.min || i > m.max {
			wrong("is " + fmt.Sprintf("%.20s", n))
		}
	default:
		s, ok := v.(string)
		if !ok {
			wrong("is " + describe(v))
		} else if what := m.text(s); what != "" {
			wrong(what)
		}
	}
}

// elements checks each element of a list.
func (c *checker) elements(at string, m *member, list []any) {
	seen := map[string]bool{}
	for i, v := range list {
		place := at + "[" + strconv.Itoa(i) + "]"
		key, _ := v.(string)
		if m.kind == texts {
			c.value(place, m.each, v)
		} else if o, ok := v.(map[string]any); ok {
			c.object(place+".", m.of, o)
			key, _ = o[m.of[0].name].(string)
		} else {
			c.say(place, "is "+describe(v), "give an object")
		}
		if m.distinct && key != "" && seen[key] {
			c.say(place, fmt.Sprintf("names %.80q again", key), "name each once")
		}
		seen[key] = true
	}
}

// text says what is wrong with a text, "" if nothing is.
func (m *member) text(s string) string {
	if m.max > 0 && len(s) > m.max {
		return fmt.Sprintf("has %d bytes", len(s))
	}
	if m.min > 0 && len(strings.TrimSpace(s)) < m.min {
		if strings.TrimSpace(s) == "" {
			return "is empty"
		}
		return fmt.Sprintf("has only %d bytes", len(strings.TrimSpace(s)))
	}
	for i, r := range s {
		if !m.takes(r) {
			return fmt.Sprintf("has the character %U at byte %d", r, i)
		}
	}
	switch m.kind {
	case where:
		t, err := parseTarget(s)
		if err != nil {
			return fmt.Sprintf("%.80q is not usable: %v", s, err)
		}
		if m.one && !t.One() {
			return fmt.Sprintf("%.80q is more than one place", s)
		}
	case choice:
		if !slices.Contains(m.words, s) {
			return fmt.Sprintf("is %.40q", s)
		}
	case mode:
		if !isMode(s) {
			return fmt.Sprintf("is %.40q", s)
		}
	default:
	}
	return ""
}

// takes reports whether a text may have a character.
func (m *member) takes(r rune) bool {
	switch m.kind {
	case line, where:
		return r == '\t' && m.kind == line || !unicode.IsControl(r) && !Hidden(r)
	case path:
		return !unicode.IsControl(r) && !Hidden(r)
	case prose:
		return r == '\t' || r == '\n' || r == '\r' || !unicode.IsControl(r)
	case quoted, diff:
		return r != 0
	default:
		return true
	}
}

// Hidden reports whether a character has no mark of its own or changes the direction of others: what a person reads is
// then not what runs. It is Unicode's formatting, line-separating and default-ignorable characters, without the
// variation selector that emoji have.
func Hidden(r rune) bool {
	return r != 0xfe0f && unicode.In(r, unicode.Cf, unicode.Zl, unicode.Zp, unicode.Other_Default_Ignorable_Code_Point,
		unicode.Variation_Selector)
}

// isMode reports whether s is three octal digits, with or without a 0 before them.
func isMode(s string) bool {
	if len(s) == 4 && s[0] == '0' {
		s = s[1:]
	}
	return len(s) == 3 && strings.Trim(s, "01234567") == ""
}

// allowed says what may be given.
func (m *member) allowed() string {
	switch m.kind {
	case objects:
		return fmt.Sprintf("a list of %s objects with %s", span(m.min, m.max), strings.Join(needed(m.of), ", "))
	case texts:
		return fmt.Sprintf("a list of %s texts", span(m.min, m.max))
	case flag:
		return "true or false"
	case number:
		return fmt.Sprintf("a whole number from %d to %d", m.min, m.max)
	case where:
		if m.one {
			return `"host" (this machine), "workspace NAME" or "remote NAME", one place`
		}
		return targets
	case choice:
		return "one of " + strings.Join(m.words, ", ")
	case mode:
		return "three octal digits, as 644 or 0644"
	case line:
		return fmt.Sprintf("one line of at most %d bytes without control, invisible and direction-changing characters", m.max)
	case path:
		return fmt.Sprintf("a path of at most %d bytes without control and invisible characters", m.max)
	case prose:
		return fmt.Sprintf("a text of %s bytes without control characters", span(m.min, m.max))
	case quoted, diff:
		return fmt.Sprintf("a text of %s bytes without NUL", span(m.min, m.max))
	}
	return "what the schema says"
}

func span(least, most int) string {
	if least == 0 {
		return fmt.Sprintf("at most %d", most)
	}
	return fmt.Sprintf("%d to %d", least, most)
}

// needed are the names of the members that must be there.
func needed(members []member) []string {
	var names []string
	for i := range members {
		if !members[i].optional {
			names = append(names, members[i].name)
		}
	}
	return names
}

// describe is the type of a value, and its text where that is short.
func describe(v any) string {
	switch v := v.(type) {
	case nil:
		return "nothing"
	case string:
		return fmt.Sprintf("the text %.40q", v)
	case json.Number:
		return "a number"
	case bool:
		return "true or false"
	case []any:
		return "a list"
	}
	return "an object"
}
