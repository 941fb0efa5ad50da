package runtimetest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

func testRun(t *testing.T, s *suite) {
	w := s.started(t)
	for _, c := range []struct {
		name           string
		p              execapi.ExecParams
		code           int
		stdout, stderr string
	}{
		{"code", sh("exit 3"), 3, "", ""},
		{"outputs", sh("echo out; echo err >&2"), 0, "out\n", "err\n"},
		{"signal", sh("kill -TERM $$"), 143, "", ""},
		{"home", sh("pwd; id -u"), 0, fmt.Sprintf("/home/work\n%d\n", w.IDs.Work), ""},
		{"directory", with(sh("pwd"), func(p *execapi.ExecParams) { p.Cwd = "/tmp" }), 0, "/tmp\n", ""},
		{"environment", with(sh("echo $GREETING"), func(p *execapi.ExecParams) { p.Env = []string{"GREETING=hello"} }), 0, "hello\n", ""},
		{"stdin", with(sh("cat"), func(p *execapi.ExecParams) { p.Stdin, p.StdinData = execapi.Capture, []byte("fed") }), 0, "fed", ""},
		{"no stdin", sh("cat"), 0, "", ""},
		{
			"timeout", with(sh("trap 'echo ended; exit 7' TERM; sleep 100 & wait"), func(p *execapi.ExecParams) { p.TimeoutMS = 200 }), 7,
			"ended\n", "",
		},
	} {
		r, err := s.Runtime.Run(t.Context(), may(w.Name), c.p)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if r.Status == nil || r.Status.Code != c.code || string(r.Stdout) != c.stdout || string(r.Stderr) != c.stderr ||
			r.Status.TimedOut != (c.name == "timeout") || r.Status.EndedNS < r.Status.StartedNS {
			t.Errorf("%s: %+v, %q, %q", c.name, r.Status, r.Stdout, r.Stderr)
		}
	}
	r, err := s.Runtime.Run(t.Context(), may(w.Name), with(sh("yes | head -c 100000"), func(p *execapi.ExecParams) { p.OutputLimit = 1000 }))
	if err != nil || len(r.Stdout) != 1000 || r.StdoutLost != 99_000 {
		t.Errorf("bounded output: %d bytes, %d lost: %v", len(r.Stdout), r.StdoutLost, err)
	}
}

func with(p execapi.ExecParams, change func(*execapi.ExecParams)) execapi.ExecParams {
	change(&p)
	return p
}

func testRunCannotStart(t *testing.T, s *suite) {
	w := s.started(t)
	for what, c := range map[string]struct {
		p    execapi.ExecParams
		kind error
	}{
		"no such program": {execapi.ExecParams{ID: id.NewCommand(), Argv: []string{"nonesuch"}}, errdefs.ErrNotFound},
		"not executable":  {execapi.ExecParams{ID: id.NewCommand(), Argv: []string{"/etc/passwd"}}, errdefs.ErrPermissionDenied},
		"no program":      {execapi.ExecParams{ID: id.NewCommand()}, errdefs.ErrInvalidArgument},
		"zero byte":       {execapi.ExecParams{ID: id.NewCommand(), Argv: []string{"true", "\x00"}}, errdefs.ErrInvalidArgument},
		"bad directory":   {execapi.ExecParams{ID: id.NewCommand(), Argv: []string{"true"}, Cwd: "/nonesuch"}, errdefs.ErrInvalidArgument},
		"bad variable":    {execapi.ExecParams{ID: id.NewCommand(), Argv: []string{"true"}, Env: []string{"=x"}}, errdefs.ErrInvalidArgument},
		"bad id":          {execapi.ExecParams{ID: "../x", Argv: []string{"true"}}, errdefs.ErrInvalidArgument},
		"too long": {
			execapi.ExecParams{ID: id.NewCommand(), Argv: []string{"true", strings.Repeat("x", execapi.MaxArgBytes+1)}},
			errdefs.ErrInvalidArgument,
		},
		"too many": {
			execapi.ExecParams{ID: id.NewCommand(), Argv: slices.Repeat([]string{"x"}, execapi.MaxArgs+1)},
			errdefs.ErrInvalidArgument,
		},
		"negative timeout": {execapi.ExecParams{ID: id.NewCommand(), Argv: []string{"true"}, TimeoutMS: -1}, errdefs.ErrInvalidArgument},
	} {
		_, err := s.Runtime.Run(t.Context(), may(w.Name), c.p)
		is(t, what, err, c.kind)
	}
	if out := s.sh(t, w.Name, "echo well"); out != "well\n" {
		t.Errorf("after all that: %q", out)
	}
}

