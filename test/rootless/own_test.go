package rootless_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/test/userdb"
)

// carrel is a command of the carrel of u's own, which starts by itself and ends with the test.
func (u *user) carrel(args ...string) result {
	u.t.Helper()
	return finish(u.own(args...), "")
}

func (u *user) own(args ...string) *exec.Cmd {
	return u.command("", filepath.Join(programs, "carrel"), append([]string{"--rootless"}, args...)...)
}

// must runs carrel, which must succeed, and returns its output without the last newline.
func (u *user) must(args ...string) string {
	u.t.Helper()
	r := u.carrel(args...)
	if r.code != 0 {
		u.t.Fatalf("carrel %v: %+v\n%s", args, r, u.log())
	}
	return strings.TrimSuffix(r.out, "\n")
}

func (u *user) log() string {
	b, _ := os.ReadFile(filepath.Join(u.home, ".local/state/carrel/daemon.log"))
	return string(b)
}

// newOwner is newUser with a daemon of its own to be, which ends before the home goes.
func newOwner(t *testing.T) *user {
	u := newUser(t)
	t.Cleanup(func() { u.down(t) })
	return u
}

// down ends u's daemon, if there is one.
func (u *user) down(t *testing.T) {
	c := exec.Command(filepath.Join(programs, "carrel"), "--rootless", "down")
	c.Env, c.Dir = u.env, "/"
	if os.Geteuid() == 0 {
		c.SysProcAttr = &syscall.SysProcAttr{Credential: u.credential()}
	}
	if out, err := c.CombinedOutput(); err != nil && !t.Failed() {
		t.Errorf("down: %v\n%s", err, out)
	}
}

// eachOwner runs a test for a user whose executors share the commands' id, and for one who
// has ranges of ids.
func eachOwner(t *testing.T, test func(*testing.T, *user)) {
	t.Run("one id", func(t *testing.T) { test(t, newOwner(t)) })
	t.Run("ranges", func(t *testing.T) { test(t, newRanged(t)) })
}

// rangedIDs are for users with ranges of ids, each of its own number: what is just ending of
// one before keeps useradd's sisters from changing a user.
var rangedIDs atomic.Uint32

// first is the first of their ranges.
const first = 1_900_000_000

// newRanged is newOwner with ranges.
func newRanged(t *testing.T) *user {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("a user with ranges of ids takes root to make")
	}
	if _, err := exec.LookPath("newuidmap"); err != nil {
		t.Skip("newuidmap is not installed (Debian package uidmap)")
	}
	id := uint32(62000 + os.Getpid()%2500 + int(rangedIDs.Add(1)))
	ranged := fmt.Sprintf("carrel-test-%d", id)
	drop := func() { _ = userdb.Run(context.WithoutCancel(t.Context()), "userdel", "-f", ranged) } // what is just ending does not matter
	drop()                                                                                         // of a test that was killed
	for _, args := range [][]string{
		{"useradd", "-M", "-N", "-g", "nogroup", "-u", fmt.Sprint(id), "-d", "/nonexistent", ranged},
		{"usermod", "--del-subuids", "1-4294967294", "--del-subgids", "1-4294967294", ranged},
		{"usermod", "--add-subuids", fmt.Sprintf("%d-%d", first, first+9), "--add-subgids", fmt.Sprintf("%d-%d", first+10, first+19), ranged},
	} {
		if err := userdb.Run(t.Context(), args[0], args[1:]...); err != nil {
			drop()
			t.Fatal(err)
		}
	}
	t.Cleanup(drop)
	u := newOwner(t)
	u.id, u.gid, u.first = id, 65534, first
	if out, err := exec.Command("chown", "-R", fmt.Sprintf("%d:%d", u.id, u.gid), u.home).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return u
}

