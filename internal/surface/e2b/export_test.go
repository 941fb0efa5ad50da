package e2b

import (
	"context"
	"fmt"
	"slices"

	"github.com/carrel-dev/carrel/internal/base/token"
)

// Routes are the routes of the control plane, as "METHOD /path".
func Routes() []string {
	all := make([]string, 0, len(controlRoutes))
	for _, c := range controlRoutes {
		all = append(all, c.method+" "+c.path)
	}
	slices.Sort(all)
	return all
}

// Remembered says whether a sandbox is remembered for a token, after another token was given so many sandboxes.
func (s *Server) Remembered(ctx, other context.Context, name string, ref token.ID) bool {
	s.giveOut(ctx, name)
	for i := range maxSandboxes + 10 {
		s.giveOut(other, fmt.Sprintf("ws-%08x", i))
	}
	s.seen.mu.Lock()
	defer s.seen.mu.Unlock()
	return slices.Contains(s.seen.of[name], ref) && len(s.seen.of) <= maxSandboxes
}
