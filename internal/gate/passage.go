package gate

import (
	"time"

	"github.com/carrel-dev/carrel/internal/id"
	"github.com/carrel-dev/carrel/internal/operation"
)

// Passage is the way of one operation through the gate, for telemetry. It holds nothing that
// a user wrote. An operation that is only observed has one when it is refused.
type Passage struct {
	Trace     id.Trace
	Kind      operation.Name
	Workspace id.Workspace
	// By is the principal, as in the record.
	By string
	// Level is the policy's; empty if it was not asked.
	Level string
	// Denied: it was refused. Err is why it was, or why the effect failed. It may name what
	// a user wrote; of secrets only those are masked that came with the request.
	Denied bool
	Err    error

	Began, Ended time.Time
	// Steps are what the time went to, one after the other: "policy", "approval", "intent",
	// "effect" and "outcome", as far as it came.
	Steps []Step

	room   [5]Step
	handed bool
}

// Step is a part of a passage.
type Step struct {
	Name         string
	Began, Ended time.Time
}

// begin starts to measure a request, if anybody listens.
func (x *passing) begin() {
	if x.g.cfg.Observe == nil {
		return
	}
	x.way = &Passage{Trace: x.request.Trace, Kind: x.row.Name, By: x.request.By.String(), Began: now()}
	x.way.Steps = x.way.room[:0]
}

// step says what was done since the step before.
func (p *Passage) step(name string) {
	if p == nil {
		return
	}
	from := p.Began
	if n := len(p.Steps); n > 0 {
		from = p.Steps[n-1].Ended
	}
	p.Steps = append(p.Steps, Step{name, from, now()})
}

// step is an operation that is part of this one. made is the target where this one has made it.
func (x *passing) step(op operation.Operation, made operation.Target) *Authorised {
	on := x.request.On
	if on.Name == "" {
		on = made
	}
	r := operation.Request{By: x.request.By, Op: op, On: on, Trace: x.request.Trace}
	part := &passing{g: x.g, request: r, row: operation.Of(op.Op())}
	part.begin()
	return &Authorised{part}
}

// passed hands the measurement over, once.
func (x *passing) passed(err error) {
	p := x.way
	if p == nil || p.handed || x.row.Class == operation.Observe && !p.Denied {
		return
	}
	p.handed = true
	p.Ended, p.Workspace = now(), x.request.On.Name
	if p.Err = err; err != nil && x.record != nil {
		p.Err = x.record.Error(err)
	}
	if x.judgement != nil {
		p.Level = x.judgement.Level.String()
	}
	x.g.cfg.Observe(p)
}
