package root_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/boundary/runtime/namespace"
	"github.com/carrel-dev/carrel/internal/boundary/runtime/runtimetest"
)

// insideEnv is set in the process that has an /etc of its own.
const insideEnv = "CRT_OWN_ETC"

const sudoUser = "crt-sudo"

// TestBySudo runs what is below with an /etc of its own, in which users, sudo's rules and
// the broker's settings are made: nothing of it reaches the host.
func TestBySudo(t *testing.T) {
	needRoot(t)
	if os.Getenv(insideEnv) != "" {
		t.Skip("this is the process that it starts")
	}
	if _, err := exec.LookPath("sudo"); err != nil {
		t.Skip("skipped: there is no sudo; apt-get install sudo")
	}
	dir, err := os.MkdirTemp(base, "s")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // no command of carrel's takes down what a broker by sudo used
		for _, pattern := range []string{"/sys/fs/cgroup/", "/sys/fs/cgroup/*/"} {
			groups, err := filepath.Glob(pattern + groupBySudo(dir))
			if err != nil {
				t.Error(err)
			}
			for _, g := range groups {
				if err := os.Remove(g); err != nil {
					t.Errorf("a control group is left: %v", err)
				}
			}
		}
	})
	for _, d := range []string{"upper", "work"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	script := `mount -t overlay overlay -o "lowerdir=/etc,upperdir=$0/upper,workdir=$0/work" /etc && exec "$@"`
	c := exec.CommandContext(ctx, "unshare", "--mount", "--propagation", "private", "sh", "-c", script, dir, "/proc/self/exe")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c.Args[len(c.Args)-1] = self
	c.Args = append(c.Args, "-test.run=^TestOwnEtc", "-test.v", "-test.timeout=150s")
	c.Env = append(os.Environ(), insideEnv+"="+dir)
	out, err := c.CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("--- PASS: TestOwnEtcConformance")) ||
		!bytes.Contains(out, []byte("--- PASS: TestOwnEtcDaemon")) {
		t.Errorf("%v\n%s", err, out)
	}
}

// ownEtc makes user, rule and settings, and returns the directory for the rest.
func ownEtc(t *testing.T) string {
	t.Helper()
	dir := os.Getenv(insideEnv)
	if dir == "" {
		t.Skip("skipped: TestBySudo runs it with an /etc of its own")
	}
	dir = filepath.Join(dir, t.Name())
	run := func(name string, args ...string) string {
		t.Helper()
		out, err := exec.CommandContext(t.Context(), name, args...).Output()
		if err != nil {
			t.Fatalf("%s %v: %v", name, args, err)
		}
		return string(out)
	}
	if err := exec.CommandContext(t.Context(), "id", sudoUser).Run(); err != nil {
		// A lock of the host's user database, which others use meanwhile, shows through the overlay.
		until(t, "the user", func() bool {
			add := []string{"--system", "--user-group", "--no-create-home", "--uid", fmt.Sprint(brokerUID), sudoUser}
			out, err := exec.CommandContext(t.Context(), "useradd", add...).CombinedOutput()
			if err != nil {
				t.Logf("useradd: %v: %s", err, out)
			}
			return err == nil
		})
	}
	write := func(path, text string, mode os.FileMode) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
	}
	rule := run(filepath.Join(bin, "carrel"), "setup", "--print-sudoers", "--user", sudoUser, "--broker", filepath.Join(bin, "carrel-broker"))
	write("/etc/sudoers.d/carrel", rule, 0o440)
	run("visudo", "-c", "-f", "/etc/sudoers.d/carrel")
	var settings map[string]any
	text := run(filepath.Join(bin, "carrel"), "setup", "--print-settings", "--user", sudoUser, "--broker", filepath.Join(bin, "carrel-broker"))
	if err := json.Unmarshal([]byte(text), &settings); err != nil {
		t.Fatal(err)
	}
	if settings["daemon_uid"] != float64(brokerUID) {
		t.Errorf("settings %s", text)
	}
	// What is printed is for the default directories.
	maps.Copy(settings, map[string]any{
		"data_dir": dir + "/data", "runtime_dir": dir + "/run", "uid_first": 1_869_000_000 + 3000*(os.Getpid()%300), "uid_count": 3000,
		"cgroup_name": groupBySudo(filepath.Dir(dir)),
	})
	b, err := json.Marshal(settings)
	if err != nil {
		t.Fatal(err)
	}
	write("/etc/carrel/broker.json", string(b), 0o600)
	for path, uid := range map[string]int{dir: 0, dir + "/data": 0, dir + "/data/daemon": brokerUID, dir + "/run": brokerUID} {
		if err := os.MkdirAll(path, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(path, uid, uid); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(dir+"/data/daemon", 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

// groupBySudo names the control groups of the broker that has its /etc below dir.
func groupBySudo(dir string) string { return "crt-" + filepath.Base(dir) }

// as makes a command one of the user's.
func as(c *exec.Cmd) *exec.Cmd {
	c.Dir = "/"
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: brokerUID, Gid: brokerUID}}
	return c
}

// The same suite that a broker service passes.
func TestOwnEtcConformance(t *testing.T) {
	dir := ownEtc(t)
	// The rule allows this, and nothing that looks like it.
	program := filepath.Join(bin, "carrel-broker")
	for _, args := range [][]string{
		{program},
		{program, "--stdio", "--settings", "/tmp/x"},
		{program, "--settings", "/tmp/x", "--stdio"},
		{program, "--version"},
		{filepath.Join(bin, "carrel-executor")},
		{"/bin/sh", "-c", "id"},
		{"-u", "nobody", program, "--stdio"},
	} {
		if out, err := as(exec.CommandContext(t.Context(), "sudo", append([]string{"-n"}, args...)...)).CombinedOutput(); err == nil {
			t.Errorf("sudo let %v through: %s", args, out)
		}
	}
	runtimetest.Run(t, func(t *testing.T) runtime.Runtime {
		return namespace.New(namespace.Config{RuntimeDir: dir + "/run", Dial: func(context.Context) (*net.UnixConn, error) {
			pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return nil, err
			}
			ours, theirs := os.NewFile(uintptr(pair[0]), "ours"), os.NewFile(uintptr(pair[1]), "theirs")
			defer ours.Close()
			defer theirs.Close()
			// It ends with its connection, after the test's own context.
			c := as(exec.CommandContext(context.WithoutCancel(t.Context()), "sudo", "-n", program, "--stdio"))
			c.Stdin = theirs
			if err := c.Start(); err != nil {
				return nil, err
			}
			go func() { _ = c.Wait() }()
			conn, err := net.FileConn(ours)
			if err != nil {
				return nil, err
			}
			return conn.(*net.UnixConn), nil
		}})
	})
}

