package executor_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/executor"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox/launch/launchtest"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
	"github.com/carrel-dev/carrel/internal/wire/jsonrpc"
)

func TestMain(m *testing.M) {
	if launchtest.IsExecutor() {
		if err := executor.Run("test", nil); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// client is a connection to an executor, like the daemon's.
type client struct {
	*jsonrpc.Conn
	t  *testing.T
	mu sync.Mutex
	// exits has a channel for each command whose end was announced or is awaited.
	exits map[id.Command]chan execapi.Status
}

func (c *client) exit(n id.Command) chan execapi.Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.exits[n] == nil {
		c.exits[n] = make(chan execapi.Status, 1)
	}
	return c.exits[n]
}

func dial(t *testing.T, w *launchtest.Workspace, role execapi.Role) *client {
	t.Helper()
	u, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: w.Socket})
	if err != nil {
		t.Fatal(err)
	}
	c := &client{t: t, exits: map[id.Command]chan execapi.Status{}}
	c.Conn = jsonrpc.New(u, jsonrpc.Config{MaxFDs: 3, Handler: func(
		_ context.Context, _ *jsonrpc.Conn, r *jsonrpc.Request,
	) (any, []*os.File, error) {
		var e execapi.Exited
		if err := r.Decode(&e); err != nil {
			return nil, nil, err
		}
		c.exit(e.ID) <- e.Status
		return nil, nil, nil
	}})
	t.Cleanup(func() { c.Close() })
	var hello execapi.HelloResult
	if _, err := c.Call(t.Context(), execapi.MethodHello, execapi.HelloParams{
		Version: execapi.Version, MinVersion: execapi.MinVersion, Role: role,
	}, &hello); err != nil {
		t.Fatal(err)
	}
	if hello.Workspace != w.Name {
		t.Fatalf("another workspace answered: %+v", hello)
	}
	return c
}

