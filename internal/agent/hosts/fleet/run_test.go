package fleet_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/agent/hosts/fleet"
)

// one is a lab with one server that is known.
func one(t *testing.T) (*lab, *fleet.Client, fleet.Host) {
	t.Helper()
	l := newLab(t)
	s := l.start(nil)
	l.known(s.line(s.key))
	return l, l.client(), l.host("one", s)
}

func run(t *testing.T, c *fleet.Client, h fleet.Host, s fleet.Step) fleet.Result {
	t.Helper()
	r, err := c.Run(t.Context(), h, s)
	if err != nil {
		t.Fatalf("%q: %v", s.Argv, err)
	}
	return r
}

func TestRun(t *testing.T) {
	t.Parallel()
	l, c, h := one(t)
	t.Run("arguments", func(t *testing.T) {
		argv := []string{
			"printf", `%s\0`, "", "a b", "'", `'\''`, "\"$HOME\"", "`id`", "\n", "\xff\xfe\x01\x7f", "--", "*", "!x", "é\\",
			"\r\n",
		}
		r := run(t, c, h, fleet.Step{Argv: argv})
		if got, want := string(r.Stdout.Bytes()), strings.Join(argv[2:], "\x00")+"\x00"; got != want || !r.OK() {
			t.Errorf("got %q, want %q: %+v", got, want, r)
		}
		if len(r.Stderr.Bytes()) != 0 || r.Host != "one" || r.Kill.Tried {
			t.Errorf("%+v", r)
		}
	})
	t.Run("statuses", func(t *testing.T) {
		if r := run(t, c, h, fleet.Step{Shell: true, ShellText: "echo out; echo err >&2; exit 3"}); r.Exit != 3 || r.OK() ||
			string(r.Stdout.Bytes()) != "out\n" || string(r.Stderr.Bytes()) != "err\n" {
			t.Errorf("%+v", r)
		}
		if r := run(t, c, h, fleet.Step{Shell: true, ShellText: "kill -s KILL $$"}); r.Signal != "KILL" || r.OK() || r.Outcome != fleet.Ended {
			t.Errorf("%+v", r)
		}
		if r := run(t, c, h, fleet.Step{Argv: []string{"no-such-program-here"}}); r.Exit != 127 {
			t.Errorf("%+v", r)
		}
	})
	t.Run("surroundings", func(t *testing.T) {
		h := h
		h.Cwd = l.home
		h.Env = fleet.Env{Set: []string{"A=1", "B=of the host"}, Keep: []string{"SSH_CONNECTION"}}
		r := run(t, c, h, fleet.Step{
			Env: []string{"B=it's the step's"}, Shell: true,
			ShellText: `pwd; echo "$A/$B/$PAGER/${SSH_CONNECTION:+kept}/${SSH_CLIENT-gone}"; cat; readlink /proc/self/fd/0
				test -t 0 || test -t 1 || test -t 2 || echo no terminal`,
		})
		if got := string(r.Stdout.Bytes()); got != l.home+"\n1/it's the step's/cat/kept/gone\n/dev/null\nno terminal\n" {
			t.Errorf("%q, %q", got, r.Stderr.Bytes())
		}
		h.Env = fleet.Env{Inherit: true}
		r = run(t, c, h, fleet.Step{Cwd: "/", Argv: []string{"sh", "-c", `pwd; echo "${SSH_CLIENT:+inherited}"`}})
		if got := string(r.Stdout.Bytes()); got != "/\ninherited\n" {
			t.Errorf("%q", got)
		}
		if _, err := c.Run(t.Context(), h, fleet.Step{Cwd: "/no/such/directory", Argv: []string{"true"}}); !errdefs.IsFailedPrecondition(err) {
			t.Errorf("a directory that is not there: %v", err)
		}
	})
	t.Run("input", func(t *testing.T) {
		input := bytes.Repeat([]byte("go\n\x00\xff'x\r\n"), 700_000)
		r := run(t, c, h, fleet.Step{Own: true, Argv: []string{"sha256sum"}, Input: input})
		if want := fmt.Sprintf("%x  -\n", sha256.Sum256(input)); string(r.Stdout.Bytes()) != want || !r.OK() {
			t.Errorf("%+v", r)
		}
		// What is not read holds nobody up, and nothing to read is an end.
		for _, s := range []fleet.Step{{Own: true, Argv: []string{"true"}, Input: input}, {Own: true, Argv: []string{"cat"}, Input: []byte{}}} {
			if r := run(t, c, h, s); !r.OK() || len(r.Stdout.Bytes()) > 0 {
				t.Errorf("%q: %+v", s.Argv, r)
			}
		}
		for _, s := range []fleet.Step{
			{Argv: []string{"cat"}, Input: []byte("x")}, {Own: true, Argv: []string{"cat"}, Input: make([]byte, fleet.MaxInput+1)},
		} {
			if _, err := c.Run(t.Context(), h, s); !errdefs.IsInvalidArgument(err) {
				t.Errorf("%d bytes: %v", len(s.Input), err)
			}
		}
	})
	t.Run("flood", func(t *testing.T) {
		r := run(t, c, h, fleet.Step{
			Shell: true, MaxOutput: 1000,
			ShellText: "echo begin; head -c 20000000 /dev/zero; echo end; (echo begin; head -c 20000000 /dev/zero; echo end) >&2",
		})
		for _, o := range []fleet.Output{r.Stdout, r.Stderr} {
			if !strings.HasPrefix(string(o.Head), "begin\n") || !strings.HasSuffix(string(o.Tail), "end\n") || len(o.Head)+len(o.Tail) != 1000 ||
				o.Dropped != 20000000+10-1000 {
				t.Errorf("%d and %d bytes, %d dropped", len(o.Head), len(o.Tail), o.Dropped)
			}
		}
	})
}

