package gate

import (
	"time"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/spec/operation"
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

// now is the time that passages and refusals are measured by.
func now() time.Time { return time.Now() }
