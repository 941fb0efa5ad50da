package main

import (
	"fmt"
	"html"
	"regexp"
	"strings"
)

// The measures of a character in the picture, in its units.
const (
	charWidth, lineHeight = 8.4, 19
	margin                = 16
)

// colours of what programs write, by the number of SGR (ECMA-48, 8.3.117).
var colours = map[string]string{
	"1": "font-weight:bold", "2": "fill:#8b949e", "31": "fill:#ff7b72", "32": "fill:#7ee787", "33": "fill:#e3b341", "36": "fill:#79c0ff",
}

var escape = regexp.MustCompile("\x1b\\[([0-9;?]*)([A-Za-z])")

// svg draws the text as a terminal has it in the end, as high as it takes. It knows line
// feeds, carriage returns and colours, which is what carrel and the tour's programs write.
func svg(text string) string {
	lines := wrapped(strings.ReplaceAll(text, "\r\n", "\n"))
	var b strings.Builder
	height := len(lines)*lineHeight + 2*margin
	width := columns*charWidth + 2*margin
	fmt.Fprintf(&b,
		`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %d" width="%.0f" height="%d">`+"\n", width, height, width, height)
	b.WriteString(`<rect width="100%" height="100%" rx="8" fill="#0d1117"/>` + "\n")
	b.WriteString(`<g font-family="ui-monospace,SFMono-Regular,Menlo,Consolas,monospace" font-size="14" fill="#e6edf3">` + "\n")
	for i, l := range lines {
		fmt.Fprintf(&b, `<text x="%d" y="%d" style="white-space:pre">%s</text>`+"\n", margin, margin+(i+1)*lineHeight-5, spans(l))
	}
	b.WriteString("</g>\n</svg>\n")
	return b.String()
}

// spans are the pieces of a line by their style. Each line begins without one.
func spans(line string) string {
	var b strings.Builder
	style := ""
	put := func(s string) {
		switch {
		case s == "":
		case style == "":
			b.WriteString(html.EscapeString(s))
		default:
			fmt.Fprintf(&b, `<tspan style="%s">%s</tspan>`, style, html.EscapeString(s))
		}
	}
	for {
		at := escape.FindStringSubmatchIndex(line)
		if at == nil {
			put(line)
			return b.String()
		}
		put(line[:at[0]])
		if line[at[4]:at[5]] == "m" {
			style = ""
			for n := range strings.SplitSeq(line[at[2]:at[3]], ";") {
				if c := colours[n]; c != "" {
					style += c + ";"
				}
			}
		}
		line = line[at[1]:]
	}
}

// wrapped breaks lines where the terminal does, without counting escapes.
func wrapped(text string) []string {
	var out []string
	for line := range strings.SplitSeq(strings.TrimRight(text, "\n"), "\n") {
		if i := strings.LastIndexByte(line, '\r'); i >= 0 {
			line = line[i+1:] // it was written over
		}
		n, from := 0, 0
		for i := 0; i < len(line); {
			if at := escape.FindStringIndex(line[i:]); at != nil && at[0] == 0 {
				i += at[1]
				continue
			}
			size := len(string([]rune(line[i:])[0]))
			if n == columns {
				out, from, n = append(out, line[from:i]), i, 0
			}
			i, n = i+size, n+1
		}
		out = append(out, line[from:])
	}
	return out
}