// alive reports whether a process is there and no zombie.
func alive(t *testing.T, pid string) bool {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("/proc", pid, "stat"))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
		return false
	}
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	return !strings.HasPrefix(rest, "Z")
}

// killed runs a shell text until it has told the pipe $F its processes, then cancels it, and returns them.
func killed(t *testing.T, c *fleet.Client, h fleet.Host, text string) (fleet.Result, []string) {
	t.Helper()
	told := fifo(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var pids []string
	var wg sync.WaitGroup
	wg.Go(func() { pids = strings.Fields(heard(t, told)); cancel() })
	r, err := c.Run(ctx, h, fleet.Step{Shell: true, ShellText: text, Env: []string{"F=" + told}})
	wg.Wait()
	if err != nil || r.Outcome != fleet.Canceled || !r.Kill.Tried || r.OK() || len(pids) == 0 {
		t.Errorf("%+v, %v: %v", r, err, pids)
	}
	return r, pids
}

func TestKill(t *testing.T) {
	t.Parallel()
	_, c, h := one(t)
	for name, text := range map[string]string{
		"one":      `echo $$ >"$F"; exec sleep 300`,
		"children": `sleep 300 & a=$!; sleep 300 & echo $a $! $$ >"$F"; sleep 300`,
		"deaf":     `trap '' TERM; sleep 300 & echo $! $$ >"$F"; while :; do sleep 1; done`,
		"stopped":  `echo $$ >"$F"; kill -s STOP $$`,
		// The leader has ended, and its child holds the output.
		"orphan": `sleep 300 & echo $! >"$F"`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, pids := killed(t, c, h, text)
			if !r.Kill.Confirmed {
				t.Errorf("%+v", r)
			}
			for _, pid := range pids {
				if alive(t, pid) {
					t.Errorf("%s is there still", pid)
				}
			}
		})
	}
	t.Run("escaped", func(t *testing.T) {
		t.Parallel()
		r, pids := killed(t, c, h, `setsid sh -c 'echo $$ >"$F"; exec sleep 300'`)
		if r.Kill.Confirmed || !strings.Contains(r.Kill.Why, "left the group") || !alive(t, pids[0]) {
			t.Errorf("%+v", r)
		}
		run(t, c, h, fleet.Step{Argv: []string{"kill", "-KILL", pids[0]}})
	})
	t.Run("one session", func(t *testing.T) {
		t.Parallel()
		l := newLab(t)
		s := l.start(nil, "MaxSessions 1")
		l.known(s.line(s.key))
		client, host := l.client(), l.host("one", s)
		r, pids := killed(t, client, host, `echo $$ >"$F"; exec sleep 300`)
		if r.Kill.Confirmed || !strings.Contains(r.Kill.Why, "could not be asked") {
			t.Errorf("%+v", r)
		}
		// sshd itself kills it, but not for root.
		if alive(t, pids[0]) {
			run(t, client, host, fleet.Step{Argv: []string{"kill", "-KILL", pids[0]}})
		}
	})
	t.Run("deadline", func(t *testing.T) {
		t.Parallel()
		r := run(t, c, h, fleet.Step{Shell: true, ShellText: "echo $$; exec sleep 300", Timeout: 5 * time.Second})
		pid := strings.TrimSpace(string(r.Stdout.Bytes()))
		if r.Outcome != fleet.TimedOut || !r.Kill.Confirmed || r.OK() || pid == "" || alive(t, pid) {
			t.Errorf("%+v", r)
		}
	})
}