// Ranges keep executor and commands apart, and the files the caller's.
func TestOwnRanges(t *testing.T) {
	u := newRanged(t)
	u.must("create", "-v", "project:/workspace", "demo")
	got := u.must("inspect", "-o", "json", "demo")
	for _, want := range []string{
		fmt.Sprintf("the executor has uid %d of a range of the caller's, commands the caller's uid %d", first, u.id),
		fmt.Sprintf("uid_map 0 %d 1 %d %d 1 %d %d 1", first, u.id, u.id, first+1, first+1),
		fmt.Sprintf("gid_map 0 %d 1 %d 65534 1 %d %d 1", first+10, u.id, first+1, first+11),
		"getgroups: ok (0)",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	if got := u.must("exec", "demo", "--", "sh", "-c", "id -u; touch /workspace/f; stat -c %u /workspace/f; kill -0 1 2>/dev/null || echo "+
		"held; cat /proc/1/environ 2>/dev/null || echo hidden"); got != fmt.Sprintf("%d\n%d\nheld\nhidden", u.id, u.id) {
		t.Errorf("%q", got)
	}
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(u.home, "project/f"), &st); err != nil || st.Uid != u.id || st.Gid != u.gid {
		t.Errorf("owner %d:%d, %v", st.Uid, st.Gid, err)
	}
	executor := (&user{t: t, id: first}).processes()
	if len(executor) != 1 {
		t.Errorf("executors %v", executor)
	}
	u.killDaemon()
	gone(t, executor...)

	// Ranges that another user's group stands in the way of are not used, and that is told.
	u.gid = 12345
	u.must("start", "demo")
	if got := u.must("inspect", "-o", "json", "demo"); !strings.Contains(got, "share the caller's uid") ||
		!strings.Contains(got, "no range of ids is used: the ranges cannot be mapped") {
		t.Errorf("%s", got)
	}
}

// configure writes the user's configuration of the daemon.
func (u *user) configure(text string) {
	u.t.Helper()
	c := u.command("", "/bin/sh", "-c", "mkdir -p .config/carrel && cat > .config/carrel/carreld.yaml")
	if r := finish(c, text); r.code != 0 {
		u.t.Fatalf("%+v", r)
	}
}

// daemon is the pid of u's daemon, found by who listens.
func (u *user) daemon() int {
	u.t.Helper()
	c, err := net.Dial("unix", filepath.Join(u.home, ".local/state/carrel/run/api.sock"))
	if err != nil {
		return 0
	}
	defer c.Close()
	rc, err := c.(*net.UnixConn).SyscallConn()
	if err != nil {
		u.t.Fatal(err)
	}
	var cred *unix.Ucred
	if cerr := rc.Control(func(fd uintptr) { cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); cerr != nil ||
		err != nil {
		u.t.Fatal(cerr, err)
	}
	return int(cred.Pid)
}

// killDaemon kills u's daemon and waits for its end: until then it may take a connection that
// nobody answers.
func (u *user) killDaemon() {
	u.t.Helper()
	pid := u.daemon()
	if pid <= 0 {
		u.t.Fatal("there is no daemon to kill")
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		u.t.Fatal(err)
	}
	gone(u.t, pid)
}

// gone waits for the end of processes.
func gone(t *testing.T, pids ...int) {
	t.Helper()
	for _, pid := range pids {
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue
		}
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 20_000)
		for errors.Is(err, unix.EINTR) {
			n, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 20_000)
		}
		if n != 1 {
			t.Errorf("process %d lives on: %v", pid, err)
		}
		unix.Close(fd)
	}
}

// until asks again until ok.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(20 * time.Second); !ok(); <-tick.C {
		if time.Now().After(end) {
			t.Fatal("in vain: ", what)
		}
	}
}

// The same words as with root.
func TestOwnWords(t *testing.T) { eachOwner(t, ownWords) }

