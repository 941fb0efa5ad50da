package termtext_test

import (
	"strings"
	"testing"
	"unicode"

	"pgregory.net/rapid"

	"github.com/carrel-dev/carrel/internal/base/termtext"
)

// Nothing that is hostile leaves as it was, and nothing else is lost.
func TestVisible(t *testing.T) {
	for in, want := range map[string]string{
		"plain é 界":       "plain é 界",
		"\x1b[2Jx":        `\x1b[2Jx`,
		"\x1b]0;t\a":      `\x1b]0;t\a`,
		"a\u202eb":        `a\u202eb`,
		"a\u200bb\ufeff":  `a\u200bb\ufeff`,
		"\u009b2J":        `\u009b2J`,
		"bad \xff":        `bad \xff`,
		"e\u0301\u00a0 x": `e\u0301\u00a0 x`,
	} {
		if got := termtext.Visible(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

// A wrapped text has all of its words in lines of the width, and breaks only words that are longer than a line.
func TestWrapped(t *testing.T) {
	for in, want := range map[string]string{
		"one two three":     "one two|three",
		"aaaaaaaaaaaa b":    "aaaaaaaa|aaaa b",
		"a  b":              "a  b",
		"12345678 12345678": "12345678|12345678",
		"x\n\ny":            "x||y",
		"世界世界世":             "世界世界|世",
	} {
		if got := strings.Join(termtext.Wrapped(in, 8), "|"); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
	squeeze := func(s string) string {
		return strings.Map(func(r rune) rune {
			if r == ' ' {
				return -1
			}
			return r
		}, s)
	}
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringOf(rapid.OneOf(rapid.SampledFrom([]rune(" ab界\x1b\u202e")), rapid.RuneFrom(nil, unicode.L))).Draw(t, "text")
		room := rapid.IntRange(2, 20).Draw(t, "room")
		lines := termtext.Wrapped(text, room)
		for _, l := range lines {
			if termtext.Width(l) > room {
				t.Errorf("%q is wider than %d", l, room)
			}
		}
		if got, want := squeeze(strings.Join(lines, "")), squeeze(termtext.Visible(text)); got != want {
			t.Errorf("%q became %q", want, got)
		}
	})
}
