package namespace

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

// A command can bring its executor to a halt, so nobody waits for one without an end.
const (
	// patience is how long an executor may take to answer what does not wait for a command.
	patience = 2 * time.Second
	// startPatience is how long it may take to start one: the program may be on a slow disk.
	startPatience = 15 * time.Second
	// endPatience is how long it may take to tell the end of a command that it was told to end.
	endPatience = 15 * time.Second
	// askAgain is how often a silent executor is asked whether it answers again, and giveUp
	// after how long Config.OnSilent is told, and told again each time that it is asked.
	askAgain = 3 * time.Second
	giveUp   = time.Minute
)

// unanswered is why a request to an executor was given up.
func (l *link) unanswered(method string) error {
	return fmt.Errorf("cannot reach workspace %s (no answer to %s within %v); wait, or end it with \"carrel stop %s\": %w",
		l.name, method, patience, l.name, runtime.ErrSilent)
}

// patient bounds a request that does not wait for a command.
func (l *link) patient(ctx context.Context, method string) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, patience, l.unanswered(method))
}

var errNotStarted = fmt.Errorf("cannot run the command: its executor did not start it within %v: %w", startPatience, runtime.ErrSilent)

// starting bounds the start of a command.
func (l *link) starting(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, startPatience, errNotStarted)
}

// gaveUp is called when a start was given up, by its caller or because of its time.
func (l *link) gaveUp(cmd id.Command, err error) {
	if !errors.Is(err, errNotStarted) {
		l.abandon(cmd)
		return
	}
	l.r.background(func() {
		_ = l.ping() // which finds out whether nothing is answered
		l.abandon(cmd)
	})
}

// ping makes one round trip.
func (l *link) ping() error {
	ctx, cancel := l.patient(l.r.ctx, execapi.MethodPing)
	defer cancel()
	_, err := l.conn.Call(ctx, execapi.MethodPing, struct{}{}, nil)
	if errors.Is(err, runtime.ErrSilent) {
		l.fellSilent()
	}
	return err
}

// background runs f in a goroutine that Close waits for, unless the runtime is closed.
func (r *Runtime) background(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed {
		r.lost.Go(f)
	}
}

// answers returns nil unless the executor is known to be silent.
func (l *link) answers() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.silent.IsZero() {
		return nil
	}
	return fmt.Errorf("cannot reach workspace %s, which has answered nothing since %s; wait, or end it with \"carrel stop %s\": %w",
		l.name, l.silent.UTC().Format(time.RFC3339), l.name, runtime.ErrSilent)
}

// fellSilent notes that the executor answers nothing, and has it asked again until it does.
func (l *link) fellSilent() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.silent.IsZero() || l.gone != nil {
		return
	}
	l.silent, l.awake = time.Now(), make(chan struct{})
	l.r.background(l.askUntilAnswered)
}

// askUntilAnswered asks a silent executor until it answers or has ended.
func (l *link) askUntilAnswered() {
	t := time.NewTicker(askAgain)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-l.r.ctx.Done():
			return
		}
		err := l.askOnce()
		if errors.Is(err, runtime.ErrSilent) {
			if since := l.silentSince(); l.r.cfg.OnSilent != nil && time.Since(since) >= giveUp {
				l.r.cfg.OnSilent(l.name, since)
			}
			continue
		}
		l.mu.Lock()
		l.silent = time.Time{}
		if l.awake != nil {
			close(l.awake)
			l.awake = nil
		}
		l.mu.Unlock()
		if l.err != nil { // it was never greeted: the next caller does that
			l.r.drop(l)
			if err != nil && l.r.cfg.OnLost != nil && l.r.ctx.Err() == nil {
				l.r.cfg.OnLost(l.name)
			}
		}
		return
	}
}

// askOnce returns an error that wraps runtime.ErrSilent while the executor answers nothing.
func (l *link) askOnce() error {
	if l.err == nil {
		return l.ping()
	}
	k := l.r.of(l.name)
	ctx, cancel := l.patient(l.r.ctx, execapi.MethodHello)
	defer cancel()
	conn, _, err := l.dial(ctx, k, execapi.Control)
	if err == nil {
		_ = conn.Close()
	}
	return l.judged(err, k.executor)
}

func (l *link) silentSince() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.silent
}

// Silent implements runtime.Runtime.
func (r *Runtime) Silent(name id.Workspace) time.Time {
	r.mu.Lock()
	l := r.links[name]
	r.mu.Unlock()
	if l == nil {
		return time.Time{}
	}
	return l.silentSince()
}
