package approvals

import (
	"time"

	"github.com/carrel-dev/carrel/internal/spec/approval"
)

// Clock is where the clock of questions begins, and how long ago that was. The zero Clock is
// the host's.
type Clock struct {
	Start   time.Time
	Elapsed func() time.Duration
}

// clock tells the time by which questions are asked, answered and over. Setting the host's
// clock while the daemon runs changes nothing about it, so that no question ends early and no
// answer lives longer.
type clock struct {
	// start is the host's time at the start, or what was known to have come before if that
	// is later; elapsed is how long ago that was.
	start   time.Time
	elapsed func() time.Duration
}

func newClock(c Clock) clock {
	if c.Elapsed != nil {
		return clock{start: c.Start, elapsed: c.Elapsed}
	}
	began := time.Now()
	return clock{start: began.Round(0), elapsed: func() time.Duration { return time.Since(began) }}
}

func (c *clock) now() time.Time { return c.start.Add(c.elapsed()) }

// notBefore has the clock begin at the latest time that is known, if the host's was set back
// while no daemon ran. A time beyond the longest possible wait was a wrong one.
func (c *clock) notBefore(known time.Time) {
	if known.After(c.start) && known.Sub(c.start) <= approval.MaxWait {
		c.start = known.Round(0)
	}
}
