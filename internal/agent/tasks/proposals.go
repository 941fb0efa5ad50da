package tasks

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/agent/turns"
)

// Seat is what the tools of an agent propose by, in the place of carrel's own. Each text is an answer as package plan reads it. The
// replies are those that carrel's own agent gets, as JSON. An error is that nothing was taken, and says why.
type Seat interface {
	// Read has calls of tools carried out that only read. Those that come meanwhile wait for their turn.
	Read(ctx context.Context, text []byte) (Told, error)
	// Plan has a plan carried out. failed_precondition: another one is. What takes long has the outcome Waiting.
	Plan(ctx context.Context, text []byte) (Told, error)
	// Remember takes a note, which is shown to the person when the turn ends, unless something was read in its session by then.
	Remember(ctx context.Context, note string) (Told, error)
	// Wait waits for the plan that was proposed last, as Plan does. failed_precondition: none was.
	Wait(ctx context.Context) (Told, error)
}

// Told is what came of a proposal.
type Told struct {
	Reply json.RawMessage
	// Well: it was carried out, if not to its end.
	Well bool
}

// Waiting is the outcome of a plan of which the end is not known yet.
const Waiting = "waiting"

// maxIdle is how many calls a program may make after nothing more is taken from it in a turn.
const maxIdle = 64

// proposals are what the tools of one turn propose: one thing at a time, as carrel's own agent does. Its methods may be called from any
// goroutine, and before and after the turn; nil is that of a program that proposes nothing.
type proposals struct {
	// busy has a place for whoever works.
	busy chan struct{}
	all  sync.WaitGroup

	mu   sync.Mutex
	c    *conversation // nil before the turn begins
	turn turns.Turn    // of whoever is busy
	over bool
	idle int
	last *proposed // the plan that was proposed last
	// read: others wrote some of what the program was told in this turn. memo is the note that it proposes, "" for none.
	read bool
	memo string
}

// proposed is a plan that was proposed. told and err are there once done is closed.
type proposed struct {
	done chan struct{}
	told Told
	err  error
}

var _ Seat = (*proposals)(nil)

func newProposals() *proposals { return &proposals{busy: make(chan struct{}, 1)} }

// begin begins the turn.
func (p *proposals) begin(c *conversation) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.c, p.turn = c, c.turn()
	p.turn.Singly, p.turn.DenialEnds = true, true
}

// end takes nothing more, and waits for what is under way. Nobody is asked any more by then.
func (p *proposals) end() {
	if p == nil {
		return
	}
	p.mu.Lock()
	p.over = true
	p.mu.Unlock()
	p.all.Wait()
}

// enter counts a proposal, which leave ends. plan: it is one.
func (p *proposals) enter(plan *proposed) (c *conversation, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.c == nil:
		return nil, fmt.Errorf("cannot take anything: the turn has not begun: %w", errdefs.ErrFailedPrecondition)
	case p.over || p.c.ending() != nil || p.c.hushed():
		return nil, fmt.Errorf("cannot take anything: the turn is over: %w", errdefs.ErrFailedPrecondition)
	case p.last != nil && !p.last.ended():
		what := "call a tool"
		if plan != nil {
			what = "take a second plan"
		}
		return nil, fmt.Errorf("cannot %s: a plan is being carried out; wait for its end with wait_plan: %w", what, errdefs.ErrFailedPrecondition)
	}
	if plan != nil {
		p.last = plan
	}
	p.read = true // of a note, Remember sees to itself
	p.all.Add(1)
	return p.c, nil
}

func (x *proposed) ended() bool {
	select {
	case <-x.done:
		return true
	default:
		return false
	}
}

// Read implements Seat.
func (p *proposals) Read(ctx context.Context, text []byte) (Told, error) {
	c, err := p.enter(nil)
	if err != nil {
		return Told{}, err
	}
	defer p.all.Done()
	return p.propose(ctx, c, text)
}

// Plan implements Seat. That the call ends changes nothing for the plan: a program may wait for a short time alone.
func (p *proposals) Plan(ctx context.Context, text []byte) (Told, error) {
	x := &proposed{done: make(chan struct{})}
	c, err := p.enter(x)
	if err != nil {
		return Told{}, err
	}
	go func() {
		defer p.all.Done()
		defer close(x.done)
		x.told, x.err = p.propose(context.WithoutCancel(ctx), c, text)
	}()
	return p.wait(ctx, c, x)
}

// Wait implements Seat.
func (p *proposals) Wait(ctx context.Context) (Told, error) {
	p.mu.Lock()
	x, c := p.last, p.c
	p.mu.Unlock()
	if x == nil {
		return Told{}, fmt.Errorf("cannot wait: no plan was proposed in this turn; propose one with propose_plan: %w",
			errdefs.ErrFailedPrecondition)
	}
	return p.wait(ctx, c, x)
}

func (p *proposals) wait(ctx context.Context, c *conversation, x *proposed) (Told, error) {
	limit := c.limit.Call
	if limit == 0 {
		limit = patience.Call
	}
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case <-x.done:
		return x.told, x.err
	case <-ctx.Done():
		return Told{}, context.Cause(ctx)
	case <-t.C:
	}
	return told(turns.Reply{Outcome: Waiting, Why: "it is not over: a person may have to answer, or a command takes long; call wait_plan"})
}

// propose waits for its turn, and proposes.
func (p *proposals) propose(ctx context.Context, c *conversation, text []byte) (Told, error) {
	select {
	case p.busy <- struct{}{}:
		defer func() { <-p.busy }()
	case <-c.quiet:
		return Told{}, fmt.Errorf("cannot go on: the turn is over: %w", errdefs.ErrAborted)
	case <-ctx.Done():
		return Told{}, context.Cause(ctx)
	}
	reply, err := c.tasks.cfg.Turns.Propose(c.context(), &p.turn, text)
	if reply.Outcome == turns.Blocked {
		if p.idle++; p.idle > maxIdle {
			err = fmt.Errorf("its program goes on calling tools after nothing more is taken from it in this turn: %w", errdefs.ErrResourceExhausted)
		}
	}
	if err = c.broken(err); err != nil {
		c.fail("%v", err)
		return Told{}, err
	}
	return told(reply)
}

func told(r turns.Reply) (Told, error) {
	b, err := json.Marshal(r)
	return Told{Reply: b, Well: r.Outcome == turns.Done || r.Outcome == turns.Failed || r.Outcome == Waiting}, err
}

// hushed reports whether nobody is asked any more.
func (c *conversation) hushed() bool {
	select {
	case <-c.quiet:
		return true
	default:
		return false
	}
}
