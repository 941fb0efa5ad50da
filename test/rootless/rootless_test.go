//go:build linux

package rootless_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/state/audit"
)

func TestConformance(t *testing.T) {
	u := newUser(t)
	for _, c := range []struct {
		name, stdin string
		args        []string
		code        int
		out, err    string
	}{
		{"exit code", "", []string{"--", "sh", "-c", "exit 7"}, 7, "", ""},
		{"no dashes", "", []string{"echo", "a b"}, 0, "a b\n", ""},
		{"signal", "", []string{"--", "sh", "-c", "kill -TERM $$"}, 143, "", ""},
		{"not found", "", []string{"--", "no-such-program"}, 127, "", "not found in PATH"},
		{"not executable", "", []string{"--", "/etc/passwd"}, 126, "", "permission denied"},
		{"streams", "", []string{"--", "sh", "-c", "echo out; echo err >&2"}, 0, "out\n", "err\n"},
		{"no stdin", "typed", []string{"--", "cat"}, 0, "", ""},
		{"stdin", "typed", []string{"-i", "--", "cat"}, 0, "typed", ""},
		{"env", "", []string{"--env", "A=b c", "--", "sh", "-c", "echo $A"}, 0, "b c\n", ""},
		{"env from here", "", []string{"--env", "TERM", "--", "sh", "-c", "echo $TERM"}, 0, "xterm\n", ""},
		{"nothing else of the environment", "", []string{"--", "sh", "-c", "echo $TMPDIR"}, 0, "\n", ""},
		{"cwd", "", []string{"--cwd", "/usr", "--", "pwd"}, 0, "/usr\n", ""},
		{"no terminal", "", []string{"-it", "--", "true"}, 125, "", "stdin is not a terminal"},
		{"not a host", "", []string{"--allow", "https://example.org/x", "--", "true"}, 125, "", "https://example.org/x"},
		{"read-only mount", "", []string{"-v", ".:/workspace:ro", "--", "touch", "/workspace/x"}, 1, "", "Read-only"},
		{"what it left ends", "", []string{"--", "sh", "-c", "setsid sleep 300 & echo on"}, 0, "on\n", ""},
		{"unknown control", "", []string{"--accept", "nothing", "--", "true"}, 125, "", "no such control"},
	} {
		t.Run(c.name, func(t *testing.T) {
			u.t = t
			r := finish(u.command("project", filepath.Join(programs, "carrel"), append([]string{"run"}, c.args...)...), c.stdin)
			if r.code != c.code || r.out != c.out || !strings.Contains(r.err, c.err) {
				t.Errorf("%+v", r)
			}
		})
	}
	u.t = t
	if left := u.processes(); os.Geteuid() == 0 && len(left) > 0 {
		what := finish(exec.CommandContext(t.Context(), "ps", "-fp", strings.Trim(strings.ReplaceAll(fmt.Sprint(left), " ", ","), "[]")), "")
		t.Errorf("processes %v are left: %s", left, what.out)
	}
	for _, r := range u.records() {
		if r.Type == audit.Outcome && r.Intent == 0 {
			t.Errorf("%+v", r)
		}
	}
}

func TestHere(t *testing.T) {
	u := newUser(t)
	status := "git status --short"
	if !has("git") {
		status = "echo '?? new'" // a guest of test/vm has none
	}
	r := u.inside("pwd; echo made > new; stat -c %u new; " + status)
	if r.code != 0 || !strings.HasSuffix(strings.SplitN(r.out, "\n", 2)[0], "/project") ||
		!strings.Contains(r.out, fmt.Sprintf("\n%d\n?? new\n", u.id)) {
		t.Errorf("%+v", r)
	}
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(u.home, "project/new"), &st); err != nil || st.Uid != u.id || st.Gid != u.id {
		t.Errorf("owner %d:%d, %v", st.Uid, st.Gid, err)
	}
	if names := u.sh("ls -A project").out; names != ".git\nnew\n" {
		t.Errorf("left in the project: %q", names)
	}
	if r := finish(u.command("", filepath.Join(programs, "carrel"), "run", "--here", "true"), ""); r.code != 125 ||
		!strings.Contains(r.err, "whole home") {
		t.Errorf("the home itself: %+v", r)
	}
	if r := u.run("-v", u.home+":/mnt/home:ro", "true"); r.code != 125 || !strings.Contains(r.err, "record is kept") {
		t.Errorf("a mount with the record in it: %+v", r)
	}
}

