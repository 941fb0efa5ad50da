package runtimetest

import (
	"fmt"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

func testCreate(t *testing.T, s *suite) {
	name := s.name(t)
	first, _, err := s.Create(t.Context(), may(name), runtime.Plan{KeyDigest: digestOf(name), Limits: Limits})
	if err != nil {
		t.Fatal(err)
	}
	if first.State != workspace.StateStopped || first.InForce != Limits || first.Home == "" || first.User == "" || first.ExecutorPID != 0 {
		t.Errorf("created: %+v", first)
	}
	if first.IDs != workspace.IDsFrom(first.IDs.Executor) || first.IDs.Executor < 1000 {
		t.Errorf("ids: %+v", first.IDs)
	}
	again, _, err := s.Create(t.Context(), may(name), runtime.Plan{KeyDigest: digestOf(name), Limits: Limits})
	if err != nil || !reflect.DeepEqual(again, first) {
		t.Errorf("created again: %+v, not %+v: %v", again, first, err)
	}
	_, _, err = s.Create(t.Context(), may(name), runtime.Plan{KeyDigest: digestOf("rtt-other"), Limits: Limits})
	is(t, "create for another key", err, errdefs.ErrAlreadyExists)

	other := s.name(t)
	for _, l := range []workspace.Limits{
		{MemoryBytes: 1, Pids: 64, CPUWeight: 100, OpenFiles: 256},
		{MemoryBytes: 128 << 20, Pids: -1, CPUWeight: 100, OpenFiles: 256},
		{MemoryBytes: 128 << 20, Pids: 64, CPUWeight: 10001, OpenFiles: 256},
		{MemoryBytes: 128 << 20, SwapBytes: -1, Pids: 64, CPUWeight: 100, OpenFiles: 256},
	} {
		_, _, err := s.Create(t.Context(), may(other), runtime.Plan{KeyDigest: digestOf(other), Limits: l})
		is(t, "create with limits out of bounds", err, errdefs.ErrInvalidArgument)
	}
	_, _, err = s.Create(t.Context(), may(""), runtime.Plan{KeyDigest: digestOf(""), Limits: Limits})
	is(t, "create without a permit", err, errdefs.ErrPermissionDenied)
	for _, bad := range []id.Workspace{
		"root", "../x", "rtt", "rtt-0000000", "-rf", "rtt-0123abcd/..", "rtt-0123abcd\x00",
		id.Workspace(strings.Repeat("a", 200)),
	} {
		_, _, err := s.Create(t.Context(), may(bad), runtime.Plan{KeyDigest: digestOf(bad), Limits: Limits})
		is(t, fmt.Sprintf("create %.20q", bad), err, errdefs.ErrInvalidArgument)
	}
	for _, digest := range []string{"", "abc", strings.ToUpper(digestOf(other)), digestOf(other) + "0"} {
		_, _, err := s.Create(t.Context(), may(other), runtime.Plan{KeyDigest: digest, Limits: Limits})
		is(t, "create with digest "+digest, err, errdefs.ErrInvalidArgument)
	}
	if s.listed(t, other) != nil {
		t.Error("a create that was refused left a workspace")
	}
	w, _, err := s.Create(t.Context(), may(other), runtime.Plan{KeyDigest: digestOf(other), Limits: workspace.Limits{}})
	if err != nil || w.InForce != workspace.DefaultLimits {
		t.Errorf("created without limits: %+v: %v", w, err)
	}
}

// A create that starts is proved as a start is, and takes commands at once.
func testCreateStarts(t *testing.T, s *suite) {
	name := s.name(t)
	plan := runtime.Plan{KeyDigest: digestOf(name), Limits: Limits, Start: true}
	w, rep, err := s.Create(t.Context(), may(name), plan)
	if err != nil {
		t.Fatal(err)
	}
	if w.State != workspace.StateRunning || w.ExecutorPID == 0 || len(rep.Controls) == 0 || rep.Err() != nil {
		t.Errorf("created: %+v, %+v", w, rep)
	}
	if who := s.sh(t, name, "id -un && cd"); strings.TrimSpace(who) != w.User {
		t.Errorf("it runs as %q", who)
	}
	again, rep, err := s.Create(t.Context(), may(name), plan)
	if err != nil || !reflect.DeepEqual(again, w) || len(rep.Controls) > 0 {
		t.Errorf("created again: %+v, not %+v: %v", again, w, err)
	}
}

// listed returns the workspace as List has it, or nil.
func (s *suite) listed(t *testing.T, name id.Workspace) *made {
	t.Helper()
	all, err := s.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if w, ok := all[name]; ok {
		return &made{name, w}
	}
	return nil
}

func testUnknown(t *testing.T, s *suite) {
	name := s.name(t)
	_, _, err := s.Start(t.Context(), may(name), runtime.Way{})
	is(t, "start", err, errdefs.ErrNotFound)
	_, err = s.Stop(t.Context(), may(name))
	is(t, "stop", err, errdefs.ErrNotFound)
	_, err = s.Destroy(t.Context(), may(name), true)
	is(t, "destroy", err, errdefs.ErrNotFound)
	_, err = s.Report(t.Context(), name)
	is(t, "report", err, errdefs.ErrNotFound)
	s.nothingRuns(t, name)
	for _, bad := range []id.Workspace{"", "..", "x/../y", "rtt-0123abcd/../rtt-0123abcd"} {
		if _, _, err := s.Start(t.Context(), may(bad), runtime.Way{}); err == nil {
			t.Errorf("%q was started", bad)
		}
		if _, err := s.Runtime.Run(t.Context(), may(bad), sh("true")); err == nil {
			t.Errorf("something ran in %q", bad)
		}
	}
}

// nothingRuns sees that each call that needs an executor says that there is none.
func (s *suite) nothingRuns(t *testing.T, name id.Workspace) {
	t.Helper()
	ctx, cmd := t.Context(), id.NewCommand()
	spawn := sh("true")
	spawn.Stdout, spawn.Stderr = "", ""
	for what, call := range map[string]func() error{
		"run":      func() error { _, err := s.Runtime.Run(ctx, may(name), sh("true")); return err },
		"spawn":    func() error { _, err := s.Spawn(ctx, may(name), spawn, false); return err },
		"detach":   func() error { return s.Detach(ctx, may(name), spawn, false) },
		"commands": func() error { _, err := s.Commands(ctx, name); return err },
		"output": func() error {
			_, _, err := s.Output(ctx, name, execapi.OutputParams{ID: cmd})
			return err
		},
		"signal": func() error { return s.Signal(ctx, may(name), execapi.StopTaskParams{ID: cmd}) },
		"resize": func() error { return s.Resize(ctx, may(name), execapi.ResizeParams{ID: cmd, Rows: 1, Cols: 1}) },
		"ping":   func() error { return s.Ping(ctx, name) },
	} {
		is(t, what, call(), runtime.ErrNotRunning)
	}
}

func testStates(t *testing.T, s *suite) {
	w := s.created(t)
	s.nothingRuns(t, w.Name)
	_, err := s.Report(t.Context(), w.Name)
	is(t, "report on a stopped workspace", err, errdefs.ErrFailedPrecondition)

	first, report, err := s.Start(t.Context(), may(w.Name), runtime.Way{})
	if err != nil {
		t.Fatal(err)
	}
	if first.State != workspace.StateRunning || first.ExecutorPID <= 0 || first.IDs != w.IDs {
		t.Errorf("started: %+v", first)
	}
	if err := report.Err(); err != nil {
		t.Error(err)
	}
	if err := s.Ping(t.Context(), w.Name); err != nil {
		t.Error(err)
	}
	again, report, err := s.Start(t.Context(), may(w.Name), runtime.Way{})
	if err != nil || !reflect.DeepEqual(again, first) || report.Err() != nil {
		t.Errorf("started again: %+v, not %+v: %v, %v", again, first, err, report.Err())
	}
	report, err = s.Report(t.Context(), w.Name)
	if err != nil || report.Err() != nil {
		t.Errorf("report: %v, %v", err, report.Err())
	}
	if l := s.listed(t, w.Name); l == nil || !reflect.DeepEqual(l.Real, first) {
		t.Errorf("listed as %+v", l)
	}
	for range 2 {
		stopped, err := s.Stop(t.Context(), may(w.Name))
		if err != nil || stopped.State != workspace.StateStopped || stopped.ExecutorPID != 0 {
			t.Fatalf("stopped: %+v: %v", stopped, err)
		}
	}
	s.nothingRuns(t, w.Name)
	second, _, err := s.Start(t.Context(), may(w.Name), runtime.Way{})
	if err != nil || second.ExecutorPID == first.ExecutorPID {
		t.Errorf("started once more: %+v: %v", second, err)
	}
}

func testDestroy(t *testing.T, s *suite) {
	w := s.started(t)
	s.sh(t, w.Name, "echo old > file")
	for range 2 {
		gone, err := s.Destroy(t.Context(), may(w.Name), true)
		if err != nil || gone.State != workspace.StateDestroyed || gone.Retained != "" || gone.ExecutorPID != 0 {
			t.Fatalf("destroyed: %+v: %v", gone, err)
		}
	}
	if l := s.listed(t, w.Name); l != nil {
		t.Errorf("listed as %+v", l)
	}
	_, _, err := s.Start(t.Context(), may(w.Name), runtime.Way{})
	is(t, "start", err, errdefs.ErrNotFound)
	s.nothingRuns(t, w.Name)

	again, _, err := s.Create(t.Context(), may(w.Name), runtime.Plan{KeyDigest: digestOf(w.Name), Limits: Limits})
	if err != nil {
		t.Fatal(err)
	}
	if again.IDs.Executor <= w.IDs.Agent {
		t.Errorf("ids are used again: %+v after %+v", again.IDs, w.IDs)
	}
	if _, _, err := s.Start(t.Context(), may(w.Name), runtime.Way{}); err != nil {
		t.Fatal(err)
	}
	if out := s.sh(t, w.Name, "ls -A"); strings.Contains(out, "file") {
		t.Errorf("the old home is there: %s", out)
	}
	kept, err := s.Destroy(t.Context(), may(w.Name), false)
	if err != nil || kept.Retained == "" {
		t.Errorf("destroyed without purge: %+v: %v", kept, err)
	}
}

func testRevive(t *testing.T, s *suite) {
	w := s.started(t)
	s.sh(t, w.Name, "echo kept > file")
	would := "/retained/" + string(w.Name) + "." + strconv.Itoa(int(w.IDs.Executor))
	if _, err := s.Revive(t.Context(), may(w.Name), would); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("one that runs is brought back: %v", err)
	}
	kept, err := s.Destroy(t.Context(), may(w.Name), false)
	if err != nil {
		t.Fatal(err)
	}
	other, first, _ := strings.Cut(filepath.Base(kept.Retained), ".")
	n, err := strconv.Atoi(first)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Revive(t.Context(), may(w.Name), "/retained/"+other+"."+strconv.Itoa(n+3)); !errdefs.IsNotFound(err) {
		t.Errorf("another's home comes back: %v", err)
	}
	back, err := s.Revive(t.Context(), may(w.Name), kept.Retained)
	if err != nil || back.State != workspace.StateStopped || back.IDs != w.IDs || back.Home != w.Home || back.Retained != "" {
		t.Fatalf("%+v, %v; it was %+v", back, err, w)
	}
	if _, _, err := s.Start(t.Context(), may(w.Name), runtime.Way{}); err != nil {
		t.Fatal(err)
	}
	if out := s.sh(t, w.Name, "cat file; id -u"); out != fmt.Sprintf("kept\n%d\n", w.IDs.Work) {
		t.Errorf("the home has %q", out)
	}
	if gone, err := s.Destroy(t.Context(), may(w.Name), true); err != nil || gone.Retained != "" {
		t.Errorf("%+v, %v", gone, err)
	}
	if _, err := s.Revive(t.Context(), may(w.Name), kept.Retained); !errdefs.IsNotFound(err) {
		t.Errorf("what was removed comes back: %v", err)
	}
}

