package executor_test

import (
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/execapi"
	"github.com/carrel-dev/carrel/internal/id"
	"github.com/carrel-dev/carrel/internal/sandbox/launch/launchtest"
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
