// Package keeper keeps carrel-egress alive for one workspace: a process that ends is replaced by one that serves by the
// same rules, without a restart of the workspace. How a process is started is the Starter's: Child starts it from here,
// Remote asks another process for one.
//
// It must not decide what may be reached, and serves nothing itself.
package keeper

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/spec/netrule"
	"github.com/carrel-dev/carrel/internal/wire/egressapi"
)

// Config is what a Keeper needs.
type Config struct {
	// Starter starts carrel-egress. It becomes the Keeper's. Required.
	Starter Starter
	// Setup is what it serves by.
	Setup egressapi.Setup
	// Connection is told of each connection, one after the other. It must not block. Required.
	Connection func(egressapi.Connection)
	// Ask has a person asked whether a target may be reached. It is called in a goroutine of each question, for
	// egressapi.MostAsked at once, and returns soon after ctx has ended: then nobody waits any more. Optional: without it
	// every question is answered with no.
	Ask func(ctx context.Context, q Question) Answer
	// Reserve is asked before each request to an endpoint of Setup.Models, for a model that a program names; "" for none. It
	// is called in a goroutine of each request, for egressapi.MostLeased at once, and returns soon after ctx has ended. done
	// is called once, when the request has ended, and must not block. The text of an error is told to the program; one of
	// kind unavailable may go away. Optional: without it every request is refused.
	Reserve func(ctx context.Context, endpoint, model string) (done func(egressapi.Usage), err error)
	// Pace is called for each connection that begins, and returns how long the next ones are to wait. It must not block. Optional.
	Pace func() time.Duration
	// Trouble is told when a process ended by itself. It is replaced, unless that happens too often.
	// Required.
	Trouble func(error)
	// Retry has the Keeper go on where it would give up: it tries again after a second, then after twice as long each
	// time, up to a minute, until Close. Trouble is told once of each reason. Until a process serves, the workspace
	// reaches nothing.
	Retry bool
}

const (
	// startWithin bounds the start of a process, and the change of its rules.
	startWithin = 10 * time.Second
	// endWithin is how long a process may take to end by itself.
	endWithin = 2 * time.Second
	// A process that ended is replaced at most mostReplaced times in replacedWithin. One that served for as long is
	// sound: what went wrong before is forgotten.
	mostReplaced   = 5
	replacedWithin = time.Minute
	// With Config.Retry, the pauses between attempts.
	firstPause   = time.Second
	longestPause = time.Minute
	// mostReasons bounds the reasons that are remembered as told.
	mostReasons = 16
)

// Keeper is a workspace's way out.
type Keeper struct {
	cfg    Config
	alive  context.Context // until Close
	stop   context.CancelFunc
	unused func() // closes the starter, once

	// turn is held by who starts a process or tells it a Setup.
	turn chan struct{}
	// started says that a process was started by a change, so that a pause ends.
	started chan struct{}

	mu      sync.Mutex // of what follows
	setup   egressapi.Setup
	version int // of setup
	now     *process
	closed  bool
	over    bool // no other process is started
	asked   asked

	watching sync.WaitGroup
	asking   sync.WaitGroup // questions
	granting sync.WaitGroup // writes to processes
	// The watching goroutine's:
	since []time.Time // when processes were replaced
	pause time.Duration
	told  map[string]bool
}

// errClosed ends what Close interrupts.
var errClosed = fmt.Errorf("carrel-egress has ended: %w", errdefs.ErrUnavailable)

// Start starts carrel-egress and returns when it serves. If that fails it is not tried again.
func Start(ctx context.Context, c Config) (*Keeper, error) {
	k := &Keeper{
		cfg: c, unused: sync.OnceFunc(c.Starter.Close), turn: make(chan struct{}, 1), started: make(chan struct{}, 1),
		setup: c.Setup, version: 1, told: map[string]bool{},
	}
	k.alive, k.stop = context.WithCancel(context.Background())
	p, err := k.start(ctx)
	if err != nil {
		k.stop()
		k.unused()
		return nil, err
	}
	k.watching.Go(func() { k.watch(p) })
	return k, nil
}

