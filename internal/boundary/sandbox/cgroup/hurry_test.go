package cgroup_test

import (
	"testing"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox/cgroup"
)

// A birth has most of the processors until it is over, also beside another of the same owner, and what a broker that was
// killed meanwhile has left ends with the next one's start.
func TestHurry(t *testing.T) {
	in := instanceOf(t, 1000)
	const second = id.Workspace("ws-00000002")
	for _, n := range []id.Workspace{name, second} {
		f, err := in.Create(n, ofOwner, 1_880_000_000, limits)
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	own, owners, ok := in.Weights(name)
	if !ok {
		t.Skip("skipped: no controller of processors here")
	}
	before := own // as its limits say
	seen := func(when, wantOwn, wantOwners string) {
		t.Helper()
		if own, owners, _ = in.Weights(name); own != wantOwn || owners != wantOwners {
			t.Errorf("%s: %s and %s, want %s and %s", when, own, owners, wantOwn, wantOwners)
		}
	}
	seen("at first", before, "usual")
	one := in.Hurry(name, limits)
	seen("in a hurry", "most", "most")
	two := in.Hurry(second, limits)
	if err := one(); err != nil {
		t.Error(err)
	}
	seen("while another is in a hurry", before, "most")
	if err := two(); err != nil {
		t.Error(err)
	}
	seen("after it", before, "usual")

	in.Hurry(name, limits) // and its broker is killed
	again, err := cgroup.Open(instanceConfig(1000))
	if err != nil {
		t.Fatal(err)
	}
	again.Close()
	seen("after a start of the broker", "most", "usual")                    // the birth itself is undone with its groups
	if err := in.Hurry(id.Workspace("ws-00000009"), limits)(); err != nil { // which is not there
		t.Error(err)
	}
}
