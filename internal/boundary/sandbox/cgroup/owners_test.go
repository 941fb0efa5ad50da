package cgroup_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox/cgroup"
)

// The workspaces of one owner have bounds together, those without an owner have not, and the group goes with the
// last of them.
func TestOwners(t *testing.T) {
	in := instanceOf(t, 1000)
	const second, lone = id.Workspace("ws-00000002"), id.Workspace("ws-00000003")
	for _, w := range []struct {
		name  id.Workspace
		owner string
	}{{name, ofOwner}, {second, ofOwner}, {lone, ""}} {
		f, err := in.Create(w.name, w.owner, 1_880_000_000, limits)
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
		var together []string
		for _, e := range in.Check(w.name, 1, limits) {
			if strings.Contains(e.Text, "the owner's") {
				if !e.OK {
					t.Errorf("%s: %s", e.Control, e.Text)
				}
				together = append(together, e.Control)
			}
		}
		slices.Sort(together)
		var want []string
		for _, c := range []cgroup.Controller{cgroup.Memory, cgroup.Pids} {
			if has(in, c) && w.owner != "" {
				want = append(want, string(c))
			}
		}
		if !slices.Equal(together, want) {
			t.Errorf("%s of %q: bounds together are seen for %q, want %q", w.name, w.owner, together, want)
		}
	}
	if names, err := in.Names(); err != nil || !slices.Equal(names, []id.Workspace{name, second, lone}) {
		t.Errorf("the names are %q, %v", names, err)
	}
	for _, bad := range []string{"x", strings.Repeat("A", 16), "../../../../../x"} {
		if _, err := in.Create("ws-00000004", bad, 1, limits); err == nil {
			t.Errorf("made for %q", bad)
		}
	}
	for i, n := range []id.Workspace{name, second} {
		if left, n := in.OwnersLeft(); len(left) != n {
			t.Errorf("before removal %d: %q", i, left)
		}
		if err := in.Remove(t.Context(), n); err != nil {
			t.Fatal(err)
		}
	}
	if left, _ := in.OwnersLeft(); len(left) != 0 {
		t.Errorf("left: %q", left)
	}
	if names, err := in.Names(); err != nil || !slices.Equal(names, []id.Workspace{lone}) {
		t.Errorf("the names are %q, %v", names, err)
	}
}
