package probe_test

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/carrel-dev/carrel/internal/boundary/sandbox/probe"
)

func byID(t *testing.T, results []probe.Result, id string) probe.Result {
	t.Helper()
	for _, r := range results {
		if r.ID == id {
			return r
		}
	}
	t.Fatalf("no check %q", id)
	panic("unreachable")
}

func TestRun(t *testing.T) {
	ids := thread(t)
	began := time.Now()
	results := probe.Run(t.Context(), probe.Config{DataDir: t.TempDir()})
	if d := time.Since(began); d > time.Second {
		t.Errorf("took %v", d)
	}
	for _, r := range results {
		t.Logf("%-30s %-6s %s", r.ID, r.State, r.Found)
		if r.Found == "" || r.Needed == "" || (r.Remedy == "") != (r.State == probe.Yes) {
			t.Errorf("incomplete: %+v", r)
		}
	}
	if got := thread(t); got != ids {
		t.Errorf("the process has other ids now: %s, had %s", got, ids)
	}
	left, err := filepath.Glob("/sys/fs/cgroup/*/carrel-probe-" + strconv.Itoa(os.Getpid()))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// thread is the ids of the process's first thread.
func thread(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for line := range strings.Lines(string(b)) {
		if strings.HasPrefix(line, "Uid:") || strings.HasPrefix(line, "Gid:") {
			out = append(out, line)
		}
	}
	return strings.Join(out, "")
}

// A range that the host's own users have must be seen.
func TestAnIDRangeInUseIsRefused(t *testing.T) {
	r := byID(t, probe.Run(t.Context(), probe.Config{FirstID: 1, IDs: 100}), "id_range")
	if r.State != probe.No || !strings.Contains(r.Found, "user ") {
		t.Errorf("%+v", r)
	}
	if len(probe.Unmet([]probe.Result{r})) != 1 {
		t.Error("it is not among the unmet")
	}
}

func TestNoTimeIsNotAYes(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, r := range probe.Run(ctx, probe.Config{}) {
		if r.State != probe.No {
			t.Errorf("%+v", r)
		}
	}
}

// What the user may do must not be what root may.
func TestUnprivilegedChecksDoNotUseRoot(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("skipped: needs root, to see it given up")
	}
	before := runtime.NumGoroutine()
	for range 3 {
		byID(t, probe.Run(t.Context(), probe.Config{}), "unprivileged_user_namespaces")
	}
	if os.Geteuid() != 0 {
		t.Error("root was given up by the whole process")
	}
	if n := runtime.NumGoroutine(); n > before+1 {
		t.Errorf("%d goroutines, had %d", n, before)
	}
}
