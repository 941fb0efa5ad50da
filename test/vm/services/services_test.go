// Package services_test installs carrel's packages on a host with systemd, and goes with them from the
// installation through work, crashes, an upgrade and "carrel up" to removal and purge. It changes the
// host, so it runs only in a guest of test/vm.
package services_test

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// packages is the directory of the packages, as test/vm says it.
var packages = os.Getenv("CARREL_TEST_PACKAGES")

func TestMain(m *testing.M) {
	if packages == "" {
		os.Stdout.WriteString("SKIP: these tests change the host and run in a guest with systemd: go run ./test/vm -cgroup systemd\n")
		return
	}
	os.Exit(m.Run())
}

// run runs a program and returns what it printed, on stdout and on stderr, and its exit code.
func run(t *testing.T, argv ...string) (out string, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute) // also in a Cleanup
	defer cancel()
	c := exec.CommandContext(ctx, argv[0], argv[1:]...)
	var b bytes.Buffer
	c.Stdout, c.Stderr = &b, &b
	began := time.Now()
	err := c.Run()
	if c.ProcessState == nil {
		t.Fatalf("%s: %v", argv, err)
	}
	t.Logf("%s: code %d in %s\n%s", strings.Join(argv, " "), c.ProcessState.ExitCode(), time.Since(began).Round(time.Millisecond), b.String())
	return strings.TrimSpace(b.String()), c.ProcessState.ExitCode()
}

// must runs what has to end with 0.
func must(t *testing.T, argv ...string) string {
	t.Helper()
	out, code := run(t, argv...)
	if code != 0 {
		t.Fatalf("%s: exit code %d", strings.Join(argv, " "), code)
	}
	return out
}

// refused runs what has to fail and say each of the words.
func refused(t *testing.T, words []string, argv ...string) {
	t.Helper()
	out, code := run(t, argv...)
	if code == 0 {
		t.Errorf("%s was not refused", argv)
	}
	has(t, out, words...)
}

func has(t *testing.T, text string, words ...string) {
	t.Helper()
	for _, w := range words {
		if !strings.Contains(text, w) {
			t.Errorf("it does not say %q", w)
		}
	}
}

