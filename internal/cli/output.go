package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/carrel-dev/carrel/internal/base/errtext"
	"github.com/carrel-dev/carrel/internal/base/termtext"
	"github.com/carrel-dev/carrel/internal/cli/attach"
)

// format is the value of -o.
type format string

const (
	asTable format = "table"
	asWide  format = "wide" // a table with all columns, for terminals
	asJSON  format = "json"
)

// outputFlag adds -o to a command that prints data.
func outputFlag(c *cobra.Command) *format {
	f := asTable
	c.Flags().VarP(&f, "output", "o", "how to print: table, wide or json")
	completeFrom(c, "output", string(asTable), string(asWide), string(asJSON))
	return &f
}

// completeFrom completes a flag, which must be there, from fixed values.
func completeFrom(c *cobra.Command, flag string, values ...string) {
	_ = c.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
}

func (f *format) String() string { return string(*f) }
func (f *format) Type() string   { return "table|wide|json" }
func (f *format) Set(s string) error {
	switch format(s) {
	case asTable, asWide, asJSON:
		*f = format(s)
		return nil
	default:
		return errors.New("it is not table, wide or json")
	}
}

// printJSON prints v for programs: two spaces of indent, no escaping of <, > and &.
func (a *app) printJSON(v any) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return err
	}
	return emitJSON(a.Out, b.Bytes())
}

// emitJSON writes JSON as it is, but to a terminal without a character that it could obey: in strings JSON
// allows all from 0x7f on.
func emitJSON(f *os.File, b []byte) error {
	if isTerminal(f) {
		b = escapeJSON(b)
	}
	_, err := f.Write(b)
	return err
}

// escapeJSON writes characters that are not printable as JSON escapes, which mean the same.
func escapeJSON(b []byte) []byte {
	out := make([]byte, 0, len(b))
	for len(b) > 0 {
		r, n := utf8.DecodeRune(b)
		switch {
		case r == '\n', unicode.IsPrint(r) && (r != utf8.RuneError || n > 1):
			out = append(out, b[:n]...)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			out = fmt.Appendf(out, `\u%04x\u%04x`, high, low)
		default:
			out = fmt.Appendf(out, `\u%04x`, r)
		}
		b = b[n:]
	}
	return out
}

// Colours, by their SGR parameters.
const (
	plain  = ""
	green  = "32"
	red    = "31"
	yellow = "33"
	faint  = "2"
)

var stateColours = map[string]string{
	"running": green, "verified": green, "yes": green,
	"failed": red, "destroying": red, "no": red,
	"lost": red, "timed out": yellow, "unknown": yellow,
	"unavailable": yellow, "applied": yellow, "paused": yellow, "creating": yellow, "partly": yellow,
	"stopped": faint, "off": faint,
}

// colours reports whether output to f is coloured (no-color.org).
func colours(f *os.File) bool {
	return os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" && isTerminal(f)
}

// table collects rows and prints them in columns.
type table struct {
	rows [][]string
	// state is the column that is coloured by its value, if not negative.
	state int
	// minor are the columns, by their heads, that are left out on terminals.
	minor []string
	// free says that the last column is free text, which is cut to what lineWidth leaves.
	free bool
	// folded says that the last column goes on in further lines, on terminals.
	folded bool
	// fit says that a row has to fit lineWidth; see format.whole.
	fit bool
}

// newTable returns a table with a head. Its rows fit lineWidth with ordinary data: TestTablesFit.
func newTable(state int, head ...string) *table { return &table{rows: [][]string{head}, state: state} }

// wideOnly leaves columns to -o wide on terminals.
func (t *table) wideOnly(heads ...string) *table {
	t.minor = heads
	return t
}

// freeText says that the last column is free text.
func (t *table) freeText() *table {
	t.free = true
	return t
}

// Bounds of a last column of free text: it keeps leastText columns, and has mostText with -o wide.
const (
	leastText = 16
	mostText  = 240
)

// whole reports whether nothing is left out or cut: with -o wide, and where no person reads it in a window.
func (f format) whole(to *os.File) bool { return f == asWide || !isTerminal(to) }

// print prints for people what may have tables.
func (f format) print(p printer, to *os.File) error {
	f.apply(p, to)
	return p.render(to)
}

