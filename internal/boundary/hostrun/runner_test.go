package hostrun_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/boundary/hostrun"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox/cgroup"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// self is this test's program, which supervises commands.
func self(t *testing.T) string {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func opened(t *testing.T, path string) *hostrun.Program {
	t.Helper()
	p, err := hostrun.OpenProgram(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// command prints the number of its supervisor.
func command() hostrun.Command {
	return hostrun.Command{Argv: []string{"sh", "-c", "echo $PPID"}, Profile: hostrun.None, AllowRoot: true}
}

func supervisorOf(t *testing.T, r *hostrun.Runner) (pid int, states []string) {
	t.Helper()
	res, err := r.Run(t.Context(), command())
	if err != nil {
		t.Fatal(err)
	}
	if pid, err = strconv.Atoi(strings.TrimSpace(res.Stdout.Text())); err != nil {
		t.Fatal(err)
	}
	for _, c := range res.Controls {
		states = append(states, fmt.Sprintf("%s %s %t", c.ID, c.State, c.Required))
	}
	return pid, states
}

// stepGroups are the control groups of a process's commands.
func stepGroups(t *testing.T, pid int) []string {
	t.Helper()
	var all []string
	for _, below := range []string{"", "*/", "*/*/", "*/*/*/"} {
		found, err := filepath.Glob(fmt.Sprintf("/sys/fs/cgroup/%scarrel-step-%d-*", below, pid))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, found...)
	}
	return all
}

// A command has the supervisor that was ready, and the same controls as with one that was not. Another one is ready then, and at the
// end there is neither it nor its control group.
func TestReady(t *testing.T) {
	cold := hostrun.NewRunner(opened(t, self(t)))
	if cold.Spare() != 0 {
		t.Error("one is ready that nobody asked for")
	}
	_, want := supervisorOf(t, cold)
	r := hostrun.NewRunner(opened(t, self(t)))
	rest := r.Ready(hostrun.None)
	first := r.Spare()
	if first == 0 {
		t.Fatal("none is ready")
	}
	at, got := supervisorOf(t, r)
	if at != first {
		t.Errorf("%d held the command, and %d was ready", at, first)
	}
	if !slices.Equal(got, want) {
		t.Errorf("it was held by %q, and without one ready by %q", got, want)
	}
	second := r.Spare()
	if second == 0 || second == first {
		t.Errorf("after %d the next is %d", first, second)
	}
	c := command()
	beside := 0
	c.Began = func([]workspace.Control) { beside = r.Spare() }
	if _, err := r.Run(t.Context(), c); err != nil || beside == 0 || beside == second {
		t.Errorf("while the second runs %d is ready, %v", beside, err)
	}
	rest()
	if err := unix.Kill(beside, 0); !errors.Is(err, unix.ESRCH) || r.Spare() != 0 {
		t.Errorf("%d is there: %v", beside, err)
	}
	if left := stepGroups(t, os.Getpid()); left != nil {
		t.Errorf("%q are left", left)
	}
	if at, _ := supervisorOf(t, r); at == beside || r.Spare() != 0 {
		t.Error("one is ready that is to be no more")
	}
}

// A supervisor that has ended before it was needed is no loss.
func TestReadyThatEnded(t *testing.T) {
	r := hostrun.NewRunner(nil)
	defer r.Ready(hostrun.None)()
	first := r.Spare()
	if err := unix.Kill(first, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	r.Ended()
	if at, _ := supervisorOf(t, r); at == first {
		t.Error("it held a command after its end")
	}
	if next := r.Spare(); next == 0 || next == first {
		t.Errorf("the next is %d", next)
	}
}

// Bounds are those of the command, and not of when its supervisor was started.
func TestReadyIsBounded(t *testing.T) {
	r := hostrun.NewRunner(nil)
	defer r.Ready(hostrun.None)()
	if r.Spare() == 0 {
		t.Fatal("none is ready")
	}
	c := command()
	c.Argv, c.Limits = []string{"bash", "-c", "head -c 400M /dev/zero | tail -c 400M | wc -c"}, small
	if _, err := r.Run(t.Context(), c); !errdefs.IsResourceExhausted(err) {
		t.Errorf("it may take 256 MiB: %v", err)
	}
}

// Namespaces of a host that goes on would be kept, or be old.
func TestHeldIsNotReady(t *testing.T) {
	r := hostrun.NewRunner(nil)
	for _, p := range append([]hostrun.Profile{"other"}, heldProfiles...) {
		rest := r.Ready(p)
		if pid := r.Spare(); pid != 0 {
			t.Errorf("%s: %d is ready", p, pid)
		}
		rest()
	}
}

// beReady has a supervisor ready until standard input ends.
func beReady() int {
	r := hostrun.NewRunner(nil)
	rest := r.Ready(hostrun.None)
	fmt.Println(r.Spare())
	_, _ = io.Copy(io.Discard, os.Stdin)
	rest()
	return 0
}

// What is ready ends with a caller that is killed.
func TestReadyOfAKilledCaller(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), self(t))
	cmd.Env = []string{acting + "=ready", "GORACE=atexit_sleep_ms=0"}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var pid int
	if _, err := fmt.Fscan(out, &pid); err != nil || pid == 0 {
		t.Fatalf("%d is ready, %v", pid, err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	ends(t, []int{pid})
	if s, err := cgroup.OpenSteps(); err == nil { // what the next process does
		s.Close()
	}
	if left := stepGroups(t, cmd.Process.Pid); left != nil {
		t.Errorf("%q are left", left)
	}
}

// What supervises is the file that was looked at, whatever is at its path later, and never one that others can write.
func TestProgram(t *testing.T) {
	dir := t.TempDir()
	b, err := os.ReadFile(self(t))
	if err != nil {
		t.Fatal(err)
	}
	make := func(name string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.WriteFile(path, b, 0o700), os.Chmod(path, mode)); err != nil {
			t.Fatal(err)
		}
		return path
	}
	path := make("program", 0o755)
	r := hostrun.NewRunner(opened(t, path))
	if err := errors.Join(os.Remove(path), os.WriteFile(path, []byte("#!/bin/sh\ntouch "+dir+"/other\n"), 0o755)); err != nil {
		t.Fatal(err)
	}
	rest := r.Ready(hostrun.None)
	if at, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", r.Spare())); err != nil || at != path+" (deleted)" {
		t.Errorf("%s is ready, %v", at, err)
	}
	rest()
	supervisorOf(t, r)
	if _, err := os.Stat(dir + "/other"); err == nil {
		t.Error("another program was started by the path")
	}
	refused := map[string]string{
		"chmod go-w":      make("loose", 0o757),
		"it is no file":   dir,
		"no such file":    dir + "/none",
		"is neither root": make("theirs", 0o755),
	}
	if os.Geteuid() == 0 {
		refused["others can write it (mode 0775)"] = make("group", 0o775)
		if err := os.Chown(dir+"/theirs", ordinary, -1); err != nil {
			t.Fatal(err)
		}
	} else {
		t.Log("SKIP: the owner of a program is tried as root alone")
		delete(refused, "is neither root")
	}
	for why, path := range refused {
		if _, err := hostrun.OpenProgram(path); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v", why, err)
		}
	}
}

// A program that is no supervisor is not started in the place of one, and one of another release says that it is.
func TestOtherProgram(t *testing.T) {
	undo := hostrun.Unstaged()
	_, err := hostrun.Run(t.Context(), command())
	undo()
	if !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), "the running program is none") {
		t.Errorf("a program that does not call Stage: %v", err)
	}
	c, err := opened(t, self(t)).Supervisor("carrel-hostrun", os.Stdout)
	if err != nil {
		t.Fatal(err)
	}
	said, theirs, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer said.Close()
	c.ExtraFiles[0], c.Args[1] = theirs, "0"
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	theirs.Close()
	b, err := io.ReadAll(said)
	if werr := c.Wait(); werr == nil || err != nil || !strings.Contains(string(b), "of another release") {
		t.Errorf("one of another release: %s, %v, %v", b, err, werr)
	}
}
