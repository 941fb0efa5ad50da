package compose_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/token"
	"github.com/carrel-dev/carrel/internal/gate"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/state/audit"
)

// A tenant cannot write the record without end, by whatever it is recorded of: what it may have
// recorded is bounded over all its tokens, and so is what comes of refusals.
func TestTheRecordOfOneOwnerIsBounded(t *testing.T) {
	for name, c := range map[string]struct {
		budget  gate.Budget
		setting string
	}{
		"by the second": {gate.Budget{Rate: 1 << 10}, "audit.owner_rate"}, // 256 KiB at once
		"by the day":    {gate.Budget{Daily: 256 << 10}, "audit.owner_daily"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t)
			h.crash()
			h.budget = c.budget
			h.start()
			ctx := t.Context()
			h.create(alice, "demo")
			h.create(bob, "bobs")
			var holders []principal.Principal
			var secrets []token.Secret
			for range 4 {
				p, s := h.issue(alice, principal.Wanted{Roles: principal.Operator})
				holders, secrets = append(holders, p), append(secrets, s)
			}
			long := run("echo", strings.Repeat("x", 8<<10))
			through, refused := 0, 0
			for i := range 400 {
				p := holders[i%len(holders)]
				_, _, err := h.Run(ctx, p, "demo", long)
				switch {
				case err == nil:
					through++
				case errdefs.IsResourceExhausted(err) && strings.Contains(err.Error(), c.setting):
					refused++
				default:
					t.Fatal(err)
				}
				_, _, err = h.Run(ctx, p, "bobs", long) // which is denied
				if !errdefs.IsPermissionDenied(err) {
					t.Fatal(err)
				}
				if err := h.Login(ctx, "unix", p, secrets[i%len(holders)].ID(), ""); err != nil && !errdefs.IsResourceExhausted(err) {
					t.Fatal(err)
				}
				asked := upload("llm", "")
				asked.Asked.WaitMS = -1
				asked.Argv = append(asked.Argv, strings.Repeat("y", i))
				if _, _, err := h.Run(ctx, p, "demo", asked); err == nil {
					t.Fatal("nobody was asked")
				}
			}
			if through < 5 || refused < 300 {
				t.Errorf("%d commands came through and %d were refused", through, refused)
			}
			h.records() // which brings all of it to the disk
			size := int64(0)
			files, _ := filepath.Glob(filepath.Join(h.dir, "audit", "audit*.jsonl"))
			for _, f := range files {
				st, err := os.Stat(f)
				if err != nil {
					t.Fatal(err)
				}
				size += st.Size()
			}
			if size > 400<<10 {
				t.Errorf("the record has %d bytes where one owner may have 256 KiB", size)
			}
			// The owner can end what is there, and not without end.
			for range 3 {
				if _, err := h.Stop(ctx, alice, "demo"); err != nil {
					t.Errorf("an owner without budget cannot stop: %v", err)
				}
			}
			// Others go on, and so do those who can put it right.
			for ref, p := range map[string]principal.Principal{"bobs": bob, "demo": root} {
				if _, _, err := h.Run(ctx, p, ref, long); err != nil {
					t.Errorf("%s: %v", p, err)
				}
			}
			at := len(h.records())
			h.Sum()
			sums := 0
			for _, r := range h.records()[at:] {
				if r.Type == audit.Observed && r.Status == audit.StatusDenied {
					sums++
					if r.Principal != "uid:1000" || r.ErrorKind != "resource_exhausted" || !strings.Contains(string(r.Data), `"command.exec":`) {
						t.Errorf("%+v %s", r, r.Data)
					}
				}
			}
			if sums != 1 {
				t.Errorf("the refusals have %d records", sums)
			}
			if _, err := h.log.Verify(ctx); err != nil {
				t.Error(err)
			}
		})
	}
}