// bothRoles runs f on a control and on a spawn connection of one workspace.
func bothRoles(t *testing.T, f func(t *testing.T, w *launchtest.Workspace, c *client)) {
	w, err := launchtest.Start(t, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, role := range []execapi.Role{execapi.Control, execapi.Spawn} {
		t.Run("role="+string(role), func(t *testing.T) { f(t, w, dial(t, w, role)) })
	}
}

// run runs a command to its end with both outputs captured.
func (c *client) run(p execapi.ExecParams) (execapi.ExecResult, error) {
	c.t.Helper()
	p.ID, p.Wait = id.NewCommand(), true
	if p.Stdout == "" {
		p.Stdout, p.Stderr = execapi.Capture, execapi.Capture
	}
	var r execapi.ExecResult
	ctx, cancel := context.WithTimeout(c.t.Context(), 30*time.Second)
	defer cancel()
	_, err := c.Call(ctx, execapi.MethodExec, p, &r)
	return r, err
}

func (c *client) sh(script string) execapi.ExecResult {
	c.t.Helper()
	r, err := c.run(execapi.ExecParams{Argv: []string{"/bin/sh", "-c", script}})
	if err != nil {
		c.t.Fatalf("%s: %v", script, err)
	}
	return r
}

// start starts an attached or detached command.
func (c *client) start(p execapi.ExecParams, method string, fds ...*os.File) (id.Command, []*os.File) {
	c.t.Helper()
	p.ID = id.NewCommand()
	far, err := c.Call(c.t.Context(), method, p, nil, fds...)
	if err != nil {
		c.t.Fatalf("%v: %v", p.Argv, err)
	}
	for _, f := range far {
		c.t.Cleanup(func() { f.Close() })
	}
	return p.ID, far
}

func (c *client) wait(n id.Command) execapi.Status {
	c.t.Helper()
	select {
	case s := <-c.exit(n):
		return s
	case <-time.After(20 * time.Second):
		c.t.Fatalf("%s did not end", n)
		return execapi.Status{}
	}
}

func (c *client) ping() time.Duration {
	c.t.Helper()
	began := time.Now()
	ctx, cancel := context.WithTimeout(c.t.Context(), 10*time.Second)
	defer cancel()
	if _, err := c.Call(ctx, execapi.MethodPing, nil, nil); err != nil {
		c.t.Fatalf("the executor does not answer: %v", err)
	}
	return time.Since(began)
}

func TestHowCommandsEnd(t *testing.T) {
	bothRoles(t, func(t *testing.T, w *launchtest.Workspace, c *client) {
		for _, tt := range []struct {
			script string
			code   int
			stdout string
		}{
			{"exit 0", 0, ""},
			{"exit 3", 3, ""},
			{"kill -9 $$", 137, ""},
			{"kill -TERM $$", 143, ""},
			{"echo out; echo err >&2; exit 1", 1, "out\n"},
			{"id -u", 0, fmt.Sprintln(w.IDs.Work)},
			{"id -G", 0, fmt.Sprintln(w.IDs.Work)},
			{"pwd; echo $HOME", 0, "/home/work\n/home/work\n"},
			{"exec >&- 2>&- <&-; exit 4", 4, ""},       // closes its descriptors
			{"echo again > /dev/stdout", 0, "again\n"}, // reopens its own pipe
			{"cat; echo end", 0, "end\n"},              // stdin is empty
			{"trap '' TERM; echo ignores TERM", 0, "ignores TERM\n"},
			{"env | grep -c =", 0, "9\n"}, // nothing but the base environment
		} {
			r := c.sh(tt.script)
			if r.Status.Code != tt.code || string(r.Stdout) != tt.stdout && tt.script != "env | grep -c =" {
				t.Errorf("%s: code %d, stdout %q, stderr %q", tt.script, r.Status.Code, r.Stdout, r.Stderr)
			}
		}
		if r := c.sh("env"); strings.Contains(string(r.Stdout), "GOTRACEBACK") || strings.Count(string(r.Stdout), "\n") > 12 {
			t.Errorf("the environment is not the base one: %s", r.Stdout)
		}
	})
}

func TestWhatCannotRun(t *testing.T) {
	bothRoles(t, func(t *testing.T, w *launchtest.Workspace, c *client) {
		for _, tt := range []struct {
			p    execapi.ExecParams
			is   func(error) bool
			text string
		}{
			{execapi.ExecParams{Argv: []string{"nonesuch"}}, errdefs.IsNotFound, `cannot run "nonesuch": not found`},
			{execapi.ExecParams{Argv: []string{"/nonesuch"}}, errdefs.IsNotFound, `cannot run "/nonesuch": not found`},
			{execapi.ExecParams{Argv: []string{"/etc/passwd"}}, errdefs.IsPermissionDenied, "permission denied"},
			{execapi.ExecParams{Argv: []string{"/usr"}}, errdefs.IsPermissionDenied, "permission denied"},
			{execapi.ExecParams{Argv: []string{"true"}, Cwd: "/nonesuch"}, errdefs.IsInvalidArgument, "cannot enter directory"},
			{execapi.ExecParams{Argv: []string{"true"}, Cwd: "relative"}, errdefs.IsInvalidArgument, "not absolute"},
			{execapi.ExecParams{Argv: nil}, errdefs.IsInvalidArgument, "no program"},
			{execapi.ExecParams{Argv: []string{"a\x00b"}}, errdefs.IsInvalidArgument, "zero byte"},
			{execapi.ExecParams{Argv: []string{"true"}, Env: []string{"=x"}}, errdefs.IsInvalidArgument, "NAME=VALUE"},
			{execapi.ExecParams{Argv: []string{"true", strings.Repeat("x", 300_000)}}, errdefs.IsInvalidArgument, "too long"},
			{execapi.ExecParams{Argv: []string{"true", strings.Repeat("x", 600_000)}}, errdefs.IsInvalidArgument, "at most"},
			{execapi.ExecParams{Argv: []string{"true"}, TimeoutMS: -1}, errdefs.IsInvalidArgument, "out of range"},
			{execapi.ExecParams{Argv: []string{"true"}, Stdout: "loud"}, errdefs.IsInvalidArgument, "unknown"},
		} {
			_, err := c.run(tt.p)
			if err == nil || !tt.is(err) || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("%.60q: %v", tt.p.Argv, err)
			}
		}
		if r := c.sh("true"); r.Status.Code != 0 {
			t.Error("the executor does not work any more")
		}
	})
}

