package patch

import (
	"bytes"
	"fmt"
	"strings"
	"unicode/utf8"
)

// around is how many lines are shown before and behind a change.
const around = 3

const (
	red   = "\x1b[31m"
	green = "\x1b[32m"
	cyan  = "\x1b[36m"
	bold  = "\x1b[1m"
	plain = "\x1b[0m"
)

// Diff shows a person what would be done: for each file a line with what is done and how many lines are added and
// removed, its risks, and its hunks. Characters that a terminal acts on, that cannot be seen, or that are not UTF-8 are
// shown as escapes. Its own colours are the only escape sequences, and there are none without color. It is not a patch.
func (p *Prepared) Diff(color bool) string {
	d := &drawing{color: color}
	for _, f := range p.files {
		d.file(f)
	}
	return d.b.String()
}

type drawing struct {
	b     strings.Builder
	color bool
}

func (d *drawing) line(color, text string) {
	if d.color && color != "" {
		text = color + text + plain
	}
	d.b.WriteString(text + "\n")
}

func (d *drawing) file(pl *planned) {
	f := pl.file()
	name := visible([]byte(f.Path))
	if f.To != "" {
		name += " → " + visible([]byte(f.To))
	}
	d.line(bold, fmt.Sprintf("%s %s  +%d −%d", f.Op, name, f.Added, f.Removed))
	if pl.mode != nil && f.OldMode != f.Mode {
		if f.Op == Create {
			d.line(cyan, fmt.Sprintf("mode %04o", uint32(f.Mode)))
		} else {
			d.line(cyan, fmt.Sprintf("mode %04o → %04o", uint32(f.OldMode), uint32(f.Mode)))
		}
	}
	for _, r := range f.Risks {
		d.line(red, "careful: "+visible([]byte(r)))
	}
	if f.Relocated > 0 {
		d.line(cyan, fmt.Sprintf("%d hunks stand elsewhere than their numbers say", f.Relocated))
	}
	shift := 0
	for i := 0; i < len(pl.edits); {
		// Edits with little between them are one hunk.
		j := i + 1
		for j < len(pl.edits) && pl.edits[j].start-pl.edits[j-1].end <= 2*around {
			j++
		}
		shift = d.hunk(pl, pl.edits[i:j], shift)
		i = j
	}
}

// hunk draws some edits with the lines around them. shift is how many more lines the new file has so far.
func (d *drawing) hunk(pl *planned, edits []edit, shift int) int {
	first, last := max(edits[0].start-around, 0), min(edits[len(edits)-1].end+around, len(pl.lines))
	before, after := last-first, last-first
	for _, e := range edits {
		after += len(e.lines) - (e.end - e.start)
	}
	d.line(cyan, fmt.Sprintf("@@ -%s +%s @@", spanText(first, before), spanText(first+shift, after)))
	i := first
	for _, e := range edits {
		d.rows("", " ", pl.lines[i:e.start])
		d.rows(red, "-", pl.lines[e.start:e.end])
		d.rows(green, "+", e.lines)
		i = e.end
	}
	d.rows("", " ", pl.lines[i:last])
	return shift + after - before
}

// spanText is a range as a unified diff writes it: one without lines stands behind its number.
func spanText(start, count int) string {
	if count > 0 {
		start++
	}
	if count == 1 {
		return fmt.Sprint(start)
	}
	return fmt.Sprintf("%d,%d", start, count)
}

func (d *drawing) rows(color, sign string, lines [][]byte) {
	for _, l := range lines {
		text, ended := bytes.CutSuffix(l, []byte("\n"))
		d.line(color, sign+visible(text))
		if !ended {
			d.line("", `\ No newline at end of file`)
		}
	}
}

// visible writes a text so that every character of it is seen.
func visible(s []byte) string {
	var b strings.Builder
	for len(s) > 0 {
		r, n := utf8.DecodeRune(s)
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02x`, s[0])
		case r == '\t':
			b.WriteByte('\t')
		case r == '\r':
			b.WriteString(`\r`)
		case odd(r) && r < 0x80:
			fmt.Fprintf(&b, `\x%02x`, r)
		case odd(r):
			fmt.Fprintf(&b, `\u{%x}`, r)
		default:
			b.Write(s[:n])
		}
		s = s[n:]
	}
	return b.String()
}
