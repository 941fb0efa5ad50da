package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"
)

// format is the value of -o.
type format string

const (
	asTable format = "table"
	asJSON  format = "json"
)

// outputFlag adds -o to a command that prints data.
func outputFlag(c *cobra.Command) *format {
	f := asTable
	c.Flags().VarP(&f, "output", "o", "how to print: table or json")
	_ = c.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{string(asTable), string(asJSON)}, cobra.ShellCompDirectiveNoFileComp)) // the flag is there
	return &f
}

func (f *format) String() string { return string(*f) }
func (f *format) Type() string   { return "table|json" }
func (f *format) Set(s string) error {
	switch format(s) {
	case asTable, asJSON:
		*f = format(s)
		return nil
	default:
		return fmt.Errorf("%q is not table or json", s)
	}
}

// printJSON prints v for programs: two spaces of indent, no escaping of <, > and &.
func (a *app) printJSON(v any) error {
	e := json.NewEncoder(a.Out)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
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
	"unavailable": yellow, "applied": yellow, "paused": yellow, "creating": yellow, "partly": yellow,
	"stopped": faint, "off": faint,
}

// colours tells whether to colour what goes to f (no-color.org).
func colours(f *os.File) bool {
	return os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" && isTerminal(f)
}

// table collects rows and prints them in columns.
type table struct {
	rows [][]string
	// state is the column that is coloured by its value, if not negative.
	state int
}

func newTable(state int, head ...string) *table { return &table{[][]string{head}, state} }

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

func (t *table) print(f *os.File) error {
	var widths []int
	for _, r := range t.rows {
		for i, c := range r {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(c))
		}
	}
	colour := colours(f)
	var b strings.Builder
	for n, r := range t.rows {
		for i, c := range r {
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(c)+2)
			if i == len(r)-1 {
				pad = ""
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

// printable makes outside text safe for a terminal: what is not printable is quoted.
func printable(s string) string {
	for _, r := range s {
		if r == utf8.RuneError || !unicode.IsPrint(r) { // marks that turn the direction of text around are none either
			q := fmt.Sprintf("%q", s)
			return q[1 : len(q)-1]
		}
	}
	return s
}

// message makes a text of several lines, such as an error that quotes a command, safe for a
// terminal: what is not printable in a line stands there as it is written in Go.
func message(s string) string {
	var b strings.Builder
	for len(s) > 0 {
		r, n := utf8.DecodeRuneInString(s)
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `\x%02x`, s[0])
		case r == '\n' || r == '\t' || unicode.IsPrint(r):
			b.WriteRune(r)
		default:
			q := strconv.QuoteRune(r)
			b.WriteString(q[1 : len(q)-1])
		}
		s = s[n:]
	}
	return b.String()
}

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

func cut(s string, n int) string {
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	return string([]rune(s)[:n-1]) + "…"
}

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

// bytesText is n in the largest binary unit that divides it well enough to read.
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
