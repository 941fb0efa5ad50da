//go:build linux

// Package rootless_test runs "carrel run" as an ordinary user: as the caller, or, if that
// is root, as an id that no user of the host has, with a home of the test's own.
package rootless_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/state/audit"
	"github.com/carrel-dev/carrel/test/built"
)

// No host, and no other run of these tests, uses testID and the id after it.
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
	if os.Geteuid() != 0 { // whose processes are told by their ancestor, as the user has others too
		if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
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
	if err := buildPrograms(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// buildPrograms puts those of an ordinary user into dir.
func buildPrograms(dir string, tags ...string) error {
	if err := built.Programs(context.Background(), dir, tags...); err != nil {
		return err
	}
	return os.Remove(filepath.Join(dir, "carrel-broker"))
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
	p := []unix.SockFilter{
		{Code: ld, K: 0},
		{Code: jeq, K: nr, Jf: 3},
		{Code: ld, K: 16},
		{Code: set, K: mask, Jt: 0, Jf: 1},
		{Code: ret, K: 0x00050000 | errno},
		{Code: ret, K: 0x7fff0000},
	}
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
	if r := finish(u.command("", "/bin/sh", "-c", "umask 022; mkdir -p .config/carrel; cat > .config/carrel/policy.yaml"),
		string(rules)); r.code != 0 {
		t.Fatalf("%+v", r)
	}
	u.sh(
		"mkdir -p tmp project .ssh; echo host-secret > .ssh/id; echo rc > .bashrc; cd project && { git init -q . 2>/dev/null || mkdir .git; }",
	)
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

// inside runs a script in a workspace and returns its output.
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
		if err == nil && os.Geteuid() != 0 && !descends(pid) {
			continue
		}
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

// descends reports whether a process is one that this one has started, or one of theirs.
func descends(pid int) bool {
	for pid > 1 && pid != os.Getpid() {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		_, rest, ok := strings.Cut(string(b), "\nPPid:\t")
		if err != nil || !ok {
			return false
		}
		line, _, _ := strings.Cut(rest, "\n")
		if pid, err = strconv.Atoi(line); err != nil {
			return false
		}
	}
	return pid == os.Getpid()
}

// has reports whether the host has a program.
func has(program string) bool {
	_, err := exec.LookPath(program)
	return err == nil
}

// needsPython skips a script that needs Python if it is missing.
func needsPython(t *testing.T, script string) {
	t.Helper()
	if strings.Contains(script, "python3") && !has("python3") {
		t.Skip("skipped: no python3 on this host; apt-get install --no-install-recommends python3")
	}
}
