package e2b

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

const (
	// maxRunning is how many commands of one sandbox are followed at once, maxFollowers how many clients one of them.
	maxRunning, maxFollowers = 256, 16
	// behind is how many pieces a client may be behind. One that takes too long for the next is let go, and the command goes on.
	behind      = 16
	defaultSlow = 30 * time.Second
	piece       = 32 << 10
	// drain is how long after the end of a command its output may stay silent and open.
	drain = 2 * time.Second
)

// running are the commands that clients have started, by sandbox. They outlive their clients, not the daemon.
type running struct {
	mu     sync.Mutex
	of     map[string][]*command
	closed bool
	all    sync.WaitGroup
}

// command is one that clients follow.
type command struct {
	sandbox string
	cmd     id.Command
	config  config
	tag     *string
	pid     uint32
	pty     bool
	proc    runtime.Process
	give    func() // what its streams count
	slow    time.Duration
	gone    func() bool // whether its sandbox has gone, or goes
	// stdin is nil if there is none; out has the output of a terminal alone, or stdout and stderr.
	input sync.Mutex
	stdin *os.File
	out   []*os.File

	mu        sync.Mutex
	followers []*follower
	end       *ending // set when it has ended
}

// config is what it was started with.
type config struct {
	argv []string
	envs map[string]string
	cwd  *string
}

// event is a piece of output, or the end.
type event struct {
	stream int // 0 stdout, 1 stderr, 2 terminal
	data   []byte
	end    *ending
}

// ending is how a command ended, or why that is not known.
type ending struct {
	status execapi.Status
	err    error
}

// follower is one client of a command.
type follower struct {
	events chan event
	gone   chan struct{} // closed when the client has left
	leave  sync.Once
}

// add takes a place for a command, and starts to follow it. Without an error it is in the list until it has ended.
func (r *running) add(c *command) (*follower, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, fmt.Errorf("cannot follow %s: the daemon is stopping: %w", c.cmd, errdefs.ErrUnavailable)
	}
	if n := len(r.of[c.sandbox]); n >= maxRunning {
		return nil, fmt.Errorf("cannot follow another command of %s: %d are running, the most there may be; end some: %w", c.sandbox, n,
			errdefs.ErrResourceExhausted)
	}
	if r.of == nil {
		r.of = map[string][]*command{}
	}
	r.of[c.sandbox] = append(r.of[c.sandbox], c)
	f := c.follow()
	r.all.Go(func() {
		c.run()
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.of[c.sandbox] = slices.DeleteFunc(r.of[c.sandbox], func(x *command) bool { return x == c }); len(r.of[c.sandbox]) == 0 {
			delete(r.of, c.sandbox)
		}
	})
	return f, nil
}

// list returns the commands of a sandbox.
func (r *running) list(sandbox string) []*command {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.of[sandbox])
}

// close hangs up all commands and waits for their ends.
func (r *running) close() {
	r.mu.Lock()
	r.closed = true
	for _, list := range r.of {
		for _, c := range list {
			_ = c.proc.Close()
		}
	}
	r.mu.Unlock()
	r.all.Wait()
}

// follow adds a client, which gets what comes from now on. Nil: there are as many as may be.
func (c *command) follow() *follower {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.followers) >= maxFollowers {
		return nil
	}
	f := &follower{events: make(chan event, behind), gone: make(chan struct{})}
	if c.end != nil {
		f.events <- event{end: c.end}
		close(f.events)
		return f
	}
	c.followers = append(c.followers, f)
	return f
}

// unfollow is for a client that leaves. Its command goes on.
func (c *command) unfollow(f *follower) {
	f.leave.Do(func() { close(f.gone) })
	c.mu.Lock()
	defer c.mu.Unlock()
	c.followers = slices.DeleteFunc(c.followers, func(x *follower) bool { return x == f })
}

// over reports whether it has ended.
func (c *command) over() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.end != nil
}

// tell gives an event to all clients. One that does not take it in time is let go.
func (c *command) tell(e event) {
	c.mu.Lock()
	followers := slices.Clone(c.followers)
	c.mu.Unlock()
	for _, f := range followers {
		select {
		case f.events <- e:
			continue
		case <-f.gone:
			continue
		default:
		}
		t := time.NewTimer(c.slow)
		select {
		case f.events <- e:
		case <-f.gone:
		case <-t.C:
			c.unfollow(f)
		}
		t.Stop()
	}
}

// run passes the output on until the command has ended.
func (c *command) run() {
	var pumps sync.WaitGroup
	var ended atomic.Bool
	var told sync.Mutex // one piece at a time, so that each client sees them in one order
	for i, f := range c.out {
		stream := i
		if c.pty {
			stream = 2
		}
		pumps.Go(func() {
			buf := make([]byte, piece)
			for {
				n, err := f.Read(buf)
				if n > 0 {
					told.Lock()
					c.tell(event{stream: stream, data: slices.Clone(buf[:n])})
					told.Unlock()
					if ended.Load() {
						_ = f.SetReadDeadline(time.Now().Add(drain))
					}
				}
				if err != nil {
					return
				}
			}
		})
	}
	status, err := c.proc.Wait(context.Background()) // it ends: with the command, its executor or the runtime
	ended.Store(true)
	for _, f := range c.out {
		_ = f.SetReadDeadline(time.Now().Add(drain))
	}
	pumps.Wait()
	_ = c.proc.Close()
	if err == nil && status.Signal != 0 && c.gone() {
		err = fmt.Errorf("the sandbox was killed or reached its timeout: %w", errdefs.ErrUnavailable)
	}
	end := &ending{status, err}
	c.mu.Lock()
	c.end = end // before anybody hears of it, so that it is in no list then
	c.mu.Unlock()
	c.tell(event{end: end})
	c.mu.Lock()
	for _, f := range c.followers {
		close(f.events)
	}
	c.followers = nil
	c.mu.Unlock()
	c.input.Lock()
	defer c.input.Unlock()
	for _, f := range append(c.out, c.stdin) {
		if f != nil {
			_ = f.Close()
		}
	}
	c.stdin = nil
	c.give()
}

// errNoInput: the command takes no input, or none any more.
var errNoInput = fmt.Errorf("cannot send it input: it takes none; start it with stdin, or in a terminal: %w", errdefs.ErrFailedPrecondition)

// send writes input, for which the command has so long.
func (c *command) send(b []byte) error {
	c.input.Lock()
	defer c.input.Unlock()
	if c.stdin == nil {
		return errNoInput
	}
	if err := c.stdin.SetWriteDeadline(time.Now().Add(c.slow)); err != nil {
		return err
	}
	_, err := c.stdin.Write(b)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("cannot send it input: it has read none for %v: %w", c.slow, errdefs.ErrUnavailable)
	}
	return err
}

// closeInput ends the input. A terminal has no end of input: its client sends ^D.
func (c *command) closeInput() error {
	c.input.Lock()
	defer c.input.Unlock()
	if c.stdin == nil || c.pty {
		return errNoInput
	}
	err := c.stdin.Close()
	c.stdin = nil
	return err
}
