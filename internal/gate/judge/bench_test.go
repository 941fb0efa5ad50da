package judge_test

import (
	"testing"

	"github.com/carrel-dev/carrel/internal/gate/judge"
	"github.com/carrel-dev/carrel/internal/policy/rules"
)

func BenchmarkJudge(b *testing.B) {
	j := judge.New(nil)
	q := rules.Question{
		Argv: []string{"/bin/sh", "-c", "cd /tmp && make test 2>&1 | tail -n 20"}, Profile: rules.Workspace, Verified: true,
		Source: rules.User, Home: "/home/work", Dir: "/home/work",
	}
	b.ReportAllocs()
	for b.Loop() {
		if err := j.Ask(&q); err != nil {
			b.Fatal(err)
		}
	}
}
