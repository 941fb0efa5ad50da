package policy

import (
	"strings"

	"github.com/carrel-dev/carrel/internal/policy/prints"
	"github.com/carrel-dev/carrel/internal/shell"
)

// library reports whether a word is a library of a program's language that may be loaded.
func (j *judge) library(s *segment, w shell.Word) bool {
	l := prints.Of(s.program)
	return l != nil && !w.Dynamic && l.Loads(w.Text)
}

// printing proves code of a program's language; it reports whether that could be done.
func (j *judge) printing(s *segment, w shell.Word) bool {
	l := prints.Of(s.program)
	if l == nil || w.Dynamic || w.Glob {
		return false
	}
	if l.OpensPipes() {
		// A file's name that begins or ends with a pipe is a command to perl.
		behind := false
		for i := 1; i < len(s.words); i++ {
			o := &s.words[i]
			if o.Text == w.Text {
				behind = true
				continue
			}
			if !behind || strings.HasPrefix(o.Text, "-") {
				continue
			}
			if o.Text == "" || strings.ContainsAny(o.Text, "|<>") || o.Dynamic && strings.HasPrefix(o.Text, "$") ||
				o.Glob && (strings.IndexByte("*?[", o.Text[0]) >= 0 || strings.IndexByte("*?]", o.Text[len(o.Text)-1]) >= 0) {
				return false
			}
		}
	}
	if !l.Only(w.Text) {
		return false
	}
	if strings.Contains(w.Text, "argv") || strings.Contains(w.Text, "ARGV") {
		for i := 2; i < len(s.words); i++ {
			if !strings.HasPrefix(s.words[i].Text, "-") && s.words[i].Text != w.Text {
				j.pathEffect(s, s.words[i], accessRead)
			}
		}
	}
	return true
}
