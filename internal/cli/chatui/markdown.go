package chatui

import (
	"strings"

	"github.com/carrel-dev/carrel/internal/base/termtext"
)

// markdown draws headings, lists, quotes, code, and what is strong or code within a line. What it does not know stays as it
// is written: no text is lost.
func markdown(text string, width int) (out []string) {
	code := false
	for line := range strings.SplitSeq(strings.Trim(text, "\n"), "\n") {
		bare := strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(bare, "```"):
			code = !code
			if name := strings.TrimPrefix(bare, "```"); name != "" {
				out = append(out, hang("  ", "  ", name, dim, width)...)
			}
		case code:
			out = append(out, exactly(line, cyan, width)...)
		case bare == "":
			out = append(out, "")
		case heading(bare) != "":
			out = append(out, hang("", "", heading(bare), bold, width)...)
		default:
			out = append(out, prose(line, width)...)
		}
	}
	return out
}

// exactly draws a line with its blanks as they are.
func exactly(line, style string, width int) (out []string) {
	indent := "  "
	if width < 10 {
		indent = ""
	}
	if line == "" {
		return []string{""}
	}
	for _, l := range termtext.Broken(spaced(line), width-len(indent)) {
		out = append(out, indent+styled(style, l))
	}
	return out
}

// heading is the text of a heading, "" if a line is none.
func heading(line string) string {
	text := strings.TrimLeft(line, "#")
	if n := len(line) - len(text); n == 0 || n > 6 || !strings.HasPrefix(text, " ") {
		return ""
	}
	return strings.TrimSpace(text)
}

// prose draws a line of text. One of a list hangs behind its mark.
func prose(line string, width int) (out []string) {
	line = spaced(line)
	lead := line[:len(line)-len(strings.TrimLeft(line, " "))]
	lead = lead[:min(len(lead), 8)]
	rest := strings.TrimLeft(line, " ")
	mark, body, ok := strings.Cut(rest, " ")
	if ok && isMark(mark) {
		lead, rest = lead+mark+" ", body
	}
	if room := width - len(lead); room < 8 {
		lead, rest = "", line
	}
	plain, styles := spans(termtext.Visible(rest))
	at := 0
	for i, l := range termtext.Wrapped(string(plain), width-len(lead)) {
		var b strings.Builder
		if i == 0 {
			b.WriteString(lead)
		} else {
			b.WriteString(strings.Repeat(" ", len(lead)))
		}
		now := nothing
		for _, r := range l {
			for at < len(plain)-1 && plain[at] != r && plain[at] == ' ' { // it was dropped at the end of a line
				at++
			}
			if at < len(plain) && styles[at] != now {
				if now != nothing {
					b.WriteString(off)
				}
				now = styles[at]
				b.WriteString(now)
			}
			b.WriteRune(r)
			at++
		}
		if now != nothing {
			b.WriteString(off)
		}
		out = append(out, b.String())
	}
	return out
}

// isMark reports whether a word begins an item of a list, or a quote.
func isMark(word string) bool {
	switch word {
	case "-", "*", "+", ">":
		return true
	}
	number := strings.TrimRight(word, ".)")
	return len(number) > 0 && len(number) < 4 && len(word) == len(number)+1 && strings.Trim(number, "0123456789") == ""
}

// spans takes the marks of what is strong and what is code out of a line, and says how each character is drawn.
func spans(line string) (plain []rune, styles []string) {
	add := func(text, style string) {
		for _, r := range text {
			plain, styles = append(plain, r), append(styles, style)
		}
	}
	for line != "" {
		for _, m := range []struct{ mark, style string }{{"`", cyan}, {"**", bold}} {
			rest, ok := strings.CutPrefix(line, m.mark)
			if !ok {
				continue
			}
			if in, after, ok := strings.Cut(rest, m.mark); ok && in != "" {
				add(in, m.style)
				line = after
				break
			}
			add(m.mark, nothing)
			line = rest
			break
		}
		n := strings.IndexAny(line, "`*")
		switch {
		case n < 0:
			add(line, nothing)
			return plain, styles
		case n == 0 && !strings.HasPrefix(line, "`") && !strings.HasPrefix(line, "**"):
			add("*", nothing)
			line = line[1:]
		default:
			add(line[:n], nothing)
			line = line[n:]
		}
	}
	return plain, styles
}

// diffLines draws a change to files as package patch writes it: for each file a head with +N −M, and its hunks unless short.
func diffLines(diff string, width int, short bool) (out []string) {
	if diff == "" {
		return nil
	}
	for line := range strings.SplitSeq(strings.TrimRight(diff, "\n"), "\n") {
		style, head := bold, true
		switch {
		case strings.HasPrefix(line, "+"):
			style, head = green, false
		case strings.HasPrefix(line, "-"):
			style, head = red, false
		case strings.HasPrefix(line, "@@"):
			style, head = cyan, false
		case strings.HasPrefix(line, " "), strings.HasPrefix(line, `\`):
			style, head = nothing, false
		case strings.HasPrefix(line, "careful: "):
			style = red
		case strings.HasPrefix(line, "mode "):
			style = cyan
		}
		if short && !head {
			continue
		}
		out = append(out, exactly(line, style, width)...)
	}
	return out
}
