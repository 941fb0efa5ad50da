package sandbox_test

import (
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/internal/boundary/sandbox"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
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
		if c := control(t, weak, all[i].Control); weak.Err() != nil || c.State != workspace.Failed ||
			!strings.Contains(c.Evidence, "accepted with --accept") {
			t.Errorf("%v, %+v", weak.Err(), c)
		}
	}
}

// In a delegated control group limits are required as with root; without, the report says why
// there is none.
func TestJudgeDelegated(t *testing.T) {
	var all []sandbox.Finding
	for _, c := range sandbox.Judge(sandbox.Rootless, sandbox.Asked{}, nil, nil).Controls {
		if c.Required {
			all = append(all, sandbox.Finding{Control: c.ID, OK: true, Evidence: "held"})
		}
	}
	if c := control(t, sandbox.Judge(sandbox.Rootless, sandbox.Asked{NoGroup: "nobody gave one"}, nil, all),
		"memory"); !strings.Contains(c.Evidence, "nobody gave one; RLIMIT_DATA") {
		t.Errorf("%+v", c)
	}
	grouped := sandbox.Asked{Grouped: true}
	limits := []string{"supervisor-cgroup", "memory", "pids", "socket-count"}
	for _, id := range limits {
		all = append(all, sandbox.Finding{Control: id, OK: true, Evidence: "v2"})
	}
	if err := sandbox.Judge(sandbox.Rootless, grouped, nil, all).Err(); err != nil {
		t.Error(err)
	}
	for i, id := range limits {
		at := len(all) - len(limits) + i
		broken := append([]sandbox.Finding(nil), all...)
		broken[at].OK = false
		if err := sandbox.Judge(sandbox.Rootless, grouped, nil, broken).Err(); err == nil || !strings.Contains(err.Error(), id) {
			t.Errorf("%s does not hold, and it starts: %v", id, err)
		}
		broken = append(broken[:at], broken[at+1:]...)
		if sandbox.Judge(sandbox.Rootless, grouped, nil, broken).Err() == nil {
			t.Errorf("nobody looked at %s, and it starts", id)
		}
	}
}
