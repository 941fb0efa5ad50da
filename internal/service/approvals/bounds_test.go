package approvals_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/service/approvals"
	"github.com/carrel-dev/carrel/internal/spec/approval"
)

// The bounds of an owner and of all, at the place that has them.
func TestPendingBounds(t *testing.T) {
	admit := approvals.Admitter()
	n := 0
	fill := func(by, owner string, written bool, want int) {
		t.Helper()
		for i := range want + 1 {
			n++
			err := admit(&approval.Approval{Ask: approval.Ask{
				ID: id.Approval(fmt.Sprint(n)), Subject: approval.Subject{By: by}, Owner: owner,
				Written: written,
			}}, 1)
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
	if err := admit(&approval.Approval{Ask: approval.Ask{ID: "typed", Subject: approval.Subject{By: "uid:9"}, Owner: "uid:9"}},
		1); err != nil {
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
		admit := approvals.Admitter()
		programs := int64(32*mib - 32*mib/10)
		for i, c := range []struct {
			written bool
			size    int64
			want    string
		}{
			{true, programs + 1, "of uid:1 wait for an answer: 0, which take 0 KiB, and this one 29492 more, of at most 29491 KiB for what " +
				"programs write; a tenth more is kept"},
			{true, programs - 1, ""},
			{true, 2, "1, which take 29491 KiB, and this one 1 more, of at most 29491 KiB"},
			{true, 1, ""},
			{true, 1, "2, which"},
			{false, 32*mib/10 + 1, "2, which take 29491 KiB, and this one 3277 more, of at most 32768 KiB; see them with \"carrel approvals " +
				"list\", answer or deny"},
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
		admit := approvals.Admitter()
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
		admit := approvals.Admitter()
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
		if !errdefs.IsResourceExhausted(err) || !strings.Contains(err.Error(),
			"of everybody (the most, 2, of uid:4; the longest, 28672 KiB, of uid:4) wait") {
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
