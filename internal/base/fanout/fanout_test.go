package fanout_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/fanout"
)

// What is no order is refused, and not read as another one.
func TestCheck(t *testing.T) {
	for _, bad := range []fanout.Order{
		{Forks: -1},
		{Forks: 101},
		{Forks: 1 << 40},
		{Serial: "0"},
		{Serial: "0%"},
		{Serial: "101%"},
		{Serial: "-1"},
		{Serial: "-1%"},
		{Serial: "+5"},
		{Serial: "05"},
		{Serial: "5 "},
		{Serial: "%"},
		{Serial: "1%%"},
		{Serial: "1.5"},
		{Serial: "4097"},
		{Serial: "99999999999999999999"},
		{Serial: "18446744073709551617"},
		{MaxFailures: "-1"},
		{MaxFailures: "101%"},
		{MaxFailures: "-0"},
		{MaxFailures: "x"},
		{MaxFailures: "99999999999999999999%"},
	} {
		if err := bad.Check(); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%+v: %v", bad, err)
		}
		if _, err := bad.Of(10); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	for _, good := range []fanout.Order{
		{},
		{Forks: 1},
		{Forks: 100},
		{Serial: "1"},
		{Serial: "4096"},
		{Serial: "1%"},
		{Serial: "100%"},
		{MaxFailures: "0"},
		{MaxFailures: "0%"},
		{MaxFailures: "100%"},
		{NoCanary: true},
	} {
		if err := good.Check(); err != nil {
			t.Errorf("%+v: %v", good, err)
		}
	}
}

// Every host is in exactly one batch, and the words say the same.
func TestBatches(t *testing.T) {
	for _, x := range []struct {
		order fanout.Order
		hosts int
		ends  []int
		words string
	}{
		{fanout.Order{}, 1, []int{1}, "all hosts, 1 at once; if one fails, no further batch"},
		{fanout.Order{}, 10, []int{1, 10}, "the first host alone, then the others, 8 at once; if one fails, no further batch"},
		{fanout.Order{NoCanary: true, Forks: 20, MaxFailures: "0"}, 10, []int{10}, "all hosts, 10 at once; if one fails, no further host"},
		{
			fanout.Order{Serial: "3", MaxFailures: "2"},
			10,
			[]int{1, 4, 7, 10},
			"the first host alone, then batches of 3, 3 at once; if more than 2 fail, no further host",
		},
		{
			fanout.Order{Serial: "35%", NoCanary: true, Forks: 2},
			10,
			[]int{3, 6, 9, 10},
			"batches of 3, 2 at once; if one fails, no further batch",
		},
		{fanout.Order{Serial: "1%", NoCanary: true}, 3, []int{1, 2, 3}, "batches of 1, 1 at once; if one fails, no further batch"},
		{fanout.Order{Serial: "4096"}, 3, []int{1, 3}, "the first host alone, then the others, 2 at once; if one fails, no further batch"},
	} {
		w, err := x.order.Of(x.hosts)
		if err != nil {
			t.Fatal(err)
		}
		var ends []int
		for at := 0; at < x.hosts && len(ends) < 20; {
			at = w.Next(at)
			ends = append(ends, at)
		}
		if !slices.Equal(ends, x.ends) || w.String() != x.words {
			t.Errorf("%+v of %d: %v, %q", x.order, x.hosts, ends, w)
		}
	}
}

func TestFailures(t *testing.T) {
	for _, x := range []struct {
		most        string
		over        string // for 0 to 5 failures of 10 hosts: "." goes on, "b" ends with the batch, "x" ends
		passes, not int
	}{
		{"", ".bbbbb", 0, 1},
		{"0", ".xxxxx", 0, 1},
		{"2", "...xxx", 2, 3},
		{"25%", "...xxx", 2, 3},
		{"9%", ".xxxxx", 0, 1},
		{"100%", "......", 9, 11},
	} {
		w, err := fanout.Order{MaxFailures: x.most}.Of(10)
		if err != nil {
			t.Fatal(err)
		}
		var over strings.Builder
		for failed := range 6 {
			switch {
			case w.Over(failed, false):
				over.WriteString("x")
			case w.Over(failed, true):
				over.WriteString("b")
			default:
				over.WriteString(".")
			}
		}
		if over.String() != x.over || !w.Passed(x.passes, 10-x.passes) || w.Passed(x.not, 10-x.not) {
			t.Errorf("%q: %s", x.most, over.String())
		}
		if w.Passed(10, 0) {
			t.Errorf("%q: it passes although all hosts have failed", x.most)
		}
	}
}
