package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/test/bench/measure"
	"github.com/carrel-dev/carrel/test/bench/report"
)

const (
	// settle is how long nothing happens before memory is read.
	settle = 5 * time.Second
	// live and stopped are how many workspaces there are in the end.
	live, stopped = 10, 100
	// The daemon's allowance, in MiB.
	daemonBase, daemonEach = 40, 50.0 / 1024
)

// memory measures the proportional set size of each part in a carrel of its own, with
// one workspace, with ten, with a hundred stopped ones beside them, and after a load.
func (b *bench) memory() error {
	h, err := b.newHost("memory")
	if err != nil {
		return err
	}
	var pids []int
	grow := func(n int) error {
		for len(pids) < n {
			key := fmt.Sprintf("live %d", len(pids))
			w, err := h.workspace(key)
			if err != nil {
				return err
			}
			for range 5 { // it has served, and is idle now
				if _, err := h.api(key, false, key).Op(); err != nil {
					return err
				}
			}
			pids = append(pids, int(w.GetExecutorPid()))
		}
		return nil
	}
	if err := grow(1); err != nil {
		return err
	}
	if err := b.settle(); err != nil {
		return err
	}
	if err := errors.Join(
		b.pss(report.MemExecutor, "idle executor, 1 live", pids...), b.pss(report.MemBroker, "broker, 1 workspace", h.brokerPID),
		b.daemonPSS(h, "daemon, 1 live", 1), b.bwrapPSS(),
	); err != nil {
		return err
	}
	if err := grow(live); err != nil {
		return err
	}
	if err := b.settle(); err != nil {
		return err
	}
	few, err := pss(h.daemonPID)
	if err != nil {
		return err
	}
	if err := errors.Join(b.pss(report.MemExecutor, "idle executor, 10 live", pids...), b.daemonPSS(h, "daemon, 10 live", live)); err != nil {
		return err
	}
	for i := range stopped {
		if _, err := h.client.Workspaces().Create(b.ctx,
			connect.NewRequest(&carrelv1.CreateRequest{Key: fmt.Sprintf("stopped %d", i), NoStart: true})); err != nil {
			return err
		}
	}
	if err := b.settle(); err != nil {
		return err
	}
	many, err := pss(h.daemonPID)
	if err != nil {
		return err
	}
	b.Add(report.Row{
		ID: report.MemSlope, Unit: "KiB", Ours: report.Stat{Name: "daemon, each stopped workspace", N: 1, P50: (many - few) * 1024 / stopped},
	})
	if err := errors.Join(
		b.daemonPSS(h, "daemon, 10 live, 100 stopped", live+stopped), b.pss(report.MemBroker, "broker, 110 workspaces", h.brokerPID),
	); err != nil {
		return err
	}
	load := measure.Throughput(
		b.ctx, measure.Pace{Rounds: 1, Block: 3 * time.Second}, workers, []measure.Contestant{h.api("load", false, "live 0")},
	)
	if err := load[0].Err; err != nil {
		return err
	}
	if err := b.settle(); err != nil {
		return err
	}
	return errors.Join(
		b.pss(report.MemBusy, "idle executor, after 3 s of load", pids[0]),
		b.daemonPSS(h, "daemon, 110 workspaces, after load", live+stopped),
		b.pss(report.MemBroker, "broker, 110 workspaces, after load", h.brokerPID),
	)
}

func (b *bench) settle() error {
	t := time.NewTimer(settle)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-b.ctx.Done():
		return context.Cause(b.ctx)
	}
}

// pss adds a row of what processes take: the median and, of several, the most.
func (b *bench) pss(id, name string, pids ...int) error {
	var all []float64
	for _, pid := range pids {
		v, err := pss(pid)
		if err != nil {
			return err
		}
		all = append(all, v)
	}
	s := report.Stat{Name: name, N: len(all), P50: measure.Quantile(all, 0.5)}
	if len(all) > 1 {
		s.P99 = measure.Quantile(all, 0.99)
	}
	b.Add(report.Row{ID: id, Unit: "MiB", Ours: s})
	return nil
}

// daemonPSS adds the daemon's row beside what it may take with so many workspaces.
func (b *bench) daemonPSS(h *carrelHost, name string, workspaces int) error {
	v, err := pss(h.daemonPID)
	if err != nil {
		return err
	}
	may := daemonBase + daemonEach*float64(workspaces)
	b.Add(report.Row{
		ID: report.MemDaemon, Peer: report.Allowance, Unit: "MiB", Ours: report.Stat{Name: name, N: 1, P50: v},
		Other: &report.Stat{Name: report.Allowance, N: 1, P50: may}, Ratio: v / may,
	})
	return nil
}

// bwrapPSS adds what bubblewrap's own processes take to hold one sandbox.
func (b *bench) bwrapPSS() error {
	if b.peers.bwrap == "" {
		return nil
	}
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	// Its word says that the sandbox is up.
	c := exec.CommandContext(
		b.ctx, b.peers.bwrap, "--die-with-parent", "--unshare-all", "--ro-bind", "/", "/", "/bin/sh", "-c", "echo up; exec sleep 60",
	)
	c.Stdout = w
	err = c.Start()
	w.Close()
	if err != nil {
		return err
	}
	defer func() {
		_ = c.Process.Kill() // and the sandbox with it
		_ = c.Wait()         // it was killed
	}()
	if _, err := bufio.NewReader(r).ReadString('\n'); err != nil {
		b.Miss("bwrap's memory", err)
		return nil
	}
	sum := 0.0
	for _, pid := range append(children(c.Process.Pid), c.Process.Pid) {
		v, err := pss(pid)
		if err != nil {
			return err
		}
		sum += v
	}
	b.Add(report.Row{ID: report.MemBwrap, Unit: "MiB", Ours: report.Stat{Name: "(bwrap, its own processes)", N: 1, P50: sum}})
	return nil
}

// pss is the proportional set size of a process in MiB (proc_pid_smaps(5)).
func pss(pid int) (float64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "Pss:"); ok {
			kib, err := strconv.ParseFloat(strings.Fields(v)[0], 64)
			return kib / 1024, err
		}
	}
	return 0, fmt.Errorf("process %d has no Pss in its smaps_rollup", pid)
}

// children of the only thread of a process.
func children(pid int) []int {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil {
		return nil
	}
	var out []int
	for s := range strings.FieldsSeq(string(b)) {
		if n, err := strconv.Atoi(s); err == nil {
			out = append(out, n)
		}
	}
	return out
}
