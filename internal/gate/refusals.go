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
	// The same for logins from one address; those from all addresses together have what one
	// principal has, so that no address can hide another.
	loginBurst  = 10
	loginsEvery = time.Second
	allLogins   = "logins"
	// maxRefused bounds the principals that are remembered. The others share one bucket.
	maxRefused = 1024
	others     = "others"
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
	return r.take(who, refusalBurst, refusalsEvery, now)
}

// login is count for a refused login from an address.
func (r *refusals) login(from string, now time.Time) (record bool, untold int64) {
	if record, untold = r.take("login "+from, loginBurst, loginsEvery, now); !record {
		return false, 0
	}
	record, more := r.take(allLogins, refusalBurst, refusalsEvery, now)
	if !record { // they are counted by the next that is recorded, from wherever
		r.mu.Lock()
		r.who[allLogins].untold += untold
		r.mu.Unlock()
	}
	return record, untold + more
}

func (r *refusals) take(who string, burst int, every time.Duration, now time.Time) (record bool, untold int64) {
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
		// Principals beyond the limit share one bucket.
		if len(r.who) >= maxRefused {
			who = others
			b = r.who[who]
		}
	}
	if b == nil {
		if r.who == nil {
			r.who = make(map[string]*bucket)
		}
		b = &bucket{}
		r.who[who] = b
	}
	if b.full.Before(now) {
		b.full = now
	}
	if b.full.Sub(now) > time.Duration(burst-1)*every {
		b.untold++
		return false, 0
	}
	b.full = b.full.Add(every)
	untold, b.untold = b.untold, 0
	return true, untold
}
