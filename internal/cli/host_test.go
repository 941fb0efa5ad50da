package cli_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/internal/boundary/broker"
	"github.com/carrel-dev/carrel/internal/cli"
	"github.com/carrel-dev/carrel/internal/linux/pidfd"
)

// What up writes must be what the broker reads, strictly.
func TestSettingsAreTheBrokers(t *testing.T) {
	for name, c := range map[string]struct {
		old, data, cgroup string
		first             uint32
	}{
		"new":           {"", "/var/lib/carrel", "carrel", 1879048192},
		"other":         {"", "/srv/x", "carrel-7db5a45b", 0},
		"administrator": {`{"uid_first": 2000000, "shell": "/bin/sh", "data_dir": "/elsewhere"}`, "/var/lib/carrel", "carrel", 2000000},
	} {
		t.Run(name, func(t *testing.T) {
			all, err := cli.Settings([]byte(c.old), c.data, "/run/x")
			if err != nil {
				t.Fatal(err)
			}
			b, err := json.Marshal(all)
			if err != nil {
				t.Fatal(err)
			}
			s, err := broker.ParseSettings(b)
			if err != nil {
				t.Fatal(err)
			}
			if s.DataDir != c.data || s.RuntimeDir != "/run/x" || s.DaemonUID != 999 || s.DaemonGID != 995 ||
				c.first != 0 && s.UIDFirst != c.first ||
				s.UIDCount != 1<<20 || len(s.CgroupName) != len(c.cgroup) || !strings.HasPrefix(s.CgroupName, "carrel") || s.ExecutorPath == "" {
				t.Errorf("settings %+v", s)
			}
			if c.first == 0 && s.UIDFirst < 1879048192+1<<20 {
				t.Errorf("its ids from %d are the default instance's", s.UIDFirst)
			}
			if c.old != "" && s.Shell != "/bin/sh" {
				t.Errorf("the administrator's shell is lost: %+v", s)
			}
		})
	}
	if _, err := cli.Settings([]byte("not json"), "/a", "/b"); err == nil {
		t.Error("settings that are not JSON were written over")
	}
}

func TestCheckDir(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("skipped: needs root, to make directories of other users")
	}
	dir, err := os.MkdirTemp("/var/tmp", "carrel-test")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	mk := func(name string, mode os.FileMode, uid int) string {
		p := filepath.Join(dir, name)
		if err := os.Mkdir(p, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(p, uid, 0); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(p, mode); err != nil {
			t.Fatal(err)
		}
		return p
	}
	mk("mallory", 0o755, 1001)
	mk("open", 0o777, 0)
	if err := os.Symlink(mk("real", 0o711, 0), filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, text := range map[string]string{
		mk("fine", 0o711, 0):                 "",
		mk("mallory/below", 0o711, 0):        "belongs to uid 1001",
		mk("open/below", 0o711, 0):           "can be written by others",
		mk("group", os.ModeSticky|0o775, 0):  "can be written by others",
		mk("sticky", os.ModeSticky|0o777, 0): "can be written by others",
		filepath.Join(dir, "link"):           "is a symbolic link",
		filepath.Join(dir, "file"):           "is not a directory",
		mk("sticky/below", 0o711, 0):         "",
		filepath.Join(dir, "none"):           "no such file",
		mk("hers", 0o711, 1001):              "belongs to uid 1001",
	} {
		err := cli.CheckDir(path)
		if (err == nil) != (text == "") || err != nil && !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v, want %q", path, err, text)
		}
	}
}

func TestEnterable(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("skipped: needs root, to make directories of other users")
	}
	dir, err := os.MkdirTemp("/var/tmp", "carrel-test")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	p := filepath.Join(dir, "data", "daemon")
	if err := os.MkdirAll(p, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		mode os.FileMode
		gid  int
		ok   bool
	}{{0o700, 0, false}, {0o711, 0, true}, {0o710, 0, false}, {0o710, 995, true}, {0o701, 995, false}} {
		if err := os.Chown(dir, 0, c.gid); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(dir, c.mode); err != nil {
			t.Fatal(err)
		}
		err := cli.Enterable(p, 999, 995)
		if (err == nil) != c.ok || err != nil && !strings.Contains(err.Error(), "chmod o+x "+dir) {
			t.Errorf("mode %v, gid %d: %v", c.mode, c.gid, err)
		}
	}
}