func (f format) apply(p printer, to *os.File) {
	switch p := p.(type) {
	case *table:
		p.fit = !f.whole(to)
	case *shaped:
		p.fit = !f.whole(to)
	case both:
		f.apply(p[0], to)
		f.apply(p[1], to)
	}
}

// pairs is a table of names and values, without those that are empty.
func pairs(rows ...[2]string) *table {
	t := &table{state: -1, folded: true}
	for _, r := range rows {
		if r[1] != "" {
			t.add(r[0], r[1])
		}
	}
	return t
}

// printer is what a command prints for people.
type printer interface{ render(f *os.File) error }

// text is printed with what a terminal would obey escaped. What a command of a workspace writes is
// passed on as it is, by package relay; everything else goes through text, table or say.
type text string

func (t text) render(f *os.File) error {
	_, err := io.WriteString(f, message(string(t)))
	return err
}

// say prints one text for people, as text does.
func say(f *os.File, format string, args ...any) error { return textf(format, args...).render(f) }

func textf(format string, args ...any) text { return text(fmt.Sprintf(format, args...)) }

// shaped is a text with another form for terminals.
type shaped struct {
	whole, narrow text
	fit           bool // see table
}

func (s *shaped) render(f *os.File) error {
	if s.fit {
		return s.narrow.render(f)
	}
	return s.whole.render(f)
}

// lines is text of one line for each.
func lines(all []string) text {
	var b strings.Builder
	for _, l := range all {
		b.WriteString(l + "\n")
	}
	return text(b.String())
}

// both prints one thing and then the other.
type both [2]printer

func (b both) render(f *os.File) error {
	if err := b[0].render(f); err != nil {
		return err
	}
	return b[1].render(f)
}

// jsonLine prints v for programs in one line.
func jsonLine(f *os.File, v any) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return err
	}
	return emitJSON(f, b.Bytes())
}

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

func (t *table) render(f *os.File) error {
	if t.fit && len(t.minor) > 0 {
		t.narrow()
	}
	var widths []int
	for _, r := range t.rows {
		for i := range r {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			r[i] = printable(r[i])
			c := r[i]
			widths[i] = max(widths[i], termtext.Width(c))
		}
	}
	if t.free && len(widths) > 0 {
		last, room := len(widths)-1, mostText
		if t.fit {
			room = lineWidth
			for _, w := range widths[:last] {
				room -= w + 2
			}
		}
		for _, r := range t.rows {
			if len(r) == len(widths) {
				r[last] = cut(r[last], max(room, leastText))
			}
		}
	}
	colour := colours(f)
	var b strings.Builder
	for n, r := range t.rows {
		if at := len(r) - 1; t.folded && t.fit && at == 1 && termtext.Width(r[1]) > lineWidth-widths[0]-2 {
			indent := strings.Repeat(" ", widths[0]+2)
			r[1] = strings.TrimSuffix(strings.TrimPrefix(wrap(r[1], indent), indent), "\n")
		}
		for i, c := range r {
			pad := ""
			if i < len(r)-1 {
				pad = strings.Repeat(" ", widths[i]-termtext.Width(c)+2)
			}
			if colour && n > 0 && i == t.state && stateColours[c] != plain {
				c = "\x1b[" + stateColours[c] + "m" + c + "\x1b[0m"
			}
			b.WriteString(c + pad)
		}
		b.WriteByte('\n')
	}
	_, err := io.WriteString(f, b.String())
	return err
}

// narrow removes the columns that are left to -o wide.
func (t *table) narrow() {
	var keep []int
	state := -1
	for i, head := range t.rows[0] {
		if slices.Contains(t.minor, head) {
			continue
		}
		if i == t.state {
			state = len(keep)
		}
		keep = append(keep, i)
	}
	for n, r := range t.rows {
		cells := make([]string, len(keep))
		for to, from := range keep {
			cells[to] = r[from]
		}
		t.rows[n] = cells
	}
	t.state, t.minor = state, nil
}

// printable makes text from outside safe for a terminal: if a character is not printable, the
// text is quoted.
func printable(s string) string {
	for _, r := range s {
		if r == utf8.RuneError || !unicode.IsPrint(r) { // neither are marks that change the direction of text
			q := fmt.Sprintf("%q", s)
			return q[1 : len(q)-1]
		}
	}
	return s
}

// message makes a text of several lines safe for a terminal.
func message(s string) string { return attach.Message(s) }