func ownWords(t *testing.T, u *user) {
	name := u.must("create", "demo")
	if !regexp.MustCompile(`^ws-[0-9a-f]{8}$`).MatchString(name) {
		t.Errorf("name %q", name)
	}
	if r := u.carrel("create", "demo"); r.code != 0 || strings.TrimSpace(r.out) != name {
		t.Errorf("a second create: %+v", r)
	}
	if got := u.must("exec", "demo", "--", "sh", "-c", "echo kept > f; id -u; pwd"); got != fmt.Sprintf("%d\n/home/work", u.id) {
		t.Errorf("exec: %q", got)
	}
	if r := u.carrel("exec", "demo", "--", "sh", "-c", "echo out; echo err >&2; exit 9"); r.code != 9 || r.out != "out\n" || r.err != "err\n" {
		t.Errorf("%+v", r)
	}
	if r := u.carrel("exec", "demo", "--", "no-such-program"); r.code != 127 {
		t.Errorf("%+v", r)
	}
	if r := finish(u.own("exec", "-i", "demo", "--", "cat"), "typed"); r.out != "typed" {
		t.Errorf("%+v", r)
	}
	if got := u.must("ls", "-q"); got != name {
		t.Errorf("ls: %q", got)
	}

	// Several at once, told apart without control groups.
	server := u.must("exec", "--detach", "demo", "--", "sh", "-c", "echo up; sleep 600 & sleep 600")
	until(t, "output", func() bool { return u.must("logs", "demo", server) == "up" })
	if got := u.must("exec", "demo", "--", "sh", "-c", "sleep 601 & echo left"); got != "left" {
		t.Errorf("%q", got)
	}
	if got := u.must("exec", "demo", "--", "sh", "-c", "ps -eo args= | grep -c '^sleep'"); got != "2" {
		t.Errorf("%s processes of the detached command and of what another left", got)
	}
	var ps []struct {
		ID        string `json:"command_id"`
		Processes int    `json:"processes"`
	}
	if err := json.Unmarshal([]byte(u.must("ps", "-o", "json", "demo")), &ps); err != nil || len(ps) != 1 || ps[0].ID != server ||
		ps[0].Processes != 3 {
		t.Errorf("ps: %+v, %v", ps, err)
	}
	attached := u.own("attach", "demo", server)
	out, err := attached.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := attached.Start(); err != nil {
		t.Fatal(err)
	}
	line := make([]byte, 3)
	if _, err := out.Read(line); err != nil || string(line) != "up\n" {
		t.Errorf("attach: %q, %v", line, err)
	}
	u.must("kill", "demo", server)
	if err := attached.Wait(); err == nil || attached.ProcessState.ExitCode() != 143 {
		t.Errorf("attach ended with %v", err)
	}
	u.must("exec", "demo", "--", "true")
	if got := u.must("exec", "demo", "--", "sh", "-c", "ps -eo args= | grep -c '^sleep' || true"); got != "0" {
		t.Errorf("%s processes are left", got)
	}

	u.must("stop", "demo")
	if got := u.must("ls"); !strings.Contains(got, "stopped") {
		t.Errorf("%s", got)
	}
	u.must("start", "demo")
	if got := u.must("exec", "demo", "--", "cat", "f"); got != "kept" {
		t.Errorf("%q", got)
	}
	if got := u.must("inspect", "-o", "json", "demo"); !strings.Contains(got, "RLIMIT_NPROC") {
		t.Errorf("the report does not name what stands for the limits:\n%s", got)
	}
	u.must("top", "--help")
	var chat string
	if chat = u.must("create", "--profile", "chat", "talk"); !strings.HasPrefix(chat, "chat-") {
		t.Errorf("%q", chat)
	}
	if got := u.must("exec", "talk", "--", "git", "log", "--oneline"); !strings.Contains(got, " ") {
		t.Errorf("the chat's repository: %q", got)
	}
	archive := u.must("archive", "create", "demo")
	u.must("destroy", "--purge", "demo", "talk")
	if _, err := os.Stat(filepath.Join(u.home, ".local/state/carrel/homes", name)); !os.IsNotExist(err) {
		t.Errorf("the home is still there: %v", err)
	}
	u.must("restore", archive)
	if got := u.must("exec", "demo", "--", "cat", "f"); got != "kept" {
		t.Errorf("restored: %q", got)
	}
	u.must("destroy", "demo")
	if got := u.must("ls", "--retained"); !strings.Contains(got, ".local/state/carrel/retained/") {
		t.Errorf("%s", got)
	}
	if got := u.must("audit", "verify"); !strings.HasPrefix(got, "ok: ") {
		t.Errorf("%s", got)
	}
	until(t, "an outcome for each intent", func() bool { // they follow without being waited for
		got := u.must("audit", "show", "--last", "1000")
		return strings.Count(got, " intent ") == strings.Count(got, " outcome ") && strings.Contains(got, "command.exec cat f")
	})
}

