package rules

import (
	"regexp"
	"strings"
)

// condition changes a spec where the given flags and operands meet it.
type condition struct {
	has, all, not []*flag
	min, max      int // operands
	first         map[string]bool
	firstPattern  *regexp.Regexp
	secondPattern *regexp.Regexp
	anyPattern    *regexp.Regexp // of any word
	values        map[*flag]*regexp.Regexp
	operands      operands
	hasOps        bool
	caps, drop    Set
	roles         map[*flag]role
}

func (c *compiler) conditions(s *spec, t *tree) error {
	if t.kind != list {
		return c.errorf(t, "when must be a list, this is %s", t.kind)
	}
	for _, item := range t.items {
		w := &condition{max: -1, operands: operands{star: -1, rest: -1}}
		named := func(to *[]*flag) func(*tree) error {
			return func(t *tree) error {
				text, err := c.str(t, "flags of a condition")
				if err != nil {
					return err
				}
				for n := range strings.FieldsSeq(text) {
					f := s.lookup(n)
					if f == nil {
						return c.errorf(t, "%s has no flag %q in its list", s.name, n)
					}
					*to = append(*to, f)
				}
				return nil
			}
		}
		pattern := func(to **regexp.Regexp) func(*tree) error {
			return func(t *tree) (err error) { *to, err = c.pattern(t); return err }
		}
		err := c.fields(item, "a condition", nil,
			field{"has", named(&w.has)}, field{"all", named(&w.all)}, field{"not", named(&w.not)},
			field{"min", func(t *tree) (err error) { w.min, err = c.integer(t, "min", 0, 99); return err }},
			field{"max", func(t *tree) (err error) { w.max, err = c.integer(t, "max", 0, 99); return err }},
			field{"first", func(t *tree) error {
				text, err := c.str(t, "first")
				w.first = map[string]bool{}
				for n := range strings.FieldsSeq(text) {
					w.first[n] = true
				}
				return err
			}},
			field{"first_matches", pattern(&w.firstPattern)},
			field{"second_matches", pattern(&w.secondPattern)},
			field{"any_matches", pattern(&w.anyPattern)},
			field{"value", func(t *tree) error {
				if t.kind != mapping {
					return c.errorf(t, "value must be a mapping of flags to patterns")
				}
				w.values = map[*flag]*regexp.Regexp{}
				for i, k := range t.keys {
					f := s.lookup(k.text)
					if f == nil {
						return c.errorf(k, "%s has no flag %q in its list", s.name, k.text)
					}
					p, err := c.pattern(t.items[i])
					if err != nil {
						return err
					}
					w.values[f] = p
				}
				return nil
			}},
			field{"operands", func(t *tree) (err error) {
				var caps Set
				w.operands, caps, err = c.operands(t)
				w.hasOps = true
				w.caps |= caps
				return err
			}},
			field{"caps", func(t *tree) error {
				caps, err := c.capabilities(t)
				w.caps |= caps
				return err
			}},
			field{"drop", func(t *tree) (err error) { w.drop, err = c.capabilities(t); return err }},
			field{"roles", func(t *tree) error {
				if t.kind != mapping {
					return c.errorf(t, "roles must be a mapping of flags to roles")
				}
				w.roles = map[*flag]role{}
				for i, k := range t.keys {
					f := s.lookup(k.text)
					if f == nil {
						return c.errorf(k, "%s has no flag %q in its list", s.name, k.text)
					}
					ro, ok := roles[t.items[i].text]
					if !ok {
						return c.errorf(t.items[i], "there is no role %q", t.items[i].text)
					}
					w.roles[f] = ro
				}
				return nil
			}},
		)
		if err != nil {
			return err
		}
		s.when = append(s.when, w)
	}
	return nil
}

// pattern reads a regular expression for a whole word: a text, or a list of alternatives.
func (c *compiler) pattern(t *tree) (*regexp.Regexp, error) {
	alternatives := []string{t.text}
	if t.kind != scalar {
		var err error
		if alternatives, err = c.texts(t, "a pattern"); err != nil {
			return nil, err
		}
	}
	text := strings.Join(alternatives, "|")
	p, err := regexp.Compile("^(?:" + text + ")$")
	if err != nil {
		return nil, c.errorf(t, "cannot use the pattern: %w", err)
	}
	return p, nil
}
