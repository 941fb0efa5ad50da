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
			return row.ID == x.ID && (x.Of != Ratio || row.Peer == x.Peer)
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

// Table writes what a person reads.
func (r *Result) Table(w io.Writer) error {
	quick := ""
	if r.Quick {
		quick = ", quick"
	}
	fmt.Fprintf(w, "carrel %s%s, %s, %.0f s\n%s\n\n", r.Commit, quick, r.Began.Format("2006-01-02 15:04"), r.Seconds, r.Machine)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "FIGURE\tP50\tP99\tUNIT\tBESIDE\tP50\tP99\tRATIO\tREACH\tREACHED")
	before := ""
	for _, row := range r.Rows {
		what := row.Ours.Name
		if what == before {
			what = "" // the same figure beside another peer
		}
		before = row.Ours.Name
		other, ratio := [3]string{"", "", ""}, ""
		if row.Other != nil {
			other = [3]string{row.Other.Name, number(row.Other.P50), tail(*row.Other)}
		}
		if row.Ratio != 0 {
			ratio = fmt.Sprintf("%.2f", row.Ratio)
		}
		var texts, answers []string
		for _, j := range row.Judged {
			texts = append(texts, j.Text)
			answers = append(answers, map[bool]string{true: "yes", false: "NO"}[j.Reached])
		}
		fmt.Fprintln(t, strings.Join([]string{
			what, number(row.Ours.P50), tail(row.Ours), row.Unit,
			other[0], other[1], other[2], ratio, strings.Join(texts, ", "), strings.Join(answers, ", "),
		}, "\t"))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, m := range r.Missing {
		fmt.Fprintf(w, "\nnot measured: %s: %s", m.What, m.Why)
	}
	for _, s := range r.Remarks {
		fmt.Fprintf(w, "\nnote: %s", s)
	}
	if len(r.Missing)+len(r.Remarks) > 0 {
		fmt.Fprintln(w)
	}
	return nil
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
