package sandbox_test

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/boundary/sandbox"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox/launch"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox/launch/launchtest"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// skipMark starts the user name of a spec that asks the test's executor to leave a
// step out.
const skipMark = "skip "

// forgeMark starts the user name of a spec that asks the test's executor to do nothing and
// say that all was done; with confined it follows the protocol.
const (
	forgeMark = "forge "
	confined  = "confined"
)

// claim sends the findings of a start in which everything held.
func claim(spec *sandbox.Spec, saysConfined bool) {
	status := os.NewFile(uintptr(spec.FDs.Status), "status")
	to := json.NewEncoder(status)
	var all []sandbox.Finding
	for _, c := range sandbox.Judge(sandbox.Rootful, sandbox.Asked{}, nil, nil).Controls {
		all = append(all, sandbox.Finding{Control: c.ID, OK: true, Evidence: "it says so"})
	}
	if spec.FDs.SupProcs >= 0 {
		_, _ = unix.Write(spec.FDs.SupProcs, []byte("0"))
		_ = to.Encode(sandbox.Progress{Moved: true})
		_, _ = status.Read(make([]byte, 64))
	}
	if saysConfined {
		_ = to.Encode(sandbox.Progress{Confined: true})
	}
	_ = to.Encode(sandbox.Progress{Findings: all})
	for {
		unix.Pause()
	}
}

// openMark starts the user name of a spec that asks the test's executor to open what follows,
// and nothing else, whatever it is told.
const openMark = "open "

// unprotected stands for a step: what protects names in project mounts.
const unprotected = "protected names"

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
	if forge, ok := strings.CutPrefix(spec.User, forgeMark); ok {
		claim(spec, forge == confined)
	}
	if set, ok := strings.CutPrefix(spec.User, openMark); ok {
		spec.Allow = []workspace.Opening{}
		for o := range strings.FieldsSeq(set) {
			spec.Allow = append(spec.Allow, workspace.Opening(o))
		}
	}
	if spec.User == skipMark+unprotected {
		sandbox.Unprotect()
	} else if name, ok := strings.CutPrefix(spec.User, skipMark); ok && !sandbox.Skip(name) {
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
		"counts":            "counts",
		"mask":              "proc",
		"read-only root":    "mounts",
		"descriptors":       "descriptors",
		"resource limits":   "process-limits",
		"capabilities":      "capabilities",
		"landlock":          "landlock",
		"seccomp":           "seccomp",
		"watched sockets":   "socket-count",
		"egress":            "egress",
	}
	// harmless when left out alone: another layer says the same, or nothing depends on
	// it for isolation.
	harmless := map[string]string{
		"no new privileges": "the Landlock library sets it too, as it must",
		"propagation":       "mounts of a new user namespace propagate to no parent anyway",
		"cgroup move":       "needed on v2 only; there the limits cannot be set without it",
		"listen":            "the test's socket listens already",
		"hostname":          "cosmetic; the namespace is what isolates",
		"ids":               "without root only, where executor and commands are apart",
		"lend":              "rootless only; a broker lends mounts",
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
			ex, err := launchtest.Start(t, func(c *launch.Config) {
				c.Spec.User = skipMark + step
				c.Log = nil
				if step == "egress" {
					c.Ways = honest.ways(t)
				}
			})
			if err == nil {
				t.Fatalf("the workspace started without it: %+v", ex.Report)
			}
			if !strings.Contains(err.Error(), control) {
				t.Errorf("the error does not name %q: %v", control, err)
			}
		})
	}
}

// TestExecutorIsNotTakenAtItsWord: what it says of itself is held against what is seen
// from outside, and cannot be said before that was asked for.
func TestExecutorIsNotTakenAtItsWord(t *testing.T) {
	for how, want := range map[string]string{confined: "required control capabilities is failed", "": "cannot understand the executor"} {
		_, err := launchtest.Start(t, func(c *launch.Config) { c.Spec.User = forgeMark + how; c.Log = nil })
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("findings without any step, %q: %v, want %q", how, err, want)
		}
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

// Whatever numbers the descriptors have that a child is given, it runs the executor: package
// syscall moves them through numbers that may be those of others.
func TestDescriptorsBesideTheExecutor(t *testing.T) {
	for _, at := range []struct{ cmd, binary int }{{300, 301}, {301, 300}, {300, 310}} {
		t.Run(fmt.Sprint(at.cmd, " ", at.binary), func(t *testing.T) {
			_, err := launchtest.Start(t, func(c *launch.Config) {
				for to, f := range map[int]**os.File{at.cmd: &c.Cmd, at.binary: &c.Binary} {
					raw, err := (*f).SyscallConn()
					if err != nil {
						t.Fatal(err)
					}
					fd := -1
					if cerr := raw.Control(func(n uintptr) { fd, err = unix.FcntlInt(n, unix.F_DUPFD_CLOEXEC, to) }); cerr != nil ||
						err != nil || fd != to {
						t.Fatal(fd, cerr, err)
					}
					moved := os.NewFile(uintptr(fd), (*f).Name())
					t.Cleanup(func() { moved.Close() })
					*f = moved
				}
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
}
