package gate

import (
	"sync"
	"time"
)

// How many refusals of one principal are recorded at once, and how many more each
// second. A record costs a write to the disk and stays for ever: who is refused must not
// be able to fill it.
const (
	refusalBurst  = 100
	refusalsEvery = 100 * time.Millisecond
	// maxRefused bounds the principals that are remembered.
	maxRefused = 1024
)

// refusals is a bucket of tokens for each principal that was refused lately.
type refusals struct {
	mu  sync.Mutex
	who map[string]*bucket
}

type bucket struct {
	// full is when all tokens are back.
	full   time.Time
	untold int64
}

// count reports whether a refusal is to be recorded, and how many before it were not.
func (r *refusals) count(who string, now time.Time) (record bool, untold int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	b := r.who[who]
	if b == nil {
		if len(r.who) >= maxRefused {
			for k, o := range r.who {
				if o.untold == 0 && now.After(o.full) {
					delete(r.who, k)
				}
			}
		}
		if r.who == nil {
			r.who = make(map[string]*bucket)
		}
		b = &bucket{}
		r.who[who] = b
	}
	if b.full.Before(now) {
		b.full = now
	}
	if b.full.Sub(now) > (refusalBurst-1)*refusalsEvery {
		b.untold++
		return false, 0
	}
	b.full = b.full.Add(refusalsEvery)
	untold, b.untold = b.untold, 0
	return true, untold
}
