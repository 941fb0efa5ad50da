package mcp

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// What comes from inside a workspace is data that somebody else made. This file bounds it and makes it valid text.

// valid is bytes as text: what is no UTF-8 becomes U+FFFD.
func valid(b []byte) string { return strings.ToValidUTF8(string(b), "\uFFFD") }

// clean is a text on one line, in which every character but a tab can be seen.
func clean(s string) string {
	for _, r := range s {
		if r != '\t' && (r == utf8.RuneError || !unicode.IsPrint(r)) {
			q := fmt.Sprintf("%q", s)
			return q[1 : len(q)-1]
		}
	}
	return s
}

// quoted is argv as a person can read it: words with other characters than plain ones are quoted, and none hides.
func quoted(argv []string) string {
	out := make([]string, len(argv))
	for i, a := range argv {
		if a == "" || strings.ContainsAny(a, " \t\n\"'\\$`*?[]{}()<>|&;~#!") {
			a = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
		}
		out[i] = clean(a)
	}
	return strings.Join(out, " ")
}

// whole drops a character from the end of b of which the rest is missing.
func whole(b []byte) []byte {
	for i := 1; i < utf8.UTFMax && i <= len(b); i++ {
		c := b[len(b)-i]
		if utf8.RuneStart(c) {
			if c >= utf8.RuneSelf && !utf8.FullRune(b[len(b)-i:]) {
				return b[:len(b)-i]
			}
			return b
		}
	}
	return b
}

// cut is a text of at most n bytes, with a mark where it was cut.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return string(whole([]byte(s[:n]))) + "…"
}

// size is a number of bytes for people.
func size(n int64) string {
	switch {
	case n < 10<<10:
		return fmt.Sprintf("%d bytes", n)
	case n < 10<<20:
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d MiB", n>>20)
}
