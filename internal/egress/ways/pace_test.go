package ways_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/egress/ways"
)

// All workspaces of an owner make connections at one pace, and other owners at theirs.
func TestPaceOfAnOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := ways.New(ways.Config{Owner: func(name id.Workspace) string { return string(name[:1]) }})
		a, too, b := w.Pacer("a1"), w.Pacer("a2"), w.Pacer("b1")
		for range 2000 {
			if wait := a() + too(); wait != 0 {
				t.Fatalf("one of the first waits for %v", wait)
			}
		}
		if wait := too(); wait != 5*time.Millisecond {
			t.Errorf("the next waits for %v", wait)
		}
		for range 10_000 {
			a()
		}
		if wait := a(); wait < 10*time.Second || wait > 11*time.Second {
			t.Errorf("who goes on waits for %v", wait)
		}
		if wait := b(); wait != 0 {
			t.Errorf("another owner waits for %v", wait)
		}
		time.Sleep(11 * time.Second) //nolint:forbidigo // the test's own time
		if wait := a(); wait != 0 {
			t.Errorf("later it waits for %v", wait)
		}
	})
}
