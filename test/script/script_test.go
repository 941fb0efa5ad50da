// Package script_test drives the real programs, as root, through the scripts in
// testdata: each with a carrel of its own, brought up and down by the script or around
// it. The actors are root; alice and bob, local users with and without the carrel group;
// and mallory, who attacks.
package script_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/test/built"
)

// bin is where the programs are.
var bin string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	if os.Geteuid() != 0 {
		return m.Run() // every script is skipped
	}
	dir, err := os.MkdirTemp("", "carrel-bin")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil { // the other actors run carrel too
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	bin = dir
	if err := built.Programs(context.Background(), dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// actors are the uids and gids of the users that do not exist in passwd; 0 stands for
// the carrel group, which exists only while an instance is up.
var actors = map[string]uint32{"alice": 61001, "bob": 61002, "mallory": 61666}

func TestScripts(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("skipped: needs root, to bring carrel up")
	}
	testscript.Run(t, testscript.Params{
		Dir:   "testdata",
		Setup: setup,
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"as":       as,
			"admin":    admin,
			"http":     request,
			"await":    await,
			"capture":  capture,
			"killpid":  killPid,
			"replace":  replace,
			"signaled": signaled,
			"killed":   killed,
			"code":     code,
		},
		RequireUniqueNames: true,
	})
}

// setup gives a script its own instance, named by DATA, RUN and FLAGS, and takes it
// away after the script, however that ends.
func setup(env *testscript.Env) error {
	dir, err := os.MkdirTemp("/tmp", "carrel-script")
	if err != nil {
		return err
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return err
	}
	data, runtime := filepath.Join(dir, "data"), filepath.Join(dir, "run")
	env.Setenv("BASE", dir)
	env.Setenv("DATA", data)
	env.Setenv("RUN", runtime)
	env.Setenv("CARREL_HOST", "unix://"+filepath.Join(runtime, "carrel.sock"))
	env.Setenv("PATH", bin+":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
	env.Setenv("BIN", bin)
	permissive, err := filepath.Abs(filepath.Join("..", "permissive.yaml"))
	if err != nil {
		return err
	}
	env.Setenv("PERMISSIVE", permissive)
	env.Defer(func() {
		defer os.RemoveAll(dir)
		carrel := func(args ...string) (string, error) {
			c := exec.Command(filepath.Join(bin, "carrel"), args...)
			c.Env = append(os.Environ(), "CARREL_HOST=unix://"+filepath.Join(runtime, "carrel.sock"))
			out, err := c.CombinedOutput()
			return string(out), err
		}
		if _, err := os.Stat(filepath.Join(data, "up.json")); err != nil {
			return
		}
		// What a script left is destroyed through a carrel that is up.
		if out, err := carrel("up", "--detach", "--data", data, "--runtime-dir", runtime); err != nil {
			env.T().Log("up to clean: " + out)
		}
		if names, err := carrel("ls", "-q"); err == nil && strings.TrimSpace(names) != "" {
			if out, err := carrel(append([]string{"destroy", "--purge"}, strings.Fields(names)...)...); err != nil {
				env.T().Log("destroy: " + out)
			}
		}
		if out, err := carrel("down", "--purge", "--data", data, "--runtime-dir", runtime); err != nil {
			env.T().Log("down: " + out)
		}
	})
	return nil
}

// command runs a program for as and admin.
func command(ts *testscript.TestScript, neg bool, cred *syscall.Credential, args []string) {
	path, err := exec.LookPath(args[0])
	if !strings.Contains(args[0], "/") {
		path = filepath.Join(bin, args[0])
		if _, e := os.Stat(path); e != nil {
			path, err = exec.LookPath(args[0])
		} else {
			err = nil
		}
	}
	ts.Check(err)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, path, args[1:]...)
	c.Dir = "/"
	c.Env = []string{"PATH=" + ts.Getenv("PATH")}
	for _, name := range []string{"CARREL_HOST", "CARREL_TOKEN", "CARREL_FINGERPRINT"} {
		if v := ts.Getenv(name); v != "" {
			c.Env = append(c.Env, name+"="+v)
		}
	}
	c.SysProcAttr = &syscall.SysProcAttr{Credential: cred}
	c.Stdout, c.Stderr = ts.Stdout(), ts.Stderr()
	err = c.Run()
	if (err != nil) != neg {
		ts.Fatalf("%q: %v", args, err)
	}
}

// as ACTOR PROGRAM ARG... runs a program as one of the actors.
func as(ts *testscript.TestScript, neg bool, args []string) {
	uid, ok := actors[args[0]]
	if !ok || len(args) < 2 {
		ts.Fatalf("usage: as ACTOR PROGRAM ARG...")
	}
	command(ts, neg, &syscall.Credential{Uid: uid, Gid: uid, Groups: []uint32{}}, args[1:])
}

// admin PROGRAM ARG... runs a program as alice with the carrel group.
func admin(ts *testscript.TestScript, neg bool, args []string) {
	b, err := os.ReadFile("/etc/group")
	ts.Check(err)
	for line := range strings.Lines(string(b)) {
		if f := strings.Split(line, ":"); f[0] == "carrel" {
			gid, err := strconv.ParseUint(f[2], 10, 32)
			ts.Check(err)
			uid := actors["alice"]
			command(ts, neg, &syscall.Credential{Uid: uid, Gid: uid, Groups: []uint32{uint32(gid)}}, args)
			return
		}
	}
	ts.Fatalf("there is no group carrel")
}

