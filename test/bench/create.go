package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync/atomic"
	"syscall"
	"time"

	"connectrpc.com/connect"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/test/bench/measure"
	"github.com/carrel-dev/carrel/test/bench/report"
)

// echoed is what the first command of a new workspace, user or container says.
const echoed = "here"

// forever is an idle time-out that never comes.
const forever = -1

// keys numbers the keys of workspaces that are made for one operation, so that no name is
// ever tried twice.
var keys atomic.Int64

func newKey() string { return fmt.Sprintf("made %d", keys.Add(1)) }

// make makes a workspace and returns it.
func (h *carrelHost) make(ctx context.Context, req *carrelv1.CreateRequest) (*carrelv1.Workspace, error) {
	res, err := h.client.Workspaces().Create(ctx, connect.NewRequest(req))
	if err != nil {
		return nil, err
	}
	return res.Msg.GetWorkspace(), nil
}

// destroy destroys a workspace and its home. It is cleaning up, so that an interrupt does
// not keep it.
func (h *carrelHost) destroy(workspace string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(h.b.ctx), time.Minute)
	defer cancel()
	_, err := h.client.Workspaces().Destroy(ctx, connect.NewRequest(&carrelv1.DestroyRequest{Workspace: workspace, Purge: true}))
	return err
}

// created makes a workspace and runs its first command, to the reply that has the output.
func (h *carrelHost) created(name, profile string) measure.Contestant {
	return measure.Contestant{Name: name, Op: func() (time.Duration, error) {
		key := newKey()
		began := time.Now()
		if _, err := h.make(h.b.ctx, &carrelv1.CreateRequest{Key: key, Profile: profile}); err != nil {
			return 0, err
		}
		res, err := h.client.Commands().Exec(h.b.ctx, connect.NewRequest(&carrelv1.ExecRequest{
			Workspace: key, Command: &carrelv1.Command{Argv: []string{"/bin/echo", echoed}},
		}))
		took := time.Since(began)
		if err == nil && string(res.Msg.GetStdout()) != echoed+"\n" {
			err = fmt.Errorf("the first command wrote %q and ended with %v", res.Msg.GetStdout(), res.Msg.GetStatus())
		}
		return took, errors.Join(err, h.destroy(key))
	}}
}

// firstLine runs a program until its first line has come; how it ends is waited for, and
// not counted.
func firstLine(argv ...string) (took time.Duration, err error) {
	r, w, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer r.Close()
	c := exec.CommandContext(context.Background(), argv[0], argv[1:]...)
	c.Stdout, c.SysProcAttr = w, &syscall.SysProcAttr{Setpgid: true}
	began := time.Now()
	err = c.Start()
	w.Close()
	if err != nil {
		return 0, err
	}
	line, err := bufio.NewReader(r).ReadString('\n')
	took = time.Since(began)
	if errors.Is(err, io.EOF) || err == nil && line != echoed+"\n" {
		err = fmt.Errorf("%s wrote %q", argv[0], line)
	}
	return took, errors.Join(err, c.Wait())
}

// user makes a user with a home, and runs its first command in bubblewrap.
func (p *peers) user() measure.Contestant {
	return measure.Contestant{Name: report.UseraddBwrap, Op: func() (time.Duration, error) {
		began := time.Now()
		name, err := p.users.add()
		added := time.Since(began)
		if err != nil {
			return 0, err
		}
		home := p.users.home(name)
		took, err := firstLine(p.bwrap, "--unshare-all", "--ro-bind", "/", "/", "--bind", home, home, "--chdir", home, "/bin/echo", echoed)
		return added + took, errors.Join(err, p.users.remove(name))
	}}
}

