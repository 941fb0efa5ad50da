package workspace_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"

	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

func TestReachChanges(t *testing.T) {
	before := workspace.Reach{
		Allow: []string{"a.example", "b.example:22", "a.example"}, Deny: []string{"c.example", "both.example"},
	}.Unique()
	before.Allow = append(before.Allow, "both.example")
	kept := workspace.Reach{Allow: slices.Clone(before.Allow), Deny: slices.Clone(before.Deny)}
	for what, c := range map[string]struct {
		change workspace.ReachChange
		want   workspace.Reach
	}{
		"nothing": {workspace.ReachChange{}, before},
		"more, some there already": {
			workspace.ReachChange{Allow: []string{"z.example", "a.example", "z.example"}, Deny: []string{"c.example"}},
			workspace.Reach{Allow: []string{"a.example", "b.example:22", "both.example", "z.example"}, Deny: []string{"c.example", "both.example"}},
		},
		"less, of both lists": {
			workspace.ReachChange{Remove: []string{"both.example", "a.example"}},
			workspace.Reach{Allow: []string{"b.example:22"}, Deny: []string{"c.example"}},
		},
		"one from a list to the other": {
			workspace.ReachChange{Remove: []string{"c.example"}, Allow: []string{"c.example"}},
			workspace.Reach{Allow: []string{"a.example", "b.example:22", "both.example", "c.example"}, Deny: []string{"both.example"}},
		},
		"all": {workspace.ReachChange{Remove: []string{"a.example", "b.example:22", "c.example", "both.example"}}, workspace.Reach{}},
	} {
		got, err := before.With(c.change)
		if d := cmp.Diff(c.want, got); err != nil || d != "" {
			t.Errorf("%s: %v\n%s", what, err, d)
		}
		if d := cmp.Diff(kept, before); d != "" {
			t.Fatalf("%s changes what there was: %s", what, d)
		}
	}
	_, err := before.With(workspace.ReachChange{Allow: []string{"z.example"}, Remove: []string{"a.example", "gone.example"}})
	if !errdefs.IsNotFound(err) || !strings.Contains(err.Error(), `"gone.example"`) ||
		!strings.Contains(err.Error(), "allow a.example, allow b.example:22, allow both.example, deny c.example, deny both.example") {
		t.Errorf("a rule that is not there: %v", err)
	}
	if _, err := (workspace.Reach{}).With(workspace.ReachChange{Remove: []string{"x"}}); !errdefs.IsNotFound(err) ||
		!strings.Contains(err.Error(), "there are no rules") {
		t.Errorf("one of none: %v", err)
	}
}

func TestReachAny(t *testing.T) {
	for _, c := range []struct {
		r          workspace.Reach
		any, empty bool
	}{
		{workspace.Reach{}, false, true},
		{workspace.Reach{Deny: []string{"a"}}, false, false},
		{workspace.Reach{Allow: []string{"a"}}, true, false},
		{workspace.Reach{Ask: []string{"a"}}, true, false},
		{workspace.Reach{Approved: []string{"a"}}, true, false},
	} {
		if c.r.Any() != c.any || c.r.Empty() != c.empty {
			t.Errorf("%+v: %v, %v", c.r, c.r.Any(), c.r.Empty())
		}
	}
	a := workspace.Reach{Allow: []string{"a", "b"}}
	for _, c := range []struct {
		b    workspace.Reach
		same bool
	}{
		{workspace.Reach{Allow: []string{"b", "a"}, Deny: []string{}}, true},
		{workspace.Reach{Allow: []string{"a"}}, false},
		{workspace.Reach{Allow: []string{"a", "c"}}, false},
		{workspace.Reach{Allow: []string{"a", "b"}, Deny: []string{"c"}}, false},
		{workspace.Reach{Deny: []string{"a", "b"}}, false},
		{workspace.Reach{Allow: []string{"a", "b"}, Ask: []string{"c"}}, false},
		{workspace.Reach{Allow: []string{"a", "b"}, Approved: []string{"c"}}, false},
	} {
		if a.Equal(c.b) != c.same || c.b.Equal(a) != c.same {
			t.Errorf("%+v and %+v: %v", a, c.b, !c.same)
		}
	}
}

// What asks and what was approved is kept, changed and removed as what allows is.
func TestReachAsks(t *testing.T) {
	before := workspace.Reach{Allow: []string{"a"}, Ask: []string{"b", "b"}, Approved: []string{"c"}, Deny: []string{"b"}}.Unique()
	now, err := before.With(workspace.ReachChange{Ask: []string{"d"}, Approved: []string{"e", "c"}, Remove: []string{"b"}})
	if want := (workspace.Reach{Allow: []string{"a"}, Ask: []string{"d"}, Approved: []string{"c", "e"}}); err != nil || !now.Equal(want) {
		t.Errorf("%+v, %v", now, err)
	}
	if got := strings.Join(now.Texts(), ","); got != "allow a,ask d,approved c,approved e" {
		t.Error(got)
	}
	if now, err = now.With(workspace.ReachChange{Remove: []string{"a", "c", "d", "e"}}); err != nil || !now.Empty() || now.Any() {
		t.Errorf("%+v, %v", now, err)
	}
	text, err := json.Marshal(before)
	var again workspace.Reach
	if err != nil || json.Unmarshal(text, &again) != nil || !again.Equal(before) {
		t.Errorf("%s, %v", text, err)
	}
}

func TestReachBounds(t *testing.T) {
	many := func(n int) (all []string) {
		for i := range n {
			all = append(all, fmt.Sprintf("h%d.example", i))
		}
		return all
	}
	long := strings.Repeat("x", workspace.MaxReachRule)
	for _, rule := range []string{
		"example.org", "*.example.org:*", "192.0.2.0/24:5432", "[2001:db8::1]:443", "@github", "*", "münchen.example", long,
	} {
		if err := (workspace.Reach{Allow: []string{rule}}).Validate(); err != nil {
			t.Errorf("%q: %v", rule, err)
		}
	}
	for _, rule := range []string{
		"", " ", "a b", "GET  b", "GET b c", "get b", "a\n", "a\x00", "a\u2028b", "a\u00a0b", "a\u202eb",
		`a"b`, "a<b", "\xff", long + "x",
	} {
		for _, err := range []error{
			(workspace.Reach{Allow: []string{"a", rule}}).Validate(), (workspace.Reach{Deny: []string{rule}}).Validate(),
			(&workspace.Wanted{Reach: workspace.Reach{Deny: []string{rule}}}).Validate(),
			(&workspace.Change{Reach: workspace.ReachChange{Remove: []string{rule}}}).Validate(),
		} {
			if !errdefs.IsInvalidArgument(err) {
				t.Errorf("%q: %v", rule, err)
			}
		}
	}
	if err := (workspace.Reach{Allow: many(500), Deny: many(500)}).Validate(); err != nil {
		t.Error(err)
	}
	if err := (workspace.Reach{Allow: many(500), Deny: many(501)}).Validate(); !errdefs.IsInvalidArgument(err) {
		t.Errorf("too many: %v", err)
	}
	if err := (workspace.Reach{Allow: slices.Repeat([]string{long}, 100)}).Validate(); !errdefs.IsInvalidArgument(err) {
		t.Errorf("too much: %v", err)
	}
	if _, err := (workspace.Reach{Allow: many(999)}).With(workspace.ReachChange{Deny: many(2)}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("too many after a change: %v", err)
	}
}
