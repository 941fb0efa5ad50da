package daemon

import (
	"context"
	"net/http"
	"sync"
)

// requests counts those that handlers are at work on. A server that is closed does not wait for them.
type requests struct {
	mu   sync.Mutex
	n    int
	none chan struct{} // closed when n is 0; nil if nobody waits
}

// of is a handler whose requests count.
func (r *requests) of(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		r.add(1)
		defer r.add(-1)
		h.ServeHTTP(w, q)
	})
}

func (r *requests) add(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.n += n; r.n == 0 && r.none != nil {
		close(r.none)
		r.none = nil
	}
}

// wait returns when none is under way, or ctx has ended.
func (r *requests) wait(ctx context.Context) {
	r.mu.Lock()
	if r.n == 0 {
		r.mu.Unlock()
		return
	}
	if r.none == nil {
		r.none = make(chan struct{})
	}
	none := r.none
	r.mu.Unlock()
	select {
	case <-none:
	case <-ctx.Done():
	}
}