// A daemon that starts its broker by sudo serves as any other, and ends with it.
func TestOwnEtcDaemon(t *testing.T) {
	dir := ownEtc(t)
	var log bytes.Buffer
	d := as(exec.CommandContext(t.Context(), filepath.Join(bin, "carreld"), "--broker", "sudo",
		"--broker-path", filepath.Join(bin, "carrel-broker"),
		"--data-dir", dir+"/data", "--runtime-dir", dir+"/run", "--socket-group", "", "--ready-fd", "3"))
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	d.ExtraFiles, d.Stderr = []*os.File{w}, &log
	if err := d.Start(); err != nil {
		t.Fatal(err)
	}
	_ = w.Close()
	_ = r.SetReadDeadline(time.Now().Add(patience))
	var line [6]byte
	if n, err := r.Read(line[:]); err != nil || string(line[:n]) != "ready\n" {
		_ = d.Process.Kill()
		_ = d.Wait()
		t.Fatalf("%q, %v\n%s", line[:n], err, &log)
	}
	carrel := func(args ...string) string {
		t.Helper()
		c := as(exec.CommandContext(t.Context(), filepath.Join(bin, "carrel"), args...))
		c.Env = []string{"PATH=" + os.Getenv("PATH"), "CARREL_HOST=unix://" + dir + "/run/carrel.sock"}
		out, err := c.CombinedOutput()
		if err != nil {
			t.Errorf("carrel %v: %v: %s", args, err, out)
		}
		return string(out)
	}
	carrel("create", "demo")
	if out := carrel("exec", "demo", "--", "cat", "/proc/self/status"); !strings.Contains(out, "NoNewPrivs:\t1") {
		t.Errorf("inside: %s", out)
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", d.Process.Pid))
	if err != nil || !bytes.Contains(status, []byte("NoNewPrivs:\t1")) {
		t.Errorf("the daemon could gain privileges again: %v", err)
	}
	carrel("destroy", "--purge", "demo")
	// The broker's end is the daemon's, and it says so.
	out, err := exec.CommandContext(t.Context(), "pgrep", "-x", "-P", childOf(t, d.Process.Pid), "carrel-broker").Output()
	if err != nil {
		t.Fatalf("no broker below the daemon: %v", err)
	}
	var pid int
	if _, err := fmt.Sscan(string(out), &pid); err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := d.Wait(); err == nil || !strings.Contains(log.String(), "the broker that sudo started has ended") {
		t.Errorf("the daemon ended with %v\n%s", err, &log)
	}
}

// childOf is the pid of the one child, sudo, whose child the broker is.
func childOf(t *testing.T, pid int) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "pgrep", "-P", fmt.Sprint(pid)).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}
