package apitest

import (
	"testing"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/spec/principal"
)

// HoldEnd keeps a command from ending its second output, so that what comes before that in its end
// can be told from what comes after, until the function returned is called.
func HoldEnd(t testing.TB, g *Gate, p principal.Principal, ref string, cmd id.Command) (release func()) {
	t.Helper()
	c, err := g.command(p, ref, "command.attach", cmd)
	if err != nil {
		t.Fatal(err)
	}
	c.stderr.mu.Lock()
	return c.stderr.mu.Unlock
}
