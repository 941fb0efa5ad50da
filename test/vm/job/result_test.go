package job_test

import (
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/test/vm/job"
)

// play gives one job the events and returns what came of it.
func play(t *testing.T, j job.Job, lines []string, problems ...string) *job.Result {
	t.Helper()
	j.Name = "j"
	r := job.NewResults(job.Plan{Jobs: []job.Job{j}})
	r.Add(job.Event{Kind: job.Start, Job: "j"})
	for _, l := range lines {
		if r.Add(job.Event{Kind: job.Output, Job: "j", Text: l}) != nil {
			t.Fatal("a line of output completed the job")
		}
	}
	x := r.Add(job.Event{Kind: job.End, Job: "j", Problems: problems})
	if x == nil {
		t.Fatal("the end did not complete the job")
	}
	return x
}

func TestVerdict(t *testing.T) {
	passed := []string{"=== RUN   TestA", "--- PASS: TestA (0.00s)"}
	for _, c := range []struct {
		name     string
		job      job.Job
		lines    []string
		problems []string
		ok       bool
	}{
		{"a command", job.Job{}, nil, nil, true},
		{"a command with a problem", job.Job{}, nil, []string{"it ended with exit code 1"}, false},
		{"tests", job.Job{Tests: true}, passed, nil, true},
		{"tests that leave something", job.Job{Tests: true}, passed, []string{"it left a mount /x"}, false},
		{"a test that fails", job.Job{Tests: true}, append(passed, "    --- FAIL: TestA/b (0.00s)"), nil, false},
		{"no tests", job.Job{Tests: true}, []string{"testing: warning: no tests to run", "PASS"}, nil, false},
		{"skipped tests only", job.Job{Tests: true}, []string{"--- SKIP: TestA (0.00s)"}, nil, false},
		{"a command that prints like a test", job.Job{}, []string{"--- FAIL: TestA (0.00s)"}, nil, true},
		{"a harm that is seen", job.Job{Harm: "a mount"}, nil, []string{"it left a mount /x"}, true},
		{"a harm that is not seen", job.Job{Harm: "a mount"}, nil, nil, false},
		{"a harm taken for another", job.Job{Harm: "a mount"}, nil, []string{"it left a file /x"}, false},
	} {
		x := play(t, c.job, c.lines, c.problems...)
		if x.OK() != c.ok {
			t.Errorf("%s: ok is %v, problems %v", c.name, x.OK(), x.Problems)
		}
		if missed := len(x.Missed()) > 0; missed != (c.job.Harm != "" && !c.ok) {
			t.Errorf("%s: missed %v", c.name, x.Missed())
		}
	}
}

func TestSkipsHaveReasons(t *testing.T) {
	x := play(t, job.Job{Tests: true}, []string{
		"=== RUN   TestA", "    a_test.go:12: skipped: needs root", "--- SKIP: TestA (0.00s)",
		"=== RUN   TestB", "--- PASS: TestB (0.00s)",
	})
	if got := strings.Join(x.Skipped, ";"); got != "TestA: needs root" || x.Passed != 1 {
		t.Errorf("%d passed, skipped %q", x.Passed, got)
	}
}

// TestComplete: a guest proves something only if every job ended and it said so.
func TestComplete(t *testing.T) {
	plan := job.Plan{Jobs: []job.Job{{Name: "a"}, {Name: "b"}}}
	r := job.NewResults(plan)
	for _, step := range []struct {
		event job.Event
		want  bool
	}{
		{job.Event{Kind: job.Boot}, false},
		{job.Event{Kind: job.End, Job: "a"}, false},
		{job.Event{Kind: job.End, Job: "no such"}, false},
		{job.Event{Kind: job.End, Job: "b"}, false},
		{job.Event{Kind: job.Done}, true},
	} {
		r.Add(step.event)
		if r.Complete() != step.want {
			t.Errorf("after %+v: complete is %v", step.event, r.Complete())
		}
	}
	early := job.NewResults(plan)
	early.Add(job.Event{Kind: job.End, Job: "a"})
	early.Add(job.Event{Kind: job.Done})
	if early.Complete() {
		t.Error("complete without the job b")
	}
}
