package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/carrel-dev/carrel/test/vm/job"
	"github.com/carrel-dev/carrel/test/vm/machine"
)

// outputShown is how many lines of a failed job's output are printed; the log has all.
const outputShown = 60

// prefixed writes whole lines with a prefix, so that guests can share a stream.
type prefixed struct {
	to     io.Writer
	prefix string
}

var outMu sync.Mutex

func (p *prefixed) Write(b []byte) (int, error) {
	outMu.Lock()
	defer outMu.Unlock()
	for line := range strings.Lines(string(b)) {
		if _, err := io.WriteString(p.to, p.prefix+line); err != nil {
			return 0, err
		}
	}
	return len(b), nil
}

// guest runs one guest and prints a line for each job. It returns which failed, and why.
func guest(ctx context.Context, g machine.Config, p job.Plan, o options, out io.Writer) (failed []string, err error) {
	if err := os.MkdirAll(g.Dir, 0o755); err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(g.Dir, "jobs.log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	ctx, cancel := context.WithTimeoutCause(ctx, o.timeout, fmt.Errorf("it took longer than the %s of -timeout", o.timeout))
	defer cancel()
	results, skipped, began := job.NewResults(p), 0, time.Now()
	on := func(e job.Event) {
		switch e.Kind {
		case job.Boot:
			fmt.Fprintf(out, "boot  %s, up in %.1fs\n", e.Text, time.Since(began).Seconds())
		case job.Start:
			began = time.Now()
			fmt.Fprintf(log, "=== %s\n", e.Job)
		case job.Output:
			fmt.Fprintln(log, e.Text)
			if o.verbose {
				fmt.Fprintln(out, "      | "+e.Text)
			}
		case job.End, job.Done:
		}
		r := results.Add(e)
		if r == nil {
			return
		}
		text := describe(r, time.Since(began), o.verbose)
		fmt.Fprint(log, text)
		fmt.Fprint(out, text)
		skipped += len(r.Skipped)
		if !r.OK() {
			failed = append(failed, strings.Join(append([]string{string(p.Cgroup) + " " + r.Job.Name}, why(r)...), ": "))
		}
	}
	if err := machine.Run(ctx, g, on); err != nil {
		return failed, err
	}
	if !results.Complete() {
		return failed, errors.New("the guest said that it was done and was not")
	}
	fmt.Fprintf(out,
		"      cgroup %s: %d of %d jobs as they should be, %d tests skipped\n", p.Cgroup, len(p.Jobs)-len(failed), len(p.Jobs), skipped)
	return failed, nil
}

// describe is the lines on one job, whose output has been printed if shown.
func describe(r *job.Result, took time.Duration, shown bool) string {
	var b strings.Builder
	verdict := map[bool]string{true: "ok  ", false: "FAIL"}[r.OK()]
	fmt.Fprintf(&b, "%s  %-20s %6.1fs", verdict, r.Job.Name, took.Seconds())
	if r.Job.Tests {
		fmt.Fprintf(&b, "  %d passed, %d skipped", r.Passed, len(r.Skipped))
	}
	if r.Job.Harm != "" && r.OK() {
		b.WriteString("  seen: " + r.Job.Harm)
	}
	b.WriteString("\n")
	for _, s := range r.Skipped {
		b.WriteString("      skipped: " + s + "\n")
	}
	if r.OK() {
		return b.String()
	}
	if !shown {
		for _, l := range r.Output[max(0, len(r.Output)-outputShown):] {
			b.WriteString("      | " + l + "\n")
		}
	}
	for _, s := range why(r) {
		b.WriteString("      problem: " + s + "\n")
	}
	return b.String()
}

func why(r *job.Result) []string { return slices.Concat(r.Problems, r.Missed()) }
