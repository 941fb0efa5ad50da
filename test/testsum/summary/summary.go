// Package summary reads what `go test -json` says and sums it up: what failed with its
// output, what was skipped with its reason, and how many of each.
//
// It must not run anything, and nothing that it cannot understand may count as passed.
package summary

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

// event is one line of `go test -json`: see go doc cmd/test2json, and go help buildjson
// for those that have ImportPath.
type event struct {
	Action      string
	Package     string
	ImportPath  string
	Test        string
	Output      string
	Elapsed     float64
	FailedBuild string
}

// Skip is a test that did not run.
type Skip struct{ Package, Test, Reason string }

// Summary is the sum of one or more runs. Its zero value is ready.
type Summary struct {
	Passed, Failed int
	Skipped        []Skip
	// Trim is cut off the front of package names.
	Trim string

	packages, tests []timed
}

// timed is a package or a top-level test with the seconds that it took.
type timed struct {
	name    string
	seconds float64
}

// pkg is what is known of a package that is being tested.
type pkg struct {
	passed, failed, skipped int
	output                  map[string][]string // by test; "" is the package's own
	bad                     []string            // failed tests, in order
}

// Read reads one run and writes a line for each package, and the output of what
// failed, to w. An error is about the reading, not the tests.
func (s *Summary) Read(r io.Reader, w io.Writer) error {
	packages := map[string]*pkg{}
	builds := map[string][]string{}
	in := bufio.NewScanner(r)
	in.Buffer(nil, 16<<20)
	for in.Scan() {
		var e event
		if err := json.Unmarshal(in.Bytes(), &e); err != nil || e.Action == "" {
			// The go command itself: a package that is not there, no permission.
			fmt.Fprintln(w, in.Text())
			continue
		}
		switch e.Action {
		case "build-output":
			builds[e.ImportPath] = append(builds[e.ImportPath], e.Output)
			continue
		case "build-fail":
			continue // the package's own fail follows
		}
		p := packages[e.Package]
		if p == nil {
			p = &pkg{output: map[string][]string{}}
			packages[e.Package] = p
		}
		if e.Test == "" {
			s.packageEvent(w, p, e, builds)
		} else {
			s.testEvent(p, e)
		}
		if e.Test == "" && (e.Action == "pass" || e.Action == "fail" || e.Action == "skip") {
			delete(packages, e.Package)
		}
	}
	if err := in.Err(); err != nil {
		return fmt.Errorf("cannot read the test output: %w", err)
	}
	for name := range packages {
		s.Failed++
		fmt.Fprintf(w, "FAIL  %s: it did not come to its end\n", s.short(name))
	}
	return nil
}

func (s *Summary) testEvent(p *pkg, e event) {
	switch e.Action {
	case "output":
		p.output[e.Test] = append(p.output[e.Test], e.Output)
		return
	case "pass":
		p.passed++
		s.Passed++
		delete(p.output, e.Test)
	case "fail":
		p.failed++
		s.Failed++
		p.bad = append(p.bad, e.Test)
	case "skip":
		p.skipped++
		s.Skipped = append(s.Skipped, Skip{s.short(e.Package), e.Test, reason(p.output[e.Test])})
		delete(p.output, e.Test)
	default:
		return
	}
	if !strings.Contains(e.Test, "/") {
		s.tests = append(s.tests, timed{s.short(e.Package) + " " + e.Test, e.Elapsed})
	}
}

func (s *Summary) packageEvent(w io.Writer, p *pkg, e event, builds map[string][]string) {
	took := time.Duration(e.Elapsed * float64(time.Second)).Round(10 * time.Millisecond)
	if e.Action == "pass" || e.Action == "fail" {
		s.packages = append(s.packages, timed{s.short(e.Package), e.Elapsed})
	}
	switch e.Action {
	case "output":
		p.output[""] = append(p.output[""], e.Output)
	case "pass":
		fmt.Fprintf(w, "ok    %-42s %3d tests %8v\n", s.short(e.Package), p.passed+p.skipped, took)
	case "skip": // no test files
	case "fail":
		fmt.Fprintf(w, "FAIL  %-42s %3d of %d tests %8v\n", s.short(e.Package), p.failed, p.passed+p.failed+p.skipped, took)
		for _, line := range builds[e.FailedBuild] {
			fmt.Fprint(w, "      "+line)
		}
		for _, test := range p.bad {
			show(w, p.output[test])
		}
		if len(p.bad) == 0 {
			// A build, a panic, a time-out, a leak or TestMain.
			s.Failed++
			for _, test := range slices.Sorted(maps.Keys(p.output)) {
				show(w, p.output[test])
			}
		}
	}
}

// show writes the output of a test without the lines that only say that it ran.
func show(w io.Writer, lines []string) {
	for _, l := range lines {
		if !strings.HasPrefix(l, "=== ") {
			fmt.Fprint(w, "      "+l)
		}
	}
}

// reason is what a test said when it skipped itself.
func reason(lines []string) string {
	var said []string
	for _, l := range lines {
		l = strings.TrimSpace(l)
		if l == "" || strings.HasPrefix(l, "=== ") || strings.HasPrefix(l, "--- ") {
			continue
		}
		// "file_test.go:12: why"
		if _, after, ok := strings.Cut(l, ".go:"); ok {
			if _, why, ok := strings.Cut(after, ": "); ok {
				l = why
			}
		}
		l = strings.TrimPrefix(strings.TrimPrefix(l, "skipped: "), "skipped ")
		said = append(said, l)
	}
	return cmp.Or(strings.Join(said, " "), "no reason was given")
}

func (s *Summary) short(name string) string { return strings.TrimPrefix(name, s.Trim) }

// Skip counts a whole group of tests that was not run.
func (s *Summary) Skip(group, why string) {
	s.Skipped = append(s.Skipped, Skip{group, "(all)", why})
}

// Slowest writes the n packages and the n top-level tests that took longest. Tests of a
// package that run in parallel each count the whole time until their own end.
func (s *Summary) Slowest(w io.Writer, n int) {
	for _, list := range []struct {
		title string
		all   []timed
	}{{"packages", s.packages}, {"tests", s.tests}} {
		all := slices.SortedStableFunc(slices.Values(list.all), func(a, b timed) int { return cmp.Compare(b.seconds, a.seconds) })
		fmt.Fprintf(w, "\nslowest %s:\n", list.title)
		for _, t := range all[:min(n, len(all))] {
			fmt.Fprintf(w, "  %7.1fs  %s\n", t.seconds, t.name)
		}
	}
}

// Close writes what was skipped and the closing line, and reports whether all is well:
// nothing failed, and something passed.
func (s *Summary) Close(w io.Writer) bool {
	if len(s.Skipped) > 0 {
		fmt.Fprintf(w, "\n%d skipped:\n", len(s.Skipped))
		for _, k := range s.Skipped {
			fmt.Fprintf(w, "  %s %s: %s\n", k.Package, k.Test, k.Reason)
		}
	}
	fmt.Fprintf(w, "\n%d passed, %d failed, %d skipped\n", s.Passed, s.Failed, len(s.Skipped))
	return s.Failed == 0 && s.Passed > 0
}
