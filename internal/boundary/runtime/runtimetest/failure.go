package runtimetest

import (
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// What a runtime holds ends with it; what it gave to the workspace lives on.
func testCloseLetsGo(t *testing.T, s *suite) {
	w := s.started(t)
	other := s.open(t)
	stays := detached("echo first; " + await("go") + "; echo last")
	if err := other.Detach(t.Context(), may(w.Name), stays, false); err != nil {
		t.Fatal(err)
	}
	goes, err := other.Spawn(t.Context(), may(w.Name), piped("trap 'touch hung-up; exit' HUP TERM; touch began; sleep 1000 & wait"), false)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range goes.Files() {
		defer f.Close()
	}
	s.marked(t, w.Name, "began")
	for range 2 {
		if err := other.Close(); err != nil {
			t.Fatal(err)
		}
	}
	_, err = ended(t, goes)
	is(t, "waiting for it", err, errdefs.ErrUnavailable)
	if err := other.Ping(t.Context(), w.Name); err == nil {
		t.Error("a runtime that was closed goes on")
	}
	s.marked(t, w.Name, "hung-up")
	if l := s.listed(t, w.Name); l == nil || !reflect.DeepEqual(*l, w) {
		t.Errorf("listed as %+v, not %+v", l, w)
	}
	s.mark(t, w.Name, "go")
	if out, _ := s.output(t, s, w.Name, stays.ID, true); out != "first\nlast\n" {
		t.Errorf("output %q", out)
	}
}

func testExecutorKilled(t *testing.T, s *suite) {
	w := s.started(t)
	if w.ExecutorPID <= 1 {
		t.Skip("skipped: this backend has no executor process on the host")
	}
	s.sh(t, w.Name, "echo kept > file")
	running := make(chan error, 1)
	go func() {
		_, err := s.Runtime.Run(t.Context(), may(w.Name), sh("touch began; sleep 1000"))
		running <- err
	}()
	spawned := s.spawn(t, w.Name, piped("sleep 1000"), false)
	s.marked(t, w.Name, "began")
	if err := syscall.Kill(w.ExecutorPID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-running:
		is(t, "run", err, errdefs.ErrUnavailable)
		if err != nil && !strings.Contains(err.Error(), "executor") {
			t.Errorf("the error does not name the executor: %v", err)
		}
	case <-time.After(patience):
		t.Fatal("the call does not return")
	}
	_, err := ended(t, spawned)
	is(t, "wait", err, errdefs.ErrUnavailable)
	until(t, "the workspace stopped", func() bool {
		l := s.listed(t, w.Name)
		return l != nil && l.State == workspace.StateStopped && l.ExecutorPID == 0
	})
	s.nothingRuns(t, w.Name)
	again, report, err := s.Start(t.Context(), may(w.Name), runtime.Way{})
	if err != nil || again.ExecutorPID == w.ExecutorPID || report.Err() != nil {
		t.Fatalf("started again: %+v: %v, %v", again, err, report.Err())
	}
	if out := s.sh(t, w.Name, "cat file; ps -e -o args | grep -c '[s]leep 1000' || true"); out != "kept\n0\n" {
		t.Errorf("%q", out)
	}
	// A start that comes before word of the end is as good.
	if err := syscall.Kill(again.ExecutorPID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	until(t, "another start", func() bool {
		third, _, err := s.Start(t.Context(), may(w.Name), runtime.Way{})
		if err != nil && !errdefs.IsUnavailable(err) && !errdefs.IsFailedPrecondition(err) {
			t.Fatal(err)
		}
		return err == nil && third.ExecutorPID != again.ExecutorPID
	})
	if out := s.sh(t, w.Name, "cat file"); out != "kept\n" {
		t.Errorf("%q", out)
	}
}

func testStopEndsCommands(t *testing.T, s *suite) {
	w := s.started(t)
	p := s.spawn(t, w.Name, piped("trap 'echo saved > saved; exit 0' TERM; touch began; sleep 1000 & wait"), false)
	if err := s.Detach(t.Context(), may(w.Name), detached("trap '' TERM HUP; setsid sleep 1000 & sleep 1000"), false); err != nil {
		t.Fatal(err)
	}
	s.marked(t, w.Name, "began")
	begin := time.Now()
	if _, err := s.Stop(t.Context(), may(w.Name)); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begin); took > patience {
		t.Errorf("it took %v", took)
	}
	if st, err := ended(t, p); err != nil && !errdefs.IsUnavailable(err) {
		t.Errorf("%+v: %v", st, err)
	}
	if _, _, err := s.Start(t.Context(), may(w.Name), runtime.Way{}); err != nil {
		t.Fatal(err)
	}
	if out := s.sh(t, w.Name, "cat saved; ps -e -o args | grep -c '[s]leep 1000' || true"); out != "saved\n0\n" {
		t.Errorf("%q", out)
	}
	if left := s.commands(t, w.Name); len(left) != 0 {
		t.Errorf("left: %+v", left)
	}
}
