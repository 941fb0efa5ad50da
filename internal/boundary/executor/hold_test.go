package executor_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/boundary/sandbox/launch/launchtest"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

func (c *client) hold(on bool) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), 10*time.Second)
	defer cancel()
	if _, err := c.Call(ctx, execapi.MethodHold, execapi.HoldParams{On: on}, nil); err != nil {
		c.t.Fatalf("hold %v: %v", on, err)
	}
}

// While held, an executor starts nothing on any connection and says what to do. Running commands
// go on.
func TestHold(t *testing.T) {
	bothRoles(t, func(t *testing.T, w *launchtest.Workspace, c *client) {
		other := dial(t, w, execapi.Spawn)
		before, _ := c.start(execapi.ExecParams{Argv: []string{"sleep", "1000"}, Detach: true}, execapi.MethodExec)
		for range 2 {
			c.hold(true)
		}
		for _, p := range []*client{c, other} {
			_, err := p.run(execapi.ExecParams{Argv: []string{"true"}})
			if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "carrel resume "+string(w.Name)) ||
				strings.Contains(err.Error(), `cannot run "`) {
				t.Errorf("a command while held: %v", err)
			}
		}
		if _, err := c.Call(t.Context(), execapi.MethodStopTask, execapi.StopTaskParams{ID: before, Signal: 9}, nil); err != nil {
			t.Errorf("what runs cannot be ended: %v", err)
		}
		for range 2 {
			c.hold(false)
		}
		if r := other.sh("echo on"); string(r.Stdout) != "on\n" {
			t.Errorf("%+v", r)
		}
	})
}

// Once a hold is answered, every command that was admitted before runs its own program: the
// thread that forks commands answers, however suddenly they are frozen.
func TestHoldWaitsForBirths(t *testing.T) {
	w, err := launchtest.Start(t, nil)
	if err != nil {
		t.Fatal(err)
	}
	control, thread := dial(t, w, execapi.Control), dial(t, w, execapi.Spawn)
	freeze := func(on bool) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if err := w.Groups.Freeze(ctx, w.Name, on); err != nil {
			t.Fatal(err)
		}
	}
	defer freeze(false)
	starters := make([]*client, 4)
	for i := range starters {
		starters[i] = dial(t, w, execapi.Spawn)
	}
	// On a host where each round takes long, fewer rounds do.
	for rounds, began := 0, time.Now(); rounds < 50 && (rounds < 10 || time.Since(began) < 10*time.Second); rounds++ {
		var running sync.WaitGroup
		ran := make(chan struct{}, 1)
		for _, c := range starters {
			running.Go(func() {
				for {
					_, err := c.run(execapi.ExecParams{Argv: []string{"true"}})
					if errdefs.IsFailedPrecondition(err) {
						return
					}
					if err != nil {
						t.Error(err)
						return
					}
					select {
					case ran <- struct{}{}:
					default:
					}
				}
			})
		}
		for range len(starters) {
			select {
			case <-ran:
			case <-time.After(5 * time.Second):
				t.Fatal("no command runs")
			}
		}
		control.hold(true)
		freeze(true)
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		_, err := thread.Call(ctx, execapi.MethodPing, struct{}{}, nil)
		cancel()
		freeze(false)
		running.Wait()
		if err != nil {
			t.Fatalf("frozen, the executor does not answer: %v", err)
		}
		control.hold(false)
	}
}
