// Package termtext is text as a terminal shows it: in cells, and without a character that the terminal would obey.
//
// Everything that a program or a model wrote passes Visible, or a function that calls it, before it is drawn.
package termtext

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/charmbracelet/x/ansi"
)

// Visible returns s with every character escaped that a terminal would obey, hide or join with its
// neighbour: controls, marks, blanks other than the space, and clusters of several characters. Each
// character of the result takes cells of its own, so that what is drawn can be counted.
func Visible(s string) string {
	var b strings.Builder
	for len(s) > 0 {
		cluster, _ := ansi.FirstGraphemeCluster(s, ansi.WcWidth)
		s = s[len(cluster):]
		alone := utf8.RuneCountInString(cluster) == 1
		for len(cluster) > 0 {
			r, n := utf8.DecodeRuneInString(cluster)
			switch {
			case r == utf8.RuneError && n == 1:
				q := strconv.Quote(cluster[:1])
				b.WriteString(q[1 : len(q)-1])
			case drawn(r) && (alone || r < utf8.RuneSelf):
				b.WriteRune(r)
			case unicode.IsPrint(r) && r > 0xffff:
				b.WriteString(`\U` + hex(r, 8))
			case unicode.IsPrint(r):
				b.WriteString(`\u` + hex(r, 4))
			default:
				q := strconv.QuoteRune(r)
				b.WriteString(q[1 : len(q)-1])
			}
			cluster = cluster[n:]
		}
	}
	return b.String()
}

func hex(r rune, digits int) string {
	s := strconv.FormatInt(int64(r), 16)
	return strings.Repeat("0", max(digits-len(s), 0)) + s
}

// drawn reports whether a character leaves ink or is the space, in one or two cells.
func drawn(r rune) bool {
	const brailleBlank = '\u2800'
	w := wide(r)
	return unicode.IsPrint(r) && r != utf8.RuneError && r != brailleBlank && !unicode.Is(unicode.M, r) &&
		!unicode.Is(unicode.Other_Default_Ignorable_Code_Point, r) && (w == 1 || w == 2)
}

// wide is how many cells a character takes: the more of what the two ways say in which the renderer
// counts, of which it chooses one by what the terminal can do.
func wide(r rune) int {
	if r >= ' ' && r <= '~' {
		return 1
	}
	return max(ansi.StringWidthWc(string(r)), ansi.StringWidth(string(r)))
}

// Width is how many cells a visible text takes.
func Width(s string) (n int) {
	for _, r := range s {
		n += wide(r)
	}
	return n
}

// Broken breaks text into lines of at most so many cells. It returns nothing if a wide character has no room.
func Broken(text string, cells int) (out []string) {
	if cells < 2 || text == "" {
		return nil
	}
	for line := range strings.SplitSeq(strings.TrimRight(text, "\n"), "\n") {
		line = Visible(line)
		from, used := 0, 0
		for i, r := range line {
			w := wide(r)
			if used+w > cells {
				out, from, used = append(out, line[from:i]), i, 0
			}
			used += w
		}
		out = append(out, line[from:])
	}
	return out
}

// Wrapped is Broken, but breaks between words where a line has a blank, or before a wide character, as Chinese has no blanks.
func Wrapped(text string, cells int) (out []string) {
	if cells < 2 {
		return nil
	}
	for line := range strings.SplitSeq(strings.TrimRight(text, "\n"), "\n") {
		line = Visible(line)
		from, used, to, next := 0, 0, -1, -1
		for i, r := range line {
			w := wide(r)
			switch {
			case i == from:
			case r == ' ':
				to, next = i, i+1
			case w == 2:
				to, next = i, i
			}
			if used+w > cells {
				if to <= from {
					to, next = i, i
				}
				out = append(out, line[from:to])
				from, to = next, -1
				if next > i { // it is the blank itself that has no room
					used = 0
					continue
				}
				used = Width(line[next:i])
			}
			used += w
		}
		out = append(out, line[from:])
	}
	return out
}

// Fit makes one line of a text, cuts it to a width and marks the cut.
func Fit(s string, cells int) string {
	s = Visible(strings.ReplaceAll(s, "\n", " "))
	if Width(s) <= cells {
		return s
	}
	used := 0
	for i, r := range s {
		if used += wide(r); used > cells-1 {
			return s[:i] + strings.Repeat("…", min(max(cells, 0), 1))
		}
	}
	return s
}

// Cell is a text as one column of a table.
func Cell(s string, cells int) string {
	s = Fit(s, cells)
	return s + strings.Repeat(" ", max(cells-Width(s), 0))
}

// Tail is the end of a text.
func Tail(s string, cells int) string {
	for Width(s) > max(cells, 0) {
		_, n := utf8.DecodeRuneInString(s)
		s = s[n:]
	}
	return s
}

// Longest is the first text that has room; the last is cut.
func Longest(cells int, texts ...string) string {
	for _, t := range texts {
		if Width(t) <= cells {
			return t
		}
	}
	return Fit(texts[len(texts)-1], cells)
}