func testHomeIsKept(t *testing.T, s *suite) {
	w := s.started(t)
	s.sh(t, w.Name, "echo kept > file; echo here > /tmp/file")
	if _, err := s.Stop(t.Context(), may(w.Name)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.Start(t.Context(), may(w.Name), runtime.Way{}); err != nil {
		t.Fatal(err)
	}
	if out := s.sh(t, w.Name, "cat file"); out != "kept\n" {
		t.Errorf("the file holds %q", out)
	}
}

func testConcurrentLifecycle(t *testing.T, s *suite) {
	w := s.created(t)
	const callers = 6
	started := make([]workspace.Real, callers)
	var all sync.WaitGroup
	for i := range callers {
		all.Go(func() {
			if _, _, err := s.Create(t.Context(), may(w.Name), runtime.Plan{KeyDigest: digestOf(w.Name), Limits: Limits}); err != nil {
				t.Error(err)
			}
			got, _, err := s.Start(t.Context(), may(w.Name), runtime.Way{})
			if err != nil {
				t.Error(err)
			}
			started[i] = got
		})
	}
	all.Wait()
	for _, got := range started {
		if !reflect.DeepEqual(got, started[0]) {
			t.Errorf("two executors were started: %+v, %+v", got, started[0])
		}
	}
	// Everything at once: each call succeeds or says that the state is wrong, and what
	// stands in the end is one of the states.
	for i := range callers {
		all.Go(func() {
			var err error
			switch i % 3 {
			case 0:
				_, err = s.Stop(t.Context(), may(w.Name))
			case 1:
				_, _, err = s.Start(t.Context(), may(w.Name), runtime.Way{})
			case 2:
				_, err = s.Runtime.Run(t.Context(), may(w.Name), sh("true"))
			}
			if err != nil && !errdefs.IsFailedPrecondition(err) && !errdefs.IsUnavailable(err) {
				t.Errorf("call %d: %v", i, err)
			}
		})
	}
	all.Wait()
	if _, _, err := s.Start(t.Context(), may(w.Name), runtime.Way{}); err != nil {
		t.Error(err)
	}
	if out := s.sh(t, w.Name, "echo well"); out != "well\n" {
		t.Errorf("%q", out)
	}
	for range callers {
		all.Go(func() {
			if _, err := s.Destroy(t.Context(), may(w.Name), true); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
}
