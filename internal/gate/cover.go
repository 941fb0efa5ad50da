package gate

import (
	"context"
	"sync"

	"github.com/carrel-dev/carrel/internal/spec/operation"
)

// Cover lets the commands of a plan pass that a person was asked about, each as often as it stands in the plan. It holds by
// the policy that the plan was judged by, and only while the plan is carried out.
type Cover struct {
	policy string
	pass   Pass

	mu   sync.Mutex
	left map[string]int
}

// Cover returns what lets the commands with these digests pass, once each, because the plan was admitted of which they are
// steps. It is nil for another operation than a plan, and for a plan that nobody was asked about: its commands have to pass
// by themselves.
func (a *Admitted) Cover() *Cover {
	p, ok := a.x.request.Op.(operation.Plan)
	if !ok || a.x.pass.Text == "" {
		return nil
	}
	c := &Cover{policy: a.x.judgement.Policy, pass: Pass{Text: a.x.pass.Text}, left: map[string]int{}}
	steps := p.Steps
	if a.x.pass.First {
		steps = steps[:p.Passing()]
	}
	for _, s := range steps {
		c.left[s.Digest]++
	}
	return c
}

// Stepwise reports whether a person lets the steps of the plan through one at a time, and so far those that Plan.Passing says.
func (a *Admitted) Stepwise() bool { return a.x.pass.First }

// End takes the rest of it back.
func (c *Cover) End() {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.left = nil
}

// spend uses it for a request that a person would be asked about; false if it does not cover that.
func (c *Cover) spend(x *passing) (Pass, bool) {
	if c == nil || x.judgement.Policy != c.policy {
		return Pass{}, false
	}
	digest, err := operation.Same(x.request.Op, x.request.On)
	if err != nil {
		return Pass{}, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.left[digest] == 0 {
		return Pass{}, false
	}
	c.left[digest]--
	return c.pass, true
}

type coverKey struct{}

// Covered returns a context under which c lets commands pass. A nil one covers nothing.
func Covered(ctx context.Context, c *Cover) context.Context {
	return context.WithValue(ctx, coverKey{}, c)
}

func coverOf(ctx context.Context) *Cover {
	c, _ := ctx.Value(coverKey{}).(*Cover)
	return c
}