func TestTimeoutEndsAllThatWasLeft(t *testing.T) {
	bothRoles(t, func(t *testing.T, w *launchtest.Workspace, c *client) {
		// The shell and a grandchild in its own session ignore TERM; on a slow host they may
		// not have set that up in time.
		for timeout := int64(200); ; timeout *= 5 {
			began := time.Now()
			r, err := c.run(execapi.ExecParams{
				Argv:      []string{"/bin/sh", "-c", "trap '' TERM; setsid sh -c 'trap \"\" TERM; sleep 300' & while :; do sleep 1; done"},
				TimeoutMS: timeout, GraceMS: 200,
			})
			if err != nil {
				t.Fatal(err)
			}
			if d := time.Since(began); d > 10*time.Second {
				t.Errorf("it took %v", d)
			}
			if r.Status.TimedOut && r.Status.Signal == int(unix.SIGTERM) && timeout < 5000 {
				continue
			}
			if !r.Status.TimedOut || r.Status.Signal != int(unix.SIGKILL) {
				t.Errorf("status %+v", r.Status)
			}
			break
		}
		noneLeft(t, w, c)
	})
}

// noneLeft checks that the workspace has no process but the one that looks.
func noneLeft(t *testing.T, w *launchtest.Workspace, c *client) {
	t.Helper()
	var r execapi.ExecResult
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); { // orphans are reaped in sweeps
		r = c.sh("ls -d /proc/[0-9]*")
		if strings.Count(string(r.Stdout), "\n") <= 2 { // sh and ls
			return
		}
	}
	t.Errorf("processes are left:\n%s", r.Stdout)
}

func TestLeftoversEndWithTheCommand(t *testing.T) {
	bothRoles(t, func(t *testing.T, w *launchtest.Workspace, c *client) {
		for _, script := range []string{
			"sleep 300 & exit 0",                                     // in the background, holding the pipe
			"setsid sleep 300 & exit 0",                              // in a session of its own
			"(setsid sh -c 'sleep 300 & exec sleep 300' &) ; exit 0", // double fork
			"nohup sleep 300 >/dev/null 2>&1 & exit 0",
			"setsid sh -c 'trap \"\" TERM HUP; sleep 300; sleep 300' >/dev/null 2>&1 </dev/null & sleep 0.1; exit 0", // stubborn
		} {
			r := c.sh(script)
			if r.Status.Code != 0 || r.Status.Killed == 0 {
				t.Errorf("%s: %+v", script, r.Status)
			}
		}
		noneLeft(t, w, c)
	})
}

func TestCaptureIsBounded(t *testing.T) {
	bothRoles(t, func(t *testing.T, w *launchtest.Workspace, c *client) {
		const n = 10 << 20
		r := c.sh(fmt.Sprintf("head -c %d /dev/zero", n))
		if len(r.Stdout) != execapi.MaxCapture || r.StdoutLost != n-execapi.MaxCapture {
			t.Errorf("kept %d, lost %d", len(r.Stdout), r.StdoutLost)
		}
		data := bytes.Repeat([]byte("0123456789abcdef"), execapi.MaxCapture/16)
		r, err := c.run(execapi.ExecParams{Argv: []string{"cat"}, Stdin: execapi.Capture, StdinData: data})
		if err != nil || !bytes.Equal(r.Stdout, data) {
			t.Errorf("%d bytes came back: %v", len(r.Stdout), err)
		}
	})
}

func TestAttachedStreams(t *testing.T) {
	bothRoles(t, func(t *testing.T, w *launchtest.Workspace, c *client) {
		n, far := c.start(execapi.ExecParams{
			Argv:  []string{"/bin/sh", "-c", "cat; echo err >&2; exit 7"},
			Stdin: execapi.Pipe, Stdout: execapi.Pipe, Stderr: execapi.Pipe,
		}, execapi.MethodExec)
		if len(far) != 3 {
			t.Fatalf("%d descriptors", len(far))
		}
		io.WriteString(far[0], "through\n")
		far[0].Close()
		out, _ := io.ReadAll(far[1])
		errs, _ := io.ReadAll(far[2])
		if s := c.wait(n); s.Code != 7 || string(out) != "through\n" || string(errs) != "err\n" {
			t.Errorf("%+v %q %q", s, out, errs)
		}
	})
}