// A connection that is cut in the middle leaves it unknown whether the step ended, and the step is not run again.
func TestLost(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	s := l.start(nil)
	r := newRelay(t, s)
	l.known(r.line(s.key))
	c, told, ran := l.client(), fifo(t), filepath.Join(t.TempDir(), "ran")
	var pid string
	var wg sync.WaitGroup
	wg.Go(func() { pid = heard(t, told); r.cut() })
	got, err := c.Run(t.Context(), l.host("cut", &r.sshd), fleet.Step{
		Argv: []string{"sh", "-c", `echo x >>"$1"; echo $$ >"$0"; exec sleep 300`, told, ran},
	})
	wg.Wait()
	t.Cleanup(func() { // else a server waits for it, and the test for the server
		if n, err := strconv.Atoi(pid); err == nil && alive(t, pid) {
			_ = syscall.Kill(n, syscall.SIGKILL)
		}
	})
	if err != nil || got.Outcome != fleet.Lost || got.Exit != -1 || got.Why == "" || got.OK() || got.Kill.Tried {
		t.Errorf("%+v, %v", got, err)
	}
	if b, err := os.ReadFile(ran); err != nil || string(b) != "x\n" {
		t.Errorf("it ran as often as %q: %v", b, err)
	}
	// The client makes a new connection for what is asked next.
	if r := run(t, c, l.host("cut", &r.sshd), fleet.Step{Argv: []string{"kill", "-KILL", pid}}); !r.OK() {
		t.Errorf("%+v", r)
	}
	if n := r.count.Load(); n != 2 {
		t.Errorf("%d connections", n)
	}
}

func TestShared(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	s := l.start(nil)
	r := newRelay(t, s)
	l.known(r.line(s.key))
	l.config.Idle = time.Hour
	c := l.client()
	var wg sync.WaitGroup
	for range 12 { // more than the sessions of a connection
		wg.Go(func() {
			if r, err := c.Run(t.Context(), l.host("x", &r.sshd), fleet.Step{Argv: []string{"true"}}); err != nil || !r.OK() {
				t.Errorf("%+v, %v", r, err)
			}
		})
	}
	wg.Wait()
	if n := r.count.Load(); n != 1 {
		t.Errorf("%d connections for one host", n)
	}
	c.Close()
	if _, err := c.Run(t.Context(), l.host("x", &r.sshd), fleet.Step{Argv: []string{"true"}}); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("after Close: %v", err)
	}
}

func TestDown(t *testing.T) {
	l := newLab(t)
	ip := loopback()
	h := l.host("down", &sshd{ip: ip, port: port(t, ip)})
	_, err := l.client().Run(t.Context(), h, fleet.Step{Argv: []string{"true"}})
	if !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), "down") {
		t.Errorf("%v", err)
	}
}