// Check refuses a Setup that is too large to be sent.
func Check(s egressapi.Setup) error {
	_, err := encode(s)
	return err
}

// SetRules changes the rules, and returns when nothing passes any more that they do not allow.
func (k *Keeper) SetRules(ctx context.Context, rules []netrule.Rule) error {
	return k.Change(ctx, func(s *egressapi.Setup) { s.Rules = rules })
}

// SetSecrets changes the secrets, and returns when no connection with the earlier ones is left. Setup.CA is required.
// Check them before, with intercept.New: with those that it refuses carrel-egress cannot serve, and the workspace
// reaches nothing any more.
func (k *Keeper) SetSecrets(ctx context.Context, secrets []egressapi.Secret) error {
	return k.Change(ctx, func(s *egressapi.Setup) { s.Secrets = secrets })
}

// Change changes the Setup, and returns when it is in force. change replaces fields; what they pointed to stays as it
// is. A Setup that is too large is refused (invalid_argument), and nothing changes. After any other error the new Setup
// is that of the next process. A process that did not answer is ended, and with Config.Retry another one is started
// before Change returns, if there is time.
func (k *Keeper) Change(ctx context.Context, change func(*egressapi.Setup)) error {
	k.mu.Lock()
	if k.closed || k.over {
		k.mu.Unlock()
		return fmt.Errorf("cannot change the rules: %w", errClosed)
	}
	s := k.setup
	change(&s)
	if _, err := encode(s); err != nil {
		k.mu.Unlock()
		return err
	}
	k.setup = s
	k.version++
	k.mu.Unlock()

	ctx, cancel := k.until(ctx)
	defer cancel()
	if err := k.take(ctx); err != nil {
		return fmt.Errorf("cannot change the rules in time: carrel-egress is being started: %w", err)
	}
	defer k.leave()
	k.mu.Lock()
	p, over := k.now, k.over
	k.mu.Unlock()
	if over {
		return fmt.Errorf("cannot change the rules: %w", errClosed)
	}
	if p != nil {
		_, err := k.tell(ctx, p, false)
		if err == nil {
			return nil
		}
		p.Kill() // by which rules it serves is not known
		if !k.cfg.Retry || ctx.Err() != nil {
			return err
		}
		_ = p.wait()
	}
	if _, err := k.start(ctx); err != nil {
		return err
	}
	select {
	case k.started <- struct{}{}:
	default:
	}
	return nil
}

// PID is the process that serves now, 0 if there is none or its Starter does not know.
func (k *Keeper) PID() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.now == nil {
		return 0
	}
	return k.now.PID
}

// Close ends the process, and returns when every connection has been told and every question has ended. It interrupts
// starts and changes, and takes little more than two seconds if the process hangs.
func (k *Keeper) Close() {
	k.mu.Lock()
	k.closed = true
	p := k.now
	k.mu.Unlock()
	k.stop()
	if p != nil {
		p.end()
	}
	k.watching.Wait()
	k.turn <- struct{}{} // an interrupted start has ended
	k.asking.Wait()
	k.granting.Wait()
	k.unused()
	k.leave()
}

// until returns ctx, ended by Close too.
func (k *Keeper) until(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(k.alive, cancel)
	return ctx, func() {
		stop()
		cancel()
	}
}

