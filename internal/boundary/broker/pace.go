package broker

import (
	"fmt"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/bucket"
)

// pace bounds how fast workspaces are made, because each spends three ids for ever. Without an interval
// there is no bound.
type pace bucket.Bound

func (s Settings) pace() pace {
	if s.CreatePerHour == 0 {
		return pace{}
	}
	return pace{s.CreateBurst, time.Hour / time.Duration(s.CreatePerHour)}
}

// resume returns when the bucket will be full again, by the clock that nobody sets: the one that says
// when that was noted may be set back, and then nothing could be made until it is there again. What is
// too far ahead for the bucket, because a clock or the settings were changed, counts as empty.
func (p pace) resume(noted, now time.Time) time.Time {
	if p.Every == 0 {
		return noted
	}
	return now.Add(max(0, min(noted.Sub(now), time.Duration(p.Burst)*p.Every)))
}

// take returns when the bucket will be full again. After an error nothing was taken.
func (p pace) take(full, now time.Time) (time.Time, error) {
	if p.Every == 0 {
		return full, nil
	}
	full, wait := bucket.Bound(p).Take(full, now)
	if wait > 0 {
		return full, fmt.Errorf("ids are never used again, so that at most %d workspaces are created at once and %d an hour from then on "+
			"(create_burst and create_per_hour in the broker's settings); try again in %v: %w",
			p.Burst, time.Hour/p.Every, (wait + time.Second - 1).Truncate(time.Second), errdefs.ErrResourceExhausted)
	}
	return full, nil
}
