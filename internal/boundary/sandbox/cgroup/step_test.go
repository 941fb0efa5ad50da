package cgroup_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/boundary/sandbox/cgroup"
)

// runStep says where the process of a step is, and what came of its end.
func runStep() int {
	s, err := cgroup.OpenStepsAny(os.Getenv("CGROUP_POINT"), os.Getenv("CGROUP_OWN"))
	if err != nil {
		fmt.Println("open", err)
		return 1
	}
	g, err := s.Make(cgroup.StepLimits{})
	if err != nil {
		fmt.Println("make", err)
		return 1
	}
	c := exec.Command("/proc/self/exe")
	c.Env = []string{"CGROUP_TEST=wait"}
	if _, err := c.StdinPipe(); err != nil { // it waits for its end
		return 1
	}
	runtime.LockOSThread()
	err = g.Fork(func(in int) error {
		c.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: in >= 0, CgroupFD: max(in, 0), Pdeathsig: unix.SIGKILL}
		return c.Start()
	})
	fmt.Println("in", c.Process.Pid, err)
	_, _ = io.Copy(io.Discard, os.Stdin)
	ended := make(chan error)
	go func() { ended <- c.Wait() }() // until then it is a member
	err = g.Remove(context.Background())
	select {
	case how := <-ended:
		fmt.Println("end", err, how)
	case <-time.After(10 * time.Second):
		fmt.Println("end", err, "it lives", c.Process.Kill())
	}
	return 0
}

// A user whose group hands down has each command born in a group of its own, which ends with it. That of a process that was killed is
// removed by the next one.
func TestStepsOfAUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIP: groups to give take root")
	}
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	point := cgroup.ParseMounts(string(text)).V2
	if point == "" {
		t.Skip("SKIP: cgroup v2 is not mounted")
	}
	const user = 61991
	base := fmt.Sprintf("/crt-cgroup-%d", os.Getpid())
	for _, name := range []string{base, base + "/shell"} {
		dir := filepath.Join(point, name)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := os.Remove(dir); err != nil {
				t.Error(err)
			}
		})
		for _, f := range []string{"", "/cgroup.procs", "/cgroup.subtree_control"} {
			if err := os.Chown(dir+f, user, -1); err != nil {
				t.Fatal(err)
			}
		}
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(t.TempDir(), "program")
	b, err := os.ReadFile(self)
	if err := errors.Join(err, os.WriteFile(program, b, 0o755)); err != nil {
		t.Fatal(err)
	}
	for dir := filepath.Dir(program); dir != "/tmp" && dir != "/"; dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	shell, err := os.Open(filepath.Join(point, base, "shell"))
	if err != nil {
		t.Fatal(err)
	}
	defer shell.Close()
	begin := func() (c *exec.Cmd, in io.WriteCloser, out *bufio.Reader, pid int) {
		t.Helper()
		c = exec.CommandContext(t.Context(), program)
		c.Env = []string{"CGROUP_TEST=step", "CGROUP_POINT=" + point, "CGROUP_OWN=" + base + "/shell"}
		c.SysProcAttr = &syscall.SysProcAttr{
			UseCgroupFD: true, CgroupFD: int(shell.Fd()), Credential: &syscall.Credential{Uid: user, Gid: user},
		}
		r, err1 := c.StdoutPipe()
		in, err2 := c.StdinPipe()
		if err := errors.Join(err1, err2, c.Start()); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
		out = bufio.NewReader(r)
		line, err := out.ReadString('\n')
		if n, serr := fmt.Sscanf(line, "in %d <nil>", &pid); n != 1 || serr != nil {
			t.Fatalf("%q, %v", line, err)
		}
		return c, in, out, pid
	}
	steps := func() []string {
		all, err := filepath.Glob(filepath.Join(point, base, "carrel-step-*"))
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	first, _, _, pid := begin()
	where, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cgroup")
	if err != nil || len(steps()) != 1 || !strings.Contains(string(where), "0::"+base+"/"+filepath.Base(steps()[0])+"\n") {
		t.Errorf("%v, %q, and there are %v", err, where, steps())
	}
	gone, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(gone)
	_ = first.Process.Kill()
	_ = first.Wait()
	_, in, out, pid := begin()
	if left := steps(); len(left) != 1 || strings.Contains(left[0], "-"+strconv.Itoa(first.Process.Pid)+"-") {
		t.Errorf("after one that was killed: %v", left)
	}
	if n, err := unix.Poll([]unix.PollFd{{Fd: int32(gone), Events: unix.POLLIN}}, 10_000); n != 1 || err != nil {
		t.Errorf("what the killed one ran lives: %d, %v", n, err)
	}
	in.Close()
	if line, err := out.ReadString('\n'); line != "end <nil> signal: killed\n" {
		t.Errorf("%q, %v", line, err)
	}
	if left := steps(); left != nil {
		t.Errorf("left: %v", left)
	}
	if err := unix.Kill(pid, 0); !errors.Is(err, unix.ESRCH) {
		t.Errorf("its process: %v", err)
	}
}

