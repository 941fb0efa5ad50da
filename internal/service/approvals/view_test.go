package approvals_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/service/approvals"
	"github.com/carrel-dev/carrel/internal/spec/approval"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/state/store"
)

var (
	alice = principal.Principal{Kind: principal.User, UID: 1000}
	bob   = principal.Principal{Kind: principal.User, UID: 1001}
	root  = principal.Principal{Kind: principal.User, UID: 0, Admin: true}
	began = time.Unix(1_790_000_000, 0)
)

func tokenOf(p principal.Principal, name string) principal.Principal {
	return principal.Principal{Kind: principal.Token, Grant: &principal.Grant{ID: name, Owner: p.Owner(), Roles: principal.Operator}}
}

// seen is a question by somebody about a workspace of owner's, the nth.
func seen(n int, by principal.Principal, owner string) approval.View {
	return approval.View{
		Approval: approval.Approval{State: approval.Pending, Ask: approval.Ask{
			ID: id.NewApproval(), Owner: by.Owner(), AskedAt: began.Add(time.Duration(n/2) * time.Second), Until: began.Add(time.Hour),
			Subject: approval.Subject{By: by.String(), Workspace: id.Workspace(fmt.Sprint("ws-0000000", n%3))},
		}},
		Question: approval.Question{Owner: owner},
	}
}

// Whoever looks is shown, page by page and all at once, what a look at every question finds; some are over by then.
func TestViewShowsWhatThereIs(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	v := approvals.NewView()
	agent := tokenOf(alice, "0123456789ab")
	people := []principal.Principal{alice, bob, root, agent}
	var all []approval.View
	for n := range 300 {
		x := seen(n, people[r.IntN(len(people))], people[r.IntN(2)].Owner())
		v.Put(x, 100)
		all = append(all, x)
		if n%3 == 0 {
			over := r.IntN(len(all))
			x := all[over]
			x.State = approval.Denied
			v.Put(x, 100)
			all = slices.Delete(all, over, over+1)
		}
	}
	newest := func(a, b approval.View) int {
		if c := b.AskedAt.Compare(a.AskedAt); c != 0 {
			return c
		}
		if a.ID > b.ID {
			return -1
		}
		return 1
	}
	slices.SortFunc(all, newest)
	for _, p := range append(people, principal.Principal{Kind: principal.User, UID: 1002}) {
		for _, only := range []id.Workspace{"", "ws-00000001"} {
			var want, got []id.Approval
			last := map[id.Approval]approval.View{}
			for _, x := range all {
				last[x.ID] = x
				visible := p.Can(principal.Any) || x.Subject.By == p.String() || x.Owner == p.Owner() || x.Subject.By == p.Owner()
				if visible && (only == "" || x.Subject.Workspace == only) {
					want = append(want, x.ID)
				}
			}
			for f := (store.ApprovalFilter{Workspace: only, Now: began}); ; {
				names, err := v.Page(p, f, 7)
				if err != nil {
					t.Fatal(err)
				}
				if got = append(got, names...); len(names) < 7 {
					break
				}
				x := last[names[6]]
				f.After = store.Mark(x.AskedAt.UnixNano(), x.ID)
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s is shown %d of %q, not %d", p, len(got), only, len(want))
			}
			if only == "" {
				names := v.Names(p)
				if slices.Reverse(names); !slices.Equal(names, want) {
					t.Errorf("%s is shown %d, not %d", p, len(names), len(want))
				}
			}
		}
	}
	for _, x := range all {
		x.State = approval.Spent
		v.Put(x, 100)
	}
	if !v.Empty() {
		t.Error("something is left of what was open")
	}
}

// Whoever watches is woken by what they may see and by nothing else, and told each change once however
// often it happens meanwhile; who is too far behind is told so.
func TestWatchersHearOfTheirs(t *testing.T) {
	v := approvals.NewView()
	news, leave := v.Watch(alice)
	all, leaveAll := v.Watch(root)
	for n := range 5000 {
		v.Put(seen(n, bob, bob.Owner()), 100)
	}
	if names, lost, woken := news(); len(names) > 0 || lost || woken {
		t.Errorf("alice is woken by what bob does: %d, %v, %v", len(names), lost, woken)
	}
	if names, lost, woken := all(); len(names) > 0 || !lost || !woken {
		t.Errorf("an administrator is told of %d, %v, %v", len(names), lost, woken)
	}
	a, b := seen(1, alice, bob.Owner()), seen(2, bob, alice.Owner())
	for range 3 {
		v.Put(a, 100)
		v.Put(b, 100)
	}
	if names, lost, woken := news(); !slices.Equal(names, []id.Approval{a.ID, b.ID}) || lost || !woken {
		t.Errorf("alice is told of %v, %v, %v", names, lost, woken)
	}
	if names, lost, woken := all(); len(names) != 2 || lost || !woken {
		t.Errorf("an administrator is told of %d, %v, %v", len(names), lost, woken)
	}
	leave()
	v.Put(a, 100)
	if names, _, woken := news(); len(names) > 0 || woken {
		t.Error("who has left is told")
	}
	leaveAll()
}

// What is held is bounded for each owner and for all, and gone when the questions are. What is not held is
// there all the same, by name.
func TestViewIsBounded(t *testing.T) {
	v := approvals.NewView()
	const size = 16 << 10
	var all []approval.View
	put := func(p principal.Principal, n int) (held int) {
		for i := range n {
			x := seen(i, p, p.Owner())
			v.Put(x, size)
			all = append(all, x)
			view, there := v.Find(x.ID)
			if !there {
				t.Fatal("it is not there")
			}
			if view != nil {
				held++
			}
		}
		return held
	}
	if n := put(alice, 2000); n > 1024 || n < 900 {
		t.Errorf("%d of alice's are held", n)
	}
	if n := put(bob, 100); n != 100 {
		t.Errorf("%d of bob's are held", n)
	}
	for i := range uint32(20) {
		put(principal.Principal{Kind: principal.User, UID: 2000 + i}, 500)
	}
	if open, _ := v.Held(); open > 64<<20 || open < 60<<20 {
		t.Errorf("%d bytes are held", open)
	}
	long := seen(0, root, root.Owner())
	v.Put(long, 100<<10)
	if view, there := v.Find(long.ID); !there || view != nil {
		t.Error("a long one is held")
	}
	for _, x := range append(all, long) {
		x.State = approval.Denied
		v.Put(x, size)
	}
	open, over := v.Held()
	if !v.Empty() || open != 0 || over > 4<<20 || over < 3<<20 {
		t.Errorf("%d bytes are held of what is open, %d of what is over", open, over)
	}
	if view, there := v.Find(long.ID); !there || view == nil || view.State != approval.Denied {
		t.Error("the newest that is over is not there as it is now")
	}
	if _, there := v.Find(all[0].ID); there {
		t.Error("the oldest that is over is still there")
	}
}