// take waits for the turn.
func (k *Keeper) take(ctx context.Context) error {
	select {
	case k.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (k *Keeper) leave() { <-k.turn }

// watch replaces processes that end by themselves, until Close.
func (k *Keeper) watch(p *process) {
	for p != nil {
		err := p.wait()
		k.mu.Lock()
		if k.now == p { // else a change has replaced it
			k.now = nil
		}
		closed := k.closed
		k.mu.Unlock()
		if closed {
			return
		}
		if time.Since(p.began) >= replacedWithin {
			k.pause, k.told = 0, map[string]bool{}
		}
		k.trouble(fmt.Errorf("carrel-egress ended by itself, and every connection with it: %w", err))
		p = k.replace()
	}
}

// replace starts a process instead of one that ended, nil if that cannot be done or is no longer wanted.
func (k *Keeper) replace() *process {
	now := time.Now()
	k.since = append(k.since, now)
	for now.Sub(k.since[0]) > replacedWithin {
		k.since = k.since[1:]
	}
	var err error
	switch {
	case k.pause > 0:
		err = fmt.Errorf("it ends again and again: %w", errdefs.ErrUnavailable)
	case len(k.since) > mostReplaced:
		err = fmt.Errorf("it ended %d times within %v: %w", len(k.since), replacedWithin, errdefs.ErrUnavailable)
	}
	for {
		if err == nil {
			var p *process
			if p, err = k.again(); err == nil {
				return p
			}
		}
		switch {
		case k.alive.Err() != nil:
			return nil
		case !k.cfg.Retry:
			if p := k.giveUp(); p != nil {
				return p
			}
			k.cfg.Trouble(fmt.Errorf("cannot start carrel-egress again; the workspace reaches nothing any more: %w", err))
			return nil
		}
		k.trouble(fmt.Errorf("cannot start carrel-egress again; the workspace reaches nothing until a later attempt succeeds: %w", err))
		if !k.rest() {
			return nil
		}
		err = nil
	}
}

// giveUp has no other process started, unless a change has just started one, which it returns.
func (k *Keeper) giveUp() *process {
	if k.take(k.alive) == nil {
		defer k.leave()
	}
	k.mu.Lock()
	p := k.now
	k.over = p == nil
	k.mu.Unlock()
	if p == nil {
		k.unused() // who connects inside is refused instead of waiting
	}
	return p
}

// trouble tells a reason, with Config.Retry once.
func (k *Keeper) trouble(err error) {
	if k.cfg.Retry {
		text := err.Error()
		if k.told[text] || len(k.told) >= mostReasons {
			return
		}
		k.told[text] = true
	}
	k.cfg.Trouble(err)
}

// rest waits before the next attempt. It is false after Close.
func (k *Keeper) rest() bool {
	k.pause = min(max(2*k.pause, firstPause), longestPause)
	timer := time.NewTimer(k.pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-k.started:
	case <-k.alive.Done():
		return false
	}
	return true
}

// again returns the process that a change has started, else a new one.
func (k *Keeper) again() (*process, error) {
	if err := k.take(k.alive); err != nil {
		return nil, err
	}
	defer k.leave()
	k.mu.Lock()
	p := k.now
	k.mu.Unlock()
	if p != nil {
		return p, nil
	}
	return k.start(k.alive)
}

// start starts a process, which is the one that serves when start returns. The caller has the turn.
func (k *Keeper) start(ctx context.Context) (*process, error) {
	ctx, cancel := k.until(ctx)
	defer cancel()
	ctx, done := context.WithTimeout(ctx, startWithin)
	defer done()
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("cannot start carrel-egress: %w", err)
	}
	started, err := k.cfg.Starter.Start(ctx)
	if err != nil {
		return nil, err
	}
	p := &process{Process: started, began: time.Now(), ready: make(chan error, 1), ended: make(chan struct{})}
	p.asking = newAsking(k, p)
	p.leases = newLeases(k, p)
	p.listing = newListing()
	go p.read(k.cfg.Connection)
	closed, err := k.tell(ctx, p, true)
	if closed {
		p.end()
		return nil, errClosed
	}
	if err != nil {
		p.Kill()
		_ = p.wait()
		return nil, err
	}
	return p, nil
}

// tell tells p the Setup until that is the newest. With adopt, p is then the process that serves, unless the Keeper was
// closed. The caller has the turn.
func (k *Keeper) tell(ctx context.Context, p *process, adopt bool) (closed bool, err error) {
	for {
		k.mu.Lock()
		s, version := k.setup, k.version
		if p.version == version {
			closed = k.closed
			if adopt && !closed {
				k.now = p
			}
			k.mu.Unlock()
			return closed, nil
		}
		k.mu.Unlock()
		line, err := encode(s)
		if err != nil {
			return false, err
		}
		if err := p.tell(ctx, line); err != nil {
			return false, err
		}
		p.version = version
	}
}
