package gate

import (
	"log/slog"
	"sync"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/gate/judge"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/state/record"
)

// Config holds the dependencies of New. Records, Judge, Ask and Log are required.
type Config struct {
	Records *record.Writer
	Judge   *judge.Judge
	// Ask has a person answer where the policy wants that.
	Ask Asker
	// Now returns a workspace as it is now, false if it is gone. Hold takes it.
	Now func(name id.Workspace) (operation.Target, bool)
	// Blocked says why no effect may follow now, nil if one may. Optional.
	Blocked func() error
	// Full says why only what makes room may be done, because the disk is full; nil if it is not. Optional.
	Full func() error
	// Scarce: what is left for those records is for administrators only. Optional.
	Scarce func() bool
	// Budget is how much one owner may have recorded. Optional.
	Budget Budget
	// Told hears of every outcome, by the number of its intent. Optional.
	Told func(r *operation.Request, intent int64, err error)
	// Observe hears of each passage when it is over, and must not block. Optional.
	Observe func(*Passage)
	Log     *slog.Logger
}

// Gate lets operations pass. Its methods may be called from any goroutine.
type Gate struct {
	cfg      Config
	refusals refusals
	holds    holds
	spending spending

	mu sync.Mutex
	// background are the goroutines that wait for effects to end, and closed says that no
	// more may be started.
	background sync.WaitGroup
	closed     bool
}

// New returns a gate.
func New(cfg Config) *Gate { return &Gate{cfg: cfg} }

// Later runs f in a goroutine that Close waits for; once closed, right away.
func (g *Gate) Later(f func()) {
	g.mu.Lock()
	if g.closed {
		g.mu.Unlock()
		f()
		return
	}
	g.background.Go(f)
	g.mu.Unlock()
}

// Settle returns when everything has ended that Later runs, and each effect that was begun before Closing has its outcome.
// It comes after Closing.
func (g *Gate) Settle() { g.background.Wait() }

// begun counts an effect that Settle waits for, until end.
func (g *Gate) begun() (end func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return func() {} // part of what is waited for already, or too late
	}
	g.background.Add(1)
	return g.background.Done
}

// Closing has Later run everything at once from here on.
func (g *Gate) Closing() {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
}

// passing is a request on its way.
type passing struct {
	g         *Gate
	request   operation.Request
	row       *operation.Row
	record    *record.Of
	judgement *judge.Judgement
	pass      Pass
	way       *Passage
}

// entry reads the request for its records, once.
func (x *passing) entry() (err error) {
	if x.record == nil {
		x.record, err = x.g.cfg.Records.Of(&x.request)
	}
	return err
}

// begin starts to measure a request, if anybody listens.
func (x *passing) begin() {
	if x.g.cfg.Observe == nil {
		return
	}
	x.way = &Passage{Trace: x.request.Trace, Kind: x.row.Name, By: x.request.By.String(), Began: now()}
	x.way.Steps = x.way.room[:0]
}

// passed hands the measurement over, once.
func (x *passing) passed(err error) {
	p := x.way
	if p == nil || p.handed || x.row.Class == operation.Observe && !p.Denied {
		return
	}
	p.handed = true
	p.Ended, p.Workspace = now(), x.request.On.Workspace()
	if p.Err = err; err != nil && x.record != nil {
		p.Err = x.record.Error(err)
	}
	if x.judgement != nil {
		p.Level = x.judgement.Level.String()
	}
	x.g.cfg.Observe(p)
}
