//go:build linux

// Package rootless_test runs "carrel run" as an ordinary user: as the caller, or, if that
// is root, as an id that no user of the host has, with a home of the test's own.
package rootless_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/audit"
	"github.com/carrel-dev/carrel/internal/workspace"
)

// testID, and the one after, are nobody's on any host, and no other run's of these tests.
var testID = 61771 + 2*uint32(os.Getpid()%100)

var programs string

func TestMain(m *testing.M) {
	if deny := os.Getenv("CARREL_TEST_DENY"); deny != "" {
		fmt.Fprintln(os.Stderr, denied(deny))
		os.Exit(99)
	}
	os.Exit(run(m))
}

func run(m *testing.M) int {
	if programs = os.Getenv("CARREL_TEST_BIN"); programs != "" {
		return m.Run() // a machine without Go
	}
	// Not in a directory that only root may enter.
	dir, err := os.MkdirTemp("/var/tmp", "carrel-rootless-bin")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	programs = dir
	build := exec.Command("go", "build", "-o", dir, "./cmd/carrel", "./cmd/carreld", "./cmd/carrel-executor", "./cmd/carrel-archive")
	build.Dir = filepath.Join("..", "..")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "cannot build the programs: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

// denied makes system calls fail as a container's filter would, and runs the arguments.
// deny is NR:ERRNO, with a mask that the first argument must have bits of, or 0.
func denied(deny string) error {
	var nr, errno, mask uint32
	if _, err := fmt.Sscanf(deny, "%d:%d:%d", &nr, &errno, &mask); err != nil {
		return err
	}
	const (
		ld  = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		jeq = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		set = unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K
		ret = unix.BPF_RET | unix.BPF_K
	)
	p := []unix.SockFilter{{Code: ld, K: 0}, {Code: jeq, K: nr, Jf: 3}, {Code: ld, K: 16}, {Code: set, K: mask, Jt: 0, Jf: 1}, {Code: ret, K: 0x00050000 | errno}, {Code: ret, K: 0x7fff0000}}
	if mask == 0 {
		p = []unix.SockFilter{{Code: ld, K: 0}, {Code: jeq, K: nr, Jf: 1}, {Code: ret, K: 0x00050000 | errno}, {Code: ret, K: 0x7fff0000}}
	}
	runtime.LockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	prog := unix.SockFprog{Len: uint16(len(p)), Filter: &p[0]}
	if _, _, e := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&prog))); e != 0 {
		return e
	}
	os.Unsetenv("CARREL_TEST_DENY")
	return syscall.Exec(os.Args[1], os.Args[1:], os.Environ())
}

// user is an ordinary user with a home.
type user struct {
	t   *testing.T
	id  uint32
	gid uint32 // 0: as id
	// first is that of u's range of ids, 0 for none.
	first uint32
	home  string
	env   []string
	// group is the control group that u's commands are born in, nil for this process's own.
	group *os.File
}

