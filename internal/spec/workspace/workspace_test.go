package workspace_test

import (
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

func TestLimits(t *testing.T) {
	if err := workspace.DefaultLimits.Validate(); err != nil {
		t.Error(err)
	}
	if got := (workspace.Limits{Pids: 9}).Or(workspace.Limits{Pids: 10, CPUWeight: 11}).OrDefault(); got.Pids != 9 || got.CPUWeight != 11 ||
		got.MemoryBytes != 1<<30 {
		t.Errorf("%+v", got)
	}
	for name, change := range map[string]func(*workspace.Limits){
		"memory_bytes": func(l *workspace.Limits) { l.MemoryBytes = workspace.MinMemoryBytes - 1 },
		"swap_bytes":   func(l *workspace.Limits) { l.SwapBytes = -1 },
		"pids":         func(l *workspace.Limits) { l.Pids = workspace.MaxPids + 1 },
		"cpu_weight":   func(l *workspace.Limits) { l.CPUWeight = -1 },
		"open_files":   func(l *workspace.Limits) { l.OpenFiles = 1 },
		"disk_bytes":   func(l *workspace.Limits) { l.DiskBytes = workspace.MinDiskBytes - 1 },
	} {
		l := workspace.DefaultLimits
		change(&l)
		if err := l.Validate(); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A report without the proof of everything required is an error that names what is
// missing.
func TestReport(t *testing.T) {
	verified := workspace.Control{ID: "held", Required: true, State: workspace.Verified}
	if err := (workspace.Report{Controls: []workspace.Control{verified, {ID: "optional", State: workspace.Failed}}}).Err(); err != nil {
		t.Error(err)
	}
	if err := (workspace.Report{}).Err(); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("of nothing: %v", err)
	}
	for _, state := range []workspace.ControlState{workspace.Applied, workspace.Unavailable, workspace.Off, workspace.Failed, "", "Verified"} {
		r := workspace.Report{
			Controls: []workspace.Control{verified, {ID: "lost", Required: true, State: state, Evidence: "why", Remedy: "do this"}},
		}
		if err := r.Err(); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "lost") ||
			!strings.Contains(err.Error(), "why") || !strings.Contains(err.Error(), "do this") {
			t.Errorf("%q: %v", state, err)
		}
		if u := r.Unmet(); len(u) != 1 || u[0].ID != "lost" {
			t.Errorf("%q: %v", state, u)
		}
	}
}

func TestValidateLife(t *testing.T) {
	for _, c := range []struct {
		ttl, idle time.Duration
		request   string
		ok        bool
	}{
		{0, 0, "", true},
		{workspace.Forever, workspace.Forever, "r-1", true},
		{time.Second, workspace.MaxTTL, strings.Repeat("r", workspace.MaxRequest), true},
		{time.Millisecond, 0, "", false},
		{-2, 0, "", false},
		{workspace.MaxTTL + 1, 0, "", false},
		{0, time.Millisecond, "", false},
		{0, 0, "a b", false},
		{0, 0, "a\n", false},
		{0, 0, "ä", false},
		{0, 0, strings.Repeat("r", workspace.MaxRequest+1), false},
	} {
		err := workspace.ValidateLife(c.ttl, c.idle, c.request)
		if (err == nil) != c.ok || !c.ok && !errdefs.IsInvalidArgument(err) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}
