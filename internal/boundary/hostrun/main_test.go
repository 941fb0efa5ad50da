// Package hostrun_test runs commands under each profile, as the caller, or, if that is root, as root and as an id that no
// user of the host has.
package hostrun_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/boundary/hostrun"
)

// ordinary is an id that no user of the host has.
const ordinary = 61990

// asked has this test's program call Run, in the environment of a process of its own: as another user, or to be killed.
const asked = "CARREL_HOSTRUN_COMMAND"

// answer is what that process prints.
type answer struct {
	Result hostrun.Result
	Error  string
	Kind   string
}

func TestMain(m *testing.M) {
	if code, is := hostrun.Stage(os.Args); is {
		os.Exit(code)
	}
	if text := os.Getenv(asked); text != "" {
		os.Exit(runAsked(text))
	}
	if name := os.Getenv(acting); name != "" {
		os.Exit(act(name))
	}
	os.Exit(m.Run())
}

func runAsked(text string) int {
	var c hostrun.Command
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	r := hostrun.NewRunner(nil)
	defer r.Ready(c.Profile)() // what holds a command is the same where its supervisor was started ahead
	res, err := r.Run(signalled(), c)
	a := answer{Result: res}
	if err != nil {
		a.Error = err.Error()
		for kind, is := range map[string]func(error) bool{
			"invalid_argument": errdefs.IsInvalidArgument, "permission_denied": errdefs.IsPermissionDenied, "not_found": errdefs.IsNotFound,
			"failed_precondition": errdefs.IsFailedPrecondition,
		} {
			if is(err) {
				a.Kind = kind
			}
		}
	}
	if err := json.NewEncoder(os.Stdout).Encode(a); err != nil {
		return 1
	}
	return 0
}

// user is who runs commands.
type user struct {
	name string
	id   uint32
	// home is a directory of the user's, below no private one.
	home string
}

// users runs f as root, where the test is, and as an ordinary user.
func users(t *testing.T, f func(t *testing.T, u *user)) {
	t.Helper()
	ids := []struct {
		name string
		id   int
	}{{"ordinary", os.Geteuid()}}
	if os.Geteuid() == 0 {
		ids[0].id = ordinary
		ids = append(ids, struct {
			name string
			id   int
		}{"root", 0})
	} else {
		t.Log("SKIP: what root runs is tried as root alone")
	}
	for _, i := range ids {
		t.Run(i.name, func(t *testing.T) { f(t, newUser(t, i.name, uint32(i.id))) })
	}
}

// place is where users' directories are: on disk, and below no directory that is private to a command.
func place(t *testing.T) string {
	t.Helper()
	if os.Geteuid() == 0 {
		return "/opt"
	}
	home, err := os.UserHomeDir()
	if err != nil {
		t.Fatal(err)
	}
	return home
}

func newUser(t *testing.T, name string, id uint32) *user {
	t.Helper()
	dir, err := os.MkdirTemp(place(t), "carrel-hostrun-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := errors.Join(os.Chmod(dir, 0o755), os.Chown(dir, int(id), -1)); err != nil {
		t.Fatal(err)
	}
	return &user{name, id, dir}
}

// program is this test's program where every user may run it.
func program(t *testing.T, u *user) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	path := u.home + "/program"
	if _, err := os.Stat(path); err == nil {
		return path
	}
	if err := os.WriteFile(path, b, 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// caller is a process of the user's that runs a command.
func (u *user) caller(t *testing.T, c hostrun.Command) *exec.Cmd {
	t.Helper()
	c.AllowRoot = c.AllowRoot || u.id == 0
	if c.Dir == "" {
		c.Dir = u.home
	}
	text, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), program(t, u))
	cmd.Dir = u.home
	cmd.Env = []string{
		asked + "=" + string(text), "PATH=" + os.Getenv("PATH"), "HOME=" + u.home, "GORACE=atexit_sleep_ms=0", "PASSED=on", "KEPT=back",
	}
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: credential(u)}
	return cmd
}

// run has the user run a command.
func (u *user) run(t *testing.T, c hostrun.Command) answer {
	t.Helper()
	out, err := u.caller(t, c).Output()
	if err != nil {
		t.Fatalf("the caller: %v", err)
	}
	var a answer
	if err := json.Unmarshal(out, &a); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return a
}

// sh has the user run a script of the shell, which must begin.
func (u *user) sh(t *testing.T, p hostrun.Profile, script string) hostrun.Result {
	t.Helper()
	a := u.run(t, hostrun.Command{Argv: []string{"sh", "-c", script}, Profile: p})
	if a.Error != "" {
		t.Fatalf("%s: %s", p, a.Error)
	}
	return a.Result
}

// credential has a process be the user's.
func credential(u *user) *syscall.Credential {
	if os.Geteuid() != 0 {
		return nil
	}
	return &syscall.Credential{Uid: u.id, Gid: u.id}
}

// let waits until a command reads from a pipe with a name, and lets it go on.
func let(t *testing.T, fifo string) {
	t.Helper()
	done := make(chan error)
	go func() {
		f, err := os.OpenFile(fifo, os.O_WRONLY, 0)
		if err == nil {
			err = f.Close()
		}
		done <- err
	}()
	select {
	case err := <-done:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(time.Minute):
		if f, err := os.OpenFile(fifo, os.O_RDONLY|syscall.O_NONBLOCK, 0); err == nil { // ends the other
			<-done
			f.Close()
		}
		t.Fatalf("the command does not read from %s", fifo)
	}
}
