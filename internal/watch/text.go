package watch

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/charmbracelet/x/ansi"
)

// visible returns s with every character escaped that a terminal would obey, hide or join with its
// neighbour: controls, marks, blanks other than the space, and clusters of several characters. Each
// character of the result takes cells of its own, so that what is drawn can be counted.
func visible(s string) string {
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

// width is how many cells a visible text takes.
func width(s string) (n int) {
	for _, r := range s {
		n += wide(r)
	}
	return n
}

// broken breaks text into lines of at most so many cells. It returns nothing if a wide character has no room.
func broken(text string, cells int) (out []string) {
	if cells < 2 || text == "" {
		return nil
	}
	for line := range strings.SplitSeq(strings.TrimRight(text, "\n"), "\n") {
		line = visible(line)
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

// fit makes one line of a text, cuts it to a width and marks the cut.
func fit(s string, cells int) string {
	s = visible(strings.ReplaceAll(s, "\n", " "))
	if width(s) <= cells {
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

// cell is a text as one column of a table.
func cell(s string, cells int) string {
	s = fit(s, cells)
	return s + strings.Repeat(" ", max(cells-width(s), 0))
}

// tail is the end of a text.
func tail(s string, cells int) string {
	for width(s) > max(cells, 0) {
		_, n := utf8.DecodeRuneInString(s)
		s = s[n:]
	}
	return s
}

// longest is the first text that has room; the last is cut.
func longest(cells int, texts ...string) string {
	for _, t := range texts {
		if width(t) <= cells {
			return t
		}
	}
	return fit(texts[len(texts)-1], cells)
}
