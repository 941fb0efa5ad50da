package gate

import (
	"cmp"
	"fmt"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/state/audit"
	"github.com/carrel-dev/carrel/internal/state/record"
)

// Budget is how much of the record the operations of one owner may write, in bytes: the record
// stays for ever, and who can write it without end fills the disk under everybody. Zero fields
// bound nothing. Administrators and the daemon itself are not bound.
type Budget struct {
	// Rate is for a second. At once it may be as much as is for budgetBurst.
	Rate int64
	// Daily is for a day, which begins with the first operation after the last.
	Daily int64
}

const (
	budgetBurst = 256 * time.Second
	day         = 24 * time.Hour
	// reliefPart is the part of each bound that operations which make room have beyond it: an owner who
	// has nothing left can still stop and destroy.
	reliefPart = 8
	// overhead is what the records of an operation take beside the operation itself and why it
	// was let pass, its outcome included.
	overhead = 1 << 10
	// maxSpenders bounds the owners that are remembered. The others share one budget.
	maxSpenders = 4096
)

// spending is what each owner has left. The zero value is ready for use.
type spending struct {
	mu sync.Mutex
	of map[string]*spent
}

// spent is what one owner has used up.
type spent struct {
	full  time.Time // when all of the rate is back
	began time.Time // the day
	sum   int64
}

// take takes n bytes from an owner's budget, or none and says why.
func (s *spending) take(b Budget, owner string, n int64, relieves bool, now time.Time) error {
	daily, burst := b.Daily, budgetBurst
	if relieves {
		daily, burst = daily+daily/reliefPart, burst+burst/reliefPart
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.spent(owner)
	if now.Sub(o.began) >= day {
		o.began, o.sum = now, 0
	}
	if o.full.Before(now) {
		o.full = now
	}
	every := time.Duration(0)
	if b.Rate > 0 {
		every = b.time(n)
	}
	var next string
	switch {
	case b.Daily > 0 && o.sum+n > daily:
		next = fmt.Sprintf("%d bytes a day: try again in %v, or have an administrator raise audit.owner_daily", b.Daily,
			o.began.Add(day).Sub(now).Round(time.Minute))
	case o.full.Add(every).Sub(now) > burst:
		next = fmt.Sprintf("%d bytes a second: try again in %v, or have an administrator raise audit.owner_rate", b.Rate,
			max(time.Second, (o.full.Add(every).Sub(now)-burst).Round(time.Second)))
	default:
		o.full, o.sum = o.full.Add(every), o.sum+n
		return nil
	}
	return fmt.Errorf("the record of what %s does has grown by as much as that of one owner may, %s: %w", owner, next,
		errdefs.ErrResourceExhausted)
}

// add takes n bytes although there may be none left: what comes after is refused.
func (s *spending) add(b Budget, owner string, n int64, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := s.spent(owner)
	if o.sum += n; b.Rate > 0 {
		if o.full.Before(now) {
			o.full = now
		}
		o.full = o.full.Add(b.time(n))
	}
}

// time is how long the rate takes for n bytes.
func (b Budget) time(n int64) time.Duration {
	return time.Duration(float64(n) / float64(b.Rate) * float64(time.Second))
}

// spent returns what is known of an owner. s.mu is held.
func (s *spending) spent(owner string) *spent {
	if o := s.of[owner]; o != nil {
		return o
	}
	if s.of == nil {
		s.of = map[string]*spent{}
	}
	if len(s.of) >= maxSpenders {
		owner = others
		if o := s.of[owner]; o != nil {
			return o
		}
	}
	o := &spent{}
	s.of[owner] = o
	return o
}

// bound reports whether a budget bounds who makes a request.
func (g *Gate) bound(r *operation.Request) bool {
	return g.cfg.Budget != (Budget{}) && !r.By.Can(principal.Any)
}

// chargeOutcome takes what an outcome says: that it is recorded is sure.
func (g *Gate) chargeOutcome(r *operation.Request, rec audit.Record) {
	if n := len(rec.Data) + len(rec.Error); n > 0 && g.bound(r) {
		g.spending.add(g.cfg.Budget, cmp.Or(rec.Owner, rec.Principal), int64(n), now())
	}
}

// Charge takes what a record needs from the budget of whom it is about. What is refused is counted,
// and the counts are recorded together.
func (g *Gate) Charge(r *operation.Request, rec audit.Record) error { return g.charge(r, rec, false) }

func (g *Gate) charge(r *operation.Request, rec audit.Record, relieves bool) error {
	if !g.bound(r) {
		return nil
	}
	owner := cmp.Or(rec.Owner, rec.Principal)
	n := int64(len(rec.Action) + len(rec.Decision) + len(rec.Data) + len(rec.Error) + overhead)
	err := g.spending.take(g.cfg.Budget, owner, n, relieves, now())
	if err != nil {
		g.cfg.Records.Unrecorded(owner, r.Op.Op(), record.TooMuch)
	}
	return err
}
