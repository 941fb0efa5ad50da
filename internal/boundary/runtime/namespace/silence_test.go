package namespace_test

import (
	"errors"
	"os"
	"os/exec"
	"sync/atomic"
	"testing"
	"time"

	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/linux/pidfd"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/wire/brokerapi"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
	"github.com/carrel-dev/carrel/internal/wire/jsonrpc"
)

// within fails the test if f takes longer than most.
func within(t *testing.T, what string, most time.Duration, f func()) {
	t.Helper()
	began := time.Now()
	f()
	if took := time.Since(began); took > most {
		t.Errorf("%s took %v", what, took)
	}
}

// answersAgain waits until the executor is asked again and answers.
func answersAgain(t *testing.T, f *fixture) {
	t.Helper()
	tick, late := time.NewTicker(50*time.Millisecond), time.After(10*time.Second)
	defer tick.Stop()
	for f.Ping(t.Context(), name) != nil || !f.Silent(name).IsZero() {
		select {
		case <-tick.C:
		case <-late:
			t.Fatal("it answers again, and is not asked")
		}
	}
}

// An executor that answers nothing holds one caller for two seconds and the others not at all.
// What runs there is left alone, and when it answers again, so does the runtime.
func TestSilentExecutor(t *testing.T) {
	t.Parallel()
	mute := make(chan struct{})
	answered := func(*jsonrpc.Conn, *jsonrpc.Request) (any, []*os.File, error) {
		<-mute
		return struct{}{}, nil, nil
	}
	f := setUp(t, table{
		execapi.MethodPing: answered, execapi.MethodList: answered,
		execapi.MethodExec: func(*jsonrpc.Conn, *jsonrpc.Request) (any, []*os.File, error) {
			return execapi.ExecResult{PID: 7}, nil, nil
		},
	})
	ctx := t.Context()
	running, err := f.Spawn(ctx, may(name), command(), false)
	if err != nil {
		t.Fatal(err)
	}
	if !f.Silent(name).IsZero() {
		t.Error("it is silent before anybody asked it")
	}
	within(t, "the first question", 3*time.Second, func() {
		if err := f.Ping(ctx, name); !errors.Is(err, runtime.ErrSilent) {
			t.Error(err)
		}
	})
	within(t, "what comes after it", 100*time.Millisecond, func() {
		_, listed := f.Commands(ctx, name)
		_, spawned := f.Spawn(ctx, may(name), command(), false)
		for _, err := range []error{listed, spawned, f.Ping(ctx, name), f.Signal(ctx, may(name), execapi.StopTaskParams{})} {
			if !errors.Is(err, runtime.ErrSilent) {
				t.Error(err)
			}
		}
	})
	if f.Silent(name).IsZero() {
		t.Error("it is not known to be silent")
	}
	done := make(chan struct{})
	go func() { defer close(done); _, _ = running.Wait(ctx) }()
	select {
	case <-done:
		t.Error("a command was given up because its executor is silent")
	case <-time.After(100 * time.Millisecond):
	}
	close(mute)
	answersAgain(t, f)
}

// One that does not even greet is the same.
func TestSilentGreeting(t *testing.T) {
	t.Parallel()
	mute := make(chan struct{})
	f := setUp(t, table{
		execapi.MethodHello: func(*jsonrpc.Conn, *jsonrpc.Request) (any, []*os.File, error) {
			<-mute
			return execapi.HelloResult{Version: execapi.Version, Workspace: name}, nil, nil
		},
		execapi.MethodPing: func(*jsonrpc.Conn, *jsonrpc.Request) (any, []*os.File, error) { return struct{}{}, nil, nil },
	})
	within(t, "the first question", 3*time.Second, func() {
		if err := f.Ping(t.Context(), name); !errors.Is(err, runtime.ErrSilent) {
			t.Error(err)
		}
	})
	within(t, "the next", 100*time.Millisecond, func() {
		if _, err := f.Run(t.Context(), may(name), command()); !errors.Is(err, runtime.ErrSilent) {
			t.Error(err)
		}
	})
	close(mute)
	answersAgain(t, f)
}

