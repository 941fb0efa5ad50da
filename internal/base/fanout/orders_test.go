package fanout_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/fanout"
)

// Of the orders that are for one of a step's hosts the strictest holds in each part, and no other order counts.
func TestStrictest(t *testing.T) {
	o := fanout.Orders{
		All: fanout.Order{Forks: 4, NoCanary: true},
		Groups: []fanout.Group{
			{Hosts: []string{"a", "b"}, Order: fanout.Order{Forks: 20, Serial: "50%", MaxFailures: "2", NoCanary: true}},
			{Hosts: []string{"b", "c"}, Order: fanout.Order{Forks: 10, Serial: "1", MaxFailures: "50%", NoCanary: true}},
			{Hosts: []string{"d"}, Order: fanout.Order{Forks: 30, MaxFailures: "0"}},
			{Hosts: []string{}, Order: fanout.Order{Forks: 1, Serial: "1"}},
		},
	}
	for hosts, words := range map[string]string{
		"x y":     "all hosts, 2 at once; if one fails, no further batch",
		"a x":     "batches of 1, 1 at once; if one fails, no further batch; if more than 2 fail, no further host",
		"a e f g": "batches of 2, 2 at once; if one fails, no further batch; if more than 2 fail, no further host",
		"a a a a": "batches of 2, 2 at once; if more than 2 fail, no further host",
		"b b b b": "batches of 1, 1 at once; if more than 2 fail, no further host",
		"c c":     "batches of 1, 1 at once; if more than 1 fail, no further host",
		"a c":     "batches of 1, 1 at once; if more than 1 fail, no further host",
		"d x y":   "the first host alone, then the others, 2 at once; if one fails, no further host",
		"d d d d": "the first host alone, then the others, 3 at once; if one fails, no further host",
	} {
		w, err := o.Of(strings.Fields(hosts))
		if err != nil || w.String() != words {
			t.Errorf("%s: %q, %v", hosts, w, err)
		}
	}
	// A host without a number of failures that it may have ends the plan after the batch, whatever others allow.
	w, err := o.Of([]string{"a", "x", "y", "z"})
	if err != nil || w.Over(1, false) || !w.Over(1, true) || !w.Over(3, false) || w.Passed(1, 3) {
		t.Errorf("%v, %v", w, err)
	}
	if w, err = o.Of([]string{"a", "a", "a", "a"}); err != nil || w.Over(2, true) || !w.Passed(2, 2) {
		t.Errorf("%v, %v", w, err)
	}
}

func TestOrdersAreBounded(t *testing.T) {
	bad := fanout.Order{Serial: "0"}
	for name, o := range map[string]fanout.Orders{
		"all":    {All: bad},
		"group":  {Groups: []fanout.Group{{Order: bad}}},
		"groups": {Groups: make([]fanout.Group, fanout.MaxGroups+1)},
		"hosts":  {Groups: []fanout.Group{{Hosts: make([]string, fanout.MaxGrouped)}, {Hosts: make([]string, 1)}}},
	} {
		if err := o.Check(); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	o := fanout.Orders{Groups: make([]fanout.Group, fanout.MaxGroups)}
	o.Groups[0].Hosts = make([]string, fanout.MaxGrouped)
	if err := o.Check(); err != nil {
		t.Error(err)
	}
}

// Each part is read in one form, and what says nothing leaves a part to what is below it.
func TestSettings(t *testing.T) {
	for _, bad := range [][2]string{
		{"forks", "0"},
		{"forks", "101"},
		{"forks", "5%"},
		{"forks", ""},
		{"forks", "0x5"},
		{"serial", "0"},
		{"serial", ""},
		{"serial", "all"},
		{"max_failures", ""},
		{"max_failures", "101%"},
		{"canary", "yes"},
		{"canary", "True"},
		{"canary", ""},
		{"fork", "1"},
	} {
		var s fanout.Settings
		if err := s.Read(bad[0], bad[1]); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	read := func(parts ...string) (s fanout.Settings) {
		for _, p := range parts {
			name, value, _ := strings.Cut(p, "=")
			if err := s.Read(name, value); err != nil {
				t.Fatal(err)
			}
		}
		return s
	}
	base := read("forks=4", "serial=20%", "canary=false")
	for _, x := range []struct {
		s    fanout.Settings
		want string
	}{
		{fanout.Settings{}, "forks 4, serial 20%, canary false"},
		{read("canary=true", "max_failures=0"), "forks 4, serial 20%, max_failures 0, canary true"},
		{read("forks=8", "serial=1"), "forks 8, serial 1, canary false"},
	} {
		if got := fmt.Sprint(x.s.Over(base).Order()); got != x.want {
			t.Errorf("%q", got)
		}
	}
	if got := fmt.Sprint(fanout.Order{}); got != "forks 8, serial 100%, canary true" {
		t.Errorf("%q", got)
	}
}
