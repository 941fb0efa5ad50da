package main

import (
	"fmt"
	"os"
	"slices"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/test/bench/measure"
)

// silentOnes is how many executors answer nothing.
const silentOnes = 50

// silent measures what a tenant does on a host where the executors of all other workspaces are
// stopped, beside a host with as many that idle. Executors that answer nothing are ended after a minute, so
// it is short.
func (b *bench) silent() error {
	var hosts [2]*carrelHost
	var mine [2]string
	var stopped []int
	defer func() {
		for _, pid := range stopped {
			_ = unix.Kill(pid, unix.SIGCONT) // ours still: a halted one is reaped by its broker, which runs
		}
	}()
	for i, name := range []string{"silent", "idle"} {
		h, err := b.newHost(name)
		if err != nil {
			return err
		}
		hosts[i] = h
		made := make([]string, silentOnes)
		for n := range made {
			made[n] = newKey()
		}
		if err := each(workers, made, func(key string) error {
			w, err := h.make(b.ctx, &carrelv1.CreateRequest{Key: key, IdleTimeoutMs: forever})
			if err == nil && w.GetExecutorPid() <= 0 {
				err = fmt.Errorf("workspace %s has no executor", key)
			}
			return err
		}); err != nil {
			return err
		}
		w, err := h.make(b.ctx, &carrelv1.CreateRequest{Key: newKey(), IdleTimeoutMs: forever})
		if err != nil {
			return err
		}
		mine[i] = w.GetName()
	}
	list, err := hosts[0].client.Workspaces().List(b.ctx, connect.NewRequest(&carrelv1.ListRequest{}))
	if err != nil {
		return err
	}
	for _, w := range list.Msg.GetWorkspaces() {
		if pid := int(w.GetExecutorPid()); w.GetName() != mine[0] {
			if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
				return os.NewSyscallError("kill", err)
			}
			stopped = append(stopped, pid)
		}
	}
	names := [2]string{fmt.Sprintf("%d of %d executors stopped", silentOnes, silentOnes), "all of them idle"}
	both := func(f func(h *carrelHost, name, mine string) measure.Contestant) []measure.Contestant {
		return []measure.Contestant{f(hosts[0], names[0], mine[0]), f(hosts[1], names[1], mine[1])}
	}
	once := measure.Pace{Rounds: 1}
	short := measure.Pace{Rounds: 3, Block: 300 * time.Millisecond, Warm: 1}
	for _, x := range []struct {
		id   string
		pace measure.Pace
		of   []measure.Contestant
	}{
		{"others' daemon started", once, both(func(h *carrelHost, name, _ string) measure.Contestant {
			return h.restarted(name, func(h *carrelHost) int { return h.daemonPID }, silentOnes+1, silentOnes+1)
		})},
		{"others' exec", short, both(func(h *carrelHost, name, mine string) measure.Contestant {
			return measure.Contestant{Name: name, Op: measure.Timed(func() error {
				_, err := h.client.Commands().Exec(b.ctx, connect.NewRequest(&carrelv1.ExecRequest{
					Workspace: mine, Command: &carrelv1.Command{Argv: []string{"/bin/true"}},
				}))
				return err
			})}
		})},
		{"others' create", short, both(func(h *carrelHost, name, _ string) measure.Contestant { return h.created(name, "") })},
		{"others' destroy", short, both(func(h *carrelHost, name, _ string) measure.Contestant {
			return measure.Contestant{Name: name, Op: func() (time.Duration, error) {
				w, err := h.make(b.ctx, &carrelv1.CreateRequest{Key: newKey()})
				if err != nil {
					return 0, err
				}
				began := time.Now()
				err = h.destroy(w.GetName())
				return time.Since(began), err
			}}
		})},
		{"others' archive", short, both(func(h *carrelHost, name, mine string) measure.Contestant {
			return measure.Contestant{Name: name, Op: measure.Timed(func() error { _, err := h.archived(mine); return err })}
		})},
		{"others' expiry, after its time", measure.Pace{Rounds: 3}, both(func(h *carrelHost, name, _ string) measure.Contestant {
			return measure.Contestant{Name: name, Op: func() (time.Duration, error) { return h.expired(time.Second) }}
		})},
	} {
		got := measure.Interleave(b.ctx, x.pace, x.of)
		if err := b.times(x.id, time.Millisecond, got[0], got[1:]); err != nil {
			return fmt.Errorf("%s: %w", x.id, err)
		}
	}
	return nil
}

// expired makes a workspace with a time to live and returns how long after it that was gone.
func (h *carrelHost) expired(ttl time.Duration) (time.Duration, error) {
	w, err := h.make(h.b.ctx, &carrelv1.CreateRequest{Key: newKey(), TtlMs: ttl.Milliseconds()})
	if err != nil {
		return 0, err
	}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(ttl); ; <-tick.C {
		list, err := h.client.Workspaces().List(h.b.ctx, connect.NewRequest(&carrelv1.ListRequest{}))
		if err != nil {
			return 0, err
		}
		if !slices.ContainsFunc(list.Msg.GetWorkspaces(), func(o *carrelv1.Workspace) bool { return o.GetName() == w.GetName() }) {
			return time.Since(end), nil
		}
	}
}
