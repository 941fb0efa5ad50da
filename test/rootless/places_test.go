package rootless_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Two users beside each other, and neither's carrel is the other's to reach.
func TestOwnNeighbours(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("a second user takes root")
	}
	u, v := newOwner(t), newUser(t)
	v.id = testID + 1
	if err := os.Chown(v.home, int(v.id), int(v.id)); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("chown", "-R", fmt.Sprint(v.id), v.home).CombinedOutput(); err != nil {
		t.Fatalf("%s", out)
	}
	t.Cleanup(func() { v.down(t) })
	u.must("create", "mine")
	if got := v.must("ls", "-q"); got != "" {
		t.Errorf("another's workspaces: %q", got)
	}
	socket := filepath.Join(u.home, ".local/state/carrel/run/api.sock")
	c := v.command("", filepath.Join(programs, "carrel"), "--host", "unix://"+socket, "ls")
	if r := finish(c, ""); r.code == 0 || !strings.Contains(r.err, "may not use it") {
		t.Errorf("%+v", r)
	}
	// Even with every door open.
	for _, dir := range []string{
		u.home, u.home + "/.local", u.home + "/.local/state", u.home + "/.local/state/carrel", u.home + "/.local/state/carrel/run",
	} {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(socket, 0o777); err != nil {
		t.Fatal(err)
	}
	c = v.command("", filepath.Join(programs, "carrel"), "--host", "unix://"+socket, "ls")
	if r := finish(c, ""); r.code == 0 || !strings.Contains(r.err, "who is calling") {
		t.Errorf("%+v", r)
	}
	if r := u.carrel("ls"); r.code == 0 || !strings.Contains(r.err, "chmod 700") {
		t.Errorf("a state directory open to others is used: %+v", r)
	}
	for _, dir := range []string{"", "/run"} {
		if err := os.Chmod(u.home+"/.local/state/carrel"+dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	u.must("ls")
}

// Where the socket lies must be the caller's own.
func TestOwnPlaces(t *testing.T) {
	u := newOwner(t)
	u.sh("mkdir -m 700 run; mkdir -m 755 open; mkdir -m 700 odd; mkdir odd/carrel; chmod 777 odd/carrel; ln -s run linked; touch file; " +
		"mkdir -m 700 into; ln -s ../run into/carrel; mkdir -p -m 700 " + u.home + "/" + strings.Repeat("l", 100))
	foreign := filepath.Join(u.home, "foreign")
	if os.Geteuid() == 0 {
		if err := os.Mkdir(foreign, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(filepath.Join(u.home, "mine", "carrel"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(filepath.Join(u.home, "mine"), int(u.id), int(u.id)); err != nil {
			t.Fatal(err)
		}
	}
	at := func(run string, args ...string) result {
		c := u.own(args...)
		c.Env = append(c.Env, "XDG_RUNTIME_DIR="+run)
		return finish(c, "")
	}
	for run, want := range map[string]string{
		foreign:                                    "belongs to uid 0",
		filepath.Join(u.home, "mine"):              "belongs to uid 0",
		filepath.Join(u.home, "open"):              "others can enter it",
		filepath.Join(u.home, "odd"):               "others can enter it",
		filepath.Join(u.home, "linked"):            "no directory",
		filepath.Join(u.home, "into"):              "no directory",
		filepath.Join(u.home, "file"):              "no directory",
		filepath.Join(u.home, "absent"):            "no such file",
		u.home + "/" + strings.Repeat("l", 100):    "bytes long",
		"/tmp":                                     "XDG_RUNTIME_DIR",
		filepath.Join(u.home, "run") + "\n/absent": "XDG_RUNTIME_DIR",
	} {
		if os.Geteuid() != 0 && strings.HasPrefix(want, "belongs") {
			continue
		}
		if r := at(run, "ls"); r.code == 0 || !strings.Contains(r.err, want) {
			t.Errorf("%q: %+v", run, r)
		}
	}
	if strings.Contains(u.log(), "serving") {
		t.Error("a daemon was started")
	}
	// A relative one is ignored, as the specification has it; and one daemon is found from
	// everywhere.
	run := filepath.Join(u.home, "run")
	if r := at(run, "create", "demo"); r.code != 0 {
		t.Fatalf("%+v", r)
	}
	if _, err := os.Stat(run + "/carrel/api.sock"); err != nil {
		t.Error(err)
	}
	for _, other := range []string{"", "run", "../../run"} {
		if r := at(other, "ls", "-q"); r.code != 0 || !strings.HasPrefix(r.out, "ws-") {
			t.Errorf("%q: %+v", other, r)
		}
	}
	if got := strings.Count(u.log(), "msg=serving"); got != 1 {
		t.Errorf("%d daemons", got)
	}
	// The output of a daemon at its start reaches the command that started it.
	u.must("down")
	u.configure("data_dir: /elsewhere\n")
	if r := u.carrel("ls"); r.code == 0 || !strings.Contains(r.err, "the setting data_dir is not for a carrel of one user") {
		t.Errorf("%+v", r)
	}
	u.configure("idle_exit: soon\n")
	if r := u.carrel("ls"); r.code == 0 || !strings.Contains(r.err, "carreld.yaml:1:12") {
		t.Errorf("%+v", r)
	}
	u.configure("")
}

// Which carrel a command speaks to, with a system's beside it, and no falling back.
func TestOwnBesideTheSystems(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("a socket at the system's place takes root")
	}
	u := newUser(t)
	// A place of our own in the stead of /run, for these processes alone.
	ask := func(before, environment, command string) result {
		script := "mount -t tmpfs none /run && mkdir /run/carrel && cd / && " + before + `
exec setpriv --reuid ` + fmt.Sprint(u.id) + " --regid " + fmt.Sprint(u.id) + " --clear-groups env " +
			environment + " " + filepath.Join(programs, "carrel") + " " + command
		c := exec.CommandContext(t.Context(), "unshare", "-m", "--propagation", "private", "sh", "-c", script)
		c.Env = u.env
		return finish(c, "")
	}
	const bind = `python3 -c 'import socket,sys,os; s=socket.socket(socket.AF_UNIX); s.bind("/run/carrel/carrel.sock"); os.chmod("/run/carrel/carrel.sock", int(sys.argv[1], 8))
if len(sys.argv) > 2:
  s.listen(8)
  print("up", flush=True)
  __import__("signal").alarm(20); __import__("signal").pause()' `
	listening := func(mode string) string {
		return "mkfifo /run/up; " + bind + mode + " listen > /run/up 2>/dev/null & read x < /run/up;"
	}
	for _, c := range []struct{ name, before, environment, command, want string }{
		{"none", "true", "", "version -o json", "there is no system's at"},
		{"closed", listening("0600"), "", "version -o json", "is closed to you"},
		{"closed by its directory", listening("0666") + "chmod 700 /run/carrel;", "", "version -o json", "is closed to you"},
		{"forced", listening("0666"), "CARREL_ROOTLESS=1", "version -o json", "asks for your own"},
		{"forced by a flag", listening("0666"), "", "--rootless version -o json", "asks for your own"},
		{"named", listening("0666"), "CARREL_HOST=unix:///run/other.sock CARREL_ROOTLESS=1", "version -o json", "CARREL_HOST names it"},
		{"it has ended", bind + "0666;", "", "version -o json", "though it does not answer"},
		{"it has ended, and is not replaced", bind + "0666;", "", "ls", "nothing listens on it"},
	} {
		if r := ask(c.before, c.environment, c.command); !strings.Contains(r.out+r.err, c.want) {
			t.Errorf("%s: %+v", c.name, r)
		}
	}
	if _, err := os.Stat(filepath.Join(u.home, ".local/state/carrel/daemon.log")); !os.IsNotExist(err) {
		t.Errorf("a daemon was started: %v", err)
	}
}
