package egress

import (
	"context"
	"net/netip"

	"github.com/carrel-dev/carrel/internal/spec/netrule"
)

// Refusals are refusals for the tests of their windows.
type Refusals struct{ r *refusals }

func NewRefusals(record func(Connection)) Refusals { return Refusals{newRefusals(record)} }

func (r Refusals) Add(c Connection)              { r.r.add(c) }
func (r Refusals) Run(ctx context.Context) error { return r.r.run(ctx) }
func (r Refusals) Flush()                        { r.r.flush() }
func (r Refusals) Held() int                     { return len(r.r.held) }

// The constants that tests count with.
const (
	RefusalWindow = refusalWindow
	MostRefusals  = mostRefusals
)

// Names are the addresses of names.
type Names struct{ n *names }

func NewNames(most int) Names { return Names{newNames(most)} }

func (n Names) Assign(h netrule.Host) (netip.Addr, bool) { return n.n.assign(h) }

// Parked is how many connections wait for an answer.
func (s *Server) Parked() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked.parked
}
