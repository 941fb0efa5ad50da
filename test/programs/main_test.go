//go:build linux

package programs_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/carrel-dev/carrel/test/built"
	"github.com/carrel-dev/carrel/test/supervise"
)

// base holds everything that the tests make; baseEnv tells a test binary that another one
// cleans up behind it.
var base string

const baseEnv = "CARREL_PROGRAMS_BASE"

// testID is the id of the ordinary user if the tests run as root. No host uses it.
const testID = 61773

func TestMain(m *testing.M) {
	if base = os.Getenv(baseEnv); base == "" {
		os.Exit(supervise.Run("carrel-programs-", baseEnv, clean))
	}
	if err := prepare(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func prepare() error {
	if err := built.Programs(context.Background(), base+"/bin"); err != nil {
		return err
	}
	// What policy asks about is tried elsewhere: here nobody is there to answer.
	rules, err := os.ReadFile(filepath.Join("..", "permissive.yaml"))
	if err != nil {
		return err
	}
	if err := os.WriteFile(base+"/policy.yaml", rules, 0o644); err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		return nil
	}
	settings := "policy:\n  path: " + base + "/policy.yaml\n"
	if err := os.WriteFile(base+"/carreld.yaml", []byte(settings), 0o644); err != nil {
		return err
	}
	return carrel("up", "--detach", "--prefix", "cpt", "--config", base+"/carreld.yaml", "--data", base+"/data", "--runtime-dir", base+"/run")
}

func clean(base string) error {
	var err error
	if _, serr := os.Stat(base + "/data/up.json"); serr == nil {
		programs := base + "/bin/carrel"
		c := exec.CommandContext(context.Background(), programs, "ls", "-q")
		c.Env = environment(base)
		out, lerr := c.Output()
		err = lerr
		if names := strings.Fields(string(out)); len(names) > 0 {
			err = errors.Join(err, carrelAt(base, append([]string{"destroy", "--purge"}, names...)...))
		}
		err = errors.Join(err, carrelAt(base, "down", "--purge", "--data", base+"/data", "--runtime-dir", base+"/run"))
	}
	return errors.Join(err, os.RemoveAll(base))
}

func carrel(args ...string) error { return carrelAt(base, args...) }

func carrelAt(base string, args ...string) error {
	c := exec.CommandContext(context.Background(), base+"/bin/carrel", args...)
	c.Env = environment(base)
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("carrel %s: %w\n%s", args[0], err, out)
	}
	return nil
}

// environment is root's, for the carrel of the tests.
func environment(base string) []string {
	return []string{"HOME=" + base, "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "TERM=xterm", "CARREL_HOST=unix://" + base + "/run/carrel.sock"}
}

// caller is who says "carrel run": root, through the daemon, or an ordinary user.
type caller struct {
	name string
	id   uint32
	home string
	env  []string
}

// ordinary is an ordinary user, to whom every project belongs.
func ordinary() *caller {
	user := &caller{name: "user", id: uint32(os.Geteuid()), home: base + "/user"}
	if user.id == 0 {
		user.id = testID
	}
	user.env = []string{"HOME=" + user.home, "PATH=/usr/bin:/bin", "TERM=xterm"}
	return user
}

// callers are those that this host can have.
func callers(t *testing.T) []*caller {
	t.Helper()
	user := ordinary()
	all := []*caller{user}
	if os.Geteuid() == 0 {
		all = append(all, &caller{name: "root", home: base + "/root", env: environment(base)})
	} else {
		t.Log("only as an ordinary user: the way through the daemon needs root")
	}
	for _, c := range all {
		if err := os.MkdirAll(c.home, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(c.home, int(c.id), int(c.id)); err != nil {
			t.Fatal(err)
		}
	}
	config := user.command(t, user.home, "/bin/sh", "-ec", "mkdir -p .config/carrel; cp "+base+"/policy.yaml .config/carrel/")
	if out, err := config.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	probe := user.command(t, user.home, "/usr/bin/unshare", "-U", "true")
	if out, err := probe.CombinedOutput(); err != nil {
		t.Logf("skipped: this host lets no ordinary user make user namespaces: %s", out)
		all = all[1:]
	}
	if len(all) == 0 {
		t.Skip("skipped: nobody here can make a workspace")
	}
	return all
}

// patience bounds each program: the first go test compiles the standard library.
const patience = 3 * time.Minute

func (c *caller) command(t *testing.T, dir, name string, args ...string) *exec.Cmd {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience) // what cleans up too
	t.Cleanup(cancel)
	x := exec.CommandContext(ctx, name, args...)
	x.Dir, x.Env = dir, c.env
	x.SysProcAttr = &syscall.SysProcAttr{Credential: c.credential()}
	return x
}

// credential is nil where the caller is who runs the tests.
func (c *caller) credential() *syscall.Credential {
	if int(c.id) == os.Geteuid() {
		return nil
	}
	return &syscall.Credential{Uid: c.id, Gid: c.id}
}

// project makes a directory for the caller.
func (c *caller) project(t *testing.T, name string) string {
	t.Helper()
	dir := filepath.Join(c.home, strings.ReplaceAll(name, " ", "-"))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	own(t, dir)
	return dir
}

// own gives a directory to the ordinary user, because a directory of root is not mounted writable.
func own(t *testing.T, dir string) {
	t.Helper()
	id := int(ordinary().id)
	if err := os.Chown(dir, id, id); err != nil {
		t.Fatal(err)
	}
}

// result is how a command ended.
type result struct {
	code     int
	out, err string
}

// run is "carrel run" in a directory.
func (c *caller) run(t *testing.T, dir string, args ...string) result {
	t.Helper()
	return finish(c.command(t, dir, base+"/bin/carrel", append([]string{"run"}, args...)...))
}

func finish(x *exec.Cmd) result {
	var out, errs bytes.Buffer
	x.Stdout, x.Stderr = &out, &errs
	err := x.Run()
	r := result{x.ProcessState.ExitCode(), out.String(), errs.String()}
	if r.code < 0 {
		r.err += fmt.Sprint(err)
	}
	return r
}
