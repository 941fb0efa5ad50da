package hostrun_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/boundary/hostrun"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/test/ptytest"
)

var (
	heldProfiles = []hostrun.Profile{hostrun.ReadOnly, hostrun.SystemInspect, hostrun.WorkspaceWrite}
	allProfiles  = append([]hostrun.Profile{hostrun.None, hostrun.PrivilegedPassthrough}, heldProfiles...)
)

// each runs f for each user and profile.
func each(t *testing.T, profiles []hostrun.Profile, f func(t *testing.T, u *user, p hostrun.Profile)) {
	t.Helper()
	users(t, func(t *testing.T, u *user) {
		for _, p := range profiles {
			t.Run(string(p), func(t *testing.T) { f(t, u, p) })
		}
	})
}

// in makes a directory for a command of the user's.
func (u *user) in(t *testing.T, name string) string {
	t.Helper()
	dir := u.home + "/" + name
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.Chown(dir, int(u.id), -1)); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestEnding(t *testing.T) {
	each(t, allProfiles, func(t *testing.T, u *user, p hostrun.Profile) {
		dir := u.in(t, "project")
		for script, want := range map[string]struct {
			code        int
			signal      unix.Signal
			out, stderr string
		}{
			"echo out; echo err >&2":          {0, 0, "out\n", "err\n"},
			"exit 7":                          {7, 0, "", ""},
			"kill -KILL $$":                   {137, unix.SIGKILL, "", ""},
			"kill -TERM $$":                   {143, unix.SIGTERM, "", ""},
			"pwd":                             {0, 0, dir + "\n", ""},
			"wc -c":                           {0, 0, "0\n", ""}, // its standard input is empty
			"echo $PASSED,$KEPT,$PAGER,$HOME": {0, 0, "on,,cat," + u.home + "\n", ""},
			"id -u":                           {0, 0, strconv.Itoa(int(u.id)) + "\n", ""},
		} {
			a := u.run(t, hostrun.Command{Argv: []string{"sh", "-c", script}, Profile: p, Dir: dir, Env: []string{"PASSED"}})
			r := a.Result
			if a.Error != "" || r.Code != want.code || r.Signal != want.signal || r.Stdout.Text() != want.out || r.Stderr.Text() != want.stderr ||
				r.TimedOut || r.Left != nil {
				t.Errorf("%s: %s, code %d, signal %v, %q, %q, %v", script, a.Error, r.Code, r.Signal, r.Stdout.Text(), r.Stderr.Text(), r.Left)
			}
			for _, c := range r.Controls {
				if c.Required && c.State != workspace.Verified || c.Evidence == "" {
					t.Errorf("control %s is %s: %s", c.ID, c.State, c.Evidence)
				}
			}
		}
	})
}

// The environment is a clean one.
func TestEnvironment(t *testing.T) {
	users(t, func(t *testing.T, u *user) {
		r := u.sh(t, hostrun.None, "env")
		for line := range strings.Lines(r.Stdout.Text()) {
			switch name, _, _ := strings.Cut(line, "="); name {
			case "PATH", "HOME", "PWD", "_", "OLDPWD", "SHLVL", "TERM", "PAGER", "GIT_PAGER", "MANPAGER", "SYSTEMD_PAGER", "SYSTEMD_LESS", "EDITOR",
				"VISUAL", "GIT_EDITOR", "GIT_TERMINAL_PROMPT", "DEBIAN_FRONTEND":
			default:
				t.Errorf("%s is passed on", line)
			}
		}
	})
}

