package sandbox_test

import (
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/internal/sandbox"
	"github.com/carrel-dev/carrel/internal/workspace"
)

// Without root the limits of control groups are not required and what is in their place is
// named; what was accepted is not required, and only that.
func TestJudgeRootless(t *testing.T) {
	var all []sandbox.Finding
	for _, c := range sandbox.Judge(sandbox.Rootless, sandbox.Asked{}, nil, nil).Controls {
		if c.Required {
			all = append(all, sandbox.Finding{Control: c.ID, OK: true, Evidence: "held"})
		}
	}
	r := sandbox.Judge(sandbox.Rootless, sandbox.Asked{}, nil, all)
	if err := r.Err(); err != nil || len(all) < 20 {
		t.Fatalf("%d required: %v", len(all), err)
	}
	if c := control(t, r, "pids"); c.State != workspace.Unavailable || c.Required || !strings.Contains(c.Evidence, "RLIMIT_NPROC") {
		t.Errorf("%+v", c)
	}
	if sandbox.Judge(sandbox.Rootful, sandbox.Asked{}, nil, all).Err() == nil {
		t.Error("rootful, limits are not required")
	}
	for i := range all {
		broken := append([]sandbox.Finding(nil), all...)
		broken[i].OK = false
		if sandbox.Judge(sandbox.Rootless, sandbox.Asked{}, nil, broken).Err() == nil {
			t.Errorf("without %s it starts", all[i].Control)
		}
		other := all[(i+1)%len(all)].Control
		if sandbox.Judge(sandbox.Rootless, sandbox.Asked{}, []string{other}, broken).Err() == nil {
			t.Errorf("without %s it starts, because %s was accepted", all[i].Control, other)
		}
		weak := sandbox.Judge(sandbox.Rootless, sandbox.Asked{}, []string{all[i].Control}, broken)
		if c := control(t, weak, all[i].Control); weak.Err() != nil || c.State != workspace.Failed || !strings.Contains(c.Evidence, "accepted with --accept") {
			t.Errorf("%v, %+v", weak.Err(), c)
		}
	}
}