func testRunIsEndedWithItsCaller(t *testing.T, s *suite) {
	w := s.started(t)
	gone := errors.New("the caller has gone")
	ctx, cancel := context.WithCancelCause(t.Context())
	result := make(chan error, 1)
	go func() {
		_, err := s.Runtime.Run(ctx, may(w.Name), sh("trap 'touch hung-up; exit' HUP TERM; touch began; sleep 1000 & wait"))
		result <- err
	}()
	s.marked(t, w.Name, "began")
	cancel(gone)
	select {
	case err := <-result:
		is(t, "run", err, gone)
	case <-time.After(patience):
		t.Fatal("the call does not return")
	}
	s.marked(t, w.Name, "hung-up")
	until(t, "an empty list", func() bool { return len(s.commands(t, w.Name)) == 0 })
}

func (s *suite) commands(t *testing.T, name id.Workspace) []execapi.Command {
	t.Helper()
	all, err := s.Commands(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// piped is a shell command with pipes for its streams.
func piped(script string) execapi.ExecParams {
	p := sh(script)
	p.Stdin, p.Stdout, p.Stderr = execapi.Pipe, execapi.Pipe, execapi.Pipe
	return p
}

func testSpawn(t *testing.T, s *suite) {
	w := s.started(t)
	p := s.spawn(t, w.Name, piped("cat; echo err >&2; exit 5"), false)
	if len(p.Files()) != 3 || p.PID() <= 1 {
		t.Fatalf("files %v, pid %d", p.Files(), p.PID())
	}
	in, out, errs := p.Files()[0], p.Files()[1], p.Files()[2]
	if _, err := io.WriteString(in, "there and back\n"); err != nil {
		t.Fatal(err)
	}
	readUntil(t, out, "there and back\n")
	if err := in.Close(); err != nil {
		t.Fatal(err)
	}
	if got := readAll(errs); got != "err\n" {
		t.Errorf("stderr %q", got)
	}
	if st, err := ended(t, p); err != nil || st.Code != 5 {
		t.Errorf("%+v: %v", st, err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	// Close hangs up what still runs; what ignores that is ended too.
	p = s.spawn(t, w.Name, piped("trap '' HUP TERM; echo on; sleep 1000 & wait"), false)
	readUntil(t, p.Files()[1], "on\n")
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	if st, err := ended(t, p); err != nil || st.Signal != int(unix.SIGKILL) {
		t.Errorf("%+v: %v", st, err)
	}
	// A second command of the same id is refused and does not disturb the first.
	again := piped("cat")
	p = s.spawn(t, w.Name, again, false)
	_, err := s.Spawn(t.Context(), may(w.Name), again, false)
	is(t, "the same id", err, errdefs.ErrAlreadyExists)
	_ = p.Files()[0].Close()
	if st, err := ended(t, p); err != nil || st.Code != 0 {
		t.Errorf("%+v: %v", st, err)
	}
}

func testSpawnDescriptors(t *testing.T, s *suite) {
	w := s.started(t)
	r, wr, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	c := sh("echo through; ls /proc/self/fd | wc -l")
	c.Stdout, c.Stderr = execapi.FD, execapi.Null
	p := s.spawn(t, w.Name, c, false, wr)
	_ = wr.Close()
	if len(p.Files()) != 0 {
		t.Errorf("files came back: %v", p.Files())
	}
	if got := readAll(r); got != "through\n4\n" { // 0, 1, 2 and the listing's own
		t.Errorf("read %q", got)
	}
	if st, err := ended(t, p); err != nil || st.Code != 0 {
		t.Errorf("%+v: %v", st, err)
	}
	dir, err := os.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	c.ID = id.NewCommand()
	if p, err := s.Spawn(t.Context(), may(w.Name), c, false, dir); err == nil {
		_ = p.Close()
		t.Error("a directory was taken into the workspace")
	}
}

func testSpawnTerminal(t *testing.T, s *suite) {
	w := s.started(t)
	c := execapi.ExecParams{
		ID: id.NewCommand(), Argv: []string{"/bin/sh", "-c", "stty size; read x; stty size; echo got $x; exit 4"},
		Rows: 24, Cols: 80,
	}
	p := s.spawn(t, w.Name, c, true)
	if len(p.Files()) != 1 {
		t.Fatalf("files %v", p.Files())
	}
	tty := p.Files()[0]
	readUntil(t, tty, "24 80")
	if err := s.Resize(t.Context(), may(w.Name), execapi.ResizeParams{ID: c.ID, Rows: 40, Cols: 100}); err != nil {
		t.Error(err)
	}
	if _, err := io.WriteString(tty, "a word\n"); err != nil {
		t.Fatal(err)
	}
	if all := readAll(tty); !strings.Contains(all, "40 100") || !strings.Contains(all, "got a word") {
		t.Errorf("read %q", all)
	}
	if st, err := ended(t, p); err != nil || st.Code != 4 {
		t.Errorf("%+v: %v", st, err)
	}
	is(t, "resize afterwards", s.Resize(t.Context(), may(w.Name), execapi.ResizeParams{ID: c.ID, Rows: 1, Cols: 1}), errdefs.ErrNotFound)
	plain := piped("cat")
	s.spawn(t, w.Name, plain, false)
	is(t, "resize without a terminal", s.Resize(t.Context(), may(w.Name), execapi.ResizeParams{ID: plain.ID, Rows: 1, Cols: 1}),
		errdefs.ErrFailedPrecondition)
}

// detached is a shell command for Detach.
func detached(script string) execapi.ExecParams {
	p := sh(script)
	p.Stdout, p.Stderr = "", ""
	return p
}

// output reads the output of a detached command, to the command's end if follow.
func (s *suite) output(t *testing.T, r runtime.Runtime, name id.Workspace, cmd id.Command, follow bool) (string, execapi.OutputResult) {
	t.Helper()
	res, files, err := r.Output(t.Context(), name, execapi.OutputParams{ID: cmd, Follow: follow})
	if err != nil {
		t.Fatal(err)
	}
	defer files[0].Close()
	return readAll(files[0]), res
}

func testDetach(t *testing.T, s *suite) {
	w := s.started(t)
	c := detached("echo first; " + await("go") + "; echo last; exit 6")
	if err := s.Detach(t.Context(), may(w.Name), c, false); err != nil {
		t.Fatal(err)
	}
	all := s.commands(t, w.Name)
	if len(all) != 1 || all[0].ID != c.ID || !all[0].Detached || all[0].TTY || all[0].Status != nil || all[0].Processes < 1 ||
		!slices.Equal(all[0].Argv, c.Argv) {
		t.Fatalf("listed: %+v", all)
	}
	until(t, "output", func() bool {
		out, res := s.output(t, s, w.Name, c.ID, false)
		return out == "first\n" && res.Status == nil
	})
	s.mark(t, w.Name, "go")
	if out, _ := s.output(t, s, w.Name, c.ID, true); out != "first\nlast\n" {
		t.Errorf("output %q", out)
	}
	if out, res := s.output(t, s, w.Name, c.ID, false); out != "first\nlast\n" || res.Status == nil || res.Status.Code != 6 ||
		res.Lost != 0 || res.TTY {
		t.Errorf("output %q, %+v", out, res)
	}
	attached := piped("cat")
	s.spawn(t, w.Name, attached, false)
	_, _, err := s.Output(t.Context(), w.Name, execapi.OutputParams{ID: attached.ID})
	is(t, "the output of an attached command", err, errdefs.ErrFailedPrecondition)
	_, _, err = s.Output(t.Context(), w.Name, execapi.OutputParams{ID: id.NewCommand()})
	is(t, "the output of no command", err, errdefs.ErrNotFound)
}

func testDetachTerminal(t *testing.T, s *suite) {
	w := s.started(t)
	c := detached("echo ready; read x; echo got $x; " + await("go"))
	c.Rows, c.Cols = 24, 80
	if err := s.Detach(t.Context(), may(w.Name), c, true); err != nil {
		t.Fatal(err)
	}
	attach := func() *os.File {
		res, files, err := s.Attach(t.Context(), may(w.Name), execapi.OutputParams{ID: c.ID})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = files[0].Close() })
		if !res.TTY || len(files) != 1 {
			t.Fatalf("%+v, %d files", res, len(files))
		}
		return files[0]
	}
	tty := attach()
	readUntil(t, tty, "ready")
	if _, err := io.WriteString(tty, "a word\n"); err != nil {
		t.Fatal(err)
	}
	readUntil(t, tty, "got a word")
	// Letting go of it leaves it running, and what it said is there for the next.
	if err := tty.Close(); err != nil {
		t.Fatal(err)
	}
	readUntil(t, attach(), "got a word")
	s.mark(t, w.Name, "go")
	until(t, "its end", func() bool {
		all := s.commands(t, w.Name)
		return len(all) == 1 && all[0].Status != nil && all[0].Status.Code == 0
	})
}

func testSignal(t *testing.T, s *suite) {
	w := s.started(t)
	c := piped("trap 'echo usr1' USR1; echo on; while :; do sleep 0.01; done")
	p := s.spawn(t, w.Name, c, false)
	readUntil(t, p.Files()[1], "on\n")
	if err := s.Signal(t.Context(), may(w.Name), execapi.StopTaskParams{ID: c.ID, Signal: int(unix.SIGUSR1)}); err != nil {
		t.Fatal(err)
	}
	readUntil(t, p.Files()[1], "usr1\n")
	for what, bad := range map[string]execapi.StopTaskParams{
		"signal 65":        {ID: c.ID, Signal: 65},
		"signal -1":        {ID: c.ID, Signal: -1},
		"a grace too long": {ID: c.ID, GraceMS: execapi.MaxGraceMS + 1},
		"a negative grace": {ID: c.ID, GraceMS: -1},
	} {
		is(t, what, s.Signal(t.Context(), may(w.Name), bad), errdefs.ErrInvalidArgument)
	}
	is(t, "signal no command", s.Signal(t.Context(), may(w.Name), execapi.StopTaskParams{ID: id.NewCommand(), Signal: 15}),
		errdefs.ErrNotFound)
	if err := s.Signal(t.Context(), may(w.Name), execapi.StopTaskParams{ID: c.ID, Signal: int(unix.SIGKILL)}); err != nil {
		t.Fatal(err)
	}
	if st, err := ended(t, p); err != nil || st.Signal != int(unix.SIGKILL) || st.Code != 137 {
		t.Errorf("%+v: %v", st, err)
	}
	// Without a signal it is ended with all that it started, whatever that ignores.
	c = piped("trap '' TERM; setsid sh -c \"trap '' TERM; sleep 1000\" & echo on; wait")
	p = s.spawn(t, w.Name, c, false)
	readUntil(t, p.Files()[1], "on\n")
	if err := s.Signal(t.Context(), may(w.Name), execapi.StopTaskParams{ID: c.ID, GraceMS: 100}); err != nil {
		t.Fatal(err)
	}
	if st, err := ended(t, p); err != nil || st.Signal != int(unix.SIGKILL) {
		t.Errorf("%+v: %v", st, err)
	}
	if out := s.sh(t, w.Name, "ps -e -o args | grep -c '[s]leep 1000' || true"); out != "0\n" {
		t.Errorf("%s processes are left", out)
	}
}

func testConcurrentCommands(t *testing.T, s *suite) {
	w := s.started(t)
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for j := range 5 {
				want := fmt.Sprintf("%d-%d\n", i, j)
				r, err := s.Runtime.Run(t.Context(), may(w.Name), sh("echo "+strings.TrimSpace(want)))
				if err != nil || string(r.Stdout) != want {
					t.Errorf("%s: %q, %v", want, r.Stdout, err)
				}
			}
		})
	}
	all.Wait()
	if left := s.commands(t, w.Name); len(left) != 0 {
		t.Errorf("left: %+v", left)
	}
}