func TestPassedDescriptors(t *testing.T) {
	bothRoles(t, func(t *testing.T, w *launchtest.Workspace, c *client) {
		r, wr, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		n, _ := c.start(execapi.ExecParams{Argv: []string{"echo", "hello"}, Stdout: execapi.FD}, execapi.MethodExec, wr)
		wr.Close()
		if out, _ := io.ReadAll(r); string(out) != "hello\n" {
			t.Errorf("%q", out)
		}
		c.wait(n)
		for _, path := range []string{"/", "/dev/full", "/dev/ptmx"} {
			f, err := os.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			_, err = c.Call(t.Context(), execapi.MethodExec, execapi.ExecParams{
				ID: id.NewCommand(), Argv: []string{"true"}, Stdin: execapi.FD,
			}, nil, f)
			f.Close()
			if !errdefs.IsInvalidArgument(err) {
				t.Errorf("%s was taken: %v", path, err)
			}
		}
		if _, err := c.Call(t.Context(), execapi.MethodExec, execapi.ExecParams{
			ID: id.NewCommand(), Argv: []string{"true"}, Stdin: execapi.FD,
		}, nil); !errdefs.IsInvalidArgument(err) {
			t.Errorf("a missing descriptor: %v", err)
		}
	})
}

func TestOutputWithoutAReaderHoldsOnlyTheCommand(t *testing.T) {
	bothRoles(t, func(t *testing.T, w *launchtest.Workspace, c *client) {
		n, far := c.start(execapi.ExecParams{Argv: []string{"head", "-c", "100000000", "/dev/zero"}, Stdout: execapi.Pipe}, execapi.MethodExec)
		c.ping()
		if r := c.sh("echo works"); string(r.Stdout) != "works\n" {
			t.Error("another command was held up")
		}
		select {
		case s := <-c.exit(n):
			t.Fatalf("it ended without a reader: %+v", s)
		default:
		}
		if m, _ := io.Copy(io.Discard, far[0]); m != 100000000 {
			t.Errorf("%d bytes arrived", m)
		}
		c.wait(n)
	})
}

func TestSignals(t *testing.T) {
	bothRoles(t, func(t *testing.T, w *launchtest.Workspace, c *client) {
		n, far := c.start(execapi.ExecParams{
			Argv:   []string{"/bin/sh", "-c", "trap 'echo got; exit 9' USR1; echo ready; while :; do sleep 0.05; done"},
			Stdout: execapi.Pipe,
		}, execapi.MethodExec)
		b := make([]byte, 6)
		io.ReadFull(far[0], b)
		if _, err := c.Call(t.Context(), execapi.MethodStopTask, execapi.StopTaskParams{ID: n, Signal: int(unix.SIGUSR1)}, nil); err != nil {
			t.Fatal(err)
		}
		if s := c.wait(n); s.Code != 9 {
			t.Errorf("%+v", s)
		}
		_, err := c.Call(t.Context(), execapi.MethodStopTask, execapi.StopTaskParams{ID: n, Signal: 1}, nil)
		if !errdefs.IsNotFound(err) {
			t.Errorf("a signal to an ended command: %v", err)
		}
		// A stopped process is ended too.
		n, _ = c.start(execapi.ExecParams{Argv: []string{"/bin/sh", "-c", "kill -STOP $$; sleep 300"}}, execapi.MethodExec)
		if _, err := c.Call(t.Context(), execapi.MethodStopTask, execapi.StopTaskParams{ID: n, GraceMS: 300}, nil); err != nil {
			t.Fatal(err)
		}
		if s := c.wait(n); s.Signal == 0 {
			t.Errorf("%+v", s)
		}
	})
}

