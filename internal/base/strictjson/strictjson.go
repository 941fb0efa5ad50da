// Package strictjson decodes JSON whose objects have exactly the members that the target knows: none
// twice, none unknown, none in another case. encoding/json takes the last of two equal names, ignores
// case and resolves escapes in names, so two readers could take different values from one text.
//
// It must not know what the values mean. It is linked into broker and executors, and decoding what
// they exchange allocates nothing beyond what encoding/json does.
package strictjson

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
)

// Unmarshal decodes one JSON text into v, a pointer. The names of objects are checked at every depth;
// where the target is of no known form, such as a map, they must only differ from each other. After an
// error v may have been changed.
func Unmarshal(text []byte, v any) error { return unmarshal(text, v, false) }

// UnmarshalNewer is Unmarshal for the answer of a peer that may be newer: it skips members that the
// target does not have.
func UnmarshalNewer(text []byte, v any) error { return unmarshal(text, v, true) }

func unmarshal(text []byte, v any, newer bool) error {
	if err := json.Unmarshal(text, v); err != nil {
		return err
	}
	w := walker{text, newer}
	_, err := w.value(w.space(0), shapeOf(reflect.TypeOf(v)))
	return err
}

// walker checks names in a text that is known to be valid JSON.
type walker struct {
	text  []byte
	newer bool
}

// value checks the value at i and returns the index behind it. A nil shape has nothing to check.
func (w walker) value(i int, s *shape) (int, error) {
	switch w.text[i] {
	case '{':
		return w.object(i, s)
	case '[':
		return w.list(i, s)
	case '"':
		return w.quoted(i), nil
	}
	for ; i < len(w.text); i++ { // a number or a word
		switch w.text[i] {
		case ',', ']', '}', ' ', '\t', '\r', '\n':
			return i, nil
		}
	}
	return i, nil
}

func (w walker) list(i int, s *shape) (int, error) {
	var of *shape
	if s != nil {
		of = s.of
	}
	var err error
	for i = w.space(i + 1); w.text[i] != ']'; i = w.space(i) {
		if w.text[i] == ',' {
			i++
		} else if i, err = w.value(i, of); err != nil {
			return i, err
		}
	}
	return i + 1, nil
}

func (w walker) object(i int, s *shape) (int, error) {
	var seen uint64            // the members of a struct
	var others map[string]bool // those of any other target
	for i = w.space(i + 1); w.text[i] != '}'; i = w.space(i) {
		if w.text[i] == ',' {
			i++
			continue
		}
		start := i
		i = w.quoted(i)
		name := w.text[start:i]
		i = w.space(w.space(i) + 1) // behind the colon
		var of *shape
		var err error
		switch {
		case s == nil:
		case s.members == nil:
			if others == nil {
				others = map[string]bool{}
			}
			of, err = s.of, once(name, others)
		default:
			of, err = w.member(name, s, &seen)
		}
		if err != nil {
			return i, err
		}
		if i, err = w.value(i, of); err != nil {
			return i, err
		}
	}
	return i + 1, nil
}

// member finds the shape of a member of a struct.
func (w walker) member(quoted []byte, s *shape, seen *uint64) (*shape, error) {
	name := quoted[1 : len(quoted)-1]
	for n := range s.members {
		m := &s.members[n]
		if string(name) != m.name {
			continue
		}
		if *seen&(1<<n) != 0 {
			return nil, fmt.Errorf("the member %q is there twice", m.name)
		}
		*seen |= 1 << n
		return m.shape, nil
	}
	meant := decoded(quoted)
	for _, m := range s.members {
		if strings.EqualFold(meant, m.name) {
			return nil, fmt.Errorf("the member %.64q is spelled otherwise than %q", name, m.name)
		}
	}
	if w.newer {
		return nil, nil
	}
	return nil, fmt.Errorf("unknown member %.64q", name)
}

// once notes a name and refuses it the second time.
func once(quoted []byte, seen map[string]bool) error {
	name := decoded(quoted)
	if seen[name] {
		return fmt.Errorf("the member %.64q is there twice", name)
	}
	seen[name] = true
	return nil
}

func decoded(quoted []byte) (name string) {
	_ = json.Unmarshal(quoted, &name) // it is valid
	return name
}

// quoted returns the index behind the string at i.
func (w walker) quoted(i int) int {
	for i++; w.text[i] != '"'; i++ {
		if w.text[i] == '\\' {
			i++
		}
	}
	return i + 1
}

func (w walker) space(i int) int {
	for i < len(w.text) && (w.text[i] == ' ' || w.text[i] == '\t' || w.text[i] == '\r' || w.text[i] == '\n') {
		i++
	}
	return i
}

// Depth is how deep the arrays and objects of a text are nested. The text need not be JSON.
func Depth(text []byte) (most int) {
	now, quoted := 0, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			now++
			most = max(most, now)
		case c == '}' || c == ']':
			now--
		}
	}
	return most
}
