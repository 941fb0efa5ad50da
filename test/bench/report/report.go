// Package report holds the figures of one run beside what they are to reach, and writes
// them as a table and as JSON.
//
// It must not measure anything but the machine that it names.
package report

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// Schema is the version of the JSON. A reader of the history refuses another.
const Schema = 1

// Result is one run.
type Result struct {
	Schema  int       `json:"schema"`
	Began   time.Time `json:"began"`
	Seconds float64   `json:"seconds"`
	// Commit is what was measured, with "-dirty" if files were changed since.
	Commit  string  `json:"commit"`
	Quick   bool    `json:"quick"`
	Machine Machine `json:"machine"`
	// Versions of the peers.
	Versions map[string]string `json:"versions"`
	Rows     []Row             `json:"rows"`
	// Missing is what was not measured, and why.
	Missing []Missing `json:"missing"`
	// Remarks are what a reader should know of the run: operations that had to be
	// repeated, a machine that was not idle.
	Remarks []string `json:"remarks"`
}

// Missing is something that was not measured.
type Missing struct {
	What string `json:"what"`
	Why  string `json:"why"`
}

// Stat sums up one contestant. Its unit is the row's.
type Stat struct {
	Name string `json:"name"`
	// N is how many values there are: operations, or rounds of a rate.
	N   int     `json:"n"`
	P50 float64 `json:"p50"`
	// P99 is the value of the hundredth worst: for a rate a low one. 0 where a single
	// value was read.
	P99 float64 `json:"p99,omitempty"`
}

// Row is one figure of ours, beside a peer's if there is one.
type Row struct {
	// ID is what Reaches names it by, Peer is "" or the peer's.
	ID    string `json:"id"`
	Peer  string `json:"peer,omitempty"`
	Unit  string `json:"unit"`
	Ours  Stat   `json:"ours"`
	Other *Stat  `json:"other,omitempty"`
	// Ratio is ours over the other's, of the medians; Q1 and Q3 are the quartiles of the
	// ratios round by round, which say how steady it is.
	Ratio   float64  `json:"ratio,omitempty"`
	RatioQ1 float64  `json:"ratio_q1,omitempty"`
	RatioQ3 float64  `json:"ratio_q3,omitempty"`
	Judged  []Judged `json:"judged,omitempty"`
}

// Judged is a reach beside what was measured.
type Judged struct {
	Text    string  `json:"text"`
	Value   float64 `json:"value"`
	Limit   float64 `json:"limit"`
	Reached bool    `json:"reached"`
}

// Add judges row and keeps it.
func (r *Result) Add(row Row) {
	row.Judged = judge(row, !slices.ContainsFunc(r.Rows, func(o Row) bool { return o.ID == row.ID }))
	r.Rows = append(r.Rows, row)
}

// Miss notes that something was not measured.
func (r *Result) Miss(what string, why error) {
	r.Missing = append(r.Missing, Missing{what, why.Error()})
}

// Remark keeps something for the reader.
func (r *Result) Remark(format string, args ...any) {
	if s := fmt.Sprintf(format, args...); !slices.Contains(r.Remarks, s) {
		r.Remarks = append(r.Remarks, s)
	}
}

// Unjudged are the reaches that nothing was held against, because a figure or its peer
// was not measured. only, if it is not empty, limits it to these figures.
func (r *Result) Unjudged(only []string) []string {
	var out []string
	for _, x := range Reaches {
		figure, _, _ := strings.Cut(x.ID, "/")
		if len(only) > 0 && !slices.Contains(only, figure) {
			continue
		}
		if !slices.ContainsFunc(r.Rows, func(row Row) bool {
			return row.ID == x.ID && (!x.beside() || row.Peer == x.Peer)
		}) {
			out = append(out, x.describe())
		}
	}
	return out
}

// JSON writes the whole result.
func (r *Result) JSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(r)
}

var columns = []string{"figure", "p50", "p99", "unit", "beside", "p50", "p99", "ratio", "reach", "reached"}

// cells are the rows as both tables show them.
func (r *Result) cells() [][]string {
	var out [][]string
	before := ""
	for _, row := range r.Rows {
		what := row.Ours.Name
		if what == before {
			what = "" // the same figure beside another peer
		}
		before = row.Ours.Name
		line := []string{what, number(row.Ours.P50), tail(row.Ours), row.Unit, "", "", "", "", "", ""}
		if row.Other != nil {
			line[4], line[5], line[6] = row.Other.Name, number(row.Other.P50), tail(*row.Other)
			line[7] = fmt.Sprintf("%.2f", row.Ratio)
		}
		var texts, answers []string
		for _, j := range row.Judged {
			texts = append(texts, j.Text)
			answer := map[bool]string{true: "yes", false: "NO"}[j.Reached]
			if !r.Machine.Quiet() {
				answer += "?"
			}
			answers = append(answers, answer)
		}
		line[8], line[9] = strings.Join(texts, ", "), strings.Join(answers, ", ")
		out = append(out, line)
	}
	return out
}

func (r *Result) title() string {
	quick := ""
	if r.Quick {
		quick = ", quick"
	}
	return fmt.Sprintf("carrel %s%s, %s UTC, %.0f s", r.Commit, quick, r.Began.Format("2006-01-02 15:04"), r.Seconds)
}

// Table writes what a person reads on a terminal.
func (r *Result) Table(w io.Writer) error {
	fmt.Fprintf(w, "%s\n%s\n\n", r.title(), r.Machine)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, strings.ToUpper(strings.Join(columns, "\t")))
	for _, line := range r.cells() {
		fmt.Fprintln(t, strings.Join(line, "\t"))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w)
	for _, m := range r.Missing {
		fmt.Fprintf(w, "not measured: %s: %s\n", m.What, m.Why)
	}
	for _, s := range r.Remarks {
		fmt.Fprintf(w, "note: %s\n", s)
	}
	return nil
}

// Markdown writes the same for a document.
func (r *Result) Markdown(w io.Writer) error {
	cell := strings.NewReplacer("|", `\|`)
	var b strings.Builder
	fmt.Fprintf(&b, "%s  \n%s\n\n", r.title(), r.Machine)
	fmt.Fprintf(&b, "| %s |\n|%s\n", strings.Join(columns, " | "), strings.Repeat("---|", len(columns)))
	for _, line := range r.cells() {
		for i, c := range line {
			line[i] = cell.Replace(c)
		}
		fmt.Fprintf(&b, "| %s |\n", strings.Join(line, " | "))
	}
	b.WriteString("\n")
	for _, m := range r.Missing {
		fmt.Fprintf(&b, "- not measured: %s: %s\n", m.What, m.Why)
	}
	for _, s := range r.Remarks {
		fmt.Fprintf(&b, "- %s\n", s)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// Read reads a result that JSON wrote.
func Read(r io.Reader) (*Result, error) {
	var res Result
	if err := json.NewDecoder(r).Decode(&res); err != nil {
		return nil, fmt.Errorf("cannot read a result: %w", err)
	}
	if res.Schema != Schema {
		return nil, fmt.Errorf("cannot read a result of schema %d, only %d: run the measurement again", res.Schema, Schema)
	}
	return &res, nil
}

func tail(s Stat) string {
	if s.P99 == 0 {
		return "–"
	}
	return number(s.P99)
}

// number prints three digits that count.
func number(v float64) string {
	digits := 0
	if a := math.Abs(v); a != 0 && a < 100 {
		digits = min(2-int(math.Floor(math.Log10(a))), 6)
	}
	return fmt.Sprintf("%.*f", max(digits, 0), v)
}
