package compose_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/spec/approval"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/surface/authn"
)

// limit is for what must not wait at all: it is reached only where a test fails.
const limit = 20 * time.Second

// Who looks at open questions, in however many streams, has nothing of the database: here it is busy all the time.
func TestLooksNeedNoDatabase(t *testing.T) {
	h := newHouse(t)
	h.create(alice, "demo")
	const many = 50
	e := upload("llm", "")
	for i := range many {
		e.Argv[2] = fmt.Sprint("@", i)
		h.askQuietly(alice, e)
	}
	mine, _, err := h.Approvals(t.Context(), alice, approval.Filter{State: approval.Pending, Limit: many})
	if err != nil || len(mine) != many {
		t.Fatal(len(mine), err)
	}
	busy, free, over := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(over)
		_, _ = h.store.ChangeApproval(context.WithoutCancel(t.Context()), mine[0].ID, func(a approval.Approval) (approval.Approval, error) {
			close(busy)
			<-free
			return a, errEnough
		})
	}()
	<-busy
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	var all sync.WaitGroup
	for range 100 {
		all.Go(func() {
			n := 0
			err := h.WatchApprovals(ctx, alice, func(v *approval.View) error {
				if v == nil {
					return errEnough
				}
				n++
				return nil
			})
			if n != many {
				t.Errorf("%d are shown: %v", n, err)
			}
		})
	}
	all.Go(func() {
		list, _, err := h.Approvals(ctx, root, approval.Filter{State: approval.Pending, Limit: 2 * many})
		if err != nil || len(list) != many {
			t.Errorf("%d are listed: %v", len(list), err)
		}
		if a, err := h.Approval(ctx, root, mine[1].ID); err != nil || a.ID != mine[1].ID {
			t.Error(a.ID, err)
		}
	})
	all.Wait()
	close(free)
	<-over
}

// However much one user does at once, another's operation is done before theirs are: each of its steps waits for
// one of theirs at most.
func TestManyOperationsOfOneDelayNobody(t *testing.T) {
	h := newHouse(t)
	const many = 400
	greedy, other := authn.NewContext(t.Context(), alice), authn.NewContext(t.Context(), root)
	done := make(chan struct{}, many)
	for range many {
		go func() {
			if _, _, err := h.CreateToken(greedy, alice, principal.Wanted{Roles: principal.Operator}); err != nil {
				t.Error(err)
			}
			done <- struct{}{}
		}()
	}
	<-done // they are under way
	before := len(done)
	if _, _, err := h.Create(other, root, wanted("roots", workspace.Limits{}, true)); err != nil {
		t.Fatal(err)
	}
	if n := len(done) - before; n > many*7/8 { // as below
		t.Errorf("%d of %d operations were done while another's one waited", n, many)
	}
	for range many - 1 {
		<-done
	}
}

// Of answers, which are recorded one after the other, many of one user do not delay another's.
func TestManyAnswersOfOneDelayNobody(t *testing.T) {
	h := newHouse(t)
	h.create(alice, "demo")
	h.create(bob, "bobs")
	e := upload("llm", "")
	const many = 200
	for i := range many {
		e.Argv[2] = fmt.Sprint("@", i)
		h.askQuietly(alice, e)
	}
	e.Asked.WaitMS = -1
	if _, _, err := h.Run(t.Context(), bob, "bobs", e); !errdefs.IsFailedPrecondition(err) {
		t.Fatal(err)
	}
	names := func(p principal.Principal) (all []id.Approval) {
		list, _, err := h.Approvals(t.Context(), p, approval.Filter{State: approval.Pending, Limit: many})
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range list {
			all = append(all, a.ID)
		}
		return all
	}
	greedy, other := authn.NewContext(t.Context(), alice), authn.NewContext(t.Context(), bob)
	bobs := names(bob)[0]
	done := make(chan struct{}, many)
	for _, name := range names(alice) {
		go func() {
			if _, err := h.Answer(greedy, alice, name, approval.Deny, "", true); err != nil {
				t.Error(err)
			}
			done <- struct{}{}
		}()
	}
	<-done // they are under way
	before := len(done)
	if _, err := h.Answer(other, bob, bobs, approval.Deny, "", true); err != nil {
		t.Fatal(err)
	}
	// Many are written to the disk at once, and are done at once then: with one processor more than half. In the order in which
	// they came all of them would be.
	if n := len(done) - before; n > many*7/8 {
		t.Errorf("%d of %d answers were given while another's one waited", n, many)
	}
	for range many - 1 {
		<-done
	}
}

// Whatever happens at once, what those who watch were told last of a question is how it stands.
func TestWatchersKnowHowItStands(t *testing.T) {
	h := newHouse(t)
	h.create(alice, "demo")
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	const watchers, many = 8, 40
	var mu sync.Mutex
	told := make([]map[id.Approval]approval.State, watchers)
	all := make(chan struct{}, watchers)
	for i := range watchers {
		told[i] = map[id.Approval]approval.State{}
		ready := make(chan struct{})
		go func() {
			over := 0
			_ = h.WatchApprovals(ctx, []principal.Principal{alice, root}[i%2], func(v *approval.View) error {
				if v == nil {
					close(ready)
					return nil
				}
				mu.Lock()
				defer mu.Unlock()
				before := told[i][v.ID] // one may be told twice how it ended
				if told[i][v.ID] = v.State; before != v.State && (v.State == approval.Denied || v.State == approval.Spent) {
					if over++; over == many {
						all <- struct{}{}
					}
				}
				return nil
			})
		}()
		<-ready
	}
	var work sync.WaitGroup
	for n := range many {
		e := upload("llm", "")
		e.Argv[2] = fmt.Sprint("@", n)
		kind := []approval.Kind{approval.Once, approval.Deny}[n%2]
		work.Go(func() {
			if _, _, err := h.Run(ctx, alice, "demo", e); (err == nil) != (kind == approval.Once) {
				t.Errorf("%s: %v", kind, err)
			}
		})
		work.Go(func() {
			for {
				list, _, err := h.Approvals(ctx, root, approval.Filter{State: approval.Pending, Limit: 500})
				if err != nil {
					t.Error(err)
					return
				}
				for _, a := range list {
					if a.Argv[2] == e.Argv[2] {
						if _, err := h.Answer(ctx, root, a.ID, kind, "", false); err != nil {
							t.Error(err)
						}
						return
					}
				}
				<-time.After(time.Millisecond) // forty that look without a pause leave one processor no time for who asks
			}
		})
	}
	work.Wait()
	for range watchers {
		select {
		case <-all:
		case <-ctx.Done():
			t.Fatal("not all who watch were told of all ends")
		}
	}
	mu.Lock()
	defer mu.Unlock()
	for i := range watchers {
		for name, state := range told[i] {
			if a, err := h.store.Approval(t.Context(), name); err != nil || a.State != state {
				t.Errorf("%d was told that %s is %s, and it is %s: %v", i, name, state, a.State, err)
			}
		}
	}
}
