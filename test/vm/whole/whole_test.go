// Package whole_test goes with carrel from a fresh host through up, work, attack and
// down, as its users do: with the programs alone and in their default places. It changes
// the host, so it runs only where test/vm says that the host is a guest of its own.
package whole_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// bin is the directory of the programs and layout that of the control groups, as
// test/vm says them.
var (
	bin    = os.Getenv("CARREL_TEST_BIN")
	layout = os.Getenv("CARREL_TEST_CGROUP")
)

// workspace is what inspect says of one.
type workspace struct {
	Name, User, Home, State string
	UID                     int
	ExecutorPID             int `json:"executor_pid"`
	Controls                []struct {
		ID, State, Evidence, Remedy string
		Requested, Required         bool
	}
}

// result is how a run of carrel ended.
type result struct {
	out  string
	code int
	took time.Duration
}

// carrel runs one command line of it.
func carrel(t *testing.T, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, filepath.Join(bin, "carrel"), args...)
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	began := time.Now()
	err := c.Run()
	r := result{out.String(), c.ProcessState.ExitCode(), time.Since(began)}
	t.Logf("carrel %s: code %d in %s", strings.Join(args, " "), r.code, r.took.Round(time.Millisecond))
	if s := errs.String(); s != "" {
		t.Logf("  %s", s)
	}
	if ctx.Err() != nil {
		t.Fatalf("carrel %s: %v", args, err)
	}
	return r
}

// must runs a command line that has to end with 0, and returns what it printed.
func must(t *testing.T, args ...string) string {
	t.Helper()
	r := carrel(t, args...)
	if r.code != 0 {
		t.Fatalf("carrel %s: exit code %d, stdout %q", strings.Join(args, " "), r.code, r.out)
	}
	return strings.TrimSpace(r.out)
}

func inspect(t *testing.T, key string) workspace {
	t.Helper()
	var w workspace
	if err := json.Unmarshal([]byte(must(t, "inspect", "-o", "json", key)), &w); err != nil {
		t.Fatal(err)
	}
	return w
}

// TestWhole goes through the life of an instance; each step needs those before it.
func TestWhole(t *testing.T) {
	if bin == "" || layout == "" {
		t.Skip("skipped: it brings carrel up in its default places; go run ./test/vm runs it in a guest")
	}
	permit(t) // not before: elsewhere the files are somebody's
	for _, step := range []struct {
		name string
		do   func(*testing.T)
	}{
		{"up", up},
		{"controls", controls},
		{"limits", limits},
		{"commands", commands},
		{"strangers", strangers},
		{"fork-bomb", forkBomb},
		{"memory-bomb", memoryBomb},
		{"executor-killed", executorKilled},
		{"daemon-killed", daemonKilled},
		{"broker-killed", brokerKilled},
		{"clock-steps", clockSteps},
		{"down", down},
	} {
		if !t.Run(step.name, step.do) {
			logs(t)
			return
		}
	}
}

// logs shows what broker and daemon have to say of a failure.
func logs(t *testing.T) {
	for _, f := range []string{"broker.log", "daemon.log"} {
		b, _ := os.ReadFile("/var/lib/carrel/log/" + f)
		lines := strings.Split(strings.TrimSpace(string(b)), "\n")
		t.Logf("%s:\n%s", f, strings.Join(lines[max(0, len(lines)-20):], "\n"))
	}
}

// permit has the daemon ask and block nothing, so that what is tried reaches the kernel. The
// checkout is where only root may enter, so the rules are copied to where the daemon may.
func permit(t *testing.T) {
	t.Helper()
	rules, err := os.ReadFile("../../permissive.yaml")
	if err != nil {
		t.Fatal(err)
	}
	const dir = "/etc/carrel"
	if err := os.Mkdir(dir, 0o755); err == nil {
		t.Cleanup(func() { _ = os.Remove(dir) }) // it stays if something else is in it
	}
	for name, content := range map[string]string{"policy.yaml": string(rules), "carreld.yaml": "policy:\n  path: " + dir + "/policy.yaml\n"} {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.Remove(file) })
	}
}