// create measures how long it takes from nothing to the first output of a command in a
// workspace. Its end is not counted, nor that of the peers' users and containers.
func (b *bench) create() error {
	h, err := b.host()
	if err != nil {
		return err
	}
	contestants := []measure.Contestant{h.created("create to first output, chat", "chat"), h.created("create to first output", "")}
	if b.peers.bwrap != "" {
		contestants = append(contestants, b.peers.user())
	}
	if m, err := b.peers.startPodman(b); err != nil {
		b.Miss(report.PodmanRun, err)
	} else {
		argv := m.argv(m.run([]string{"--rm"}, "/bin/echo", echoed)...)
		contestants = append(
			contestants, measure.Contestant{Name: report.PodmanRun, Op: func() (time.Duration, error) { return firstLine(argv...) }},
		)
	}
	p := measure.Pace{Rounds: 12, Block: 900 * time.Millisecond, Warm: 1}
	if b.quick {
		p = measure.Pace{Rounds: 4, Block: 300 * time.Millisecond, Warm: 1}
	}
	got := measure.Interleave(b.ctx, p, contestants)
	if err := b.times(report.Create, time.Millisecond, got[0], got[2:]); err != nil {
		return err
	}
	return b.times(report.CreateBare, time.Millisecond, got[1], got[2:])
}

// crowd is how many workspaces are made at once.
const crowd = 50

// creates measures how long it takes to make many workspaces at once, beside as many
// users one after the other, which is what the lock on the user database makes of them.
func (b *bench) creates() error {
	h, err := b.host()
	if err != nil {
		return err
	}
	latencies := measure.Series{Name: fmt.Sprintf("one of %d creates at once", crowd)}
	ours := measure.Contestant{Name: fmt.Sprintf("%d creates at once", crowd), Op: func() (time.Duration, error) {
		made := make([]string, crowd)
		for i := range made {
			made[i] = newKey()
		}
		times := make(chan time.Duration, crowd)
		began := time.Now()
		err := each(crowd, made, func(key string) error {
			began := time.Now()
			_, err := h.make(b.ctx, &carrelv1.CreateRequest{Key: key, NoStart: true})
			times <- time.Since(began)
			return err
		})
		took := time.Since(began)
		close(times)
		if err != nil {
			return 0, err // what was made is taken away with the carrel
		}
		var all []time.Duration
		for d := range times {
			all = append(all, d)
		}
		latencies.Rounds = append(latencies.Rounds, all)
		return took, each(workers, made, h.destroy)
	}}
	peer := measure.Contestant{Name: report.Useradds, Op: func() (time.Duration, error) {
		made := make([]string, 0, crowd)
		began := time.Now()
		for range crowd {
			name, err := b.peers.users.add()
			if err != nil {
				return 0, err
			}
			made = append(made, name)
		}
		took := time.Since(began)
		return took, each(1, made, b.peers.users.remove)
	}}
	p := measure.Pace{Rounds: 5}
	if b.quick {
		p.Rounds = 1
	}
	got := measure.Interleave(b.ctx, p, []measure.Contestant{ours, peer})
	if err := b.times(report.Creates, time.Millisecond, got[0], got[1:]); err != nil {
		return err
	}
	return b.times(report.CreatesEach, time.Millisecond, latencies, nil)
}

// destroy measures the end of a stopped workspace with a small home, and of its home,
// beside that of a user with the same.
func (b *bench) destroy() error {
	h, err := b.host()
	if err != nil {
		return err
	}
	ours := measure.Contestant{Name: "destroy --purge", Op: func() (time.Duration, error) {
		w, err := h.make(b.ctx, &carrelv1.CreateRequest{Key: newKey(), NoStart: true})
		if err == nil {
			err = fillHome(w.GetHome())
		}
		if err != nil {
			return 0, err
		}
		began := time.Now()
		err = h.destroy(w.GetName())
		return time.Since(began), err
	}}
	peer := measure.Contestant{Name: report.UserdelR, Op: func() (time.Duration, error) {
		name, err := b.peers.users.add()
		if err == nil {
			err = fillHome(b.peers.users.home(name))
		}
		if err != nil {
			return 0, err
		}
		began := time.Now()
		err = b.peers.users.remove(name)
		return time.Since(began), err
	}}
	p := measure.Pace{Rounds: 12, Block: 600 * time.Millisecond, Warm: 1}
	if b.quick {
		p = measure.Pace{Rounds: 4, Block: 250 * time.Millisecond, Warm: 1}
	}
	got := measure.Interleave(b.ctx, p, []measure.Contestant{ours, peer})
	return b.times(report.Destroy, time.Millisecond, got[0], got[1:])
}
