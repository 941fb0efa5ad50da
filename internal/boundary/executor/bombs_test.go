package executor_test

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/boundary/sandbox/launch/launchtest"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

func TestForkBombIsContained(t *testing.T) {
	w, err := launchtest.Start(t, nil)
	if err != nil {
		t.Fatal(err)
	}
	c := dial(t, w, execapi.Control)
	spawn := dial(t, w, execapi.Spawn)
	n, far := c.start(execapi.ExecParams{
		Argv:   []string{"/bin/bash", "-c", "echo ready; bomb() { bomb | bomb & }; bomb 2>/dev/null; sleep 300"},
		Stdout: execapi.Pipe,
	}, execapi.MethodExec)
	b := make([]byte, 6)
	io.ReadFull(far[0], b)
	// It reaches the limit, and another command is refused with the reason.
	full := false
	for end := time.Now().Add(10 * time.Second); !full && time.Now().Before(end); {
		_, err := spawn.run(execapi.ExecParams{Argv: []string{"/bin/true"}})
		full = errdefs.IsResourceExhausted(err)
		if full && !strings.Contains(err.Error(), "limit of processes") {
			t.Errorf("the error does not say why: %v", err)
		}
	}
	if !full {
		t.Error("the bomb never met its ceiling")
	}
	t.Logf("ping under the bomb: %v", c.ping())
	if s, err := w.Groups.Stats(w.Name); err != nil || s.Pids > w.Limits.Pids {
		t.Errorf("%+v %v", s, err)
	}
	if _, err := c.Call(t.Context(), execapi.MethodStopTask, execapi.StopTaskParams{ID: n, GraceMS: 100}, nil); err != nil {
		t.Fatal(err)
	}
	c.wait(n)
	noneLeft(t, w, c)
}

func TestMemoryBombIsContained(t *testing.T) {
	w, err := launchtest.Start(t, nil)
	if err != nil {
		t.Fatal(err)
	}
	c := dial(t, w, execapi.Spawn)
	r := c.sh("exec dd if=/dev/zero of=/dev/null bs=1000M count=1")
	if r.Status.Signal != int(unix.SIGKILL) || !r.Status.OOM {
		t.Errorf("%+v %s", r.Status, r.Stderr)
	}
	c.ping()
	// tmpfs counts too, and has its own limit.
	r = c.sh("head -c 100m /dev/zero > /dev/shm/fill; code=$?; stat -c %s /dev/shm/fill; rm /dev/shm/fill; exit $code")
	if r.Status.Code == 0 {
		t.Errorf("/dev/shm took it all: %s", r.Stdout)
	}
	if r := c.sh("kill -9 $$"); r.Status.OOM {
		t.Error("a kill is taken for a lack of memory")
	}
}

func TestManyAtOnce(t *testing.T) {
	bothRoles(t, func(t *testing.T, w *launchtest.Workspace, c *client) {
		var wg sync.WaitGroup
		for i := range 40 {
			wg.Go(func() {
				r, err := c.run(execapi.ExecParams{Argv: []string{"/bin/sh", "-c", fmt.Sprintf("echo %d; exit %d", i, i)}})
				if err != nil || r.Status.Code != i || string(r.Stdout) != fmt.Sprintln(i) {
					t.Errorf("%d: %+v %v", i, r, err)
				}
			})
		}
		wg.Wait()
		noneLeft(t, w, c)
	})
}
