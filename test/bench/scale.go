package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	carrel "github.com/carrel-dev/carrel/sdk/go"
	"github.com/carrel-dev/carrel/test/bench/measure"
	"github.com/carrel-dev/carrel/test/bench/report"
	"github.com/carrel-dev/carrel/test/ended"
)

const (
	// many workspaces of which some are live, as far as there is time and memory.
	manyWorkspaces, manyLive = 2000, 500
	// growTime is how long workspaces are made, startTime how long they are started.
	growTime, startTime = 6 * time.Minute, 2 * time.Minute
	// An executor takes some 3 MiB, and the kernel about as much for it; something is left
	// to everybody else.
	memoryEach, memoryLeft = 8 << 20, 2 << 30
)

// scale measures a carrel with many workspaces: commands, List, and the starts of its
// programs.
func (b *bench) scale() error {
	small, err := b.host()
	if err != nil {
		return err
	}
	if _, err := small.workspace("demo"); err != nil {
		return err
	}
	h, err := b.newHost("scale")
	if err != nil {
		return err
	}
	if _, err := h.make(b.ctx, &carrelv1.CreateRequest{Key: "live 0", IdleTimeoutMs: forever}); err != nil {
		return err
	}
	p := b.pace(0)
	one := h.api(report.OneBefore, true, "live 0")
	before := measure.Interleave(b.ctx, p, []measure.Contestant{one, fork()})
	for _, s := range before {
		if s.Err != nil {
			return s.Err
		}
	}
	total, live := manyWorkspaces, manyLive
	if b.quick {
		total, live = 100, 20
	}
	if total, live, err = h.grow(total, live); err != nil {
		return err
	}
	what := fmt.Sprintf("%d workspaces, %d live", total, live)

	one.Name = "warm exec, " + what
	got := measure.Interleave(b.ctx, p, []measure.Contestant{one, small.api(report.OneBeside, true, "demo"), fork()})
	if err := b.times(report.ScaleExec, time.Millisecond, got[0], []measure.Series{before[0], got[1], got[2]}); err != nil {
		return err
	}
	lists := measure.Interleave(b.ctx, p, []measure.Contestant{
		h.lists("List, "+what, total, live), small.lists(report.OneBeside, 0, 0),
	})
	if err := b.times(report.ScaleList, time.Millisecond, lists[0], lists[1:]); err != nil {
		return err
	}
	starts := measure.Pace{Rounds: 5}
	if b.quick {
		starts.Rounds = 2
	}
	for _, f := range []struct {
		id, name string
		pid      func(*carrelHost) int
	}{
		{report.ScaleDaemonUp, "daemon start, ", func(h *carrelHost) int { return h.daemonPID }},
		{report.ScaleBrokerUp, "broker start, ", func(h *carrelHost) int { return h.brokerPID }},
	} {
		got := measure.Interleave(b.ctx, starts, []measure.Contestant{
			h.restarted(f.name+what, f.pid, total, live), small.restarted(report.OneBeside, f.pid, 0, 0),
		})
		if err := b.times(f.id, time.Millisecond, got[0], got[1:]); err != nil {
			return err
		}
	}
	return nil // what there is goes at the end, and can take no figure along
}

// grow makes so many workspaces and starts some, and returns how many there are and how
// many run. "live 0" is there and runs.
func (h *carrelHost) grow(total, live int) (int, int, error) {
	b := h.b
	available, err := memAvailable()
	if err != nil {
		return 0, 0, err
	}
	if fit := max(int((available-memoryLeft)/memoryEach), 1); fit < live {
		b.Remark("only %d executors were started: %d MiB of memory are available", fit, available>>20)
		live = fit
	}
	all := make([]string, 0, total-1)
	for i := 1; i < total; i++ {
		kind := "stopped"
		if i < live {
			kind = "live"
		}
		all = append(all, fmt.Sprintf("%s %d", kind, i))
	}
	made, err := b.until(growTime, "made", all, func(key string) error {
		_, err := h.make(b.ctx, &carrelv1.CreateRequest{Key: key, NoStart: true, IdleTimeoutMs: forever})
		return err
	})
	if err != nil {
		return 0, 0, err
	}
	if made < len(all) {
		b.Remark("only %d workspaces were made in %v", made+1, growTime)
	}
	started, err := b.until(startTime, "started", all[:min(live-1, made)], func(key string) error {
		_, err := h.startWorkspace(key)
		return err
	})
	if err != nil {
		return 0, 0, err
	}
	if started+1 < live {
		b.Remark("only %d executors were started in %v", started+1, startTime)
	}
	return made + 1, started + 1, nil
}

// until does f with each item, some at once, as long as there is time, and returns with
// how many. It says now and then how far it is.
func (b *bench) until(limit time.Duration, verb string, items []string, f func(string) error) (int, error) {
	end := time.Now().Add(limit)
	var done, said atomic.Int64
	said.Store(time.Now().UnixNano())
	err := each(workers, items, func(item string) error {
		if time.Now().After(end) {
			return nil
		}
		if err := context.Cause(b.ctx); err != nil {
			return err
		}
		if err := f(item); err != nil {
			return fmt.Errorf("%q: %w", item, err)
		}
		n, last := done.Add(1), said.Load()
		if now := time.Now().UnixNano(); now-last > int64(10*time.Second) && said.CompareAndSwap(last, now) {
			b.say("%s %d of %d", verb, n, len(items))
		}
		return nil
	})
	return int(done.Load()), err
}

// lists is a List by an administrator; there are to be so many workspaces, if total is
// not 0.
func (h *carrelHost) lists(name string, total, live int) measure.Contestant {
	return measure.Contestant{Name: name, Op: measure.Timed(func() error {
		res, err := h.client.Workspaces().List(h.b.ctx, connect.NewRequest(&carrelv1.ListRequest{}))
		if err != nil {
			return err
		}
		return counted(res.Msg.GetWorkspaces(), total, live)
	})}
}

func counted(list []*carrelv1.Workspace, total, live int) error {
	running := 0
	for _, w := range list {
		if w.GetState() == "running" {
			running++
		}
	}
	if total > 0 && (len(list) != total || running != live) {
		return fmt.Errorf("there are %d workspaces of which %d run, and not %d of which %d do", len(list), running, total, live)
	}
	return nil
}

// restarted kills one of the programs and brings it up again, as "carrel up" does, until
// it serves. All that lived lives then.
func (h *carrelHost) restarted(name string, pid func(*carrelHost) int, total, live int) measure.Contestant {
	return measure.Contestant{Name: name, Op: func() (time.Duration, error) {
		if err := ended.Kill(pid(h)); err != nil {
			return 0, err
		}
		began := time.Now()
		if err := h.up(h.b.ctx); err != nil {
			return 0, err
		}
		took := time.Since(began)
		// The old client's connections ended with the daemon.
		client, err := carrel.New(carrel.Options{Host: h.address()})
		if err != nil {
			return 0, err
		}
		old := h.client
		h.client = client
		if _, err := h.lists(name, total, live).Op(); err != nil {
			return 0, err
		}
		return took, old.Close()
	}}
}

// memAvailable is the memory that the kernel would give, in bytes.
func memAvailable() (int64, error) {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if v, ok := strings.CutPrefix(line, "MemAvailable:"); ok {
			kib, err := strconv.ParseInt(strings.Fields(v)[0], 10, 64)
			return kib << 10, err
		}
	}
	return 0, errors.New("/proc/meminfo has no MemAvailable")
}