// shellQuote joins argv so that a person can paste it.
func shellQuote(argv []string) string {
	out := make([]string, len(argv))
	for i, a := range argv {
		if a == "" || strings.ContainsAny(a, " \t\n\"'\\$`*?[]{}()<>|&;~#!") {
			a = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
		}
		out[i] = printable(a)
	}
	return strings.Join(out, " ")
}

// lineWidth is how wide what carrel prints for people is, as far as its words allow.
const lineWidth = 80

// wrapped is a text in indented lines of at most lineWidth.
func wrapped(s string) string { return wrap(message(s), "        ") }

// reflowed is a text of which the paragraphs that are not indented have lines of at most lineWidth.
func reflowed(s string) string {
	paragraphs := strings.Split(s, "\n\n")
	for i, p := range paragraphs {
		if !strings.HasPrefix(p, " ") && !strings.Contains(p, "\n ") {
			paragraphs[i] = strings.TrimSuffix(wrap(p, ""), "\n")
		}
	}
	return strings.Join(paragraphs, "\n\n")
}

// flagLines wraps the lines of a help that are about flags.
func flagLines(help string) string {
	flagLine := regexp.MustCompile(`^( +-.*?  +)(\S.*)$`) // a flag, and what it is for
	var b strings.Builder
	for line := range strings.Lines(help) {
		m := flagLine.FindStringSubmatch(strings.TrimSuffix(line, "\n"))
		if m == nil || utf8.RuneCountInString(line) <= lineWidth+1 {
			b.WriteString(line)
			continue
		}
		b.WriteString(m[1] + strings.TrimLeft(wrap(m[2], strings.Repeat(" ", len(m[1]))), " "))
	}
	return b.String()
}

func wrap(s, indent string) string {
	var b strings.Builder
	width := 0
	for word := range strings.FieldsSeq(s) {
		n := utf8.RuneCountInString(word)
		switch {
		case width > 0 && width+1+n <= lineWidth:
			b.WriteString(" " + word)
			width += 1 + n
			continue
		case width > 0:
			b.WriteByte('\n')
		}
		b.WriteString(indent + word)
		width = len(indent) + n
	}
	if width > 0 {
		b.WriteByte('\n')
	}
	return b.String()
}

// counted is a number of things, of which one has the name given.
func counted[N int | int32 | int64 | uint32 | uint64](n N, name string) string {
	switch {
	case n == 1:
		return "1 " + name
	case strings.HasSuffix(name, "y"):
		return fmt.Sprintf("%d %sies", n, strings.TrimSuffix(name, "y"))
	default:
		return fmt.Sprintf("%d %ss", n, name)
	}
}

// errorText is an error for a person: the kind at its end is left out, and what it wraps does not say
// "cannot" again.
func errorText(err error) string {
	var lines []string
	for line := range strings.SplitSeq(errtext.Text(err), "\n") {
		if strings.HasPrefix(line, "cannot ") {
			line = strings.ReplaceAll(line, ": cannot ", ": ")
		}
		lines = append(lines, line)
	}
	return message(strings.Join(lines, "\n"))
}

func cut(s string, n int) string {
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	return string([]rune(s)[:n-1]) + "…"
}

// at reads a time of the API.
func at(unixMS int64) time.Time { return time.UnixMilli(unixMS).UTC() }

// clock is a time of the API as a person here reads it: RFC 3339, and "" for none.
func clock(unixMS int64) string {
	if unixMS == 0 {
		return ""
	}
	return time.UnixMilli(unixMS).Format(time.RFC3339)
}

// moment and stamp are the forms of times in tables, and at the beginning of lines of events and of the record: of UTC, and they say so.
const moment = "2006-01-02 15:04:05Z"

const stamp = "2006-01-02 15:04:05.000Z"

// age is how long ago t was, in the largest fitting unit.
func age(t time.Time) string {
	d := time.Since(t)
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", max(int(d.Seconds()), 0))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	default:
		return fmt.Sprintf("%dd", int(d.Hours()/24))
	}
}

// bytesText is n in the largest binary unit that is not larger than n.
func bytesText(n int64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	v, i := float64(n), 0
	for v >= 1024 && i < len(units)-1 {
		v /= 1024
		i++
	}
	if v == float64(int64(v)) {
		return fmt.Sprintf("%d %s", int64(v), units[i])
	}
	return fmt.Sprintf("%.1f %s", v, units[i])
}
