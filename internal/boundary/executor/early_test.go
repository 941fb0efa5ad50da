package executor_test

import (
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox/launch/launchtest"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

// A command that is to end while it is being started ends as soon as it runs.
func TestEndedWhileItStarts(t *testing.T) {
	w, err := launchtest.Start(t, nil)
	if err != nil {
		t.Fatal(err)
	}
	starts, ends := dial(t, w, execapi.Spawn), dial(t, w, execapi.Control)
	for range 100 {
		p := execapi.ExecParams{ID: id.NewCommand(), Argv: []string{"sleep", "300"}}
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, err := starts.Call(t.Context(), execapi.MethodExec, p, nil); err != nil {
				t.Error(err)
			}
		})
		for { // until it is known, which is before it runs
			_, err := ends.Call(t.Context(), execapi.MethodStopTask, execapi.StopTaskParams{ID: p.ID, Hangup: true}, nil)
			if err == nil {
				break
			}
			if !errdefs.IsNotFound(err) {
				t.Fatal(err)
			}
		}
		wg.Wait()
		starts.wait(p.ID)
	}
}

// A shutdown that comes while commands are being started, or cannot be, ends like any other.
func TestShutdownWhileCommandsStart(t *testing.T) {
	for range 10 {
		w, err := launchtest.Start(t, nil)
		if err != nil {
			t.Fatal(err)
		}
		c := dial(t, w, execapi.Control)
		var wg sync.WaitGroup
		for _, program := range []string{"sleep", "no-such-program", "sleep", "no-such-program"} {
			starts := dial(t, w, execapi.Spawn)
			wg.Go(func() { // it may be too late
				_, _ = starts.Call(t.Context(), execapi.MethodExec, execapi.ExecParams{ID: id.NewCommand(), Argv: []string{program, "300"}}, nil)
			})
		}
		began := time.Now()
		if _, err := c.Call(t.Context(), execapi.MethodShutdown, nil, nil); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took > execapi.DefaultGraceMS*time.Millisecond {
			t.Errorf("it took %v", took)
		}
		c.Close()
		wg.Wait()
	}
}

// A command is known from the moment that it is asked for. What a client does with it until it runs is refused, and ends
// nothing: the executor has the other commands too.
func TestWhatIsStartedIsLeftAlone(t *testing.T) {
	w, err := launchtest.Start(t, nil)
	if err != nil {
		t.Fatal(err)
	}
	starting, asking := dial(t, w, execapi.Spawn), dial(t, w, execapi.Control)
	var at atomic.Value
	at.Store(id.NewCommand())
	var refused atomic.Int64
	done := make(chan struct{})
	var asks sync.WaitGroup
	asks.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-done:
				return
			default:
			}
			n := at.Load().(id.Command)
			calls := []struct {
				method string
				params any
			}{
				{execapi.MethodLogs, execapi.OutputParams{ID: n}},
				{execapi.MethodAttach, execapi.OutputParams{ID: n}},
				{execapi.MethodResize, execapi.ResizeParams{ID: n, Rows: 9, Cols: 9}},
			}
			far, err := asking.Call(t.Context(), calls[i%len(calls)].method, calls[i%len(calls)].params, nil)
			for _, f := range far {
				f.Close()
			}
			switch {
			case err == nil, errdefs.IsNotFound(err):
			case errdefs.IsFailedPrecondition(err):
				if strings.Contains(err.Error(), "is being started") {
					refused.Add(1)
				}
			default:
				t.Errorf("%v", err)
				return
			}
		}
	})
	for i := 0; i < 300 && (i < 32 || refused.Load() < 3); i++ { // each is kept, with descriptors of its output
		n := id.NewCommand()
		at.Store(n)
		method := execapi.MethodExec
		if i%30 == 0 { // the workspace has few terminals
			method = execapi.MethodSpawnTerminal
		}
		if _, err := starting.Call(t.Context(), method, execapi.ExecParams{ID: n, Argv: []string{"/bin/true"}, Detach: true}, nil); err != nil {
			t.Fatal(err)
		}
	}
	close(done)
	asks.Wait()
	if refused.Load() == 0 {
		t.Error("no command was met while it was started")
	}
}
