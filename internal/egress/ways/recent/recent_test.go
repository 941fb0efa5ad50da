package recent_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/egress/ways/recent"
	"github.com/carrel-dev/carrel/internal/wire/egressapi"
)

func numbers(all []recent.Entry) (n []string) {
	for _, e := range all {
		n = append(n, fmt.Sprint(e.Number, " ", e.Host))
	}
	return n
}

func TestAfter(t *testing.T) {
	var r recent.Recent
	if got := r.After("ws-a", 0); len(got) != 0 {
		t.Errorf("nothing was added, and there is %v", got)
	}
	for i := 1; i <= recent.Kept+3; i++ {
		r.Add("ws-a", egressapi.Connection{Host: fmt.Sprint("host", i)})
		if i == 2 {
			if got := numbers(r.After("ws-a", 1)); !slices.Equal(got, []string{"2 host2"}) {
				t.Errorf("after the first of two: %q", got)
			}
		}
	}
	r.Add("ws-b", egressapi.Connection{Host: "other"})
	all := numbers(r.After("ws-a", 0))
	if len(all) != recent.Kept || all[0] != "4 host4" || all[recent.Kept-1] != fmt.Sprintf("%d host%[1]d", recent.Kept+3) {
		t.Errorf("kept are %q", all)
	}
	if got := numbers(r.After("ws-a", recent.Kept+2)); !slices.Equal(got, []string{fmt.Sprintf("%d host%[1]d", recent.Kept+3)}) {
		t.Errorf("after the last but one: %q", got)
	}
	if got := r.After("ws-a", recent.Kept+3); len(got) != 0 {
		t.Errorf("after the last: %v", got)
	}
	if got := r.After("ws-a", 1000); len(got) != recent.Kept {
		t.Errorf("after a number that is not there yet: %d", len(got))
	}
	if got := numbers(r.After("ws-b", 0)); !slices.Equal(got, []string{"1 other"}) {
		t.Errorf("of the other workspace: %q", got)
	}
}

// Workspaces that have ended cannot fill the memory.
func TestTheQuietestIsForgotten(t *testing.T) {
	var r recent.Recent
	name := func(i int) id.Workspace { return id.Workspace(fmt.Sprintf("ws-%08d", i)) }
	for i := range recent.MaxWorkspaces {
		r.Add(name(i), egressapi.Connection{})
	}
	r.Add(name(0), egressapi.Connection{})
	r.Add("ws-new", egressapi.Connection{})
	for i, want := range []int{2, 0, 1} {
		if got := len(r.After(name(i), 0)); got != want {
			t.Errorf("workspace %d has %d connections, want %d", i, got, want)
		}
	}
}