// A pid that another process got must not be mistaken for the daemon, and so must
// never be signalled.
func TestAReusedPidIsNotRunning(t *testing.T) {
	dir := t.TempDir()
	c := exec.Command("sleep", "60")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer c.Wait()
	defer c.Process.Kill()
	start, err := pidfd.StartTime(c.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	write := func(text string) {
		if err := os.WriteFile(filepath.Join(dir, "daemon.pid"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(fmt.Sprintf(`{"pid":%d,"start_time":%d}`, c.Process.Pid, start))
	if !cli.Running(dir, "daemon") {
		t.Error("a process that lives is not running")
	}
	for _, text := range []string{
		fmt.Sprintf(`{"pid":%d,"start_time":%d}`, c.Process.Pid, start+1),
		fmt.Sprintf(`{"pid":%d}`, c.Process.Pid),
		`{"pid":1,"start_time":1}`, `{"pid":-1}`, `{"pid":0}`, `4711`, ``,
	} {
		if write(text); cli.Running(dir, "daemon") {
			t.Errorf("%q is taken for a daemon that runs", text)
		}
	}
	write(fmt.Sprintf(`{"pid":%d,"start_time":%d}`, c.Process.Pid, start))
	if err := c.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = c.Wait()
	if cli.Running(dir, "daemon") {
		t.Error("a process that has ended is running")
	}
}

func TestDetachKeys(t *testing.T) {
	for in, want := range map[string]struct {
		out      string
		detached bool
	}{
		"abc":               {"abc", false},
		"a\x10\x11b":        {"a", true},
		"a\x10b":            {"a\x10b", false},
		"\x10\x10\x11":      {"\x10", true},
		"\x11\x10x\x10\x11": {"\x11\x10x", true},
	} {
		if out, detached := cli.DetachKeys(in); out != want.out || detached != want.detached {
			t.Errorf("%q: %q, %v", in, out, detached)
		}
	}
}

func TestUpAndDownRefuse(t *testing.T) {
	for _, c := range []struct {
		args, text string
		user       bool
	}{
		{"up --data / --runtime-dir /run/x", "it must be a directory of its own", false},
		{"up --data /srv/a --runtime-dir /srv/a/run", "one must not hold the other", false},
		{"up --prefix Bad!", "name prefix", false},
		{"up extra", "cannot use the argument", true},
		{"down --data a:b", "without colons", false},
	} {
		if !c.user && os.Geteuid() != 0 {
			c.text = "try: sudo carrel"
		}
		if r := run(t, "", strings.Fields(c.args)...); r.code != 1 || !strings.Contains(r.err, c.text) {
			t.Errorf("%q: %+v, want %q", c.args, r, c.text)
		}
	}
	dir := t.TempDir()
	if r := run(t, "", "down", "--data", dir, "--runtime-dir", dir+"-run"); os.Geteuid() == 0 &&
		(r.code != 0 || !strings.HasPrefix(r.out, "Nothing to do")) {
		t.Errorf("down of nothing: %+v", r)
	}
}

func TestDoctor(t *testing.T) {
	t.Setenv("CARREL_HOST", "unix:///none/carrel.sock")
	var v struct {
		OK, Rootless bool
		Checks       []struct{ ID, State, Found, Remedy string }
	}
	r := run(t, "", "doctor", "-o", "json")
	if err := json.Unmarshal([]byte(r.out), &v); err != nil || len(v.Checks) < 20 {
		t.Fatalf("doctor: %+v: %v", r, err)
	}
	if works := map[bool]bool{true: v.OK, false: v.Rootless}[os.Geteuid() == 0]; works != (r.code == 0) {
		t.Errorf("doctor: %+v", r)
	}
	last := v.Checks[len(v.Checks)-1]
	if last.ID != "daemon" || last.State != "no" || last.Remedy != "sudo carrel up --detach" {
		t.Errorf("daemon: %+v", last)
	}
	if r := run(t, "", "doctor"); !strings.Contains(r.out, "With root (carrel up):      ") {
		t.Errorf("doctor: %+v", r)
	}
}
