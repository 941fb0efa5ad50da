package taskmcp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/agent/tasks"
	"github.com/carrel-dev/carrel/internal/base/bucket"
	"github.com/carrel-dev/carrel/internal/surface/api"
	"github.com/carrel-dev/carrel/internal/surface/mcp"
	carrel "github.com/carrel-dev/carrel/sdk/go"
)

// How many sessions one task, one owner and all together may have at once. One holds a message of 1 MiB, and what its calls hold.
// One too many is closed without an answer.
const (
	maxOfTask  = 8
	maxOfOwner = 64
	maxAll     = 256
)

// pace bounds how fast connections are taken; those that come faster wait in their connect.
var pace = bucket.Bound{Burst: 2 * maxOfTask, Every: 200 * time.Millisecond}

// openWithin is how long a session may take to begin.
const openWithin = 30 * time.Second

// listener is the socket in a workspace.
type listener interface {
	Accept() (net.Conn, error)
	Close() error
}

// server serves one task.
type server struct {
	t      *Tools
	l      listener
	o      tasks.Opening
	inside *api.Inside
	client *carrel.Client

	ctx context.Context
	cut context.CancelCauseFunc
	all sync.WaitGroup
	own chan struct{} // a place for each session
	// seat are the tools of an agent in the place of carrel's own; nil for other programs.
	seat *mcp.Offer

	mu  sync.Mutex
	mcp *mcp.Server // once the first session has begun
}

var errOver = fmt.Errorf("cannot go on: the task has ended or was stopped, and its tools with it: %w", errdefs.ErrAborted)

// serve begins to serve a task, and takes l. Its end is the caller's to call.
func (t *Tools) serve(l listener, o tasks.Opening) (*server, error) {
	s := &server{t: t, l: l, o: o, own: make(chan struct{}, maxOfTask)}
	var err error
	if s.inside, err = t.surface.Inside(o.By.Bind(o.On, o.Trace), "task "+string(o.Task)); err != nil {
		return nil, err
	}
	if s.client, err = carrel.New(carrel.Options{Dial: s.inside.Dial}); err != nil {
		return nil, errors.Join(err, s.inside.Close())
	}
	s.ctx, s.cut = context.WithCancelCause(context.Background())
	if o.Seat != nil {
		s.seat = seatTools(o.Seat, t.cfg.Version)
	}
	s.all.Go(s.accept)
	return s, nil
}

// end cuts the sessions and cancels what is under way. It waits for that.
func (s *server) end() {
	s.cut(errOver)
	_ = s.l.Close()      // there is nobody to tell
	_ = s.inside.Close() // hangs up the commands of calls
	s.all.Wait()
	_ = s.client.Close()
}

// accept takes connections until the task ends. Nothing that a program does makes it wait for more than the pace.
func (s *server) accept() {
	var full time.Time
	for {
		c, err := s.l.Accept()
		var wait time.Duration
		full, wait = pace.Take(full, time.Now())
		if errors.Is(err, net.ErrClosed) || s.ctx.Err() != nil {
			if err == nil {
				c.Close()
			}
			return
		}
		if err != nil { // no descriptors are left, or the connection has gone
			wait = max(wait, time.Second)
		}
		if err == nil {
			s.take(c)
		}
		if wait > 0 && !s.pause(wait) {
			return
		}
	}
}

// pause waits; false if the task has ended meanwhile.
func (s *server) pause(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-s.ctx.Done():
		return false
	}
}

// take serves a connection, or closes it if there are too many.
func (s *server) take(c net.Conn) {
	select {
	case s.own <- struct{}{}:
	default:
		c.Close()
		return
	}
	leave, ok := s.t.counts.enter(s.o.By.Owner())
	if !ok {
		<-s.own
		c.Close()
		return
	}
	s.all.Go(func() {
		defer func() { leave(); <-s.own }()
		defer c.Close()
		if err := s.session(c); err != nil && s.ctx.Err() == nil {
			s.t.cfg.Log.Debug("a session of a task's tools has ended", "task", s.o.Task, "error", err)
		}
	})
}

// session is one session, as long as the principal may use the workspace.
func (s *server) session(c net.Conn) error {
	held, leave, err := s.inside.Hold(s.ctx)
	if err != nil {
		return err
	}
	defer leave()
	if s.seat != nil {
		return s.seat.Accept(held, c)
	}
	m, err := s.server(held)
	if err != nil {
		return err
	}
	return m.Accept(held, c)
}

// server is the server of all sessions. It is made for the first of them.
func (s *server) server(ctx context.Context) (*mcp.Server, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mcp != nil {
		return s.mcp, nil
	}
	ctx, cancel := context.WithTimeout(ctx, openWithin)
	defer cancel()
	m, err := mcp.New(ctx, mcp.Config{Client: s.client, Workspace: string(s.o.On), Version: s.t.cfg.Version, Inside: true})
	if err != nil {
		return nil, err
	}
	s.mcp = m
	return m, nil
}

// counts are the sessions by owner, and of all.
type counts struct {
	mu  sync.Mutex
	of  map[string]int
	all int
}

// enter takes a place, which leave gives back.
func (c *counts) enter(owner string) (leave func(), ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.all >= maxAll || c.of[owner] >= maxOfOwner {
		return nil, false
	}
	c.all++
	c.of[owner]++
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.all--
		if c.of[owner]--; c.of[owner] == 0 {
			delete(c.of, owner)
		}
	}, true
}
