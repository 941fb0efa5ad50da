package loop

import (
	"encoding/json"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/carrel-dev/carrel/internal/agent/plan"
)

// answerHead is how an answer begins whose text can be told while the model writes it, and maxHead how much of one is looked at.
var answerHead = regexp.MustCompile(`^\s*\{\s*"type"\s*:\s*"direct_answer"\s*,\s*"answer"\s*:\s*"`)

const maxHead = 256

// block is how a text begins that goes over several lines and may be secret as a whole.
const block = "-----BEGIN"

// stream tells the text of a direct answer as it comes, in whole lines: carrel looks for secrets in what it is told, and finds none that
// comes in halves. What is no such answer, or says its type later, is not told before it is whole.
type stream struct {
	tell func(text string) error
	// raw is what has come and is not read yet. open: it is inside of the text; over: nothing more is told.
	raw        []byte
	open, over bool
	// told is the text that was told, and next what will be.
	told, next strings.Builder
}

// take takes the next piece of the model's answer.
func (s *stream) take(delta string) error {
	if s.over = s.over || s.told.Len() > plan.MaxAnswer; s.over { // longer ones are not taken
		return nil
	}
	s.raw = append(s.raw, delta...)
	if !s.open {
		head := answerHead.Find(s.raw)
		if head == nil {
			s.over = len(s.raw) > maxHead
			return nil
		}
		s.raw, s.open = s.raw[len(head):], true
	}
	for !s.over {
		n := s.read()
		if n == 0 {
			break
		}
		s.raw = s.raw[n:]
	}
	text := s.next.String()
	before, _, secret := strings.Cut(text, block)
	s.over = s.over || secret
	n := strings.LastIndexByte(before, '\n') + 1
	if n == 0 {
		return nil
	}
	s.next.Reset()
	s.next.WriteString(text[n:])
	s.told.WriteString(text[:n])
	return s.tell(text[:n])
}

// read reads the next character of the text, and returns how many bytes it took; 0 if it is not there yet or the text is over.
func (s *stream) read() int {
	switch {
	case len(s.raw) == 0:
		return 0
	case s.raw[0] == '"' || s.raw[0] < ' ': // its end, or no JSON
		s.over = true
		return 0
	case s.raw[0] != '\\':
		if !utf8.FullRune(s.raw) {
			return 0
		}
		r, n := utf8.DecodeRune(s.raw)
		s.next.WriteRune(r)
		return n
	}
	n := 2
	if len(s.raw) >= 2 && s.raw[1] == 'u' {
		n = 6
	}
	if len(s.raw) < n {
		return 0
	}
	var text string
	if json.Unmarshal([]byte(`"`+string(s.raw[:n])+`"`), &text) != nil {
		s.over = true
		return 0
	}
	if n == 6 && text == "\uFFFD" { // half of a pair
		if len(s.raw) < 12 {
			return 0
		}
		var pair string
		if json.Unmarshal([]byte(`"`+string(s.raw[:12])+`"`), &pair) == nil && utf8.RuneCountInString(pair) == 1 && pair != "\uFFFD" {
			text, n = pair, 12
		}
	}
	s.next.WriteString(text)
	return n
}

// end tells the rest of the whole text.
func (s *stream) end(text string) error {
	s.over = true
	rest, ok := strings.CutPrefix(text, s.told.String())
	if !ok { // it was told wrongly, which would be a bug
		rest = "\n\n" + text
	}
	if rest == "" {
		return nil
	}
	return s.tell(rest)
}

// unusable says so of a text that was told in part.
func (s *stream) unusable() error {
	s.over = true
	if s.told.Len() == 0 {
		return nil
	}
	return s.tell("\n\n(This answer was not whole. Another one is asked for.)\n\n")
}
