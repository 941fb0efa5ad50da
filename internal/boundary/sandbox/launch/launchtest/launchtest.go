// Package launchtest starts the running test binary as the executor of a workspace, for
// tests that must see the real thing. It needs root, and removes what it makes: groups
// named carrel-test-PID, and processes of ids that nothing else on a host uses.
//
// It must be imported by tests only.
package launchtest

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox/cgroup"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox/launch"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// The first stage needs the process's first thread.
func init() {
	if IsExecutor() {
		runtime.LockOSThread()
	}
}

// IsExecutor reports whether this process was started as an executor: TestMain must act
// as one then.
func IsExecutor() bool { return os.Args[0] == "carrel-executor" }

// Workspace is a started one.
type Workspace struct {
	*launch.Executor
	Name   id.Workspace
	IDs    workspace.IDs
	Limits workspace.Limits
	// Home and Socket are paths on the host.
	Home, Socket string
	Groups       *cgroup.Instance
}

var count atomic.Uint32

// Start starts a workspace and ends it with the test. change may alter what is asked
// for; it may be nil. Without root the test is skipped.
func Start(t *testing.T, change func(*launch.Config)) (*Workspace, error) {
	t.Helper()
	return StartLimited(t, workspace.Limits{MemoryBytes: 128 << 20, Pids: 64, CPUWeight: 100, OpenFiles: 512}, change)
}

// StartLimited is Start with other limits.
func StartLimited(t *testing.T, limits workspace.Limits, change func(*launch.Config)) (*Workspace, error) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: it starts an executor in namespaces, groups and ids of its own")
	}
	n := count.Add(1)
	w := &Workspace{
		Name:   id.Derive("clt", id.Key(fmt.Sprint(os.Getpid(), n)), 0),
		IDs:    workspace.IDsFrom(1_880_500_000 + 3*(uint32(os.Getpid()%30000)*100+n%100)),
		Limits: limits,
	}
	var err error
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	w.Groups, err = cgroup.Open(cgroup.Config{Name: fmt.Sprintf("carrel-test-%d", os.Getpid()), Shared: cgroup.Shared{MemoryBytes: 1 << 30}})
	must(err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 10*time.Second)
		defer cancel()
		if err := w.Groups.Remove(ctx, w.Name); err != nil {
			t.Errorf("processes are left: %v", err)
		}
		if names, err := w.Groups.Names(); err == nil && len(names) > 0 {
			w.Groups.Close() // another test's workspace lives
			return
		}
		if err := w.Groups.RemoveInstance(); err != nil {
			t.Errorf("groups are left: %v", err)
		}
	})
	dir, err := os.MkdirTemp("", "clt") // short: a socket's path has 107 bytes
	must(err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	sub := func(name string, mode os.FileMode) *os.File {
		p := filepath.Join(dir, name)
		must(os.Mkdir(p, 0o700))
		must(os.Chown(p, int(w.IDs.Work), int(w.IDs.Work)))
		must(os.Chmod(p, mode))
		f, err := os.Open(p)
		must(err)
		t.Cleanup(func() { f.Close() })
		return f
	}
	w.Home, w.Socket = filepath.Join(dir, "home"), filepath.Join(dir, "x.sock")
	self, err := os.Executable()
	must(err)
	binary, err := launch.Seal(self)
	must(err)
	t.Cleanup(func() { binary.Close() })
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: w.Socket})
	must(err)
	t.Cleanup(func() { l.Close() })
	listener, err := l.File()
	must(err)
	t.Cleanup(func() { listener.Close() })

	c := launch.Config{
		Binary: binary,
		Spec: sandbox.Spec{
			Mode: sandbox.Rootful, Name: w.Name, User: string(w.Name), IDs: w.IDs, Shell: "/bin/bash", Limits: w.Limits, TmpfsBytes: 32 << 20,
			Net: sandbox.Net{LowPorts: true},
		},
		Listener: listener, Home: sub("home", 0o700), Tmp: sub("tmp", 0o1777|os.ModeSticky), VarTmp: sub("var-tmp", 0o1777|os.ModeSticky),
		Log: os.Stderr,
	}
	groups, err := c.JoinGroups(t.Context(), w.Groups)
	must(err)
	t.Cleanup(groups.Close)
	if change != nil {
		change(&c)
	}
	w.Executor, err = launch.Start(t.Context(), c)
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() {
		unix.PidfdSendSignal(int(w.Pidfd.Fd()), unix.SIGKILL, nil, 0)
		unix.Wait4(w.PID, nil, 0, nil)
		w.Pidfd.Close()
	})
	return w, nil
}