func TestRefused(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	link := filepath.Join(home, "link")
	if err := os.Symlink("/", link); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(home, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	in := func(name string) string {
		dir := filepath.Join(home, name)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	sh := []string{"sh", "-c", "echo ran"}
	for name, c := range map[string]struct {
		hostrun.Command
		is func(error) bool
	}{
		"no profile":         {hostrun.Command{Argv: sh}, errdefs.IsInvalidArgument},
		"unknown profile":    {hostrun.Command{Argv: sh, Profile: "read-only"}, errdefs.IsInvalidArgument},
		"no program":         {hostrun.Command{Profile: hostrun.None}, errdefs.IsInvalidArgument},
		"empty program":      {hostrun.Command{Argv: []string{""}, Profile: hostrun.None}, errdefs.IsInvalidArgument},
		"zero byte":          {hostrun.Command{Argv: []string{"sh", "a\x00b"}, Profile: hostrun.None}, errdefs.IsInvalidArgument},
		"too many arguments": {hostrun.Command{Argv: make([]string, 5000), Profile: hostrun.None}, errdefs.IsInvalidArgument},
		"too long":           {hostrun.Command{Argv: []string{strings.Repeat("a", 1<<18)}, Profile: hostrun.None}, errdefs.IsInvalidArgument},
		"timeout":            {hostrun.Command{Argv: sh, Profile: hostrun.None, Timeout: 25 * time.Hour}, errdefs.IsInvalidArgument},
		"output":             {hostrun.Command{Argv: sh, Profile: hostrun.None, MaxOutput: 1 << 40}, errdefs.IsInvalidArgument},
		"relative directory": {hostrun.Command{Argv: sh, Profile: hostrun.None, Dir: "."}, errdefs.IsInvalidArgument},
		"no directory":       {hostrun.Command{Argv: sh, Profile: hostrun.None, Dir: home + "/missing"}, errdefs.IsNotFound},
		"file":               {hostrun.Command{Argv: sh, Profile: hostrun.None, Dir: file}, errdefs.IsInvalidArgument},
		"bad name":           {hostrun.Command{Argv: sh, Profile: hostrun.None, Env: []string{"A=B"}}, errdefs.IsInvalidArgument},
		"askpass":            {hostrun.Command{Argv: sh, Profile: hostrun.None, Env: []string{"SUDO_ASKPASS"}}, errdefs.IsInvalidArgument},
		"pager":              {hostrun.Command{Argv: sh, Profile: hostrun.None, Env: []string{"PAGER"}}, errdefs.IsInvalidArgument},
		"missing program":    {hostrun.Command{Argv: []string{"no-such-program"}, Profile: hostrun.None}, errdefs.IsNotFound},
		"directory to run":   {hostrun.Command{Argv: []string{"/etc"}, Profile: hostrun.None}, errdefs.IsPermissionDenied},
		"missing, held":      {hostrun.Command{Argv: []string{"no-such-program"}, Profile: hostrun.ReadOnly}, errdefs.IsNotFound},
		"nothing to write":   {hostrun.Command{Argv: sh, Profile: hostrun.WorkspaceWrite}, errdefs.IsInvalidArgument},
		"root to write":      {hostrun.Command{Argv: sh, Profile: hostrun.WorkspaceWrite, Dir: "/"}, errdefs.IsInvalidArgument},
		"link to the root":   {hostrun.Command{Argv: sh, Profile: hostrun.WorkspaceWrite, Dir: link}, errdefs.IsInvalidArgument},
		"home to write":      {hostrun.Command{Argv: sh, Profile: hostrun.WorkspaceWrite, Dir: home}, errdefs.IsInvalidArgument},
		"above a home":       {hostrun.Command{Argv: sh, Profile: hostrun.WorkspaceWrite, Dir: filepath.Dir(home)}, errdefs.IsInvalidArgument},
		"home by passwd":     {hostrun.Command{Argv: sh, Profile: hostrun.WorkspaceWrite, Dir: "/root"}, errdefs.IsInvalidArgument},
		"system to write":    {hostrun.Command{Argv: sh, Profile: hostrun.WorkspaceWrite, Dir: "/etc"}, errdefs.IsInvalidArgument},
		"keys to write":      {hostrun.Command{Argv: sh, Profile: hostrun.WorkspaceWrite, Dir: in(".ssh")}, errdefs.IsInvalidArgument},
		"programs to write":  {hostrun.Command{Argv: sh, Profile: hostrun.WorkspaceWrite, Dir: in("bin")}, errdefs.IsInvalidArgument},
		"settings to write":  {hostrun.Command{Argv: sh, Profile: hostrun.WorkspaceWrite, Dir: in(".local/share/x")}, errdefs.IsInvalidArgument},
		"hooks to write":     {hostrun.Command{Argv: sh, Profile: hostrun.WorkspaceWrite, Dir: in("p/.git/hooks")}, errdefs.IsInvalidArgument},
		"homes to write":     {hostrun.Command{Argv: sh, Profile: hostrun.WorkspaceWrite, Dir: "/home"}, errdefs.IsInvalidArgument},
		"one that is a home": {
			hostrun.Command{Argv: sh, Profile: hostrun.WorkspaceWrite, Dir: in("p"), Writes: []string{in("p"), home}}, errdefs.IsInvalidArgument,
		},
		"too many to write": {
			hostrun.Command{Argv: sh, Profile: hostrun.WorkspaceWrite, Writes: slices.Repeat([]string{in("p")}, 9)}, errdefs.IsInvalidArgument,
		},
		"writes, read-only":   {hostrun.Command{Argv: sh, Profile: hostrun.ReadOnly, Writes: []string{in("p")}}, errdefs.IsInvalidArgument},
		"writes, none":        {hostrun.Command{Argv: sh, Profile: hostrun.None, Writes: []string{in("p")}}, errdefs.IsInvalidArgument},
		"kernel to write":     {hostrun.Command{Argv: sh, Profile: hostrun.WorkspaceWrite, Dir: "/proc/sys"}, errdefs.IsInvalidArgument},
		"name before the end": {hostrun.Command{Argv: sh, Profile: hostrun.None, Env: []string{"1A"}}, errdefs.IsInvalidArgument},
	} {
		c.AllowRoot = true
		if name == "home by passwd" && os.Geteuid() != 0 {
			continue
		}
		res, err := hostrun.Run(t.Context(), c.Command)
		if !c.is(err) || strings.Contains(res.Stdout.Text(), "ran") {
			t.Errorf("%s: %v, %q", name, err, res.Stdout.Text())
		}
	}
}

func TestRootIsAllowed(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIP: it is about root")
	}
	_, err := hostrun.Run(t.Context(), hostrun.Command{Argv: []string{"true"}, Profile: hostrun.None})
	if !errdefs.IsPermissionDenied(err) {
		t.Errorf("without being allowed: %v", err)
	}
}

// ends waits until processes have ended, by what the kernel says of each.
func ends(t *testing.T, pids []int) {
	t.Helper()
	for _, pid := range pids {
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue
		}
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 20_000)
		unix.Close(fd)
		if n != 1 || err != nil {
			b, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
			t.Errorf("process %d lives on: %s", pid, b)
			unix.Kill(pid, unix.SIGKILL)
		}
	}
}