// What is not available is refused with the reason and the remedy, and nothing is left behind.
func TestOwnRefuses(t *testing.T) {
	u := newOwner(t)
	u.must("create", "demo")
	u.sh("mkdir tmp/closed; chmod 0 tmp/closed; ln -s project link")
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"pause", "demo"}, "takes a control group, and it runs without one"},
		{[]string{"update", "--memory", "2GiB", "demo"}, "stop it first"},
		{[]string{"create", "--disk", "1GiB", "disk"}, "takes root to mount"},
		{[]string{"create", "-v", "tmp/closed:/mnt/x", "closed"}, "may not open it"},
		{[]string{"create", "-v", ".local/state/carrel:/mnt/x", "state"}, "record is kept"},
		{[]string{"--host", "unix:///x", "ls"}, "--rootless together"},
		{[]string{"up"}, "root"},
	} {
		r := u.carrel(c.args...)
		if r.code == 0 || !strings.Contains(r.err, c.want) {
			t.Errorf("%v: %+v", c.args, r)
		}
	}
	if got := u.must("exec", "demo", "--", "echo", "on"); got != "on" {
		t.Errorf("after a refused pause: %q", got)
	}
	if got := u.must("ls"); strings.Count(got, "\n") != 1 {
		t.Errorf("left:\n%s", got)
	}
	if got := u.must("version", "-o", "json"); !strings.Contains(got, `"own": true`) || !strings.Contains(got, "api.sock") {
		t.Errorf("%s", got)
	}
	u.must("stop", "demo")
	u.must("update", "--memory", "2GiB", "demo")
}

// Mounts protect what the host would run, and give it back.
func TestOwnMounts(t *testing.T) { eachOwner(t, ownMounts) }

func ownMounts(t *testing.T, u *user) {
	u.must("create", "-v", "project:/workspace", "one")
	u.must("create", "-v", "project:/mnt/p:ro", "-v", "project:/workspace", "two")
	if r := u.carrel(
		"exec", "one", "--", "sh", "-c", "cd /workspace; touch f; stat -c %u f; touch .git/hooks/x .claude/x",
	); !strings.HasPrefix(r.out, fmt.Sprint(u.id)) || strings.Count(r.err, "Read-only") != 2 {
		t.Errorf("%+v", r)
	}
	if got := u.sh("ls -A project").out; !strings.Contains(got, ".claude\n") {
		t.Errorf("%q", got)
	}
	u.must("stop", "one")
	if got := u.sh("ls -A project").out; !strings.Contains(got, ".claude\n") {
		t.Errorf("the other still runs: %q", got)
	}
	// Whoever removes on the host what protects a name ends the workspace.
	u.sh("rmdir project/.claude")
	until(t, "the workspace to be ended", func() bool { return strings.Count(u.must("ls"), "stopped") == 2 })
	if got := u.sh("ls -A project").out; got != ".git\nf\n" {
		t.Errorf("left: %q", got)
	}
	// Another directory in its place is not what was granted.
	u.sh("mv project gone; mkdir project")
	if r := u.carrel("start", "one"); r.code == 0 || !strings.Contains(r.err, "another directory") {
		t.Errorf("%+v", r)
	}
	if got := u.sh("ls -A project").out; got != "" {
		t.Errorf("left by a failed start: %q", got)
	}
	u.sh("rmdir project; mv gone project")
	u.must("start", "one")
	// Killed, its daemon leaves the names; the next one removes them.
	u.killDaemon()
	u.must("ls")
	if got := u.sh("ls -A project").out; got != ".git\nf\n" {
		t.Errorf("left after a kill: %q", got)
	}
}
