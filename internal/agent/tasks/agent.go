package tasks

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/agent/turns"
	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/wire/linerpc"
)

// maxIdleOwn is how often carrel's own agent, or what has taken its place, may propose something after nothing more is taken from it in a
// turn. The true one ends its turn at once.
const maxIdleOwn = 3

// agent is the client of an agent that has no power of its own: it speaks ACP, and proposes plans by a request of carrel's.
//
//	agent → carrel   _carrel/propose   request with {sessionId, plan}, the plan as the model wrote it
//	carrel → agent   its answer, a turns.Reply, once the plan was carried out or refused
type agent struct {
	acp
	turn turns.Turn
	// read: something was proposed in this turn, so that others wrote some of what the agent knows. It is the reader's.
	read bool
	// idle are the proposals after nothing more was taken.
	idle int
	// busy: a proposal is being carried out.
	busy atomic.Bool
}

func newAgent(c *conversation) dialect {
	a := &agent{acp: acp{c: c}}
	a.meta = func() any { return map[string]any{"carrel": c.situation()} }
	return a
}

func (a *agent) begin(prompt string) error {
	a.turn = a.c.turn()
	return a.acp.begin(prompt)
}

// turn is the turn of an agent, once it is known what its session began with.
func (c *conversation) turn() turns.Turn {
	on, _ := c.tasks.cfg.Lifecycle.Target(c.task.Workspace)
	return turns.Turn{
		By: c.by, Task: c.task.ID, Trace: c.trace, On: on, PlanOnly: c.planOnly, Orders: c.orders, Wait: c.wait,
		Gone: c.quiet, Hosts: c.hosts, Note: c.note, Session: string(c.begins.Session),
	}
}

func (a *agent) take(m linerpc.Message) error {
	switch m.Method {
	case "_carrel/propose":
		return a.propose(m)
	case "_carrel/remember":
		return a.remember(m)
	}
	return a.acp.take(m)
}

func (a *agent) propose(m linerpc.Message) error {
	a.read = true
	var p struct {
		SessionID string `json:"sessionId"`
		Plan      string `json:"plan"`
	}
	if !m.Request() {
		return fmt.Errorf("it sent _carrel/propose without an id, so that nothing can be answered")
	}
	if err := json.Unmarshal(m.Params, &p); err != nil {
		return fmt.Errorf("its _carrel/propose is of another form")
	}
	if err := a.ours(p.SessionID); err != nil {
		return err
	}
	if !a.busy.CompareAndSwap(false, true) {
		return a.c.refuse(m, linerpc.Refused, "cannot take a second plan: another one is being carried out; wait for its answer")
	}
	a.c.asking.Go(func() {
		reply, err := a.c.tasks.cfg.Turns.Propose(a.c.context(), &a.turn, []byte(p.Plan))
		if reply.Outcome == turns.Blocked {
			if a.idle++; a.idle > maxIdleOwn {
				err = fmt.Errorf("the agent goes on proposing after nothing more is taken from it in this turn: %w", errdefs.ErrResourceExhausted)
			}
		}
		a.busy.Store(false)
		if err == nil {
			err = a.c.answer(m, reply)
		}
		if err = a.c.broken(err); err != nil {
			a.c.fail("%v", err)
		}
	})
	return nil
}

// paced are the kinds of notes of which a program can cause any number. Each of the others is about a plan, of which a turn has few,
// or about what the gate has recorded before, and a person waits for what comes after it.
var paced = []string{"refusal", "remember"}

// note keeps what happens, and stores it before it goes on.
func (c *conversation) note(kind string, body any) error {
	if err := c.message(kind, body); err != nil {
		return err
	}
	if slices.Contains(paced, kind) {
		return c.flush()
	}
	return c.store(0)
}

// hosts returns who serves hosts in this task, nil if nobody does. One who has said that they are about to is waited for.
func (c *conversation) hosts() runtime.Hosts {
	if c.about != nil {
		t := time.NewTimer(c.limit.Serve)
		defer t.Stop()
		select {
		case <-c.about:
		case <-c.quiet:
		case <-t.C:
			c.aboutOnce.Do(func() { close(c.about) }) // it is waited for once
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.served
}

// ServeHosts has h carry out the steps on hosts of an agent's task until leave is called; over is closed when the task has ended. Only who
// runs the task may: permission_denied. failed_precondition: the task has ended, or somebody else serves it.
func (t *Tasks) ServeHosts(ctx context.Context, p principal.Principal, ref string, task id.Command, h runtime.Hosts) (
	leave func(), over <-chan struct{}, err error,
) {
	a, err := t.cfg.Lifecycle.Authorise(ctx, p, ref, operation.OnCommand(operation.StopTask, task))
	if err != nil {
		return nil, nil, err
	}
	c := t.running(a.On().Name, task)
	switch {
	case c == nil:
		return nil, nil, fmt.Errorf("cannot serve task %s: it has ended; ask again: %w", task, errdefs.ErrFailedPrecondition)
	case c.task.Principal != p.String():
		return nil, nil, fmt.Errorf("cannot serve task %s: %s runs it, and its steps are carried out with their rights: %w", task,
			c.task.Principal, errdefs.ErrPermissionDenied)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.served != nil {
		return nil, nil, fmt.Errorf("cannot serve task %s: another client does; end that one first: %w", task, errdefs.ErrFailedPrecondition)
	}
	c.served = h
	if c.about != nil {
		c.aboutOnce.Do(func() { close(c.about) })
	}
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.served = nil
	}, c.told, nil
}
