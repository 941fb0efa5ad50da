package judge_test

import (
	"testing"

	"github.com/carrel-dev/carrel/internal/gate/judge"
	"github.com/carrel-dev/carrel/internal/policy/policy"
)

func BenchmarkJudge(b *testing.B) {
	j := judge.New(nil)
	q := policy.Question{
		Argv: []string{"/bin/sh", "-c", "cd /tmp && make test 2>&1 | tail -n 20"}, Profile: policy.Workspace, Verified: true,
		Source: policy.User, Home: "/home/work", Dir: "/home/work",
	}
	b.ReportAllocs()
	for b.Loop() {
		if err := j.Ask(&q); err != nil {
			b.Fatal(err)
		}
	}
}
