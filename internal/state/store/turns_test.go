package store_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/spec/approval"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/state/store"
)

// However many calls of one principal wait, another's has its turn after the one under way, and the
// calls of each are served in their order.
func TestTurnsRotate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var turns store.Turns
		var served []string
		call := func(ctx context.Context, who string, n int) {
			go func() {
				give, err := turns.Take(ctx, who)
				if err != nil {
					served = append(served, fmt.Sprint(who, " ", err))
					return
				}
				served = append(served, fmt.Sprint(who, n)) // guarded by the turn
				give()
			}()
			synctest.Wait()
		}
		give, err := turns.Take(t.Context(), "greedy")
		if err != nil {
			t.Fatal(err)
		}
		gone, cancel := context.WithCancel(t.Context())
		for i := range 4 {
			call(t.Context(), "greedy", i)
		}
		call(gone, "gone", 0)
		call(t.Context(), "a", 0)
		call(t.Context(), "b", 0)
		call(t.Context(), "a", 1)
		cancel()
		synctest.Wait()
		give()
		synctest.Wait()
		want := []string{"gone context canceled", "a0", "b0", "greedy0", "a1", "greedy1", "greedy2", "greedy3"}
		if !slices.Equal(served, want) {
			t.Errorf("%q were served, not %q", served, want)
		}
		if give, err = turns.Take(t.Context(), "a"); err != nil { // nobody kept it
			t.Fatal(err)
		}
		give()
		if n := turns.Waiting(); n != 0 {
			t.Errorf("%d principals are remembered", n)
		}
		if _, err := turns.Take(gone, "a"); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

// A call that gives up at the moment at which its turn comes hands that on.
func TestATurnIsNotLost(t *testing.T) {
	var turns store.Turns
	for range 2000 {
		give, err := turns.Take(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		over := make(chan struct{})
		go func() {
			defer close(over)
			if give, err := turns.Take(ctx, "b"); err == nil {
				give()
			}
		}()
		go cancel()
		give()
		<-over
		if give, err = turns.Take(t.Context(), "c"); err != nil {
			t.Fatal(err)
		}
		give()
	}
	if n := turns.Waiting(); n != 0 {
		t.Errorf("%d principals are remembered", n)
	}
}

// One principal has many long reads and changes under way, and another's one is done before theirs are: what
// each call reads is what its principal's turn is for.
func TestManyCallsOfOneDelayNobody(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "db"))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	const many = 200
	now := time.Now()
	for i := range many {
		ask(t, s, "uid:1000", fmt.Sprint(i), now.Add(time.Duration(i)))
	}
	greedy := principal.NewContext(ctx, principal.Principal{Kind: principal.User, UID: 1000})
	other := principal.NewContext(ctx, principal.Principal{Kind: principal.User, UID: 1001})
	done := make(chan struct{}, many)
	for range many {
		go func() {
			_, _, _ = s.Approvals(greedy, store.ApprovalFilter{Limit: 500, Now: now})
			done <- struct{}{}
		}()
	}
	<-done // they are under way
	for range 3 {
		if err := s.SetMeta(other, "name", "value"); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(done); n > many/2 {
		t.Errorf("%d of %d calls came before three of another's", n, many)
	}
	for range many - 1 {
		<-done
	}
}

// A page of a list ends before it holds the database for long, and the next one goes on.
func TestAPageEndsAtItsBytes(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "db"))
	now := time.Now()
	const many = 60
	for i := range many {
		ask(t, s, "uid:1000", fmt.Sprintf("%0100000d", i), now.Add(time.Duration(i)))
	}
	seen := map[id.Approval]bool{}
	pages, after := 0, ""
	for {
		list, next, err := s.Approvals(t.Context(), store.ApprovalFilter{
			Limit: 500, Now: now, After: after, Visible: "uid:1000", VisibleOwner: "uid:1000",
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range list {
			seen[a.ID] = true
		}
		pages++
		if after = next; next == "" {
			break
		}
	}
	if len(seen) != many || pages < 2 || pages > 4 {
		t.Errorf("%d are on %d pages", len(seen), pages)
	}
}

// What somebody sees is what they asked, and what is about their workspaces, each once and in order.
func TestVisibleApprovals(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "db"))
	now := time.Now()
	var want []id.Approval
	for i, by := range []string{"uid:1000", "uid:1001", "token:1", "uid:1000", "uid:1002", "uid:1001"} {
		a := ask(t, s, by, fmt.Sprint(i), now.Add(time.Duration(i)))
		if by != "uid:1001" {
			want = append([]id.Approval{a.ID}, want...)
		}
	}
	other := ask(t, s, "uid:1000", "others", now.Add(time.Hour), "uid:1003")
	want = append([]id.Approval{other.ID}, want...)
	var got []id.Approval
	for after := ""; ; {
		list, next, err := s.Approvals(t.Context(), store.ApprovalFilter{
			Limit: 2, Now: now, After: after, Visible: "uid:1000", VisibleOwner: "uid:1010",
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range list {
			got = append(got, a.ID)
		}
		if after = next; next == "" {
			break
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("%v are seen, not %v", got, want)
	}
}

// ask keeps a question by somebody about a workspace of uid 1010's, or of owner's if that is given; uid 1001 asks about
// one of their own.
func ask(t *testing.T, s *store.Store, by, text string, at time.Time, owner ...string) approval.Approval {
	t.Helper()
	a, err := approval.New(approval.Ask{
		ID: id.NewApproval(), Subject: approval.Subject{Digest: "d", By: by, Policy: "p", Workspace: "ws-00000001", Argv: []string{text}},
	}, at, time.Hour)
	kept := store.Approval{Approval: a, Owner: "uid:1010"}
	if by == "uid:1001" {
		kept.Owner = by
	}
	if len(owner) > 0 {
		kept.Owner = owner[0]
	}
	if err == nil {
		err = kept.Show(approval.Question{Argv: []string{text}})
	}
	if err == nil {
		err = s.Ask(t.Context(), kept)
	}
	if err != nil {
		t.Fatal(err)
	}
	return a
}
