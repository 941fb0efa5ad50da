package gate_test

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/approval"
	"github.com/carrel-dev/carrel/internal/execapi"
	"github.com/carrel-dev/carrel/internal/gate"
	"github.com/carrel-dev/carrel/internal/id"
	"github.com/carrel-dev/carrel/internal/principal"
)

// As many questions as may wait: of each bound programs leave a tenth to people, and who has
// used theirs up takes nobody else's. test/root does it with 10,000 and the whole of carrel.
func TestManyPending(t *testing.T) {
	h := newHouse(t)
	h.create(alice, "demo")
	ctx := t.Context()
	ask := func(p principal.Principal, source string, n int) error {
		e := upload(source, "")
		e.Argv = append(e.Argv, fmt.Sprint(n))
		e.Asked.WaitMS = -1
		_, _, err := h.Run(ctx, p, "demo", e)
		return err
	}
	full := func(p principal.Principal, source string) {
		t.Helper()
		if err := ask(p, source, -1); !errdefs.IsResourceExhausted(err) || !strings.Contains(err.Error(), "carrel approvals list") {
			t.Errorf("%s of %s: %v", source, p, err)
		}
	}
	many := func(p principal.Principal, source string, n int) {
		t.Helper()
		var wg sync.WaitGroup
		for k := range 8 { // who share the disk's time
			wg.Go(func() {
				for i := k; i < n; i += 8 {
					if err := ask(p, source, i); !errdefs.IsFailedPrecondition(err) {
						t.Errorf("question %d: %v", i, err)
					}
				}
			})
		}
		wg.Wait()
	}
	many(alice, "llm", 900)
	full(alice, "llm")
	many(alice, "user", 100)
	at := len(h.records())
	full(alice, "user")
	h.expect(at, "denial command.exec denied resource_exhausted")
	token, _ := h.issue(alice, principal.Wanted{Roles: principal.Operator})
	many(token, "llm", 3)
	many(root, "llm", 1)
	seen, after := map[id.Approval]bool{}, ""
	for {
		list, next, err := h.Approvals(ctx, alice, approval.Filter{State: approval.Pending, After: after, Limit: 300})
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range list {
			seen[a.ID] = true
		}
		if after = next; next == "" {
			break
		}
	}
	if len(seen) != 1004 { // root's is about alice's workspace
		t.Errorf("%d are listed", len(seen))
	}
	h.crash()
	h.start()
	full(alice, "user")
	for name := range seen { // an answer makes room for one
		if a, err := h.Approval(ctx, root, name); err != nil || a.Subject.By != alice.String() {
			continue
		}
		if _, err := h.Answer(ctx, root, name, approval.Deny, "", false); err != nil {
			t.Fatal(err)
		}
		break
	}
	if err := ask(alice, "user", 2000); !errdefs.IsFailedPrecondition(err) {
		t.Error(err)
	}
	full(alice, "user")
}

// The bounds of an owner and of all, at the place that has them.
func TestPendingBounds(t *testing.T) {
	admit := gate.Admitter()
	n := 0
	fill := func(by, owner string, written bool, want int) {
		t.Helper()
		for i := range want + 1 {
			n++
			err := admit(&approval.Approval{Ask: approval.Ask{ID: id.Approval(fmt.Sprint(n)), Subject: approval.Subject{By: by}, Owner: owner, Written: written}})
			if (err == nil) != (i < want) {
				t.Fatalf("%d of %s: %v", i, by, err)
			}
		}
	}
	for i := range 5 {
		owner := fmt.Sprint("uid:", i)
		fill("token:a"+owner, owner, true, 900)
		fill("token:b"+owner, owner, true, 900)
		fill("token:c"+owner, owner, true, 0) // 1,800 of the owner's programs
		fill(owner, owner, true, 0)
		if i < 4 {
			fill(owner, owner, false, 200) // they typed; that is all of one owner
		}
	}
	fill("uid:9", "uid:9", true, 0) // 9,000 of programs
	if err := admit(&approval.Approval{Ask: approval.Ask{ID: "typed", Subject: approval.Subject{By: "uid:9"}, Owner: "uid:9"}}); err != nil {
		t.Error(err)
	}
	fill("uid:8", "uid:8", false, 199) // 10,000
	fill("uid:7", "uid:7", false, 0)
}

var errEnough = errors.New("enough")

// heap is what is in use of it, in bytes.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// Who watches costs the daemon one question at a time, however long each is.
func TestWatchingHoldsOne(t *testing.T) {
	h := newHouse(t)
	h.create(alice, "demo")
	e := upload("llm", "")
	e.Argv = append(e.Argv, strings.Repeat("x", 15_000), "")
	const many = 200
	for i := range many {
		e.Argv[5] = fmt.Sprint(i)
		h.askQuietly(alice, e)
	}
	before := heap()
	err := h.WatchApprovals(t.Context(), root, func(*approval.View) error {
		if grown := heap() - before; grown > many*15_000/2 {
			t.Errorf("%d bytes are held", grown)
		}
		return errEnough
	})
	if !errors.Is(err, errEnough) {
		t.Error(err)
	}
}

func (h *house) askQuietly(p principal.Principal, e execapi.ExecParams) {
	h.t.Helper()
	e.Asked.WaitMS = -1
	if _, _, err := h.Run(h.t.Context(), p, "demo", e); !errdefs.IsFailedPrecondition(err) {
		h.t.Fatal(err)
	}
}