func find(t *testing.T, pattern string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(packages, pattern))
	if err != nil || len(found) != 1 {
		t.Fatalf("packages that match %s: %v, %v", pattern, found, err)
	}
	return found[0]
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// mainPID is the process of a unit.
func mainPID(t *testing.T, unit string) int {
	t.Helper()
	out := must(t, "systemctl", "show", "--property=MainPID", "--value", unit)
	pid, err := strconv.Atoi(out)
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

// executor is the process of the workspace, which must run.
func executor(t *testing.T) int {
	t.Helper()
	var w struct {
		State       string
		ExecutorPID int `json:"executor_pid"`
	}
	if err := json.Unmarshal([]byte(must(t, "carrel", "inspect", "demo", "-o", "json")), &w); err != nil {
		t.Fatal(err)
	}
	if w.State != "running" {
		t.Errorf("the workspace is %s", w.State)
	}
	return w.ExecutorPID
}

var units = []string{"carrel-broker.service", "carreld.socket", "carreld.service"}

func allActive(t *testing.T, want string) {
	t.Helper()
	for _, u := range units {
		if out, _ := run(t, "systemctl", "is-active", u); out != want {
			t.Errorf("%s is %s, not %s", u, out, want)
			t.Cleanup(func() { // when everything has said why
				run(t, "journalctl", "--no-pager", "--lines=60", "--unit="+u)
			})
		}
	}
}

// await waits until f holds.
func await(t *testing.T, what string, f func() bool) {
	t.Helper()
	end := time.After(time.Minute)
	for !f() {
		select {
		case <-end:
			t.Fatalf("waited a minute: %s", what)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// From an installation to a purge. The steps depend on each other.
func TestPackage(t *testing.T) {
	must(t, "dpkg", "-i", find(t, "carrel_0.0.1*.deb"))
	installed(t)
	started(t)
	lived(t)
	upgraded(t)
	broughtUp(t)
	removed(t)
}

func installed(t *testing.T) {
	t.Helper()
	for _, path := range []string{
		"/etc/carrel/carreld.yaml", "/usr/share/bash-completion/completions/carrel", "/usr/share/man/man8/carreld.8",
		"/usr/share/zsh/site-functions/_carrel", "/usr/share/fish/vendor_completions.d/carrel.fish",
	} {
		if !exists(path) && !strings.Contains(path, "/man/") { // a guest has no manual pages where dpkg leaves them out
			t.Errorf("there is no %s", path)
		}
	}
	must(t, "id", "carrel")
	must(t, "getent", "group", "carrel-workspaces")
	var st unix.Stat_t
	if err := unix.Stat("/run/carrel", &st); err != nil || st.Uid != 0 || st.Mode&0o7777 != 0o755 {
		t.Errorf("/run/carrel: %v, uid %d, mode %o", err, st.Uid, st.Mode)
	}
	allActive(t, "inactive") // a package starts nothing by itself
	must(t, "systemd-analyze", "verify", "--man=no", "carrel.target", "carrel-broker.service", "carreld.service", "carreld.socket")
	// In tenths: at most 3, and 7 for what has root; docs/operations.md says what remains.
	must(t, "systemd-analyze", "security", "--threshold=30", "--no-pager", "carreld.service")
	must(t, "systemd-analyze", "security", "--threshold=70", "--no-pager", "carrel-broker.service")
}

func started(t *testing.T) {
	t.Helper()
	must(t, "systemctl", "enable", "--now", "carrel.target")
	allActive(t, "active")
	out := must(t, "carrel", "up")
	has(t, out, "run by systemd", "journalctl", "systemctl stop carrel.target")
	refused(t, []string{"systemd", "systemctl stop carrel.target carreld.socket carreld carrel-broker"}, "carrel", "down")
	var st unix.Stat_t
	if err := unix.Lstat("/run/carrel/carrel.sock", &st); err != nil || st.Mode&0o777 != 0o660 {
		t.Errorf("the socket is not opened to its group: %v, mode %o", err, st.Mode)
	}
	b, err := os.ReadFile("/sys/fs/cgroup/cgroup.subtree_control")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []string{"cpu", "io", "memory", "pids"} {
		if !slices.Contains(strings.Fields(string(b)), c) {
			t.Errorf("systemd hands %q down, without %s", b, c)
		}
	}
	must(t, "carrel", "create", "demo")
	has(t, must(t, "carrel", "exec", "demo", "--", "sh", "-c", "id -u; echo kept > ~/file; cat ~/file"), "kept")
	must(t, "carrel", "exec", "--detach", "demo", "--", "sleep", "100000")
	must(t, "carrel", "audit", "verify")
	// The way out of a workspace does not depend on what the units forbid broker and daemon, as IPAddressDeny.
	must(t, "carrel", "create", "--allow", "127.0.0.1:9", "reaching")
	out = must(t, "carrel", "exec", "reaching", "--", "bash", "-c", greeting)
	has(t, out, "carrel-egress", "connection refused")
}

// greeting asks carrel-egress for the answer to a probe, and for a connection to a port of the host where nobody listens.
const greeting = `cat < /dev/tcp/198.18.0.1/443
exec 3<>/dev/tcp/127.0.0.53/3128
printf 'CONNECT 127.0.0.1:9 HTTP/1.1\r\nHost: 127.0.0.1:9\r\n\r\n' >&3; cat <&3`

// answers sees that the workspace with a way out has one, and that nobody who connects waits for it.
func answers(t *testing.T) {
	t.Helper()
	await(t, "the way out of a workspace", func() bool {
		c := exec.Command("carrel", "exec", "reaching", "--", "bash", "-c", greeting)
		var b bytes.Buffer
		c.Stdout, c.Stderr = &b, &b
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		hangs := time.AfterFunc(20*time.Second, func() {
			evidence(t)
			_ = c.Process.Kill()
		})
		_ = c.Wait()
		if !hangs.Stop() {
			t.Errorf("a connection hangs: %s", &b)
		}
		t.Logf("carrel exec reaching: %s", &b)
		return strings.Contains(b.String(), "connection refused")
	})
}

// evidence logs what hangs: what runs inside and where it is connected, what the daemon does, and what the units said.
func evidence(t *testing.T) {
	t.Helper()
	run(t, "carrel", "ps", "reaching")
	run(t, "sh", "-c", "ps -eo pid,ppid,user,stat,wchan:30,args | grep -E 'carrel|bash|cat'")
	run(t, "sh", "-c", "for p in $(pgrep -f '^bash -c cat'); do cat /proc/$p/net/tcp; ls -l /proc/$p/fd; cat /proc/$p/stack; done")
	run(t, "journalctl", "--no-pager", "-n", "100", "-u", "carreld.service", "-u", "carrel-broker.service")
}

// lived is what a crash and a restart of each part leaves running.
func lived(t *testing.T) {
	t.Helper()
	before := executor(t)
	for _, u := range []string{"carrel-broker.service", "carreld.service"} {
		pid := mainPID(t, u)
		if err := unix.Kill(pid, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		await(t, u+" is started again", func() bool { p := mainPID(t, u); return p != 0 && p != pid })
		await(t, u+" serves", func() bool { out, _ := run(t, "systemctl", "is-active", u); return out == "active" })
		answers(t)
		if now := executor(t); now != before {
			t.Errorf("after a crash of %s the executor is %d, before it was %d", u, now, before)
		}
	}
	must(t, "carrel", "destroy", "--purge", "reaching")
	must(t, "systemctl", "restart", "carreld.service", "carrel-broker.service")
	if now := executor(t); now != before {
		t.Errorf("after a restart the executor is %d, before it was %d", now, before)
	}
	has(t, must(t, "carrel", "ps", "demo"), "sleep 100000")
	must(t, "systemctl", "reload", "carreld.service")
}

func upgraded(t *testing.T) {
	t.Helper()
	before := executor(t)
	must(t, "dpkg", "-i", find(t, "carrel_0.0.2*.deb"))
	allActive(t, "active")
	has(t, must(t, "carrel", "version"), "daemon  v0.0.2")
	if now := executor(t); now != before {
		t.Errorf("after the upgrade the executor is %d, before it was %d", now, before)
	}
	has(t, must(t, "carrel", "ps", "demo"), "sleep 100000")
	has(t, must(t, "carrel", "exec", "demo", "--", "sh", "-c", "cat ~/file"), "kept")
}

// broughtUp goes from the units to "carrel up" on the same data and back.
func broughtUp(t *testing.T) {
	t.Helper()
	before := executor(t)
	must(t, append([]string{"systemctl", "stop", "carrel.target"}, units...)...)
	allActive(t, "inactive")
	must(t, "carrel", "up", "--detach")
	if now := executor(t); now != before {
		t.Errorf("under up the executor is %d, before it was %d", now, before)
	}
	_, code := run(t, "systemctl", "start", "carrel-broker.service")
	if code == 0 {
		t.Error("systemd started a second broker")
	}
	run(t, "journalctl", "--no-pager", "-n", "20", "-u", "carrel-broker.service")
	must(t, "systemctl", "stop", "carrel-broker.service")
	must(t, "carrel", "down")
	must(t, "id", "carrel") // the package's, not up's
	must(t, "systemctl", "reset-failed", "carrel-broker.service")
	must(t, "systemctl", "start", "carrel.target")
	allActive(t, "active")
	has(t, must(t, "carrel", "exec", "demo", "--", "sh", "-c", "cat ~/file"), "kept")
}

func removed(t *testing.T) {
	t.Helper()
	must(t, "dpkg", "-r", "carrel")
	for _, path := range []string{
		"/usr/bin/carrel", "/usr/lib/systemd/system/carreld.service", "/run/carrel/carrel.sock", "/sys/fs/cgroup/carrel",
	} {
		if exists(path) {
			t.Errorf("%s is left", path)
		}
	}
	if out, _ := run(t, "ps", "-eo", "pid,args"); strings.Contains(out, "carrel-executor") || strings.Contains(out, "carreld") {
		t.Error("processes are left")
	}
	// A home is nobody's to remove but its user's.
	has(t, must(t, "dpkg", "-P", "carrel"), "/var/lib/carrel stays", "carrel destroy --purge")
	if exists("/etc/carrel") {
		t.Error("/etc/carrel is left after a purge")
	}
	must(t, "dpkg", "-i", find(t, "carrel_0.0.2*.deb"))
	must(t, "systemctl", "enable", "--now", "carrel.target")
	has(t, must(t, "carrel", "exec", "demo", "--", "sh", "-c", "cat ~/file"), "kept")
	must(t, "carrel", "destroy", "--purge", "demo")
	must(t, "dpkg", "-P", "carrel")
	if exists("/var/lib/carrel") {
		t.Error("/var/lib/carrel is left after a purge without workspaces")
	}
	if out, _ := run(t, "grep", "carrel workspace", "/etc/passwd"); out != "" {
		t.Error("a user of a workspace is left")
	}
}

// The same files and scripts as an rpm.
func TestRPM(t *testing.T) {
	if _, err := exec.LookPath("rpm"); err != nil {
		t.Skip("the host that made this guest has no rpm")
	}
	must(t, "rpm", "--initdb")
	for _, argv := range [][]string{{"-i", find(t, "carrel-0.0.1*.rpm")}, {"-U", find(t, "carrel-0.0.2*.rpm")}} {
		must(t, append([]string{"rpm", "--force-debian", "--nodeps"}, argv...)...)
	}
	must(t, "systemctl", "start", "carrel.target")
	has(t, must(t, "carrel", "version"), "daemon  v0.0.2")
	must(t, "rpm", "--force-debian", "-e", "carrel")
	allActive(t, "inactive")
	if exists("/usr/bin/carrel") {
		t.Error("/usr/bin/carrel is left")
	}
}
