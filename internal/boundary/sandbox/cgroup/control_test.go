package cgroup_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/boundary/sandbox/cgroup"
)

func TestFreeze(t *testing.T) {
	in := instance(t)
	f, _ := launched(t, in)
	_, out := start(t, "tick", f.V1Cmd, command(t, f, "c0"))
	line(t, out)
	for range 2 {
		if err := in.Freeze(t.Context(), name, true); err != nil {
			t.Fatal(err)
		}
	}
	// What it had written by then is read; then nothing comes.
	lines := make(chan string)
	go func() {
		for {
			s, err := out.ReadString('\n')
			if err != nil {
				close(lines)
				return
			}
			lines <- s
		}
	}()
	silent := false
	for !silent {
		select {
		case <-lines:
		case <-time.After(300 * time.Millisecond):
			silent = true
		}
	}
	if st, err := in.Stats(name); err != nil || st.CPUMicros <= 0 {
		t.Errorf("%+v, %v", st, err)
	}
	if err := in.Freeze(t.Context(), name, false); err != nil {
		t.Fatal(err)
	}
	select {
	case s, ok := <-lines:
		if !ok || !strings.HasPrefix(s, "tick") {
			t.Errorf("%q", s)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("it does not go on")
	}
	// Time that is up leaves nobody frozen.
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("no time"))
	if err := in.Freeze(ctx, name, true); err != nil && !strings.Contains(err.Error(), "no time") {
		t.Error(err)
	}
	if err := in.Freeze(t.Context(), name, true); err != nil {
		t.Fatal(err)
	}
	if err := in.Remove(t.Context(), name); err != nil { // frozen ones end as others do
		t.Error(err)
	}
	for range lines {
	}
	if err := in.Freeze(t.Context(), name, true); err == nil {
		t.Error("what is not there was frozen")
	}
}

func TestUpdate(t *testing.T) {
	in := instance(t)
	if !has(in, cgroup.Memory) || !has(in, cgroup.Pids) {
		t.Skip("skipped: this host limits neither memory nor pids")
	}
	f, x := launched(t, in)
	_, out := start(t, "full", f.V1Cmd, command(t, f, "c0"))
	line(t, out)
	l := limits
	set := func(change func()) error {
		old := l
		change()
		err := in.Update(name, old, l)
		if err != nil {
			l = old
		}
		for _, e := range in.Check(name, x.Process.Pid, l) {
			if !e.OK {
				t.Errorf("%s: %s", e.Control, e.Text)
			}
		}
		return err
	}
	for what, change := range map[string]func(){
		"more memory": func() { l.MemoryBytes = 512 << 20 },
		"less memory": func() { l.MemoryBytes = 96 << 20 },
		"swap":        func() { l.SwapBytes = 32 << 20 },
		"pids":        func() { l.Pids = 17 },
		"weight":      func() { l.CPUWeight = 777 },
	} {
		if err := set(change); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := set(func() { l.MemoryBytes, l.SwapBytes = 16<<20, 0 }); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("less memory than is used: %v", err)
	}
	if st, err := in.Stats(name); err != nil || st.OOMKills > 0 || st.MemoryBytes < 40<<20 {
		t.Errorf("what ran was harmed: %+v, %v", st, err)
	}
}