func up(t *testing.T) {
	must(t, "doctor")
	must(t, "up", "--detach")
	must(t, "create", "demo")
	must(t, "create", "--memory", "96MiB", "--pids", "64", "other")
	if out := must(t, "ls", "-q"); len(strings.Fields(out)) != 2 {
		t.Errorf("ls shows %q", out)
	}
}

// controls: every control that a start requires is verified, the limits through the
// hierarchy that this guest has.
func controls(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range inspect(t, "demo").Controls {
		t.Logf("%-18s %-11s %s", c.ID, c.State, c.Evidence)
		seen[c.ID] = c.State == "verified"
		if c.Required && c.State != "verified" {
			t.Errorf("%s is %s: %s; %s", c.ID, c.State, c.Evidence, c.Remedy)
		}
		switch c.ID {
		case "memory", "pids", "cpu":
			if !strings.Contains(c.Evidence, layout+" ") {
				t.Errorf("%s is not held through cgroup %s: %s", c.ID, layout, c.Evidence)
			}
		}
	}
	// By name as well: a report that forgot one must not pass.
	for _, id := range []string{
		"memory", "pids", "cpu", "supervisor-cgroup", "user-namespace", "cgroup-namespace", "seccomp", "landlock", "network", "executor",
	} {
		if !seen[id] {
			t.Errorf("%s is not verified", id)
		}
	}
}

// limits: what a command reads of its own limits is what was asked for.
func limits(t *testing.T) {
	files := map[string][2]string{
		"v2": {"/sys/fs/cgroup/cmd/memory.max", "/sys/fs/cgroup/cmd/pids.max"},
		"v1": {"/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/pids/pids.max"},
	}[layout]
	want := fmt.Sprintf("%d\n64", 96<<20)
	if got := must(t, "exec", "other", "--", "cat", files[0], files[1]); got != want {
		t.Errorf("inside %v hold %q, want %q", files, got, want)
	}
}

func commands(t *testing.T) {
	w := inspect(t, "demo")
	if got := must(t, "exec", "demo", "--", "id", "-u"); got != fmt.Sprint(w.UID) {
		t.Errorf("id says %s, inspect %d", got, w.UID)
	}
	if got := must(t, "exec", "demo", "--", "sh", "-c", "echo kept > file; cat file; pwd"); got != "kept\n/home/work" {
		t.Errorf("got %q", got)
	}
	for _, c := range []struct {
		code int
		args []string
	}{
		{7, []string{"sh", "-c", "exit 7"}},
		{127, []string{"no-such-program"}},
		{128 + 15, []string{"sh", "-c", "kill $$"}},
	} {
		if r := carrel(t, append([]string{"exec", "demo", "--"}, c.args...)...); r.code != c.code {
			t.Errorf("%v: exit code %d, want %d", c.args, r.code, c.code)
		}
	}
	id := must(t, "exec", "--detach", "demo", "--", "sh", "-c", "echo begun; exec sleep 1000")
	if out := must(t, "ps", "demo"); !strings.Contains(out, id) {
		t.Errorf("ps shows %q", out)
	}
	must(t, "kill", "demo", id)
	if out := must(t, "logs", "demo", id); out != "begun" {
		t.Errorf("logs shows %q", out)
	}
}

// strangers: one workspace cannot see, signal or read another.
func strangers(t *testing.T) {
	other := inspect(t, "other")
	must(t, "exec", "--detach", "other", "--", "sleep", "1000")
	if out := must(t, "exec", "demo", "--", "sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"); strings.Contains(out, "sleep") {
		t.Errorf("demo sees a process of other: %q", out)
	}
	for _, script := range []string{
		"ls " + other.Home, "ls /home/" + other.Name, "ls /var/lib/carrel", "ls /run/carrel",
		"cat /etc/shadow", "mount -t tmpfs none /mnt", "mkdir /sys/fs/cgroup/x",
	} {
		if r := carrel(t, "exec", "demo", "--", "sh", "-c", script); r.code == 0 {
			t.Errorf("%s succeeded: %q", script, r.out)
		}
	}
}

