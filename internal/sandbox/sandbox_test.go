package sandbox_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/sandbox"
	"github.com/carrel-dev/carrel/internal/sandbox/launch"
	"github.com/carrel-dev/carrel/internal/sandbox/launch/launchtest"
	"github.com/carrel-dev/carrel/internal/workspace"
)

// skipMark starts the user name of a spec that asks the test's executor to leave a
// step out.
const skipMark = "skip "

// TestMain is the executor when it is started as one.
func TestMain(m *testing.M) {
	if !launchtest.IsExecutor() {
		os.Exit(m.Run())
	}
	spec, err := sandbox.ReadSpec(sandbox.SpecFD)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if name, ok := strings.CutPrefix(spec.User, skipMark); ok && !sandbox.Skip(name) {
		fmt.Fprintf(os.Stderr, "no step is called %q\n", name)
		os.Exit(1)
	}
	if _, err := sandbox.Enter(spec); err != nil {
		os.Exit(1)
	}
	for {
		unix.Pause()
	}
}

func TestEveryRequiredControlIsVerified(t *testing.T) {
	ex, err := launchtest.Start(t, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range ex.Report.Controls {
		t.Logf("%-20s %-11s %s", c.ID, c.State, c.Evidence)
		if c.Required && c.State != workspace.Verified {
			t.Errorf("%s is %s", c.ID, c.State)
		}
	}
}

// TestEachStepIsMissed leaves out one step after the other and sees that the start fails
// and names the control that the step was for.
func TestEachStepIsMissed(t *testing.T) {
	missed := map[string]string{
		"cgroup namespace":  "cgroup",
		"root":              "",
		"proc":              "",
		"pivot":             "",
		"nested namespaces": "nested-namespaces",
		"mask":              "proc",
		"read-only root":    "mounts",
		"descriptors":       "descriptors",
		"resource limits":   "process-limits",
		"capabilities":      "capabilities",
		"landlock":          "landlock",
		"seccomp":           "seccomp",
	}
	// harmless when left out alone: another layer says the same, or nothing depends on
	// it for isolation.
	harmless := map[string]string{
		"no new privileges": "the Landlock library sets it too, as it must",
		"propagation":       "mounts of a new user namespace propagate to no parent anyway",
		"cgroup move":       "needed on v2 only; there the limits cannot be set without it",
		"listen":            "the test's socket listens already",
		"hostname":          "cosmetic; the namespace is what isolates",
		"network":           "loopback stays down",
		"cgroup files":      "the groups are not shown; limits hold",
		"not dumpable":      "commands have another id; this is a second layer",
	}
	for _, step := range sandbox.Steps() {
		control, ok := missed[step]
		if why, fine := harmless[step]; fine {
			t.Logf("%s: not tried: %s", step, why)
			continue
		}
		if !ok {
			t.Errorf("step %q is in neither table", step)
			continue
		}
		t.Run(step, func(t *testing.T) {
			ex, err := launchtest.Start(t, func(c *launch.Config) { c.Spec.User = skipMark + step; c.Log = nil })
			if err == nil {
				t.Fatalf("the workspace started without it: %+v", ex.Report)
			}
			if !strings.Contains(err.Error(), control) {
				t.Errorf("the error does not name %q: %v", control, err)
			}
		})
	}
}

func TestLimitsOfAnotherGroupAreSeen(t *testing.T) {
	_, err := launchtest.Start(t, func(c *launch.Config) {
		// The executor's commands would be born where nothing limits them.
		if len(c.V1Cmd) == 0 {
			t.Skip("no v1 hierarchy is in use on this host")
		}
		c.V1Cmd = c.V1Sup
	})
	if err == nil || !strings.Contains(err.Error(), "required control memory is failed") {
		t.Errorf("commands outside their group went unnoticed: %v", err)
	}
}
