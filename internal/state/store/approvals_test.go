package store_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/spec/approval"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/state/store"
)

// What is over and long goes, the oldest first and of each owner apart; what is not over, or not
// yet in the record, stays.
func TestForgetLongApprovals(t *testing.T) {
	s, _ := newStore(t)
	ctx := t.Context()
	now := time.Now()
	root := principal.Principal{Kind: principal.User}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	names := map[id.Approval]string{}
	n := 0
	ask := func(owner, what string) id.Approval {
		t.Helper()
		n++
		a, err := approval.New(approval.Ask{ID: id.NewApproval(), Subject: approval.Subject{Digest: "d", By: "uid:1", Policy: "p"}},
			now.Add(time.Duration(n)), time.Hour)
		must(err)
		must(s.Ask(ctx, store.Approval{Approval: a, Owner: owner, Shown: []byte(`"` + strings.Repeat("x", 1000) + `"`)}))
		names[a.ID] = fmt.Sprint(what, " ", n)
		return a.ID
	}
	answer := func(name id.Approval, kind approval.Kind) {
		t.Helper()
		_, err := s.ChangeApproval(ctx, name, func(a approval.Approval) (approval.Approval, error) {
			return a.Reply(root, true, kind, "", now.Add(time.Minute))
		})
		must(err)
	}
	spend := func(name id.Approval, intent int64) {
		t.Helper()
		_, err := s.ChangeApproval(ctx, name, func(a approval.Approval) (approval.Approval,
			error,
		) {
			return a.Spend(a.Subject, now.Add(time.Minute))
		})
		must(err)
		must(s.SettleApproval(ctx, name, intent))
	}
	end := func(name id.Approval) {
		t.Helper()
		ok, err := s.EndApproval(ctx, name)
		must(err)
		if !ok {
			t.Fatal("it has not ended")
		}
	}
	ask("a", "pending")
	answer(ask("a", "approved"), approval.Once)
	spent := ask("a", "unsettled")
	answer(spent, approval.Once)
	spend(spent, 0)
	end(ask("a", "ending"))
	answer(ask("b", "denied of another"), approval.Deny)
	answer(ask("a", "denied"), approval.Deny)
	spent = ask("a", "spent")
	answer(spent, approval.Once)
	spend(spent, 7)
	ended := ask("a", "ended")
	end(ended)
	must(s.NoteEnds(ctx, map[id.Approval]int64{ended: 8}))
	answer(ask("a", "newest"), approval.Deny)

	left := func(now time.Time, keep int64) (list []string) {
		t.Helper()
		must(s.ForgetApprovals(ctx, now, keep))
		all, _, err := s.Approvals(context.Background(), store.ApprovalFilter{Now: now, Limit: 100})
		must(err)
		for _, a := range slices.Backward(all) {
			list = append(list, names[a.ID])
		}
		return list
	}
	stays := []string{"pending 1", "approved 2", "unsettled 3", "ending 4", "denied of another 5"}
	for _, c := range []struct {
		now  time.Time
		keep int64
		want []string
	}{
		{now, 1 << 20, append(slices.Clone(stays), "denied 6", "spent 7", "ended 8", "newest 9")},
		{now, 3000, append(slices.Clone(stays), "ended 8", "newest 9")},
		{now, 1500, append(slices.Clone(stays), "newest 9")},
		{now, 0, stays[:4]},
		{now.Add(time.Minute + approval.SpendWithin), 0, stays[:4]},
		{now.Add(time.Minute + approval.SpendWithin + 1), 0, []string{"pending 1", "unsettled 3", "ending 4"}},
		{now.Add(365 * 24 * time.Hour), 0, []string{"pending 1", "unsettled 3", "ending 4"}},
	} {
		if got := left(c.now, c.keep); !slices.Equal(got, c.want) {
			t.Errorf("of %d bytes are left %q, not %q", c.keep, got, c.want)
		}
	}
}

// As many commands are remembered for a thread as may be, and as many answers for whoever asks: one more is refused, and its question
// stays open for another answer. Others have their own room, and what is revoked makes some.
func TestRoomForPermissions(t *testing.T) {
	s, _ := newStore(t)
	ctx, now := t.Context(), time.Now()
	root := principal.Principal{Kind: principal.User}
	n := 0
	remember := func(by, thread string, kind approval.Kind) (id.Approval, error) {
		t.Helper()
		n++
		a, err := approval.New(approval.Ask{ID: id.NewApproval(), Subject: approval.Subject{
			Digest: "d", By: by, Policy: "p", Workspace: "crt-0123456789abcdef", Thread: thread, Argv: []string{"echo", fmt.Sprint(n)},
		}}, now, time.Hour)
		if err == nil {
			err = s.Ask(ctx, store.Approval{Approval: a, Owner: by, Shown: []byte(`"x"`)})
		}
		if err != nil {
			t.Fatal(err)
		}
		_, err = s.ChangeApproval(ctx, a.ID, func(a approval.Approval) (approval.Approval, error) {
			return a.Reply(root, true, kind, "", now)
		})
		return a.ID, err
	}
	fill := func(by, thread string, many int) (last id.Approval) {
		t.Helper()
		for i := range many {
			name, err := remember(by, thread, approval.Thread)
			if err != nil {
				t.Fatalf("%s, %s, %d: %v", by, thread, i, err)
			}
			last = name
		}
		return last
	}
	full := func(by, thread, why string) {
		t.Helper()
		name, err := remember(by, thread, approval.Thread)
		if !errdefs.IsResourceExhausted(err) || !strings.Contains(err.Error(), why) || !strings.Contains(err.Error(), "approvals revoke") {
			t.Errorf("%s, %s: %v", by, thread, err)
		}
		if a, err := s.Approval(ctx, name); err != nil || a.State != approval.Pending {
			t.Errorf("its question is %s, %v", a.State, err)
		}
		if _, err := remember(by, thread, approval.Once); err != nil {
			t.Errorf("an answer for once: %v", err)
		}
	}
	last := fill("uid:1", "t0", approval.MaxOfThread)
	full("uid:1", "t0", "this thread")
	if err := s.Revoke(ctx, last); err != nil {
		t.Fatal(err)
	}
	fill("uid:1", "t0", 1)
	full("uid:1", "t0", "this thread")
	for i := 1; i < approval.MaxOfRequester/approval.MaxOfThread; i++ {
		fill("uid:1", fmt.Sprint("t", i), approval.MaxOfThread)
	}
	full("uid:1", "another", "for uid:1")
	fill("uid:2", "t0", 1)
	if list, err := s.Permissions(ctx, "uid:1", "", ""); err != nil || len(list) != approval.MaxOfRequester {
		t.Errorf("%d are kept, %v", len(list), err)
	}
}
