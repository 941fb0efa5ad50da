package gate_test

import (
	"errors"
	"fmt"
	"os"
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
			err := admit(&approval.Approval{Ask: approval.Ask{ID: id.Approval(fmt.Sprint(n)), Subject: approval.Subject{By: by}, Owner: owner, Written: written}}, 1)
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
	if err := admit(&approval.Approval{Ask: approval.Ask{ID: "typed", Subject: approval.Subject{By: "uid:9"}, Owner: "uid:9"}}, 1); err != nil {
		t.Error(err)
	}
	fill("uid:8", "uid:8", false, 199) // 10,000
	fill("uid:7", "uid:7", false, 0)
}

// The bounds of bytes, each reached exactly and gone over by one, with what is said then.
func TestPendingBytes(t *testing.T) {
	const mib = 1 << 20
	ask := func(by, owner string, written bool) *approval.Approval {
		return &approval.Approval{Ask: approval.Ask{ID: id.NewApproval(), Subject: approval.Subject{By: by}, Owner: owner, Written: written}}
	}
	t.Run("principal", func(t *testing.T) {
		admit := gate.Admitter()
		programs := int64(32*mib - 32*mib/10)
		for i, c := range []struct {
			written bool
			size    int64
			want    string
		}{
			{true, programs + 1, "of uid:1 wait for an answer: 0, which take 0 KiB, and this one 29492 more, of at most 29491 KiB for what programs write; a tenth more is kept"},
			{true, programs - 1, ""},
			{true, 2, "1, which take 29491 KiB, and this one 1 more, of at most 29491 KiB"},
			{true, 1, ""},
			{true, 1, "2, which"},
			{false, 32*mib/10 + 1, "2, which take 29491 KiB, and this one 3277 more, of at most 32768 KiB; see them with \"carrel approvals list\", answer or deny"},
			{false, 32 * mib / 10, ""},
			{false, 1, "of uid:1 wait"},
		} {
			err := admit(ask("uid:1", "uid:1", c.written), c.size)
			if c.want == "" != (err == nil) || c.want != "" && (!errdefs.IsResourceExhausted(err) || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%d: %v", i, err)
			}
		}
	})
	t.Run("owner", func(t *testing.T) {
		admit := gate.Admitter()
		for _, by := range []string{"token:a", "token:b"} {
			if err := admit(ask(by, "uid:1", true), 28*mib); err != nil {
				t.Fatal(err)
			}
		}
		if err := admit(ask("token:c", "uid:1", true), 2*mib); err == nil || !strings.Contains(err.Error(), "of uid:1 and their tokens wait") {
			t.Error(err)
		}
		if err := admit(ask("uid:1", "uid:1", false), 8*mib+1); err == nil || !strings.Contains(err.Error(), "of at most 65536 KiB") {
			t.Error(err)
		}
		if err := admit(ask("uid:1", "uid:1", false), 8*mib); err != nil {
			t.Error(err)
		}
	})
	t.Run("all", func(t *testing.T) {
		admit := gate.Admitter()
		for i := range 8 {
			by := fmt.Sprint("uid:", i)
			if err := admit(ask(by, by, true), 28*mib); err != nil {
				t.Fatal(err)
			}
		}
		if err := admit(ask("uid:4", "uid:4", true), 1); err != nil {
			t.Fatal(err)
		}
		err := admit(ask("uid:9", "uid:9", true), 7*mib)
		if !errdefs.IsResourceExhausted(err) || !strings.Contains(err.Error(), "of everybody (the most, 2, of uid:4; the longest, 28672 KiB, of uid:4) wait") {
			t.Error(err)
		}
		if err := admit(ask("uid:9", "uid:9", false), 31*mib); err != nil {
			t.Error(err)
		}
		if err := admit(ask("uid:8", "uid:8", false), mib); err == nil || !strings.Contains(err.Error(), "of everybody (") {
			t.Error(err)
		}
	})
}

// Long questions fill what may be kept of them before their number does, after a restart too,
// and one that is denied makes room for another. A question that is too long by itself is denied.
func TestLongQuestions(t *testing.T) {
	h := newHouse(t)
	h.create(alice, "demo")
	ctx := t.Context()
	// Each part says its words again, and backslashes take two bytes.
	long := func(n, parts, pairs int) execapi.ExecParams {
		e := run("sh", "-c", fmt.Sprintf("curl -d %03d a; %s", n, strings.Repeat("curl -d '"+strings.Repeat(`\\`, pairs)+"' a;", parts)))
		e.Asked = execapi.Asked{Source: "llm", WaitMS: -1}
		return e
	}
	ask := func(n int) error {
		_, _, err := h.Run(ctx, alice, "demo", long(n, 63, 109))
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
		if err := ask(999); !errdefs.IsResourceExhausted(err) || !strings.Contains(err.Error(), "too many questions of uid:1000 wait") || !strings.Contains(err.Error(), "KiB") {
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
	if !errdefs.IsPermissionDenied(err) || !strings.Contains(err.Error(), "of at most 131072; put what it does into a file or into smaller steps") {
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