// The directory has its own path inside, and the home always the same: what has either in it works on both sides.
func TestHereHasItsOwnPath(t *testing.T) {
	u := newUser(t)
	script := "echo '#!" + u.home + "/project/v/bin/x' > script; chmod +x script; mkdir -p v/bin node_modules/.bin; printf '#!/bin/sh\necho ran $0\n' > v/bin/x; " +
		"chmod +x v/bin/x; ln -s " + u.home + "/project/v/bin/x node_modules/.bin/x"
	if r := u.inside(script + "; pwd; echo $HOME; ls -A $HOME; ls -A " + u.home + "; ls -A " + filepath.Dir(u.home)); r.code != 0 ||
		r.out != u.home+"/project\n/home/work\nproject\n"+filepath.Base(u.home)+"\n" {
		t.Errorf("%+v", r)
	}
	want := "ran " + u.home + "/project/v/bin/x\n"
	for _, run := range []string{"./script", "node_modules/.bin/x"} {
		if out := u.sh("cd project; " + run).out; !strings.HasPrefix(out, "ran ") {
			t.Errorf("on the host, %s: %q", run, out)
		}
		if r := u.inside(run); r.code != 0 || !strings.HasPrefix(r.out, "ran ") {
			t.Errorf("inside, %s: %+v, want %q", run, r, want)
		}
	}
	if has("/usr/bin/python3") {
		if r := u.inside("/usr/bin/python3 -m venv --without-pip venv && venv/bin/python -c 'import sys; print(sys.prefix)'"); r.out != u.home+"/project/venv\n" {
			t.Errorf("%+v", r)
		}
		if out := u.sh("cd project; . venv/bin/activate; command -v python; python -c 'import sys; print(sys.prefix)'").out; out !=
			u.home+"/project/venv/bin/python\n"+u.home+"/project/venv\n" {
			t.Errorf("on the host: %q", out)
		}
	}
}

// As many mounts as there may be.
func TestEightMounts(t *testing.T) {
	u := newUser(t)
	var args []string
	for i := range workspace.MaxMounts {
		u.sh(fmt.Sprintf("mkdir -p m/%d && echo %d > m/%d/f", i, i, i))
		args = append(args, "-v", fmt.Sprintf("%s/m/%d:/mnt/%d", u.home, i, i))
	}
	if r := u.run(append(args, "--", "sh", "-c", "cat /mnt/*/f")...); r.code != 0 || r.out != "0\n1\n2\n3\n4\n5\n6\n7\n" {
		t.Errorf("%+v", r)
	}
}

func TestReport(t *testing.T) {
	u := newUser(t)
	if r := u.run("--here", "--report", "../proof.json", "--", "true"); r.code != 0 {
		t.Fatalf("%+v", r)
	}
	b, err := os.ReadFile(filepath.Join(u.home, "proof.json"))
	if err != nil {
		t.Fatal(err)
	}
	var v struct {
		Controls []struct {
			ID, State, Evidence string
			Required            bool
		}
	}
	if err := json.Unmarshal(b, &v); err != nil {
		t.Fatal(err)
	}
	states := map[string]string{}
	for _, c := range v.Controls {
		states[c.ID] = c.State
		if c.Required && c.State != "verified" {
			t.Errorf("%+v", c)
		}
		if c.ID == "pids" && (c.State != "unavailable" || !strings.Contains(c.Evidence, "no control group is used without root: ") ||
			!strings.Contains(c.Evidence, "RLIMIT_NPROC")) {
			t.Errorf("%+v", c)
		}
		if c.ID == "ids" && !strings.Contains(c.Evidence, "share the caller's uid") {
			t.Errorf("%+v", c)
		}
	}
	if len(states) < 30 || states["landlock"] != "verified" || states["project-mounts"] != "verified" || states["memory"] != "unavailable" {
		t.Errorf("%v", states)
	}
}

// A run that is killed leaves no process and no mount, and the next one removes what kept
// protected names and closes the record.
func TestKilled(t *testing.T) {
	u := newUser(t)
	for name, reached := range map[string]func(out *os.File) bool{
		"at once":               func(*os.File) bool { return true },
		"once names are placed": func(*os.File) bool { _, err := os.Stat(filepath.Join(u.home, "project/.claude")); return err == nil },
		"while it runs":         func(out *os.File) bool { n, _ := out.Read(make([]byte, 8)); return n > 0 },
	} {
		t.Run(name, func(t *testing.T) {
			u.t = t
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			c := u.command(
				"project", filepath.Join(programs, "carrel"), "run", "--here", "--", "sh", "-c", "(setsid sleep 600 &); echo here; sleep 600",
			)
			c.Stdout = w
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			w.Close()
			end := time.Now().Add(20 * time.Second)
			for !reached(r) {
				if time.Now().After(end) {
					t.Fatal("it did not get that far")
				}
				runtime.Gosched()
			}
			var watched []int
			if os.Geteuid() == 0 {
				for _, pid := range u.processes() {
					if fd, err := unix.PidfdOpen(pid, 0); err == nil {
						watched = append(watched, fd)
					}
				}
			}
			if err := c.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = c.Wait()
			for _, fd := range watched {
				if n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 10_000); n != 1 {
					t.Errorf("a process lives on: %v", err)
				}
				unix.Close(fd)
			}
			// The pipe ends when the last process that has it does.
			if err := r.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
				t.Fatal(err)
			}
			for b := make([]byte, 64); ; {
				if _, err := r.Read(b); err != nil {
					if os.IsTimeout(err) {
						t.Error("something lives on and holds the output")
					}
					break
				}
			}
			// A child that was being born when its parent was killed ends a moment later.
			u.nothing()
			if r := u.run("--here", "--", "true"); r.code != 0 {
				t.Errorf("%+v", r)
			}
			if names := u.sh("ls -A project; ls .local/state/carrel/runs; mount | grep -c " + u.home).out; names != ".git\n0\n" {
				t.Errorf("left: %q", names)
			}
		})
	}
	u.t = t
	interrupted, open := 0, map[int64]bool{}
	for _, r := range u.records() {
		if r.Type == audit.Intent {
			open[r.Seq] = true
		}
		delete(open, r.Intent)
		if r.Status == audit.StatusInterrupted {
			interrupted++
		}
	}
	if len(open) > 0 || interrupted == 0 {
		t.Errorf("open %v, %d interrupted", open, interrupted)
	}
}

