// Package runtimetest is the suite that every backend of runtime.Runtime passes. It
// holds a backend to what the interface says, by running real commands in it.
//
// It must be imported by tests only, and must not know how a backend works.
package runtimetest

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/spec/permit"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

// Limits are those of the suite's workspaces.
var Limits = workspace.Limits{MemoryBytes: 128 << 20, Pids: 64, CPUWeight: 100, OpenFiles: 256}

// patience bounds every wait for something that must come.
const patience = 30 * time.Second

// Run runs the suite. open returns a runtime over one and the same host each time it is
// called; the suite closes what it opens and destroys every workspace that it makes,
// whose names begin with "rtt-". Inside there must be /bin/sh and the usual tools, and
// the test must be allowed to kill executors by their pid.
func Run(t *testing.T, open func(t *testing.T) runtime.Runtime) {
	for _, part := range []struct {
		name string
		run  func(*testing.T, *suite)
	}{
		{"Create", testCreate},
		{"CreateStarts", testCreateStarts},
		{"Unknown", testUnknown},
		{"States", testStates},
		{"Destroy", testDestroy},
		{"HomeIsKept", testHomeIsKept},
		{"Run", testRun},
		{"RunCannotStart", testRunCannotStart},
		{"RunIsEndedWithItsCaller", testRunIsEndedWithItsCaller},
		{"Spawn", testSpawn},
		{"SpawnDescriptors", testSpawnDescriptors},
		{"SpawnTerminal", testSpawnTerminal},
		{"Detach", testDetach},
		{"DetachTerminal", testDetachTerminal},
		{"Signal", testSignal},
		{"CloseLetsGo", testCloseLetsGo},
		{"ExecutorKilled", testExecutorKilled},
		{"StopEndsCommands", testStopEndsCommands},
		{"Revive", testRevive},
		{"Pause", testPause},
		{"PauseWhileStarting", testPauseWhileStarting},
		{"Limit", testLimit},
		{"ConcurrentCommands", testConcurrentCommands},
		{"ConcurrentLifecycle", testConcurrentLifecycle},
	} {
		t.Run(part.name, func(t *testing.T) {
			s := &suite{open: open, Runtime: open(t)}
			t.Cleanup(func() {
				if err := s.Close(); err != nil {
					t.Errorf("cannot close the runtime: %v", err)
				}
			})
			part.run(t, s)
		})
	}
}

// suite is one part's runtime.
type suite struct {
	runtime.Runtime
	open func(t *testing.T) runtime.Runtime
}

// made is a workspace of this suite.
type made struct {
	Name id.Workspace
	workspace.Real
}

// may is the permit to change a workspace, as the gate would issue it.
func may(name id.Workspace) permit.Permit {
	p, _ := permit.Issue(name)
	return p
}

// digestOf is the key digest of name in this suite.
func digestOf(name id.Workspace) string {
	sum := sha256.Sum256([]byte(name))
	return hex.EncodeToString(sum[:])
}

// name returns a name that no workspace has had, and sees that it has none in the end.
func (s *suite) name(t *testing.T) id.Workspace {
	name := id.Derive("rtt", id.Key(rand.Text()), 0)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 2*patience)
		defer cancel()
		if _, err := s.Destroy(ctx, may(name), true); err != nil && !errdefs.IsNotFound(err) {
			t.Errorf("cannot destroy %s: %v", name, err)
		}
	})
	return name
}

// created returns a new workspace that is stopped.
func (s *suite) created(t *testing.T) made {
	t.Helper()
	name := s.name(t)
	w, _, err := s.Create(t.Context(), may(name), runtime.Plan{KeyDigest: digestOf(name), Limits: Limits})
	if err != nil {
		t.Fatal(err)
	}
	return made{name, w}
}

// started returns a new workspace that runs.
func (s *suite) started(t *testing.T) made {
	t.Helper()
	name := s.created(t).Name
	w, report, err := s.Start(t.Context(), may(name), runtime.Way{})
	if err != nil {
		t.Fatal(err)
	}
	if err := report.Err(); err != nil {
		t.Fatal(err)
	}
	return made{name, w}
}

// sh is a shell command with both outputs captured.
func sh(script string) execapi.ExecParams {
	return execapi.ExecParams{ID: id.NewCommand(), Argv: []string{"/bin/sh", "-c", script}, Stdout: execapi.Capture, Stderr: execapi.Capture}
}

// sh runs a shell command that must succeed and returns what it printed.
func (s *suite) sh(t *testing.T, name id.Workspace, script string) string {
	t.Helper()
	r, err := s.Runtime.Run(t.Context(), may(name), sh(script))
	if err != nil {
		t.Fatalf("%s: %v", script, err)
	}
	if r.Status == nil || r.Status.Code != 0 {
		t.Fatalf("%s: %+v, %s%s", script, r.Status, r.Stdout, r.Stderr)
	}
	return string(r.Stdout)
}

// mark makes a file in the home, for a command that waits for it.
func (s *suite) mark(t *testing.T, name id.Workspace, file string) {
	t.Helper()
	s.sh(t, name, "touch "+file)
}

// await is the shell's way to wait for mark, and marked the test's to wait for the shell.
func await(file string) string { return "while [ ! -e " + file + " ]; do sleep 0.01; done" }

func (s *suite) marked(t *testing.T, name id.Workspace, file string) {
	t.Helper()
	p := sh(await(file))
	p.TimeoutMS = patience.Milliseconds()
	r, err := s.Runtime.Run(t.Context(), may(name), p)
	if err != nil {
		t.Fatal(err)
	}
	if r.Status.TimedOut {
		t.Fatalf("%s never came", file)
	}
}

// process is a command that was spawned, and closes it with the test.
func (s *suite) spawn(t *testing.T, name id.Workspace, p execapi.ExecParams, tty bool, fds ...*os.File) runtime.Process {
	t.Helper()
	proc, err := s.Spawn(t.Context(), may(name), p, tty, fds...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = proc.Close() // most have ended
		for _, f := range proc.Files() {
			_ = f.Close()
		}
	})
	return proc
}

// ended waits for a spawned command.
func ended(t *testing.T, p runtime.Process) (execapi.Status, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	st, err := p.Wait(ctx)
	if ctx.Err() != nil {
		t.Fatal("the command does not end")
	}
	return st, err
}

// readUntil reads f until text was seen.
func readUntil(t *testing.T, f *os.File, text string) string {
	t.Helper()
	_ = f.SetReadDeadline(time.Now().Add(patience)) // files that take none are read without
	var all []byte
	buf := make([]byte, 4096)
	for !strings.Contains(string(all), text) {
		n, err := f.Read(buf)
		all = append(all, buf[:n]...)
		if err != nil {
			t.Fatalf("read %q and not %q: %v", all, text, err)
		}
	}
	return string(all)
}

// readAll reads f to its end, which for a terminal is an error.
func readAll(f *os.File) string {
	_ = f.SetReadDeadline(time.Now().Add(patience))
	b, _ := io.ReadAll(f)
	return string(b)
}

// until asks again until yes says yes. It is for what another process does, of which no
// word comes.
func until(t *testing.T, what string, yes func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); !yes(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("%s does not come", what)
		}
	}
}

// is sees that an error is of a kind.
func is(t *testing.T, what string, err error, kind error) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Errorf("%s: %v, want kind %v", what, err, kind)
	}
}
