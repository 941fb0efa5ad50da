package diskreserve

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
)

const (
	// low is what is left of a file system that counts as full, or one part in lowPart of a small one.
	// It has to have twice as much again before it counts as not full.
	low     = 8 << 20
	lowPart = 64
	// sayEvery is how often the log says again that it is full.
	sayEvery = 10 * time.Minute
)

// Holder is what holds room on the file system of a Gauge. Room has it hold all that it should, and is
// cheap when it does; its error matches Full or resource_exhausted when it cannot.
type Holder interface {
	Room(ctx context.Context) error
}

// Gauge knows whether a file system is full: little of it is free, or what must be held could not be. Its
// methods may be called from any goroutine.
type Gauge struct {
	dir     string
	holders []Holder
	log     *slog.Logger
	full    atomic.Pointer[error]

	mu   sync.Mutex
	said time.Time
}

// NewGauge returns a gauge of the file system of a directory. It knows nothing before Look.
func NewGauge(dir string, log *slog.Logger, holders ...Holder) *Gauge {
	return &Gauge{dir: dir, holders: holders, log: log}
}

// Full returns why nothing more is to be begun, an error of kind resource_exhausted, or nil if there is room.
func (g *Gauge) Full() error {
	if err := g.full.Load(); err != nil {
		return *err
	}
	return nil
}

// Look measures, and has everything hold its room again.
func (g *Gauge) Look(ctx context.Context, now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	size, free, err := Space(g.dir)
	if err != nil {
		return // what is written next says what is wrong
	}
	least := min(low, size/lowPart)
	was := g.Full()
	if was != nil {
		least *= 2
	}
	short := free < least
	for _, h := range g.holders {
		switch err := h.Room(ctx); {
		case Full(err) || errdefs.IsResourceExhausted(err):
			short = true
		case err != nil && was == nil:
			g.log.Error("cannot hold room on the disk", "error", err)
		}
	}
	if !short {
		if was != nil {
			g.full.Store(nil)
			g.log.Info("there is room on the disk again", "directory", g.dir, "free", mib(free))
		}
		return
	}
	why := fmt.Errorf("the file system of %s is full: %s of %s are free. Until there is room nothing is made, started or run; \"carrel ls\" "+
		"and \"carrel inspect\" show what there is, \"carrel stop WORKSPACE\" ends what writes, \"carrel destroy --purge WORKSPACE\" removes "+
		"its files: %w", g.dir, mib(free), mib(size), errdefs.ErrResourceExhausted)
	g.full.Store(&why)
	if was == nil || now.Sub(g.said) >= sayEvery {
		g.said = now
		g.log.Error("the disk is full; only what makes room is done", "directory", g.dir, "free", mib(free), "size", mib(size))
	}
}

func mib(n int64) string { return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20)) }
