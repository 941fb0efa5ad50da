package api

import "context"

// Routes lists the paths that are served.
func Routes() []string {
	var out []string
	for path := range routes {
		out = append(out, path)
	}
	return out
}

// Handled reports whether the server has a handler for path.
func (s *Server) Handled(path string) bool { return s.handlers[path] != nil }

// WithoutRoute takes a row out of the table until the function returned is called.
func WithoutRoute(path string) (restore func()) {
	row := routes[path]
	delete(routes, path)
	return func() { routes[path] = row }
}

// Taken is taken.
var Taken = taken

// Places are the places of a server.
type Places = places

// Quantum is for how long a request counts as at work.
const Quantum = quantum

// NewPlaces has so many.
func NewPlaces(most int) *Places {
	p := newPlaces()
	p.most = most
	return p
}

// Take is take.
func (p *places) Take(ctx context.Context, owner string) (*place, error) { return p.take(ctx, owner) }

// Unused reports whether nobody has or waits for a place.
func (p *places) Unused() bool { return len(p.held)+len(p.owners)+len(p.waiting)+len(p.next) == 0 }

// Again is again.
func (x *place) Again(ctx context.Context) error { return x.again(ctx) }

// Give is give.
func (x *place) Give() { x.give() }

// Held is how many descriptors are counted for an owner.
func (s *Server) Held(owner string) int64 { return s.opened.Held(owner) }

// HeldMemory is what is counted of the memory of messages for an owner.
func (s *Server) HeldMemory(owner string) int64 { return s.memory.Held(owner) }