// answers is how soon the other workspace has to, while one does its worst, on an
// emulated machine.
const answers = 10 * time.Second

func forkBomb(t *testing.T) {
	id := must(t, "exec", "--detach", "other", "--", "sh", "-c", "b() { b | b & }; b; exec sleep 1000")
	if r := carrel(t, "exec", "demo", "--", "true"); r.code != 0 || r.took > answers {
		t.Errorf("demo: exit code %d after %s", r.code, r.took)
	}
	must(t, "kill", "other", id)
	must(t, "exec", "other", "--", "true")
}

func memoryBomb(t *testing.T) {
	// tail keeps what it reads until the end of a line, which never comes.
	r := carrel(t, "exec", "other", "--", "tail", "/dev/zero")
	if r.code != 128+9 {
		t.Errorf("the bomb ended with exit code %d: %s", r.code, r.out)
	}
	if r := carrel(t, "exec", "demo", "--", "true"); r.code != 0 || r.took > answers {
		t.Errorf("demo: exit code %d after %s", r.code, r.took)
	}
	must(t, "exec", "other", "--", "true")
}

// kill ends a process and waits until it is gone.
func kill(t *testing.T, pid int) {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil {
		t.Fatal(err)
	}
	for {
		_, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1)
		if err == nil {
			return
		}
		if !errors.Is(err, unix.EINTR) {
			t.Fatal(err)
		}
	}
}

// part is the pid of the broker or the daemon.
func part(t *testing.T, name string) int {
	t.Helper()
	b, err := os.ReadFile("/run/carrel/" + name + ".pid")
	if err != nil {
		t.Fatal(err)
	}
	var p struct{ PID int }
	if err := json.Unmarshal(b, &p); err != nil {
		t.Fatal(err)
	}
	return p.PID
}

// executorKilled: a command starts a new executor, as soon as carrel has seen that the
// old one is gone.
func executorKilled(t *testing.T) {
	kill(t, inspect(t, "demo").ExecutorPID)
	for range 50 {
		if r := carrel(t, "exec", "demo", "--", "cat", "file"); r.code == 0 && r.out == "kept\n" {
			return
		}
	}
	t.Error("demo has not come back")
}

// daemonKilled: what runs goes on, and the next daemon knows it.
func daemonKilled(t *testing.T) {
	id := must(t, "exec", "--detach", "demo", "--", "sh", "-c", "sleep 3; echo outlived")
	executor := inspect(t, "demo").ExecutorPID
	kill(t, part(t, "daemon"))
	must(t, "up", "--detach")
	if out := must(t, "logs", "--follow", "demo", id); out != "outlived" {
		t.Errorf("the command wrote %q", out)
	}
	if got := inspect(t, "demo").ExecutorPID; got != executor {
		t.Errorf("the executor is process %d now, it was %d", got, executor)
	}
}

// brokerKilled: the next broker knows what its ledger says.
func brokerKilled(t *testing.T) {
	kill(t, part(t, "broker"))
	must(t, "up", "--detach")
	must(t, "exec", "demo", "--", "true")
	must(t, "stop", "demo")
	must(t, "exec", "demo", "--", "cat", "file")
}

func down(t *testing.T) {
	must(t, "destroy", "--purge", "demo", "other")
	if out := must(t, "ls", "-q"); out != "" {
		t.Errorf("ls shows %q", out)
	}
	if out := must(t, "audit", "verify"); !strings.HasPrefix(out, "ok: ") {
		t.Errorf("audit verify says %q", out)
	}
	must(t, "down", "--purge")
	if r := carrel(t, "ls"); r.code == 0 {
		t.Error("carrel answers after down")
	}
}
