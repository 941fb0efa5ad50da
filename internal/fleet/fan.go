package fleet

import (
	"context"
	"fmt"
	"sync"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/fanout"
)

// MaxForks bounds the hosts on which steps run at once.
const MaxForks = fanout.MaxForks

// Fan says how a step goes to many hosts.
type Fan struct {
	// Forks is on how many hosts it runs at once. 0 is 8; the most is MaxForks.
	Forks int
	// Serial is how many hosts are one batch: a number as "5", a share of the hosts as "20%" rounded down to at least one,
	// or "" for all. A batch begins when the one before it has ended.
	Serial string
	// MaxFailures is how many hosts may fail: no other host begins once more have. Steps that run then go on. -1 never stops.
	MaxFailures int
	// Canary is how many of the first hosts go before all others. If one of them fails nothing else begins.
	Canary int
}

// Report is what became of one host.
type Report struct {
	// Index is the place of the host among those given to Fan.
	Index int
	Host  string
	// Result is that of Run. It says nothing if Err is set.
	Result Result
	// Err is why the step did not run on the host.
	Err error
	// Skipped says that the host was left out, because others had failed or the context had ended. Err says which.
	Skipped bool
}

// OK reports whether the step ended with status 0.
func (r *Report) OK() bool { return r.Err == nil && r.Result.OK() }

// Summary counts hosts. Their sum is the number of hosts.
type Summary struct {
	OK int
	// Failed ended otherwise, or could not be reached.
	Failed int
	// Lost may still run the step, or have run it.
	Lost int
	// Skipped were left out.
	Skipped int
}

// Fan runs a step on many hosts, and calls each for every one of them exactly once: for those that ran in the order in which
// they end, then for those that were skipped in their own order. Calls do not overlap, and keep the next host
// waiting. The step is checked for all hosts before anything runs. The error is about the arguments, and then nothing ran.
func (c *Client) Fan(ctx context.Context, f Fan, hosts []Host, s Step, each func(Report)) (sum Summary, err error) {
	forks := f.Forks
	if forks == 0 {
		forks = fanout.DefaultForks
	}
	if forks < 1 || forks > MaxForks || f.Canary < 0 || f.MaxFailures < -1 || len(hosts) > MaxHosts {
		return sum, invalid("cannot run on hosts: forks are 1 to %d, canaries at least 0, failures at least -1, hosts at most %d",
			MaxForks, MaxHosts)
	}
	size, err := fanout.Batch(f.Serial, len(hosts))
	if err != nil {
		return sum, err
	}
	seen := map[string]bool{}
	for i := range hosts {
		if err := s.Check(&hosts[i]); err != nil {
			return sum, err
		}
		if seen[hosts[i].Name] {
			return sum, invalid("cannot run on hosts: %s is there twice", hosts[i].Name)
		}
		seen[hosts[i].Name] = true
	}
	run := &fanning{client: c, ctx: ctx, hosts: hosts, step: s, each: each, most: f.MaxFailures}
	next := min(f.Canary, len(hosts))
	if next > 0 {
		most := run.most
		run.most = 0
		run.batch(0, next, forks)
		if run.most = most; run.failures > 0 && run.why == "" {
			run.why = "a canary failed"
		}
	}
	for next < len(hosts) && run.going() {
		end := min(next+size, len(hosts))
		run.batch(next, end, forks)
		next = end
	}
	run.skip()
	return run.sum, nil
}

// fanning is a step on its way to many hosts.
type fanning struct {
	client *Client
	ctx    context.Context
	hosts  []Host
	step   Step
	each   func(Report)
	most   int

	mu       sync.Mutex // also held while each is called
	done     []bool     // by host
	failures int
	why      string // no other host begins, and why
	sum      Summary
}

// going reports whether another host may begin.
func (f *fanning) going() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.why == "" && f.ctx.Err() != nil {
		f.why = "the run was canceled"
	}
	return f.why == ""
}

// batch runs the step on the hosts of a range, and returns when all that began have ended.
func (f *fanning) batch(from, to, forks int) {
	var wg sync.WaitGroup
	slots := make(chan struct{}, forks)
	for i := from; i < to; i++ {
		slots <- struct{}{}
		if !f.going() {
			break
		}
		wg.Go(func() {
			result, err := f.client.Run(f.ctx, f.hosts[i], f.step)
			f.report(Report{Index: i, Host: f.hosts[i].Name, Result: result, Err: err})
			<-slots
		})
	}
	wg.Wait()
}

func (f *fanning) report(r Report) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.done == nil {
		f.done = make([]bool, len(f.hosts))
	}
	f.done[r.Index] = true
	switch {
	case r.OK():
		f.sum.OK++
	case r.Skipped:
		f.sum.Skipped++
	case r.Err == nil && r.Result.Outcome == Lost:
		f.sum.Lost++
		f.failures++
	default:
		f.sum.Failed++
		f.failures++
	}
	if f.why == "" && f.most >= 0 && f.failures > f.most {
		f.why = fmt.Sprintf("%d hosts failed", f.failures)
		if f.failures == 1 {
			f.why = "a host failed"
		}
	}
	f.each(r)
}

// skip reports the hosts that did not begin.
func (f *fanning) skip() {
	for i := range f.hosts {
		if f.done == nil || !f.done[i] {
			f.report(Report{
				Index: i, Host: f.hosts[i].Name, Skipped: true,
				Err: fmt.Errorf("cannot run the step on %s: %s before it began: %w", f.hosts[i].Name, f.why, errdefs.ErrAborted),
			})
		}
	}
}
