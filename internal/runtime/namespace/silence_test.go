package namespace_test

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/carrel-dev/carrel/internal/execapi"
	"github.com/carrel-dev/carrel/internal/jsonrpc"
	"github.com/carrel-dev/carrel/internal/runtime"
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
