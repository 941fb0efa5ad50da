package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/carrel-dev/carrel/test/bench/measure"
)

// mostRatio is how much longer an operation may take beside hostile workspaces.
const mostRatio = 2

// report is what a run found.
type report struct {
	Began      time.Time         `json:"began"`
	Seconds    float64           `json:"seconds"`
	Workspaces int               `json:"workspaces"`
	Hostile    int               `json:"hostile"`
	Rows       []row             `json:"operations"`
	Errors     []string          `json:"errors"`
	Restarts   []restart         `json:"restarts"`
	Gauges     []gauge           `json:"host"`
	Ways       map[string]*tally `json:"ways"`
	// Lost is what honest owners miss, Left what carrel left on the host, and Record what
	// "carrel audit verify" said.
	Lost   []string `json:"lost"`
	Left   []string `json:"left"`
	Record string   `json:"record"`
}

// row is one operation in one phase or both.
type row struct {
	Operation string `json:"operation"`
	Reference times  `json:"reference"`
	Hostile   times  `json:"hostile"`
}

// times are in milliseconds.
type times struct {
	N       int     `json:"n"`
	P50     float64 `json:"p50"`
	P99     float64 `json:"p99"`
	Max     float64 `json:"max"`
	Refused int     `json:"refused"`
	Failed  int     `json:"failed"`
	Over    int     `json:"over_restarts"`
}

func rows(reference, hostile *ledger) (all []row) {
	for _, op := range operations {
		all = append(all, row{op, reference.of(op), hostile.of(op)})
	}
	return all
}

func (l *ledger) of(op string) times {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := func(q float64) float64 { return float64(measure.Quantile(l.times[op], q).Microseconds()) / 1000 }
	return times{len(l.times[op]), at(0.5), at(0.99), at(1), l.refused[op], l.failed[op], l.over[op]}
}

// ok reports whether nothing was lost, left or failed.
func (r *report) ok() bool {
	for _, row := range r.Rows {
		if row.Reference.Failed+row.Hostile.Failed > 0 {
			return false
		}
	}
	for _, k := range r.Restarts {
		if k.Err != "" {
			return false
		}
	}
	return len(r.Lost)+len(r.Left) == 0
}

func (r *report) json(out io.Writer) error { return writeJSON(out, r) }

func writeJSON(out io.Writer, v any) error {
	e := json.NewEncoder(out)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// verdict is the ratio of two times, and whether it was missed.
func verdict(hostile, reference float64) string {
	if reference == 0 || hostile == 0 {
		return "-"
	}
	text := fmt.Sprintf("%.2f", hostile/reference)
	if hostile/reference > mostRatio {
		text += " MISSED"
	}
	return text
}

func (r *report) table(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "%d workspaces, %d hostile, %.0f s\n", r.Workspaces, r.Hostile, r.Seconds)
	fmt.Fprint(w, "\noperation, ms\tp50\tp99\tmax\tn\tbeside hostile: p50\tp99\tmax\tn\t",
		"ratio p50\tratio p99\tratio max\trefused\tfailed\tover restarts\n")
	for _, row := range r.Rows {
		a, b := row.Reference, row.Hostile
		fmt.Fprintf(w, "%s\t%.1f\t%.1f\t%.1f\t%d\t%.1f\t%.1f\t%.1f\t%d\t%s\t%s\t%s\t%d\t%d\t%d\n", row.Operation, a.P50, a.P99, a.Max, a.N,
			b.P50, b.P99, b.Max, b.N, verdict(b.P50, a.P50), verdict(b.P99, a.P99), verdict(b.Max, a.Max),
			a.Refused+b.Refused, a.Failed+b.Failed, a.Over+b.Over)
	}
	fmt.Fprint(w, "\nof the host\tat first\tleast\tmost\n")
	for _, g := range r.Gauges {
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\n", g.Name, g.First, g.Min, g.Max)
	}
	printWays(w, r.Ways)
	for _, k := range r.Restarts {
		fmt.Fprintf(w, "the %s was killed, up again after\t%.1f s\t%s\n", k.Part, k.Up, k.Err)
	}
	fmt.Fprintf(w, "\nthe record: %s\n", r.Record)
	for _, part := range []struct {
		title string
		lines []string
	}{{"errors of honest owners", r.Errors}, {"LOST", r.Lost}, {"LEFT", r.Left}} {
		fmt.Fprintf(w, "%s: %d\n", part.title, len(part.lines))
		for _, line := range part.lines {
			fmt.Fprintf(w, "  %s\n", line)
		}
	}
	return w.Flush()
}

func printWays(w io.Writer, ways map[string]*tally) {
	fmt.Fprint(w, "\nhostile way\ttried\trefused\tfailed\tone of the failures\n")
	for _, name := range slices.Sorted(maps.Keys(ways)) {
		t := ways[name]
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%.120q\n", name, t.Tried, t.Refused, t.Failed, t.Error)
	}
	fmt.Fprintln(w)
}