// A socket that refuses is no proof that an executor has ended, nor is a connection that breaks: the
// kernel says whether it has.
func TestOnlyTheKernelTellsAnEnd(t *testing.T) {
	t.Parallel()
	var breaks atomic.Bool
	f := setUp(t, table{
		execapi.MethodHello: func(c *jsonrpc.Conn, _ *jsonrpc.Request) (any, []*os.File, error) {
			if breaks.Load() {
				_ = c.Close()
			}
			return execapi.HelloResult{Version: execapi.Version, Workspace: name}, nil, nil
		},
		execapi.MethodPing: func(*jsonrpc.Conn, *jsonrpc.Request) (any, []*os.File, error) { return struct{}{}, nil, nil },
	})
	executor := exec.Command("/bin/sleep", "1000")
	if err := executor.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = executor.Process.Kill(); _ = executor.Wait() }()
	pid := executor.Process.Pid
	start, err := pidfd.StartTime(pid)
	if err != nil {
		t.Fatal(err)
	}
	brokerDouble(t, f, brokerapi.Workspace{
		Name: name, State: workspace.StateRunning, IDs: workspace.IDs{Executor: uint32(os.Getuid())},
		Executor: &brokerapi.Executor{PID: pid, StartTime: start},
	})
	if _, err := f.List(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.executor.stop()
	within(t, "a question to one that refuses", 5*time.Second, func() {
		if err := f.Ping(t.Context(), name); !errors.Is(err, runtime.ErrSilent) || errors.Is(err, runtime.ErrNotRunning) {
			t.Errorf("it lives, and its socket refuses: %v", err)
		}
	})
	// Another one that was started meanwhile is not held to that.
	f.executor.start()
	within(t, "a start of another", time.Second, func() {
		if _, _, err := f.Start(t.Context(), may(name), runtime.Way{}); err != nil {
			t.Errorf("another was started: %v", err)
		}
	})
	if _, err := f.List(t.Context()); err != nil { // which says that it is the first after all
		t.Fatal(err)
	}
	answersAgain(t, f)
	breaks.Store(true)
	f.executor.hangup()
	if err := f.Ping(t.Context(), name); err == nil || errors.Is(err, runtime.ErrNotRunning) {
		t.Errorf("it lives, and breaks the connection: %v", err)
	}
	if err := executor.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_, _ = executor.Process.Wait()
	if err := f.Ping(t.Context(), name); !errors.Is(err, runtime.ErrNotRunning) {
		t.Errorf("it has ended: %v", err)
	}
}

// An executor that an operation left held is let go on when it is met again, and one that is paused is
// held: what the broker says counts.
func TestAHoldThatWasLeftIsPutRight(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		state workspace.State
		held  bool
		want  int32
	}{
		{workspace.StateRunning, true, 1},
		{workspace.StatePaused, false, 2},
		{workspace.StateRunning, false, 0},
		{workspace.StatePaused, true, 0},
	} {
		var got atomic.Int32
		f := setUp(t, table{
			execapi.MethodHello: func(*jsonrpc.Conn, *jsonrpc.Request) (any, []*os.File, error) {
				return execapi.HelloResult{Version: execapi.Version, Workspace: name, Held: c.held}, nil, nil
			},
			execapi.MethodHold: func(_ *jsonrpc.Conn, r *jsonrpc.Request) (any, []*os.File, error) {
				got.Store(1)
				if decode[execapi.HoldParams](t, r).On {
					got.Store(2)
				}
				return struct{}{}, nil, nil
			},
			execapi.MethodPing: func(*jsonrpc.Conn, *jsonrpc.Request) (any, []*os.File, error) { return struct{}{}, nil, nil },
		})
		brokerDouble(t, f, brokerapi.Workspace{Name: name, State: c.state, IDs: workspace.IDs{Executor: uint32(os.Getuid())}})
		if _, err := f.List(t.Context()); err != nil {
			t.Fatal(err)
		}
		_ = f.Ping(t.Context(), name)
		if got.Load() != c.want {
			t.Errorf("%+v: told %d", c, got.Load())
		}
	}
}