func TestTwoCommandsOfOneIDAndUnknownMethods(t *testing.T) {
	bothRoles(t, func(t *testing.T, w *launchtest.Workspace, c *client) {
		n, _ := c.start(execapi.ExecParams{Argv: []string{"sleep", "300"}}, execapi.MethodExec)
		_, err := c.Call(t.Context(), execapi.MethodExec, execapi.ExecParams{ID: n, Argv: []string{"true"}}, nil)
		if !errdefs.IsAlreadyExists(err) {
			t.Errorf("the same id again: %v", err)
		}
		if _, err := c.Call(t.Context(), "execute_prompt", nil, nil); err == nil {
			t.Error("an unknown method was answered")
		}
		if _, err := c.Call(t.Context(), execapi.MethodStopTask, execapi.StopTaskParams{ID: n}, nil); err != nil {
			t.Error(err)
		}
		c.wait(n)
	})
}

func TestNothingBeforeHello(t *testing.T) {
	w, err := launchtest.Start(t, nil)
	if err != nil {
		t.Fatal(err)
	}
	u, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: w.Socket})
	if err != nil {
		t.Fatal(err)
	}
	c := jsonrpc.New(u, jsonrpc.Config{})
	defer c.Close()
	if _, err := c.Call(t.Context(), execapi.MethodPing, nil, nil); err == nil {
		t.Error("served before hello")
	}
	<-c.Done()
	if u, err = net.DialUnix("unix", nil, &net.UnixAddr{Name: w.Socket}); err != nil {
		t.Fatal(err)
	}
	c = jsonrpc.New(u, jsonrpc.Config{})
	defer c.Close()
	for _, hello := range []execapi.HelloParams{
		{},
		{Version: execapi.MinVersion - 1, MinVersion: execapi.MinVersion - 1},
		{Version: execapi.Version + 2, MinVersion: execapi.Version + 1},
	} {
		_, err = c.Call(t.Context(), execapi.MethodHello, hello, nil)
		if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "stop and start the workspace") {
			t.Errorf("versions %d to %d: %v", hello.MinVersion, hello.Version, err)
		}
	}
	// A later daemon that still serves this version gets it.
	var res execapi.HelloResult
	hello := execapi.HelloParams{Version: execapi.Version + 1, MinVersion: execapi.Version}
	if _, err = c.Call(t.Context(), execapi.MethodHello, hello, &res); err != nil || res.Version != execapi.Version {
		t.Errorf("a later daemon: %+v, %v", res, err)
	}
}

func TestShutdown(t *testing.T) {
	w, err := launchtest.Start(t, nil)
	if err != nil {
		t.Fatal(err)
	}
	c := dial(t, w, execapi.Control)
	c.start(execapi.ExecParams{Argv: []string{"/bin/sh", "-c", "trap '' TERM; sleep 300; sleep 300"}, Detach: true}, execapi.MethodExec)
	if _, err := c.Call(t.Context(), execapi.MethodShutdown, nil, nil); err != nil {
		t.Fatal(err)
	}
	c.Close()
	fds := []unix.PollFd{{Fd: int32(w.Pidfd.Fd()), Events: unix.POLLIN}}
	if n, err := unix.Poll(fds, 10_000); n != 1 || err != nil {
		t.Error("the executor did not end")
	}
}

// TestNobodyInsideIsServed: the socket is not in the workspace, but a descriptor of it could get
// there. A connection from one of the workspace's ids is refused.
func TestNobodyInsideIsServed(t *testing.T) {
	w, err := launchtest.Start(t, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(w.Socket, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(strings.TrimSuffix(w.Socket, "/x.sock"), 0o755); err != nil {
		t.Fatal(err)
	}
	var refused error
	done := make(chan struct{})
	go func() { // the thread's file system and socket ids are the command's
		defer close(done)
		lockAndBecome(w.IDs.Work)
		u, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: w.Socket})
		if err != nil {
			refused = err
			return
		}
		defer u.Close()
		c := jsonrpc.New(u, jsonrpc.Config{})
		_, refused = c.Call(context.Background(), execapi.MethodHello, execapi.HelloParams{
			Version: execapi.Version, MinVersion: execapi.MinVersion,
		}, nil)
		c.Close()
	}()
	<-done
	if refused == nil {
		t.Error("the work id was served")
	}
}
