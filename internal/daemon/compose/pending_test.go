package compose_test

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/spec/approval"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
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

// Long questions fill what may be kept of them before their number does, after a restart too,
// and one that is denied makes room for another. A question that is too long by itself is denied.
func TestLongQuestions(t *testing.T) {
	h := newHouse(t)
	h.create(alice, "demo")
	ctx := t.Context()
	// Each part says its words again, and backslashes take two bytes.
	long := func(n, parts, pairs int) execapi.ExecParams {
		e := run("sh", "-c", fmt.Sprintf("git push a %03d; %s", n, strings.Repeat("git push a '"+strings.Repeat(`\\`, pairs)+"';", parts)))
		e.Asked = execapi.Asked{Source: "llm", WaitMS: -1}
		return e
	}
	ask := func(n int) error {
		_, _, err := h.Run(ctx, alice, "demo", long(n, 63, 80))
		return err
	}
	n := 0
	for ; n < 1000; n++ {
		if err := ask(n); errdefs.IsResourceExhausted(err) {
			break
		} else if !errdefs.IsFailedPrecondition(err) {
			t.Fatal(err)
		}
	}
	if n < 200 || n > 400 {
		t.Fatalf("%d were asked", n)
	}
	full := func() {
		t.Helper()
		if err := ask(999); !errdefs.IsResourceExhausted(err) || !strings.Contains(err.Error(), "too many questions of uid:1000 wait") ||
			!strings.Contains(err.Error(), "KiB") {
			t.Error(err)
		}
	}
	full()
	h.crash()
	h.start()
	full()
	list, _, err := h.Approvals(ctx, root, approval.Filter{State: approval.Pending, Limit: 1})
	if err != nil || len(list) != 1 {
		t.Fatal(list, err)
	}
	h.answer(alice, list[0], approval.Deny)
	if err := ask(n); !errdefs.IsFailedPrecondition(err) {
		t.Error(err)
	}
	full()
	h.crash()
	db := h.dir + "/carrel.db"
	var size int64
	for _, name := range []string{db, db + "-wal"} {
		if fi, err := os.Stat(name); err == nil {
			size += fi.Size()
		}
	}
	if size > 48<<20 {
		t.Errorf("the database has %d bytes", size)
	}
	h.start()

	at := len(h.records())
	_, _, err = h.Run(ctx, admin, "demo", long(0, 126, 55))
	if !errdefs.IsPermissionDenied(err) || !strings.Contains(err.Error(),
		"of at most 131072; put what it does into a file or into smaller steps") {
		t.Error(err)
	}
	h.expect(at, "denial command.exec denied permission_denied")
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