// http PATH BODY [HEADER:VALUE...] posts to the daemon and prints status and body.
func request(ts *testscript.TestScript, neg bool, args []string) {
	socket := strings.TrimPrefix(ts.Getenv("CARREL_HOST"), "unix://")
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}
	defer tr.CloseIdleConnections()
	req, err := http.NewRequestWithContext(context.Background(), http.MethodPost, "http://carrel"+args[0], strings.NewReader(args[1]))
	ts.Check(err)
	req.Header.Set("Content-Type", "application/json")
	for _, h := range args[2:] {
		k, v, _ := strings.Cut(h, ":")
		if k == "Host" {
			req.Host = v
		}
		req.Header.Set(k, v)
	}
	res, err := (&http.Client{Transport: tr}).Do(req)
	ts.Check(err)
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	ts.Check(err)
	fmt.Fprintf(ts.Stdout(), "%d %s\n", res.StatusCode, body)
	if (res.StatusCode >= 400) != neg {
		ts.Fatalf("status %d: %s", res.StatusCode, body)
	}
}

// await PROGRAM ARG... repeats a program until it succeeds.
func await(ts *testscript.TestScript, neg bool, args []string) {
	for end := time.Now().Add(15 * time.Second); ; {
		err := ts.Exec(args[0], args[1:]...)
		if (err != nil) == neg {
			return
		}
		if time.Now().After(end) {
			ts.Fatalf("%q never came to an end that was waited for: %v", args, err)
		}
		time.Sleep(20 * time.Millisecond) //nolint:forbidigo // another program's state can only be asked for again
	}
}

// capture NAME [PATTERN [stdout|stderr]] puts the last output, without its newline, into a
// variable; or what the first group of a pattern matches in it.
func capture(ts *testscript.TestScript, _ bool, args []string) {
	from := "stdout"
	if len(args) == 3 {
		from = args[2]
	}
	text := strings.TrimSpace(ts.ReadFile(from))
	if len(args) > 1 {
		m := regexp.MustCompile(args[1]).FindStringSubmatch(text)
		if len(m) < 2 {
			ts.Fatalf("no match for `%s` in %s", args[1], from)
		}
		text = m[1]
	}
	ts.Setenv(args[0], text)
}

// killpid FILE kills the process that a pid file names, with SIGKILL, and waits for it.
func killPid(ts *testscript.TestScript, _ bool, args []string) {
	var pid int
	_, err := fmt.Sscanf(strings.Join(strings.Fields(ts.ReadFile(args[0])), ""), `{"pid":%d,`, &pid)
	ts.Check(err)
	fd, err := unix.PidfdOpen(pid, 0)
	ts.Check(err)
	defer unix.Close(fd)
	ts.Check(unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0))
	for {
		_, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1)
		if !errors.Is(err, unix.EINTR) {
			ts.Check(err)
			return
		}
	}
}

// replace FILE OLD NEW changes the first OLD in a file, in place.
func replace(ts *testscript.TestScript, _ bool, args []string) {
	path := ts.MkAbs(args[0])
	b, err := os.ReadFile(path)
	ts.Check(err)
	changed := strings.Replace(string(b), args[1], args[2], 1)
	if changed == string(b) {
		ts.Fatalf("%s does not contain %q", path, args[1])
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
	ts.Check(err)
	defer f.Close()
	_, err = f.WriteString(changed)
	ts.Check(err)
}

// signaled SIGNAL PROGRAM ARG... starts a program, sends it the signal once it has
// written a line, and waits for it.
func signaled(ts *testscript.TestScript, neg bool, args []string) {
	n, err := strconv.Atoi(args[0])
	ts.Check(err)
	interrupted(ts, neg, args[1:], func(p *os.Process) error { return p.Signal(syscall.Signal(n)) })
}

// killed PART PROGRAM ARG... starts a program, kills the part that $RUN/PART.pid names
// once the program has written a line, and waits for the program.
func killed(ts *testscript.TestScript, neg bool, args []string) {
	interrupted(ts, neg, args[1:], func(*os.Process) error {
		killPid(ts, false, []string{filepath.Join(ts.Getenv("RUN"), args[0]+".pid")})
		return nil
	})
}

func interrupted(ts *testscript.TestScript, neg bool, args []string, interrupt func(*os.Process) error) {
	path := args[0]
	if !filepath.IsAbs(path) {
		path = filepath.Join(bin, path)
	}
	c := exec.Command(path, args[1:]...)
	c.Env = []string{"PATH=" + ts.Getenv("PATH"), "CARREL_HOST=" + ts.Getenv("CARREL_HOST")}
	out, err := c.StdoutPipe()
	ts.Check(err)
	c.Stderr = ts.Stderr()
	ts.Check(c.Start())
	first := make([]byte, 4096)
	n, err := out.Read(first)
	ts.Check(err)
	ts.Check(interrupt(c.Process))
	rest, _ := io.ReadAll(out) // what is missing of it, the script misses
	fmt.Fprintf(ts.Stdout(), "%s%s", first[:n], rest)
	err = c.Wait()
	fmt.Fprintf(ts.Stdout(), "code %d\n", c.ProcessState.ExitCode())
	if (err != nil) != neg {
		ts.Fatalf("%q: %v", args, err)
	}
}

// code N PROGRAM ARG... runs a program that must end with that exit code.
func code(ts *testscript.TestScript, _ bool, args []string) {
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	c := exec.Command(filepath.Join(bin, args[1]), args[2:]...)
	c.Env = []string{"PATH=" + ts.Getenv("PATH"), "CARREL_HOST=" + ts.Getenv("CARREL_HOST")}
	c.Stdout, c.Stderr = ts.Stdout(), ts.Stderr()
	_ = c.Run()
	if got := c.ProcessState.ExitCode(); got != want {
		ts.Fatalf("%q: exit code %d, want %d", args[1:], got, want)
	}
}
