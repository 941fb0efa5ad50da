package runtimetest

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

// Paused, nothing of a workspace moves and its executor answers.
func testPause(t *testing.T, s *suite) {
	w := s.started(t)
	ctx := t.Context()
	p := detached("i=0; while :; do i=$((i+1)); echo $i; sleep 0.01; done")
	if err := s.Detach(ctx, may(w.Name), p, false); err != nil {
		t.Fatal(err)
	}
	count := func() string {
		t.Helper()
		res, files, err := s.Output(ctx, w.Name, execapi.OutputParams{ID: p.ID})
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			defer f.Close()
		}
		_ = res
		buf := make([]byte, 1<<20)
		n := 0
		for _, f := range files {
			m, _ := f.Read(buf[n:])
			n += m
		}
		return string(buf[:n])
	}
	for end := time.Now().Add(patience); count() == ""; {
		if time.Now().After(end) {
			t.Fatal("it says nothing")
		}
	}
	for range 2 {
		if got, err := s.Pause(ctx, may(w.Name)); err != nil || got.State != workspace.StatePaused || got.ExecutorPID != w.ExecutorPID {
			t.Fatalf("%+v, %v", got, err)
		}
	}
	if err := s.Ping(ctx, w.Name); err != nil {
		t.Errorf("the executor does not answer: %v", err)
	}
	if rep, err := s.Report(ctx, w.Name); err != nil || rep.Err() != nil {
		t.Errorf("report: %v", err)
	}
	before := count()
	time.Sleep(200 * time.Millisecond)
	if after := count(); after != before {
		t.Errorf("it went on: %d bytes, then %d", len(before), len(after))
	}
	for range 2 {
		if got, err := s.Resume(ctx, may(w.Name)); err != nil || got.State != workspace.StateRunning {
			t.Fatalf("%+v, %v", got, err)
		}
	}
	for end := time.Now().Add(patience); count() == before; {
		if time.Now().After(end) {
			t.Fatal("it did not go on")
		}
	}
	// What is paused is stopped, and destroyed, like what is not.
	if _, err := s.Pause(ctx, may(w.Name)); err != nil {
		t.Fatal(err)
	}
	if got, err := s.Stop(ctx, may(w.Name)); err != nil || got.State != workspace.StateStopped {
		t.Errorf("%+v, %v", got, err)
	}
	_, err := s.Pause(ctx, may(w.Name))
	is(t, "pausing what is stopped", err, errdefs.ErrFailedPrecondition)
}

// Whatever is being started when it is paused, a workspace stands still, its executor
// answers, and what is refused meanwhile is told so.
func testPauseWhileStarting(t *testing.T, s *suite) {
	w := s.started(t)
	ctx := t.Context()
	over, stop := context.WithCancel(ctx)
	defer stop()
	var running sync.WaitGroup
	var ran, refused atomic.Int64
	for range 6 {
		running.Go(func() {
			for over.Err() == nil {
				res, err := s.Runtime.Run(ctx, may(w.Name), sh("exit 3"))
				switch {
				case err == nil && res.Status.Code == 3:
					ran.Add(1)
				case errdefs.IsFailedPrecondition(err):
					refused.Add(1)
					time.Sleep(time.Millisecond)
				default:
					t.Errorf("%+v, %v", res.Status, err)
					return
				}
			}
		})
	}
	for range 50 {
		if _, err := s.Pause(ctx, may(w.Name)); err != nil {
			t.Error(err)
			break
		}
		began := time.Now()
		if err := s.Ping(ctx, w.Name); err != nil || time.Since(began) > time.Second {
			t.Errorf("the executor answers after %v: %v", time.Since(began), err)
		}
		_, err := s.Runtime.Run(ctx, may(w.Name), sh("exit 3"))
		is(t, "a command while paused", err, errdefs.ErrFailedPrecondition)
		if _, err := s.Resume(ctx, may(w.Name)); err != nil {
			t.Error(err)
			break
		}
	}
	stop()
	running.Wait()
	if ran.Load() == 0 || refused.Load() == 0 {
		t.Errorf("%d ran, %d were refused", ran.Load(), refused.Load())
	}
}

// Limits change while a workspace runs, and what it uses is told.
func testLimit(t *testing.T, s *suite) {
	w := s.started(t)
	ctx := t.Context()
	if err := s.Detach(ctx, may(w.Name), detached("sleep 1000 & sleep 1000 & wait"), false); err != nil {
		t.Fatal(err)
	}
	st, err := s.Stats(ctx, w.Name)
	for end := time.Now().Add(patience); err == nil && st.Pids < 3 && time.Now().Before(end); {
		st, err = s.Stats(ctx, w.Name)
	}
	if err != nil || st.Pids < 3 || st.MemoryBytes <= 0 || st.CPUMicros <= 0 || st.OOMKills != 0 {
		t.Errorf("%+v, %v", st, err)
	}
	l := Limits
	l.Pids, l.MemoryBytes = 12, 96<<20
	got, err := s.Limit(ctx, may(w.Name), l)
	if err != nil || got.InForce != l {
		t.Fatalf("%+v, %v", got, err)
	}
	many := "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do sleep 0.2 & done; wait"
	if r, err := s.Runtime.Run(ctx, may(w.Name), sh(many)); err != nil || r.Status.Code == 0 {
		t.Errorf("twelve more processes: %+v, %v", r, err)
	}
	rep, err := s.Report(ctx, w.Name)
	if err != nil || rep.Err() != nil {
		t.Errorf("report: %v, %v", err, rep.Err())
	}
	for _, c := range rep.Controls {
		if c.ID == "pids" && !strings.Contains(c.Evidence, "pids.max is 12") {
			t.Errorf("the proof is of %q", c.Evidence)
		}
	}
	// A limit below what is used is refused, and the old one holds.
	if err := s.Detach(ctx, may(w.Name), detached("head -c 50000000 /dev/zero | tail -c 50000000 >/dev/null & "+
		"dd if=/dev/zero of=/dev/shm/fill bs=1M count=20 2>/dev/null; touch filled; sleep 1000"), false); err != nil {
		t.Fatal(err)
	}
	s.marked(t, w.Name, "filled")
	low := l
	low.MemoryBytes = workspace.MinMemoryBytes
	if _, err := s.Limit(ctx, may(w.Name), low); err == nil {
		t.Error("less memory than is used was accepted")
	}
	if got := s.listed(t, w.Name); got == nil || got.InForce != l {
		t.Errorf("the limits are %+v", got)
	}
	// They are in force after a start too.
	if _, err := s.Stop(ctx, may(w.Name)); err != nil {
		t.Fatal(err)
	}
	l.Pids = 20
	if got, err := s.Limit(ctx, may(w.Name), l); err != nil || got.InForce != l {
		t.Errorf("%+v, %v", got, err)
	}
	if _, rep, err := s.Start(ctx, may(w.Name), runtime.Way{}); err != nil || rep.Err() != nil {
		t.Errorf("%v", err)
	}
	_, err = s.Stats(ctx, s.created(t).Name)
	is(t, "measuring what does not run", err, errdefs.ErrFailedPrecondition)
}
