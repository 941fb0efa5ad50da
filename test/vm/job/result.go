package job

import (
	"cmp"
	"fmt"
	"strings"
)

// Result is what came of one job.
type Result struct {
	Job      Job
	Problems []string
	// Passed counts the tests of a test binary, subtests included; Skipped names the
	// others with their reasons.
	Passed  int
	Skipped []string
	// Output is every line that it printed.
	Output []string
	ended  bool
	last   string
}

// Results gathers events into one Result a job of the plan.
type Results struct {
	Plan Plan
	All  []Result
	done bool
}

// NewResults expects the jobs of p, in their order.
func NewResults(p Plan) *Results {
	r := &Results{Plan: p}
	for _, j := range p.Jobs {
		r.All = append(r.All, Result{Job: j})
	}
	return r
}

// Add takes the next event. It returns the result that the event completed, or nil.
func (r *Results) Add(e Event) *Result {
	if e.Kind == Done {
		r.done = true
	}
	for i := range r.All {
		if x := &r.All[i]; x.Job.Name == e.Job {
			return x.add(e)
		}
	}
	return nil
}

// Complete reports whether the guest got to its end. One that did not proves nothing.
func (r *Results) Complete() bool {
	for _, x := range r.All {
		if !x.ended {
			return false
		}
	}
	return r.done
}

func (x *Result) add(e Event) *Result {
	switch e.Kind {
	case Output:
		x.Output = append(x.Output, e.Text)
		x.test(e.Text)
	case End:
		x.ended = true
		x.Problems = append(x.Problems, e.Problems...)
		// A binary without tests, or one that skips them all, exits with 0.
		if x.Job.Tests && x.Passed == 0 {
			x.Problems = append(x.Problems, "no test of it passed")
		}
		return x
	case Boot, Start, Done:
	}
	return nil
}

// test reads one line as `go test -v` prints it.
func (x *Result) test(line string) {
	text := strings.TrimSpace(line)
	verdict, name, ok := strings.Cut(strings.TrimPrefix(text, "--- "), ": ")
	if !x.Job.Tests || !ok || !strings.HasPrefix(text, "--- ") {
		x.last = text
		return
	}
	name, _, _ = strings.Cut(name, " ")
	switch verdict {
	case "PASS":
		x.Passed++
	case "FAIL":
		x.Problems = append(x.Problems, "the test "+name+" failed")
	case "SKIP":
		// The reason is what it logged last: "file_test.go:1: reason".
		reason := x.last
		if _, after, ok := strings.Cut(reason, ": "); ok {
			reason = strings.TrimPrefix(after, "skipped: ")
		}
		x.Skipped = append(x.Skipped, name+": "+cmp.Or(reason, "no reason given"))
	}
}

// OK reports whether the job came out as it should: without a problem, or, if it does
// harm on purpose, with the problem that shows that the harm was seen.
func (x *Result) OK() bool {
	if x.Job.Harm == "" {
		return x.ended && len(x.Problems) == 0
	}
	return x.ended && strings.Contains(strings.Join(x.Problems, "\n"), x.Job.Harm)
}

// Missed says what a job that does harm on purpose should have shown and did not.
func (x *Result) Missed() []string {
	if x.Job.Harm == "" || x.OK() {
		return nil
	}
	return []string{fmt.Sprintf("the harm %q was not seen", x.Job.Harm)}
}