// Runs at the same time share the record and the project.
func TestTogether(t *testing.T) {
	u := newUser(t)
	const n = 6
	results := make(chan result, n)
	for i := range n {
		go func() {
			results <- finish(
				u.command("project", filepath.Join(programs, "carrel"), "run", "--here", "--", "sh", "-c",
					fmt.Sprintf("touch f%d; mkdir .vscode/x", i)), "",
			)
		}()
	}
	for range n {
		if r := <-results; r.code != 1 || !strings.Contains(r.err, "Read-only") {
			t.Errorf("%+v", r)
		}
	}
	if names := u.sh("ls -A project; ls .local/state/carrel/runs").out; names != ".git\nf0\nf1\nf2\nf3\nf4\nf5\n" {
		t.Errorf("%q", names)
	}
	if got := len(u.records()); got != 2*n {
		t.Errorf("%d records", got)
	}
}

// What a host lacks is named, with what it is for and the command that allows it, and
// nothing is run; --accept is the one way around, and is told.
func TestMissing(t *testing.T) {
	u := newUser(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	helper := filepath.Join(u.home, "helper")
	if err := os.WriteFile(helper, b, 0o755); err != nil {
		t.Fatal(err)
	}
	under := func(deny string, args ...string) result {
		c := u.command("project", helper, append([]string{filepath.Join(programs, "carrel"), "run"}, args...)...)
		c.Env = append(c.Env, "CARREL_TEST_DENY="+deny)
		return finish(c, "")
	}
	clone := fmt.Sprintf("%d:%d:%d", unix.SYS_CLONE, unix.EPERM, unix.CLONE_NEWUSER)
	landlock := fmt.Sprintf("%d:%d:0", unix.SYS_LANDLOCK_CREATE_RULESET, unix.ENOSYS)
	for name, c := range map[string]struct {
		got  result
		want []string
	}{
		"namespaces refused by a filter": {under(clone, "--", "echo", "ran"), []string{"user_namespaces", "operation not permitted", "sysctl"}},
		"Landlock":                       {under(landlock, "--", "echo", "ran"), []string{"landlock", "lsm="}},
		"mounts refused by a filter": {
			under(fmt.Sprintf("%d:%d:0", unix.SYS_FSOPEN, unix.EPERM), "--", "echo", "ran"),
			[]string{"open file system", "seccomp=unconfined"},
		},
		"no namespaces": {finish(u.command("project", "unshare", "-U", "--map-current-user", "--keep-caps", "sh", "-c",
			"echo 0 > /proc/sys/user/max_user_namespaces; exec "+filepath.Join(programs, "carrel")+" run -- echo ran"), ""), []string{
			"user_namespaces", "max_user_namespaces",
		}},
	} {
		if c.got.code != 125 || c.got.out != "" {
			t.Errorf("%s: %+v", name, c.got)
		}
		for _, w := range c.want {
			if !strings.Contains(c.got.err, w) {
				t.Errorf("%s: no %q in %s", name, w, c.got.err)
			}
		}
	}
	r := under(landlock, "--accept", "landlock", "--report", "../weak.json", "--", "echo", "ran")
	if r.code != 0 || r.out != "ran\n" || !strings.Contains(r.err, "running without landlock") {
		t.Errorf("%+v", r)
	}
	if b, err := os.ReadFile(filepath.Join(u.home, "weak.json")); err != nil || !strings.Contains(string(b), "accepted with --accept") {
		t.Errorf("the report does not say so: %v", err)
	}
	all := u.records()
	last := all[len(all)-1]
	if !strings.Contains(string(last.Data), `"weaker":["landlock"]`) ||
		!strings.Contains(string(all[len(all)-2].Action), `"accept":["landlock"]`) {
		t.Errorf("the record does not say so: %s", last.Data)
	}
}
