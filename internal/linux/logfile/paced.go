package logfile

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/carrel-dev/carrel/internal/base/bucket"
)

// How many lines of one kind that one caller gives rise to are logged: lineBurst at once and then
// one each lineEvery; and of all kinds and callers together. What is more is counted, and the
// counts are logged every leftOutEvery. At most then, some 3 MB are written an hour.
const (
	lineBurst    = 20
	lineEvery    = 5 * time.Second
	allBurst     = 500
	allEvery     = 250 * time.Millisecond
	leftOutEvery = time.Minute
	// maxPaces bounds the kinds and callers that are told apart, maxLeftOut those that are counted
	// apart. All others of one kind are taken together.
	maxPaces   = 4096
	maxLeftOut = 64
)

// callers are the attributes that say who gave rise to a line, the first that a line has.
var callers = []string{"principal", "from", "workspace", "address"}

// line is what lines have in common that are limited together.
type line struct{ message, who string }

// pace limits how much is logged, so that no caller can fill the disk that holds the record.
type pace struct {
	out slog.Handler

	mu      sync.Mutex
	full    map[line]time.Time // when its bucket is full again
	all     time.Time
	leftOut map[line]int
	timer   *time.Timer // runs while anything is left out
}

// Paced is a handler that keeps a pace: of the lines of one kind that one caller gives rise to,
// those beyond lineBurst and then one each lineEvery are counted instead. Make one with NewPaced.
type Paced struct {
	slog.Handler
	*pace
}

func NewPaced(out slog.Handler) Paced {
	return Paced{out, &pace{out: out, full: map[line]time.Time{}, leftOut: map[line]int{}}}
}

// Handle implements slog.Handler.
func (p Paced) Handle(ctx context.Context, rec slog.Record) error {
	if !p.admits(lineOf(rec), time.Now()) {
		return nil
	}
	return p.Handler.Handle(ctx, rec)
}

// WithAttrs implements slog.Handler.
func (p Paced) WithAttrs(attrs []slog.Attr) slog.Handler {
	return Paced{p.Handler.WithAttrs(attrs), p.pace}
}

// WithGroup implements slog.Handler.
func (p Paced) WithGroup(name string) slog.Handler {
	return Paced{p.Handler.WithGroup(name), p.pace}
}

func lineOf(rec slog.Record) line {
	l, best := line{message: rec.Message}, len(callers)
	rec.Attrs(func(a slog.Attr) bool {
		if i := slices.Index(callers, a.Key); i >= 0 && i < best {
			best, l.who = i, a.Value.String()
		}
		return best > 0
	})
	return l
}

// admits reports whether a line is logged, and counts it otherwise.
func (p *pace) admits(l line, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, known := p.full[l]; !known && len(p.full) >= maxPaces {
		maps.DeleteFunc(p.full, func(_ line, at time.Time) bool { return at.Before(now) })
		if len(p.full) >= maxPaces {
			l.who = ""
		}
	}
	own, wait := bucket.Bound{Burst: lineBurst, Every: lineEvery}.Take(p.full[l], now)
	if wait == 0 {
		if p.all, wait = (bucket.Bound{Burst: allBurst, Every: allEvery}).Take(p.all, now); wait == 0 {
			p.full[l] = own
			return true
		}
	}
	if _, known := p.leftOut[l]; !known && len(p.leftOut) >= maxLeftOut {
		l.who = ""
	}
	p.leftOut[l]++
	if p.timer == nil {
		p.timer = time.AfterFunc(leftOutEvery, p.Flush)
	}
	return false
}

// Flush logs how many lines were left out, as a timer does too.
func (p *pace) Flush() {
	p.mu.Lock()
	counts := p.leftOut
	p.leftOut = map[line]int{}
	if p.timer != nil {
		p.timer.Stop()
		p.timer = nil
	}
	p.mu.Unlock()
	log := slog.New(p.out)
	for l, n := range counts {
		log.Warn("more lines like this one were left out", "like", l.message, "caller", l.who, "count", n)
	}
}