// Groups bound what is born in them by the kernel's own count, are read back, and go with what is in them. What lives, what is
// held and what is another user's is not swept.
func TestStepsOfRoot(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIP: it takes root")
	}
	s, err := cgroup.OpenSteps()
	if err != nil {
		t.Skipf("SKIP: no groups for steps: %v", err)
	}
	defer s.Close()
	g, err := s.Make(cgroup.StepLimits{MemoryBytes: 24 << 20, Pids: 12})
	if err != nil {
		t.Fatal(err)
	}
	run := func(role string) *exec.Cmd {
		c := exec.Command("/proc/self/exe")
		c.Env = []string{"CGROUP_TEST=" + role}
		if _, err := c.StdinPipe(); err != nil { // it waits for its end
			t.Fatal(err)
		}
		done := make(chan error)
		go func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			done <- g.Fork(func(in int) error {
				c.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: in >= 0, CgroupFD: max(in, 0)}
				return c.Start()
			})
		}()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		return c
	}
	held := run("wait")
	for _, e := range g.Check(held.Process.Pid) {
		if !e.OK || !strings.Contains(e.Text, "it is in it: true") {
			t.Errorf("%+v", e)
		}
	}
	for _, e := range g.Check(os.Getpid()) { // the thread has left it again
		if e.OK {
			t.Errorf("of another process: %+v", e)
		}
	}
	if n := g.Killed(); n != 0 {
		t.Errorf("%d were killed before", n)
	}
	again, err := cgroup.OpenSteps() // sweeps
	if err != nil {
		t.Fatal(err)
	}
	again.Close()
	for _, e := range g.Check(held.Process.Pid) {
		if !e.OK {
			t.Errorf("the sweep touched what lives: %+v", e)
		}
	}
	full := run("full") // takes 40 MiB
	if err := full.Wait(); err == nil {
		t.Error("it took more than its group may have")
	}
	if n := g.Killed(); n == 0 {
		t.Error("it is not told that the kernel has ended one")
	}
	for _, e := range g.Check(held.Process.Pid) { // on v2 all of a command ends with what was ended of it
		if v2 := strings.HasPrefix(e.Text, "v2 "); strings.Contains(e.Text, "it is in it: true") == v2 {
			t.Errorf("after one was ended: %+v", e)
		}
	}
	ended := make(chan error)
	go func() { ended <- held.Wait() }()
	if err := g.Remove(t.Context()); err != nil {
		t.Error(err)
	}
	select {
	case err := <-ended:
		if err == nil || err.Error() != "signal: killed" {
			t.Errorf("what was in it: %v", err)
		}
	case <-time.After(10 * time.Second):
		_ = held.Process.Kill()
		t.Errorf("what was in it lives: %v", <-ended)
	}
}
