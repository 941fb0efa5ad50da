package plan

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/strictjson"
)

// maxProblems bounds how many problems one error names.
const maxProblems = 8

// Parse reads an answer. White space around the object is allowed, and nothing else is. Its errors are of kind invalid
// argument. They name the places and say what is allowed there, at most eight, and quote little of the answer: they are
// fit to be sent back to the model.
func Parse(text []byte) (Answer, error) {
	if why := whole(text); why != "" {
		return Answer{}, refused([]string{why})
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	v, twice, err := decode(d)
	if err != nil { // it is valid, so this is a bug
		return Answer{}, fmt.Errorf("cannot read an answer: %w", err)
	}
	o, ok := v.(map[string]any)
	if !ok {
		return Answer{}, refused([]string{"the answer is not an object; give exactly one JSON object"})
	}
	c := checker{}
	for _, at := range twice {
		c.say(at, "is there twice", "give it once")
	}
	name, _ := o["type"].(string)
	f := formOf(Type(name))
	if f == nil {
		what := "is missing"
		if v, ok := o["type"]; ok {
			what = describe(v) + " is no type of answer"
		}
		c.say("type", what, "give one of "+strings.Join(types(), ", "))
		return Answer{}, refused(c.problems)
	}
	c.form(f, o)
	if len(c.problems) > 0 {
		return Answer{}, refused(c.problems)
	}
	a := Answer{Type: f.typ}
	if err := strictjson.Unmarshal(text, a.form()); err != nil {
		return Answer{}, fmt.Errorf("cannot read an answer of type %s: %w: %w", f.typ, err, errdefs.ErrInvalidArgument)
	}
	if f.typ == ToolCallsType {
		for i := range a.Tools.Calls {
			for _, p := range a.Tools.Calls[i].Problems() {
				c.say(fmt.Sprintf("calls[%d].%s", i, p.Param), p.What, p.Allowed)
			}
		}
		if len(c.problems) > 0 {
			return Answer{}, refused(c.problems)
		}
	}
	return a, nil
}

func refused(problems []string) error {
	if len(problems) == 1 {
		return fmt.Errorf("cannot use the answer: %s: %w", problems[0], errdefs.ErrInvalidArgument)
	}
	return fmt.Errorf("cannot use the answer:\n- %s\n%w", strings.Join(problems, "\n- "), errdefs.ErrInvalidArgument)
}

// whole says what is wrong with a text before its members are looked at, "" if nothing is.
func whole(text []byte) string {
	const alone = "give exactly one JSON object, without prose or code fences around it"
	trimmed := bytes.TrimLeft(text, " \t\r\n")
	switch {
	case len(text) > MaxAnswer:
		return fmt.Sprintf("it has %d bytes; at most %d are allowed", len(text), MaxAnswer)
	case !utf8.Valid(text):
		return fmt.Sprintf("it is not UTF-8 at byte %d; give UTF-8", invalidAt(text))
	case len(trimmed) == 0:
		return "it is empty; " + alone
	case trimmed[0] != '{':
		return fmt.Sprintf("it begins with %.20q; %s", trimmed, alone)
	case strictjson.Depth(text) > MaxDepth:
		return fmt.Sprintf("it is nested more than %d deep; use less", MaxDepth)
	}
	// The decoder says where the first value ends, and what comes behind it.
	var first json.RawMessage
	d := json.NewDecoder(bytes.NewReader(text))
	if err := d.Decode(&first); err != nil {
		at := len(text)
		if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
			at = min(int(syntax.Offset), at)
		}
		return fmt.Sprintf("it is no JSON at %s: %v; %s", place(text, at), err, alone)
	}
	if rest := bytes.TrimLeft(text[d.InputOffset():], " \t\r\n"); len(rest) > 0 {
		return fmt.Sprintf("something follows the object at %s: %.20q; %s", place(text, len(text)-len(rest)+1), rest, alone)
	}
	if at := halfPair(text); at >= 0 {
		return fmt.Sprintf("it has half of a surrogate pair at %s; write the character itself", place(text, at+1))
	}
	return ""
}

// place is the line and column, in bytes, of the byte before an offset, counted from 1.
func place(text []byte, offset int) string {
	before := text[:max(offset-1, 0)]
	return fmt.Sprintf("line %d, column %d", bytes.Count(before, []byte("\n"))+1, len(before)-bytes.LastIndexByte(before, '\n'))
}

func invalidAt(text []byte) int {
	for i := 0; i < len(text); {
		r, n := utf8.DecodeRune(text[i:])
		if r == utf8.RuneError && n == 1 {
			return i
		}
		i += n
	}
	return len(text)
}

// halfPair returns where an escape stands that is one half of a surrogate pair without the other, -1 for nowhere. The
// decoder would replace it by another character.
func halfPair(text []byte) int {
	for i := 0; i+5 < len(text); i++ {
		if text[i] != '\\' {
			continue
		}
		if text[i+1] != 'u' {
			i++
			continue
		}
		switch unit(text[i:]) &^ 0x3ff {
		case 0xd800:
			if unit(text[i+6:])&^0x3ff != 0xdc00 {
				return i
			}
			i += 11
		case 0xdc00:
			return i
		default:
			i += 5
		}
	}
	return -1
}

// unit is the number of an escape \uXXXX at the start of a text, 0 if there is none.
func unit(text []byte) uint64 {
	if len(text) < 6 || text[0] != '\\' || text[1] != 'u' {
		return 0
	}
	n, _ := strconv.ParseUint(string(text[2:6]), 16, 16) // what is no number is no escape
	return n
}

// decode reads the next value and lists the members that are there twice. The text is valid and its depth is bounded.
func decode(d *json.Decoder) (v any, twice []string, err error) {
	t, err := d.Token()
	if err != nil {
		return nil, nil, err
	}
	switch t {
	case json.Delim('{'):
		o := map[string]any{}
		for d.More() {
			t, err := d.Token()
			if err != nil {
				return nil, nil, err
			}
			name, _ := t.(string)
			inner, more, err := decode(d)
			if err != nil {
				return nil, nil, err
			}
			if _, ok := o[name]; ok && len(twice) < maxProblems {
				twice = append(twice, short(name))
			}
			o[name] = inner
			twice = within(twice, "."+short(name), more)
		}
		v = o
	case json.Delim('['):
		list := []any{}
		for d.More() {
			inner, more, err := decode(d)
			if err != nil {
				return nil, nil, err
			}
			twice = within(twice, "["+strconv.Itoa(len(list))+"]", more)
			list = append(list, inner)
		}
		v = list
	default:
		return t, nil, nil
	}
	_, err = d.Token()
	return v, twice, err
}

// within adds places that were found inside a value to those around it.
func within(all []string, in string, found []string) []string {
	for _, f := range found {
		if len(all) < maxProblems {
			all = append(all, strings.TrimPrefix(in, ".")+dot(f))
		}
	}
	return all
}

func dot(place string) string {
	if strings.HasPrefix(place, "[") {
		return place
	}
	return "." + place
}

// short is a name of a member as errors show it.
func short(name string) string {
	if len(name) <= 40 && strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") == "" && name != "" {
		return name
	}
	return fmt.Sprintf("%.40q", name)
}
