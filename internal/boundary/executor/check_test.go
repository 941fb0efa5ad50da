package executor_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox/launch/launchtest"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

// A request with an impossible member is refused as a whole: no process, no file.
func TestRefusedRequests(t *testing.T) {
	touch := []string{"/bin/touch", "ran"}
	bothRoles(t, func(t *testing.T, w *launchtest.Workspace, c *client) {
		for text, p := range map[string]execapi.ExecParams{
			"no program is named":                         {Wait: true},
			"an argument contains a zero byte":            {Argv: append(touch, "\x00"), Wait: true},
			"is not NAME=VALUE":                           {Argv: touch, Env: []string{"=x"}, Wait: true},
			"arguments and variables, at most":            {Argv: make([]string, execapi.MaxArgs+1), Wait: true},
			"bytes long, at most":                         {Argv: append(touch, strings.Repeat("x", execapi.MaxArgBytes)), Wait: true},
			"the words to show are":                       {Argv: touch, Shown: []string{strings.Repeat("x", execapi.MaxShown)}, Wait: true},
			"is not absolute":                             {Argv: touch, Cwd: "sub", Wait: true},
			"is out of range":                             {Argv: touch, TimeoutMS: -1, Wait: true},
			"output limit":                                {Argv: touch, OutputLimit: execapi.MaxCapture + 1, Wait: true},
			"of stdin data cannot be taken":               {Argv: touch, StdinData: []byte("x"), Wait: true},
			"a detached command has no standard input":    {Argv: touch, Detach: true, Stdin: execapi.Capture, StdinData: []byte("x")},
			"it cannot be detached and waited for":        {Argv: touch, Detach: true, Wait: true},
			"is for attached commands":                    {Argv: touch, Stdout: execapi.Pipe, Wait: true},
			"needs wait or detach":                        {Argv: touch, Stdout: execapi.Capture},
			"is unknown":                                  {Argv: touch, Stdout: "tape", Wait: true},
			"it came with 0 descriptors and needs 1":      {Argv: touch, Stdout: execapi.FD, Wait: true},
			"a terminal or detached command takes no des": {Argv: touch, Stdout: execapi.FD, Detach: true},
		} {
			if len(p.Argv) > execapi.MaxArgs {
				p.Argv[0] = touch[0]
			}
			p.ID = id.NewCommand()
			_, err := c.Call(t.Context(), execapi.MethodExec, p, nil)
			if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), text) {
				t.Errorf("%s: %v", text, err)
			}
		}
		if _, err := os.Lstat(w.Home + "/ran"); err == nil {
			t.Error("something that was refused ran")
		}
	})
}

// A list has the words to show of a command, not its arguments.
func TestShown(t *testing.T) {
	bothRoles(t, func(t *testing.T, w *launchtest.Workspace, c *client) {
		shown := []string{"sleep", "[redacted:x:01234567]"}
		n, _ := c.start(execapi.ExecParams{Argv: []string{"sleep", "1000"}, Shown: shown, Detach: true}, execapi.MethodExec)
		var l execapi.ListResult
		if _, err := c.Call(t.Context(), execapi.MethodList, struct{}{}, &l); err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(l.Commands, func(x execapi.Command) bool { return x.ID == n })
		if i < 0 || !slices.Equal(l.Commands[i].Argv, shown) {
			t.Errorf("%+v", l.Commands)
		}
		if _, err := c.Call(t.Context(), execapi.MethodStopTask, execapi.StopTaskParams{ID: n, Signal: 9}, nil); err != nil {
			t.Error(err)
		}
	})
}

// A program passed by descriptor works for carrel: it runs with the executor's id, knows the commands'
// and may take that for files, although it is not a file of the workspace. A descriptor that is no program is refused.
func TestProgram(t *testing.T) {
	bothRoles(t, func(t *testing.T, w *launchtest.Workspace, c *client) {
		run := func(f *os.File, argv ...string) (execapi.ExecResult, error) {
			t.Helper()
			defer f.Close()
			var r execapi.ExecResult
			_, err := c.Call(t.Context(), execapi.MethodExec, execapi.ExecParams{
				ID: id.NewCommand(), Argv: argv, Program: true, Wait: true, Stdout: execapi.Capture, Stderr: execapi.Capture,
			}, &r, f)
			return r, err
		}
		memory := func(text []byte) *os.File {
			t.Helper()
			fd, err := unix.MemfdCreate("program", unix.MFD_CLOEXEC)
			if err != nil {
				t.Fatal(err)
			}
			f := os.NewFile(uintptr(fd), "program")
			if _, err := f.Write(text); err != nil {
				t.Fatal(err)
			}
			return f
		}
		program, err := os.ReadFile("/bin/sh")
		if err != nil {
			t.Fatal(err)
		}
		r, err := run(memory(program), "named", "-c", `echo $0; id -u; echo $CARREL_FILE_ID; grep CapEff /proc/self/status; pwd; exit 3`)
		want := fmt.Sprintf("named\n0\n%d\nCapEff:\t00000000000000c0\n/\n", w.IDs.Work)
		if err != nil || r.Status.Code != 3 || string(r.Stdout) != want {
			t.Errorf("%+v %s%s, %v", r.Status, r.Stdout, r.Stderr, err)
		}
		if _, err := run(memory([]byte("\x7fELF but not really")), "data"); !errdefs.IsPermissionDenied(err) {
			t.Errorf("what is not a program: %v", err)
		}
		for path, is := range map[string]func(error) bool{
			t.TempDir():    errdefs.IsInvalidArgument,  // a directory
			"/usr/bin/env": errdefs.IsPermissionDenied, // by a path that is not the workspace's: Landlock
		} {
			f, err := os.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := run(f, "x"); !is(err) {
				t.Errorf("%s: %v", path, err)
			}
		}
		if _, err := c.Call(t.Context(), execapi.MethodExec, execapi.ExecParams{
			ID: id.NewCommand(), Argv: []string{"x"}, Program: true, Wait: true,
		}, nil); !errdefs.IsInvalidArgument(err) {
			t.Errorf("none: %v", err)
		}
	})
}

// Of the signals that are sent from outside only KILL, STOP and fault signals end or stop an
// executor.
func TestSignalsFromOutside(t *testing.T) {
	w, err := launchtest.Start(t, nil)
	if err != nil {
		t.Fatal(err)
	}
	c := dial(t, w, execapi.Spawn)
	but := []unix.Signal{
		unix.SIGKILL, unix.SIGSTOP, unix.SIGSEGV, unix.SIGBUS, unix.SIGFPE, unix.SIGILL, unix.SIGTRAP, unix.SIGABRT, 32, 33, 34,
	}
	for s := unix.Signal(1); s < 65; s++ {
		if slices.Contains(but, s) {
			continue
		}
		if err := unix.Kill(w.Executor.PID, s); err != nil {
			t.Fatal(err)
		}
		if r := c.sh("echo on"); string(r.Stdout) != "on\n" {
			t.Fatalf("after signal %d: %+v", s, r)
		}
	}
}