func newUser(t *testing.T) *user {
	t.Helper()
	u := &user{t: t, id: uint32(os.Geteuid())}
	if u.id == 0 {
		u.id = testID
	}
	dir, err := os.MkdirTemp("/var/tmp", "carrel-rootless-home")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chown(dir, int(u.id), int(u.id)); err != nil {
		t.Fatal(err)
	}
	u.home = dir
	u.env = []string{"HOME=" + dir, "PATH=/usr/bin:/bin", "TERM=xterm", "TMPDIR=" + dir + "/tmp"}
	if out := u.sh("unshare -U true"); out.code != 0 {
		t.Skipf("this host lets no ordinary user make user namespaces: %s", out.err)
	}
	u.t = t
	// Attacks are to reach the kernel: what policy holds is tried elsewhere.
	rules, err := os.ReadFile(filepath.Join("..", "permissive.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if r := finish(u.command("", "/bin/sh", "-c", "umask 022; mkdir -p .config/carrel; cat > .config/carrel/policy.yaml"), string(rules)); r.code != 0 {
		t.Fatalf("%+v", r)
	}
	u.sh("mkdir -p tmp project .ssh; echo host-secret > .ssh/id; echo rc > .bashrc; cd project && { git init -q . 2>/dev/null || mkdir .git; }")
	return u
}

type result struct {
	out, err string
	code     int
}

func (u *user) credential() *syscall.Credential {
	gid := u.gid
	if gid == 0 {
		gid = u.id
	}
	return &syscall.Credential{Uid: u.id, Gid: gid}
}

func (u *user) command(dir, name string, args ...string) *exec.Cmd {
	c := exec.CommandContext(u.t.Context(), name, args...)
	c.Dir, c.Env = filepath.Join(u.home, dir), u.env
	c.SysProcAttr = &syscall.SysProcAttr{}
	if os.Geteuid() == 0 {
		c.SysProcAttr.Credential = u.credential()
	}
	if u.group != nil {
		c.SysProcAttr.UseCgroupFD, c.SysProcAttr.CgroupFD = true, int(u.group.Fd())
	}
	return c
}

func finish(c *exec.Cmd, stdin string) result {
	var out, err bytes.Buffer
	c.Stdout, c.Stderr = &out, &err
	if stdin != "" {
		c.Stdin = strings.NewReader(stdin)
	}
	e := c.Run()
	r := result{out.String(), err.String(), c.ProcessState.ExitCode()}
	if e != nil && r.code < 0 {
		r.err += e.Error()
	}
	return r
}

func (u *user) sh(script string) result { return finish(u.command("", "/bin/sh", "-c", script), "") }

// run is carrel run in the project's directory.
func (u *user) run(args ...string) result {
	u.t.Helper()
	return finish(u.command("project", filepath.Join(programs, "carrel"), append([]string{"run"}, args...)...), "")
}

// inside runs a script in a workspace and returns what it said.
func (u *user) inside(script string) result { return u.run("--here", "--", "bash", "-c", script) }

func (u *user) records() []audit.Record {
	u.t.Helper()
	b, err := os.ReadFile(filepath.Join(u.home, ".local/state/carrel/audit/audit.jsonl"))
	if err != nil {
		u.t.Fatal(err)
	}
	if v, err := audit.Verify(u.t.Context(), bytes.NewReader(b), audit.Head{}); err != nil || v.Bad != nil {
		u.t.Errorf("the chain does not hold: %+v, %v", v, err)
	}
	var all []audit.Record
	for line := range bytes.Lines(b) {
		r, err := audit.Decode(line)
		if err != nil {
			u.t.Fatal(err)
		}
		all = append(all, r)
	}
	return all
}

// processes are the pids of u's processes that have not ended: init may take its time to
// reap those whose parent was killed.
func (u *user) processes() []int {
	all, err := os.ReadDir("/proc")
	if err != nil {
		u.t.Fatal(err)
	}
	var mine []int
	for _, d := range all {
		pid, err := strconv.Atoi(d.Name())
		var st unix.Stat_t
		if err == nil && unix.Stat("/proc/"+d.Name(), &st) == nil && pid != os.Getpid() {
			b, err := os.ReadFile("/proc/" + d.Name() + "/status")
			if err == nil && !strings.Contains(string(b), "\nState:\tZ") && strings.Contains(string(b), fmt.Sprintf("\nUid:\t%d\t", u.id)) {
				mine = append(mine, pid)
			}
		}
	}
	return mine
}

// has reports whether the host has a program.
func has(program string) bool {
	_, err := exec.LookPath(program)
	return err == nil
}

// needsPython skips a script that uses it where there is none.
func needsPython(t *testing.T, script string) {
	t.Helper()
	if strings.Contains(script, "python3") && !has("python3") {
		t.Skip("skipped: no python3 on this host; apt-get install --no-install-recommends python3")
	}
}

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
		{"no network", "", []string{"--net", "host", "--", "true"}, 125, "", "cannot use --net host"},
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
	if r.code != 0 || !strings.HasSuffix(strings.SplitN(r.out, "\n", 2)[0], "/project") || !strings.Contains(r.out, fmt.Sprintf("\n%d\n?? new\n", u.id)) {
		t.Errorf("%+v", r)
	}
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(u.home, "project/new"), &st); err != nil || st.Uid != u.id || st.Gid != u.id {
		t.Errorf("owner %d:%d, %v", st.Uid, st.Gid, err)
	}
	if names := u.sh("ls -A project").out; names != ".git\nnew\n" {
		t.Errorf("left in the project: %q", names)
	}
	if r := finish(u.command("", filepath.Join(programs, "carrel"), "run", "--here", "true"), ""); r.code != 125 || !strings.Contains(r.err, "whole home") {
		t.Errorf("the home itself: %+v", r)
	}
	if r := u.run("-v", u.home+":/mnt/home:ro", "true"); r.code != 125 || !strings.Contains(r.err, "record is kept") {
		t.Errorf("a mount with the record in it: %+v", r)
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
		if c.ID == "pids" && (c.State != "unavailable" || !strings.Contains(c.Evidence, "no control group is used without root: ") || !strings.Contains(c.Evidence, "RLIMIT_NPROC")) {
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
			c := u.command("project", filepath.Join(programs, "carrel"), "run", "--here", "--", "sh", "-c", "(setsid sleep 600 &); echo here; sleep 600")
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
			results <- finish(u.command("project", filepath.Join(programs, "carrel"), "run", "--here", "--", "sh", "-c", fmt.Sprintf("touch f%d; mkdir .vscode/x", i)), "")
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
		"mounts refused by a filter":     {under(fmt.Sprintf("%d:%d:0", unix.SYS_FSOPEN, unix.EPERM), "--", "echo", "ran"), []string{"cannot open file system", "seccomp=unconfined"}},
		"no namespaces": {finish(u.command("project", "unshare", "-U", "--map-current-user", "--keep-caps", "sh", "-c",
			"echo 0 > /proc/sys/user/max_user_namespaces; exec "+filepath.Join(programs, "carrel")+" run -- echo ran"), ""), []string{"user_namespaces", "max_user_namespaces"}},
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
	if !strings.Contains(string(last.Data), `"weaker":["landlock"]`) || !strings.Contains(string(all[len(all)-2].Action), `"accept":["landlock"]`) {
		t.Errorf("the record does not say so: %s", last.Data)
	}
}