// hostPids has a script write the numbers that the host has for its processes: of a held one each line of NSpid begins
// with it, which only the host's /proc shows.
func hostPids(t *testing.T, u *user, mark string) (pids []int) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range all {
		if b, err := os.ReadFile(path); err == nil && strings.Contains(string(b), mark) {
			pid, err := strconv.Atoi(strings.Split(path, "/")[2])
			if err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// stopped reports whether the shell of a script with a mark has stopped itself.
func stopped(t *testing.T, u *user, mark string) bool {
	t.Helper()
	for _, pid := range hostPids(t, u, mark) {
		b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		if err == nil && strings.Contains(string(b), ") T ") {
			return true
		}
	}
	return false
}

// mark is a number of seconds that no other sleep on this host has.
func mark(u *user, p hostrun.Profile) string {
	return strconv.Itoa(100_000_000+int(u.id)+1000*len(p)+os.Getpid()*100) + "." + strconv.Itoa(len(u.home))
}

// What a command leaves behind ends with it, whatever it did to get away.
func TestLeftBehind(t *testing.T) {
	each(t, allProfiles, func(t *testing.T, u *user, p hostrun.Profile) {
		m := mark(u, p)
		script := "sleep " + m + " & setsid sleep " + m + " & (setsid sh -c 'trap \"\" TERM HUP; sleep " + m + "; sleep " + m + "' &) ; " +
			"nohup sh -c '(setsid sleep " + m + " &)' >/dev/null 2>&1; echo done"
		a := u.run(t, hostrun.Command{Argv: []string{"sh", "-c", script}, Profile: p, Dir: u.in(t, "project"), Grace: 100 * time.Millisecond})
		if a.Error != "" || a.Result.Stdout.Text() != "done\n" || a.Result.Left != nil {
			t.Errorf("%s, %q, %q, %v", a.Error, a.Result.Stdout.Text(), a.Result.Stderr.Text(), a.Result.Left)
		}
		if left := hostPids(t, u, m); left != nil {
			t.Errorf("processes %v are left", left)
			ends(t, left)
		}
	})
}

// The deadline ends one that ignores signals, one that stopped itself, and what does nothing but start others.
func TestDeadline(t *testing.T) {
	each(t, allProfiles, func(t *testing.T, u *user, p hostrun.Profile) {
		m := mark(u, p)
		for name, script := range map[string]string{
			"ignores":  "trap '' TERM HUP INT; while :; do sleep " + m + "; done",
			"stopped":  "kill -STOP $$; sleep " + m,
			"children": "while :; do setsid sleep " + m + " & sleep 0.02; done",
			"respawns": "for i in 1 2 3 4 5 6 7 8; do setsid sh -c 'while :; do sleep 0.01; done; : " + m + "' & done; wait",
			"bomb":     "ulimit -u 300; b() { b | b & }; b; while :; do sleep " + m + "; done",
		} {
			if name == "bomb" && u.id == 0 {
				continue // no limit of processes holds for root
			}
			a := u.run(t, hostrun.Command{
				Argv: []string{"bash", "-c", script}, Profile: p, Dir: u.in(t, "project"),
				Timeout: 300 * time.Millisecond, Grace: 50 * time.Millisecond,
			})
			if a.Error != "" || !a.Result.TimedOut || a.Result.Left != nil {
				t.Errorf("%s: %s, code %d, timed out %t, left %v", name, a.Error, a.Result.Code, a.Result.TimedOut, a.Result.Left)
			}
			if left := hostPids(t, u, m); left != nil {
				t.Errorf("%s: processes %v are left", name, left)
				ends(t, left)
			}
		}
	})
}

// One that answers SIGTERM within the grace is not killed, even if it has stopped itself. Its caller is told to end it once
// it has begun.
func TestGrace(t *testing.T) {
	each(t, allProfiles, func(t *testing.T, u *user, p hostrun.Profile) {
		m, fifo := mark(u, p), u.home+"/began-"+string(p)
		if err := errors.Join(unix.Mkfifo(fifo, 0o666), os.Chown(fifo, int(u.id), -1)); err != nil {
			t.Fatal(err)
		}
		script := "trap 'echo bye; exit 3' TERM; read x < " + fifo + "; kill -STOP $$; while :; do sleep 0.01; done; : " + m
		cmd := u.caller(t, hostrun.Command{
			Argv: []string{"sh", "-c", script}, Profile: p,
			Dir: u.in(t, "project"), Grace: time.Minute,
		})
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		let(t, fifo)
		for end := time.Now().Add(time.Minute); !stopped(t, u, m) && time.Now().Before(end); {
			runtime.Gosched()
		}
		unix.Kill(cmd.Process.Pid, unix.SIGUSR1)
		var a answer
		if err := errors.Join(json.NewDecoder(out).Decode(&a), cmd.Wait()); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(a.Error, "ended before its time") || a.Result.TimedOut || a.Result.Code != 3 || a.Result.Stdout.Text() != "bye\n" {
			t.Errorf("%s, code %d, %q", a.Error, a.Result.Code, a.Result.Stdout.Text())
		}
	})
}

func TestContext(t *testing.T) {
	for _, p := range []hostrun.Profile{hostrun.None, hostrun.ReadOnly} {
		cause := errors.New("as the caller says")
		ctx, cancel := context.WithCancelCause(t.Context())
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			_, _ = bufio.NewReader(r).ReadByte()
			cancel(cause)
		}()
		// It began when it opens the file, which nothing else does.
		fifo := filepath.Join(t.TempDir(), "began")
		if err := unix.Mkfifo(fifo, 0o600); err != nil {
			t.Fatal(err)
		}
		go func() {
			f, err := os.OpenFile(fifo, os.O_WRONLY, 0)
			if err == nil {
				_ = f.Close()
			}
			_, _ = w.WriteString("x")
		}()
		_, err = hostrun.Run(ctx, hostrun.Command{
			Argv: []string{"sh", "-c", "read x < " + fifo + "; sleep 1000"}, Profile: p, AllowRoot: true, Dir: filepath.Dir(fifo),
		})
		if !errors.Is(err, cause) {
			t.Errorf("%s: %v", p, err)
		}
		if _, err := hostrun.Run(ctx, hostrun.Command{Argv: []string{"true"}, Profile: p, AllowRoot: true}); !errors.Is(err, cause) {
			t.Errorf("%s, begun after the end: %v", p, err)
		}
		r.Close()
		w.Close()
	}
}

// A caller that is killed leaves nothing behind.
func TestKilledCaller(t *testing.T) {
	each(t, allProfiles, func(t *testing.T, u *user, p hostrun.Profile) {
		m := mark(u, p)
		fifo := u.home + "/began-" + string(p)
		if err := errors.Join(unix.Mkfifo(fifo, 0o666), os.Chown(fifo, int(u.id), -1)); err != nil {
			t.Fatal(err)
		}
		// It says that it began by reading, which every profile lets it.
		script := "setsid sleep " + m + " & (setsid sh -c 'trap \"\" TERM; sleep " + m + "; sleep " + m + "' &); " +
			"read x < " + fifo + "; sleep " + m
		cmd := u.caller(t, hostrun.Command{Argv: []string{"sh", "-c", script}, Profile: p, Dir: u.in(t, "project"), Grace: time.Minute})
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		let(t, fifo)
		running := hostPids(t, u, m)
		for until := time.Now().Add(30 * time.Second); len(running) < 2; running = hostPids(t, u, m) { // the shell and what it started
			if time.Now().After(until) {
				t.Fatalf("only %v run", running)
			}
			<-time.After(5 * time.Millisecond)
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		ends(t, running)
		if left := hostPids(t, u, m); left != nil {
			ends(t, left)
		}
	})
}

// What floods its output is read to its end, and no more is kept than was asked for.
func TestFlood(t *testing.T) {
	each(t, []hostrun.Profile{hostrun.None, hostrun.ReadOnly}, func(t *testing.T, u *user, p hostrun.Profile) {
		a := u.run(t, hostrun.Command{
			Argv:    []string{"sh", "-c", "echo first; head -c 50000000 /dev/zero; echo last; head -c 20000000 /dev/zero >&2"},
			Profile: p, MaxOutput: 1000,
		})
		out, stderr := a.Result.Stdout, a.Result.Stderr
		if a.Error != "" || len(out.Head)+len(out.Tail) != 1000 || out.Lost != 50_000_011-1000 || !strings.HasPrefix(out.Text(), "first\n") ||
			!strings.HasSuffix(out.Text(), "last\n") || stderr.Lost != 20_000_000-1000 {
			t.Errorf("%s: %d and %d bytes, lost %d and %d", a.Error, len(out.Head), len(out.Tail), out.Lost, stderr.Lost)
		}
		a = u.run(t, hostrun.Command{Argv: []string{"yes"}, Profile: p, Timeout: 300 * time.Millisecond, MaxOutput: 10})
		if out := a.Result.Stdout; !a.Result.TimedOut || len(out.Head)+len(out.Tail) > 10 {
			t.Errorf("without end: %s, timed out %t, %q", a.Error, a.Result.TimedOut, out.Text())
		}
	})
}

// A caller on a terminal has it for itself.
func TestNoTerminal(t *testing.T) {
	each(t, allProfiles, func(t *testing.T, u *user, p hostrun.Profile) {
		if p == hostrun.PrivilegedPassthrough && testing.Short() {
			t.Skip("SKIP: as none")
		}
		cmd := u.caller(t, hostrun.Command{
			Argv: []string{"sh", "-c", "if (: </dev/tty) 2>/dev/null; then echo has; else echo none; fi; tty; test -t 1 || test -t 2 || echo plain"},
			Dir:  u.in(t, "project"), Profile: p,
		})
		cmd.Stderr = nil // the terminal
		x := ptytest.Start(t, cmd, 24, 200, false)
		if code := x.Wait(); code != 0 {
			t.Fatalf("code %d: %s", code, x.Screen())
		}
		var a answer
		if err := json.Unmarshal([]byte(strings.TrimSpace(x.Screen())), &a); err != nil {
			t.Fatalf("%v: %s", err, x.Screen())
		}
		if got := a.Result.Stdout.Text(); got != "none\nnot a tty\nplain\n" || a.Error != "" {
			t.Errorf("%s %q", a.Error, got)
		}
	})
}

// sudo that would ask says so at once.
func TestWouldAsk(t *testing.T) {
	dir := t.TempDir()
	// A mock of sudo without a rule, which says what sudo says.
	script := "#!/bin/sh\nif (: </dev/tty) 2>/dev/null; then sleep 1000; fi\n" +
		"echo 'sudo: a terminal is required to read the password; either use the -S option or configure an askpass helper' >&2\nexit 1\n"
	if err := os.WriteFile(dir+"/sudo", []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	c := hostrun.Command{Argv: []string{dir + "/sudo", "id"}, Profile: hostrun.None, AllowRoot: true, Dir: dir}
	res, err := hostrun.Run(t.Context(), c)
	if err != nil || res.Code != 1 || !strings.Contains(res.Hint, "would ask for a password") {
		t.Errorf("%v, code %d, hint %q, %s", err, res.Code, res.Hint, res.Stderr.Text())
	}
	c.Profile = hostrun.ReadOnly
	res, err = hostrun.Run(t.Context(), c)
	if err != nil || !strings.Contains(res.Hint, "gains no rights under profile read_only") {
		t.Errorf("%v, hint %q", err, res.Hint)
	}
}

// BenchmarkTrue is what a run costs over os/exec.
func BenchmarkTrue(b *testing.B) {
	b.Run("exec", func(b *testing.B) {
		for b.Loop() {
			if err := exec.Command("true").Run(); err != nil {
				b.Fatal(err)
			}
		}
	})
	for _, p := range []hostrun.Profile{hostrun.None, hostrun.ReadOnly} {
		b.Run(string(p), func(b *testing.B) {
			for b.Loop() {
				if _, err := hostrun.Run(b.Context(), hostrun.Command{Argv: []string{"true"}, Profile: p, AllowRoot: true}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
