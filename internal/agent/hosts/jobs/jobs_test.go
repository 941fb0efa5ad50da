package jobs_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/agent/hosts/jobs"
	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/hostrun"
	"github.com/carrel-dev/carrel/test/leaks"
)

// beginEnv has this test's program begin a job in a directory and wait to be killed.
const beginEnv = "CARREL_JOBS_BEGIN"

func TestMain(m *testing.M) {
	if code, is := hostrun.Stage(os.Args); is {
		os.Exit(code)
	}
	if code, is := jobs.Stage(os.Args); is {
		os.Exit(code)
	}
	if dir := os.Getenv(beginEnv); dir != "" {
		os.Exit(beginAndStay(dir))
	}
	leaks.Main(m)
}

// registry is one of its own.
func registry(t *testing.T) (*jobs.Registry, string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "jobs")
	return opened(t, dir), dir
}

func opened(t *testing.T, dir string) *jobs.Registry {
	t.Helper()
	r, err := jobs.Open(jobs.Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

// spec is a job of shell text.
func spec(text string) jobs.Spec {
	return jobs.Spec{
		ID: id.NewCommand(), Argv: []string{"/bin/sh", "-c", text}, Dir: "/", AsRoot: true, LimitMS: 120_000, Began: time.Now(),
	}
}

// begin begins a job, which ends with the test.
func begin(t *testing.T, r *jobs.Registry, s jobs.Spec) jobs.Spec {
	t.Helper()
	if _, err := r.Begin(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = r.Stop(context.WithoutCancel(t.Context()), s.ID) })
	return s
}

const patience = 60 * time.Second

// until waits until f is true.
func until(t *testing.T, what string, f func() bool) {
	t.Helper()
	again := time.NewTicker(5 * time.Millisecond)
	defer again.Stop()
	for end := time.Now().Add(patience); !f(); <-again.C {
		if time.Now().After(end) {
			t.Fatalf("%s: not within %v", what, patience)
		}
	}
}

// over waits for the end of a job.
func over(t *testing.T, r *jobs.Registry, job id.Command) (j jobs.Job) {
	t.Helper()
	until(t, "the end of "+string(job), func() bool {
		var err error
		if j, err = r.Show(t.Context(), job); err != nil {
			t.Fatal(err)
		}
		return j.State.Over()
	})
	return j
}

// output is all that is kept of a stream, and how much is missing.
func output(t *testing.T, r *jobs.Registry, j jobs.Job, stream string) (text string, missing int64) {
	t.Helper()
	for from := int64(0); ; {
		c, err := r.Output(t.Context(), j, stream, from)
		if err != nil {
			t.Fatal(err)
		}
		if len(c.Data) == 0 {
			return text, missing
		}
		missing, text, from = missing+c.At-from, text+string(c.Data), c.Next()
	}
}

// pidIn is a process number that a job writes to a file.
func pidIn(t *testing.T, file string) (pid int) {
	t.Helper()
	until(t, "a number in "+file, func() bool {
		b, _ := os.ReadFile(file)
		pid, _ = strconv.Atoi(strings.TrimSpace(string(b)))
		return pid > 1 && strings.HasSuffix(string(b), "\n")
	})
	return pid
}

// gone waits for the end of a process.
func gone(t *testing.T, pid int) {
	t.Helper()
	until(t, fmt.Sprintf("the end of process %d", pid), func() bool {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return err != nil || strings.Contains(string(b), ") Z ")
	})
}

// supervisorOf is the process that holds the lock of a job.
func supervisorOf(t *testing.T, dir string, job id.Command) int {
	t.Helper()
	lock, err := filepath.EvalSymlinks(filepath.Join(dir, string(job), "lock"))
	if err != nil {
		t.Fatal(err)
	}
	all, err := filepath.Glob("/proc/[0-9]*/fd/3")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range all {
		if to, err := os.Readlink(fd); err == nil && filepath.Base(filepath.Dir(to)) == string(job) && to == lock {
			pid, _ := strconv.Atoi(strings.Split(fd, "/")[2])
			return pid
		}
	}
	// The directory was opened under its first name.
	for _, fd := range all {
		b, _ := os.ReadFile(filepath.Dir(filepath.Dir(fd)) + "/cmdline")
		if to, err := os.Readlink(filepath.Dir(fd) + "/4"); err == nil && strings.HasPrefix(string(b), "carrel-job") && to == filepath.Dir(lock) {
			pid, _ := strconv.Atoi(strings.Split(fd, "/")[2])
			return pid
		}
	}
	t.Fatal("nobody supervises the job")
	return 0
}

// A job tells how it ended and what it printed, on both streams.
func TestJobEnds(t *testing.T) {
	r, _ := registry(t)
	s := begin(t, r, spec("echo out; echo err >&2; exit 3"))
	j := over(t, r, s.ID)
	if j.Status() != "exited 3" || j.End == nil || j.End.At.Before(s.Began) {
		t.Errorf("%+v", j)
	}
	for stream, want := range map[string]string{jobs.Stdout: "out\n", jobs.Stderr: "err\n"} {
		if got, missing := output(t, r, j, stream); got != want || missing != 0 {
			t.Errorf("%s: %q, %d", stream, got, missing)
		}
	}
	if j := over(t, r, begin(t, r, spec("kill -9 $$")).ID); j.Status() != "exited 137" || j.End.Signal != 9 {
		t.Errorf("%+v", j)
	}
	limited := spec("sleep 1000")
	limited.LimitMS = 200
	if j := over(t, r, begin(t, r, limited).ID); j.State != jobs.TimedOut {
		t.Errorf("%+v", j)
	}
	if all, broken, err := r.List(t.Context()); len(all) != 3 || len(broken) != 0 || err != nil {
		t.Errorf("%v, %v, %v", all, broken, err)
	}
	if err := r.Remove(t.Context(), s.ID); err != nil {
		t.Error(err)
	}
	for name, err := range map[string]error{
		"removed":      r.Remove(t.Context(), s.ID),
		"never there":  r.Remove(t.Context(), id.NewCommand()),
		"shown":        func() error { _, err := r.Show(t.Context(), s.ID); return err }(),
		"to be stoped": func() error { _, err := r.Stop(t.Context(), s.ID); return err }(),
	} {
		if !errdefs.IsNotFound(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := r.Remove(t.Context(), "../etc"); !errdefs.IsInvalidArgument(err) {
		t.Error(err)
	}
}

// A command that cannot be begun leaves no job.
func TestJobDoesNotBegin(t *testing.T) {
	r, dir := registry(t)
	s := spec("")
	s.Argv = []string{"/no/such/program"}
	if _, err := r.Begin(t.Context(), s); err == nil || errdefs.IsUnavailable(err) {
		t.Errorf("%v", err)
	}
	for name, change := range map[string]func(*jobs.Spec){
		"no command": func(s *jobs.Spec) { s.Argv = nil }, "no time": func(s *jobs.Spec) { s.LimitMS = 0 },
		"too long": func(s *jobs.Spec) { s.LimitMS = jobs.MaxTime.Milliseconds() + 1 }, "no id": func(s *jobs.Spec) { s.ID = "../x" },
	} {
		s := spec("true")
		change(&s)
		if _, err := r.Begin(t.Context(), s); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	s = begin(t, r, spec("sleep 1000"))
	if _, err := r.Begin(t.Context(), s); err == nil {
		t.Error("two jobs of one name began")
	}
	if all, _, _ := r.List(t.Context()); len(all) != 1 || all[0].State != jobs.Running {
		t.Errorf("%v", all)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 2 { // the lock, and the job
		t.Errorf("%v, %v", left, err)
	}
	if err := r.Remove(t.Context(), s.ID); !errdefs.IsFailedPrecondition(err) {
		t.Error(err)
	}
}

// followed reads a job while it runs: what it has printed is there before it prints more.
func followed(t *testing.T, r *jobs.Registry, begin func(text string) jobs.Spec) {
	t.Helper()
	next := filepath.Join(t.TempDir(), "next")
	s := begin("printf first; while [ ! -e " + next + " ]; do sleep 0.02; done; echo; echo second")
	var text string
	from := int64(0)
	read := func(want string) {
		until(t, want, func() bool {
			c, err := r.Output(t.Context(), jobs.Job{Spec: s}, jobs.Stdout, from)
			if err != nil {
				t.Fatal(err)
			}
			text, from = text+string(c.Data), c.Next()
			return text == want
		})
	}
	read("first")
	if j, err := r.Show(t.Context(), s.ID); err != nil || j.State != jobs.Running {
		t.Errorf("%+v, %v", j, err)
	}
	if err := os.WriteFile(next, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	read("first\nsecond\n")
	over(t, r, s.ID)
}

func TestJobIsFollowed(t *testing.T) {
	r, _ := registry(t)
	followed(t, r, func(text string) jobs.Spec { return begin(t, r, spec(text)) })
}

// What leaves its session, its group and its parent is ended with the job, whether it ends, is stopped or is killed.
func TestJobEndsAll(t *testing.T) {
	r, dir := registry(t)
	file := func() string { return filepath.Join(t.TempDir(), "pid") }
	leaves := func(file, then string) string {
		return "setsid sh -c 'trap \"\" TERM HUP; (sleep 1000 & echo $! >" + file + "); exec sleep 1001' & " +
			"while [ ! -s " + file + " ]; do sleep 0.01; done; " + then
	}
	at := file()
	j := over(t, r, begin(t, r, spec(leaves(at, "exit 0"))).ID)
	gone(t, pidIn(t, at))
	if j.Status() != "exited 0" {
		t.Errorf("%+v", j)
	}
	at = file()
	s := begin(t, r, spec(leaves(at, "wait")))
	pid := pidIn(t, at)
	// Two at once.
	states := make(chan jobs.State, 2)
	for range 2 {
		go func() {
			j, _ := r.Stop(context.WithoutCancel(t.Context()), s.ID)
			states <- j.State
		}()
	}
	if a, b := <-states, <-states; a != jobs.Stopped || b != jobs.Stopped {
		t.Errorf("%s, %s", a, b)
	}
	gone(t, pid)
	for name, of := range map[string]func(supervisor int) int{
		"the supervisor": func(supervisor int) int { return supervisor },
		"the one below, which holds the command": func(supervisor int) int {
			var all []byte
			tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", supervisor))
			for _, task := range tasks {
				b, _ := os.ReadFile(task)
				all = append(all, b...)
			}
			pid, _ := strconv.Atoi(strings.TrimSpace(string(all)))
			if pid < 2 {
				t.Fatalf("the supervisor has the children %q", all)
			}
			return pid
		},
	} {
		at = file()
		s = begin(t, r, spec(leaves(at, "wait")))
		pid = pidIn(t, at)
		if err := unix.Kill(of(supervisorOf(t, dir, s.ID)), unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if j := over(t, r, s.ID); j.State != jobs.Lost || !strings.Contains(j.Why, "ended") {
			t.Errorf("%s: %+v", name, j)
		}
		gone(t, pid)
	}
	if j, err := r.Stop(t.Context(), s.ID); j.State != jobs.Lost || err != nil {
		t.Errorf("%+v, %v", j, err)
	}
	if err := r.Remove(t.Context(), s.ID); err != nil {
		t.Error(err)
	}
}

// beginAndStay begins a job, says so, and stays.
func beginAndStay(dir string) int {
	r, err := jobs.Open(jobs.Config{Dir: dir})
	if err == nil {
		s := spec(os.Getenv("CARREL_JOBS_TEXT"))
		fmt.Println(s.ID)
		_, err = r.Begin(context.Background(), s)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println("began")
	_ = syscall.Pause()
	return 0
}
