package sandbox_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/id"
	"github.com/carrel-dev/carrel/internal/sandbox"
	"github.com/carrel-dev/carrel/internal/sandbox/cgroup"
	"github.com/carrel-dev/carrel/internal/sandbox/launch"
	"github.com/carrel-dev/carrel/internal/workspace"
)

// firstID is in a range that nothing else on a host uses; each process takes its own.
var firstID = uint32(1_880_500_000 + 10*(os.Getpid()%10000))

// skipMark starts the user name of a spec that asks the test's executor to leave a
// step out.
const skipMark = "skip "

func init() {
	if filepath.Base(os.Args[0]) == "carrel-executor" {
		runtime.LockOSThread()
	}
}

// TestMain is the executor when it is started as one.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) != "carrel-executor" {
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

// start launches this test as an executor in a workspace of its own.
func start(t *testing.T, change func(*launch.Config)) (*launch.Executor, error) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: it starts an executor in namespaces, groups and ids of its own")
	}
	name := id.Derive("cst", id.Key(t.Name()), os.Getpid()%9999+1)
	in, err := cgroup.Open(cgroup.Config{Name: fmt.Sprintf("carrel-sandbox-test-%d", os.Getpid()), MemoryBytes: 1 << 30})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 10*time.Second)
		defer cancel()
		if err := in.Remove(ctx, name); err != nil {
			t.Errorf("processes are left: %v", err)
		}
		if err := in.RemoveInstance(); err != nil {
			t.Errorf("groups are left: %v", err)
		}
	})
	ids := workspace.IDsFrom(firstID)
	limits := workspace.DefaultLimits
	groups, err := in.Create(name, ids.Executor, limits)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(groups.Close)
	dir := t.TempDir()
	sub := func(name string) *os.File {
		p := filepath.Join(dir, name)
		if err := os.Mkdir(p, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(p, int(ids.Work), int(ids.Work)); err != nil {
			t.Fatal(err)
		}
		f, err := os.Open(p)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	binary, err := launch.Seal(self)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { binary.Close() })
	lfd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	listener := os.NewFile(uintptr(lfd), "listener")
	t.Cleanup(func() { listener.Close() })
	c := launch.Config{
		Binary: binary,
		Spec: sandbox.Spec{
			Name: name, User: string(name), IDs: ids, Shell: "/bin/bash", Limits: limits, TmpfsBytes: 64 << 20,
			Net: sandbox.Net{LowPorts: true}, Cgroup: sandbox.Cgroup{V1: groups.V1, V2Controllers: groups.V2Controllers},
		},
		Listener: listener, Home: sub("home"), Tmp: sub("tmp"), VarTmp: sub("var-tmp"),
		V1Sup: groups.V1Sup, V1Cmd: groups.V1Cmd, Born: groups.Born, Cmd: groups.Cmd, SupProcs: groups.SupProcs,
		Moved: func() error { return in.EnableSubtree(name, limits) },
		Outside: func(pid int) []sandbox.Finding {
			var found []sandbox.Finding
			for _, e := range in.Check(name, pid, limits) {
				found = append(found, sandbox.Finding{Control: e.Control, OK: e.OK, Evidence: e.Text})
			}
			return found
		},
		Log: os.Stderr,
	}
	if change != nil {
		change(&c)
	}
	ex, err := launch.Start(t.Context(), c)
	if err == nil {
		t.Cleanup(func() {
			unix.Kill(ex.PID, unix.SIGKILL)
			unix.Wait4(ex.PID, nil, 0, nil)
			ex.Pidfd.Close()
		})
	}
	return ex, err
}

func TestEveryRequiredControlIsVerified(t *testing.T) {
	ex, err := start(t, nil)
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
			ex, err := start(t, func(c *launch.Config) { c.Spec.User = skipMark + step; c.Log = nil })
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
	_, err := start(t, func(c *launch.Config) {
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
