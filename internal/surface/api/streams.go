package api

import (
	"fmt"
	"sync"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/spec/principal"
)

// How many exchanges that last may be open at once: streams, and waits for an end. One costs the
// daemon some 15 kB. A token may have half of what its owner may, so that it cannot shut its owner
// out. Administrators have room of their own, whatever others hold.
const (
	defaultStreams = 256
	maxStreams     = 4096
	maxAdminStream = 1024
)

// everybody is under which name those of all but administrators are counted together.
const everybody = "everybody"

// streams counts the exchanges that last of each principal, and of each owner.
type streams struct {
	most int // of one owner

	mu   sync.Mutex
	held map[string]int
}

// enter takes a place for p, which leave gives back.
func (s *streams) enter(p principal.Principal) (leave func(), err error) {
	var bounds []bound
	if p.Kind == principal.System || p.RolesOf()&principal.Roles(principal.Admin) != 0 {
		bounds = []bound{{"administrator " + p.Owner(), maxAdminStream}}
	} else {
		bounds = []bound{{p.Owner(), s.most}, {everybody, max(maxStreams, s.most)}}
	}
	if p.Kind == principal.Token {
		bounds = append(bounds, bound{p.String(), max(1, bounds[0].most/2)})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range bounds {
		if n := s.held[b.who]; n >= b.most {
			return nil, fmt.Errorf("cannot open another stream: %s has %d of them open (watches, logs, waits, attached commands), the most "+
				"there may be; end some of them, or ask an administrator to raise max_streams_per_owner: %w", b.who, n, errdefs.ErrResourceExhausted)
		}
	}
	for _, b := range bounds {
		s.held[b.who]++
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, b := range bounds {
			if s.held[b.who]--; s.held[b.who] == 0 {
				delete(s.held, b.who)
			}
		}
	}, nil
}
