package gate

import (
	"errors"
	"time"

	"github.com/carrel-dev/carrel/internal/action"
	"github.com/carrel-dev/carrel/internal/id"
)

// Passage is an action's way through the gate, for whoever measures it. It has nothing that
// a user wrote.
type Passage struct {
	Trace     id.Trace
	Kind      action.Kind
	Workspace id.Workspace
	// By is who asked, as in the record.
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

// begin starts to measure a request, if anybody asks for that.
func (g *Gate) begin(r *request) {
	if g.cfg.Observe == nil || r.way != nil {
		return // nobody asks, or it was begun when it was judged
	}
	r.way = &Passage{Trace: r.trace, Kind: r.action.Kind, Workspace: r.on.Name, By: r.by.String(), Began: time.Now()}
	r.way.Steps = r.way.room[:0]
}

// step says that what was done since the step before was this.
func (p *Passage) step(name string) {
	if p == nil {
		return
	}
	from := p.Began
	if n := len(p.Steps); n > 0 {
		from = p.Steps[n-1].Ended
	}
	p.Steps = append(p.Steps, Step{name, from, time.Now()})
}

// passed hands the measurement over, once: a request that is judged ahead of its effect may
// end there.
func (g *Gate) passed(r *request, err error) {
	p := r.way
	if p == nil || p.handed {
		return
	}
	p.handed = true
	p.Ended, p.Err = time.Now(), err
	if clean := g.clean(r); err != nil && clean != g.cfg.Redact {
		p.Err = errors.New(clean.Text(err.Error()))
	}
	if r.judged != nil {
		p.Level = r.judged.Level.String()
	}
	g.cfg.Observe(p)
}
