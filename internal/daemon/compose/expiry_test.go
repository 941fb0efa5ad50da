package compose_test

import (
	"context"
	"database/sql"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/spec/approval"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/state/audit"
)

// restartAt crashes and starts with the host's clock set.
func (h *house) restartAt(clock time.Time) {
	h.t.Helper()
	h.crash()
	h.clock = clock
	h.start()
}

// inDatabase ends the daemon's side and changes its database.
func (h *house) inDatabase(statements ...string) {
	h.t.Helper()
	h.crash()
	db, err := sql.Open("sqlite", filepath.Join(h.dir, "carrel.db"))
	if err != nil {
		h.t.Fatal(err)
	}
	defer db.Close()
	for _, s := range statements {
		if _, err := db.ExecContext(h.t.Context(), s); err != nil {
			h.t.Fatalf("%s: %v", s, err)
		}
	}
}

// ends counts the records that nobody answered, by question.
func (h *house) ends() map[string]int {
	h.t.Helper()
	n := map[string]int{}
	for _, r := range h.records() {
		if r.Type == audit.Approval && string(r.Data) == `{"kind":"expired"}` {
			n[r.Approval]++
		}
	}
	return n
}

// tells counts the events of this start that nobody answered, by question.
func (h *house) tells() map[string]int {
	h.t.Helper()
	ctx, cancel := context.WithCancel(h.t.Context())
	defer cancel()
	h.create(root, "the last of the events")
	n := map[string]int{}
	err := h.Watch(ctx, principal.Self(), nil, -1, func(ev workspace.Event, _ int64) error {
		if ev.Kind == "approval.expired" {
			n[ev.Note]++
		}
		if ev.Key == "the last of the events" {
			return errEnough
		}
		return nil
	})
	if err == nil {
		h.t.Error("the events end")
	}
	if _, err := h.Destroy(h.t.Context(), root, "the last of the events", true, ""); err != nil {
		h.t.Fatal(err)
	}
	return n
}

// The time of questions passes while no daemon runs: the next start records and tells it, once
// each, with what a running daemon would, and leaves what can still be answered alone.
func TestEndsWhileNoDaemonRuns(t *testing.T) {
	h := newHouse(t)
	ctx := t.Context()
	h.create(alice, "demo")
	began := time.Now()
	h.restartAt(began)
	running := h.askNow(alice, upload("llm", ""))
	h.elapsed = approval.DefaultWait
	h.Round(ctx, time.Now())
	like := h.records()[len(h.records())-1]
	if like.Approval != string(running.ID) {
		t.Fatalf("no end under a running daemon: %+v", like)
	}

	h.restartAt(began.Add(time.Hour))
	e := upload("llm", "")
	e.Argv = append(e.Argv, "-v")
	first := h.askNow(alice, e)
	e.Argv = append(e.Argv, "-s")
	second := h.askNow(alice, e)
	e.Argv = append(e.Argv, "-k")
	e.Asked.WaitMS = (2 * approval.DefaultWait).Milliseconds()
	later, done := h.started(alice, e)
	h.StopAsking() // whoever waits goes with the daemon
	if err := <-done; !errdefs.IsUnavailable(err) {
		t.Fatal(err)
	}
	at := len(h.records())
	h.restartAt(began.Add(time.Hour + approval.DefaultWait + time.Minute))
	h.expect(at, "lifecycle ok", "approval denied", "approval denied")
	want := map[string]int{string(running.ID): 1, string(first.ID): 1, string(second.ID): 1}
	if got := h.ends(); len(got) != 3 || got[string(first.ID)] != 1 || got[string(second.ID)] != 1 {
		t.Errorf("recorded %v, want %v", got, want)
	}
	if got := h.tells(); len(got) != 2 || got[string(first.ID)] != 1 || got[string(second.ID)] != 1 {
		t.Errorf("told %v", got)
	}
	i := slices.IndexFunc(h.records(), func(r audit.Record) bool { return r.Type == audit.Approval && r.Approval == string(first.ID) })
	got := h.records()[i]
	if got.Trace != first.Trace || got.Principal != like.Principal || got.Workspace != like.Workspace || got.Status != like.Status ||
		got.ActionDigest != first.Subject.Digest || string(got.Data) != string(like.Data) {
		t.Errorf("recorded %+v\nwhere a running daemon has %+v", got, like)
	}
	for _, state := range []approval.State{"", approval.Expired} {
		list, _, err := h.Approvals(ctx, alice, approval.Filter{State: state, Limit: 9})
		n := 0
		for _, a := range list {
			if a.State == approval.Expired {
				n++
			}
		}
		if err != nil || n != 3 {
			t.Errorf("%d of %d are listed as expired: %v", n, len(list), err)
		}
	}
	if a, err := h.Approval(ctx, alice, first.ID); err != nil || a.State != approval.Expired {
		t.Errorf("it is %s: %v", a.State, err)
	}
	if _, err := h.Answer(ctx, root, first.ID, approval.Once, "", false); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("it was answered after its end: %v", err)
	}
	h.answer(root, later, approval.Deny) // it has its time still

	// Neither the next start nor a clock that is set back changes anything about it.
	for _, clock := range []time.Time{began.Add(2 * time.Hour), began.Add(-30 * 24 * time.Hour)} {
		h.restartAt(clock)
		if got := h.ends(); len(got) != 3 || got[string(first.ID)] != 1 || got[string(running.ID)] != 1 {
			t.Errorf("recorded %v after another start", got)
		}
		if a, err := h.Approval(ctx, alice, first.ID); err != nil || a.State != approval.Expired {
			t.Errorf("it is %s again: %v", a.State, err)
		}
	}
}

// Between the steps of an end it crashes: the next start finishes it, and the record has it once.
func TestHalfEnded(t *testing.T) {
	h := newHouse(t)
	ctx := t.Context()
	h.create(alice, "demo")
	began := time.Now()
	h.restartAt(began)
	for _, flag := range []string{"-1", "-2", "-3"} {
		e := upload("llm", "")
		e.Argv = append(e.Argv, flag)
		h.askNow(alice, e)
	}
	h.elapsed = approval.DefaultWait
	h.Round(ctx, time.Now())
	if got := h.ends(); len(got) != 3 {
		t.Fatalf("recorded %v", got)
	}
	// Recorded, and not noted.
	h.inDatabase(`UPDATE approvals SET ended = -1`)
	h.start()
	for name, n := range h.ends() {
		if n != 1 {
			t.Errorf("%s is recorded %d times", name, n)
		}
	}
	if got := h.tells(); len(got) != 0 {
		t.Errorf("told again: %v", got)
	}

	// Ended, and not recorded; what the record has only looks like it.
	lost := h.askNow(alice, upload("llm", ""))
	for _, r := range []audit.Record{
		{Type: audit.Approval, Approval: string(lost.ID), Data: []byte(`{"kind":"deny","reason":"expired"}`)},
		{Type: audit.Request, Approval: string(lost.ID), Data: []byte(`{"kind":"expired"}`)},
	} {
		r.Principal, r.Status = "uid:0", audit.StatusDenied
		if _, err := h.log.Append(ctx, r); err != nil {
			t.Fatal(err)
		}
	}
	if ok, err := h.store.EndApproval(ctx, lost.ID); err != nil || !ok {
		t.Fatal(ok, err)
	}
	if ok, err := h.store.EndApproval(ctx, lost.ID); err != nil || ok {
		t.Errorf("ended twice: %v", err)
	}
	if _, err := h.Answer(ctx, root, lost.ID, approval.Once, "", false); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("what has ended was answered: %v", err)
	}
	h.restartAt(began.Add(time.Hour))
	if n := h.ends()[string(lost.ID)]; n != 1 {
		t.Errorf("an end that was lost is recorded %d times", n)
	}
	if got := h.tells(); got[string(lost.ID)] != 1 || len(got) != 1 {
		t.Errorf("told %v", got)
	}
}

// Of a database from before ends were noted: what the record has is not recorded again, and
// what it has not is.
func TestEndsOfAnEarlierDatabase(t *testing.T) {
	h := newHouse(t)
	ctx := t.Context()
	h.create(alice, "demo")
	began := time.Now()
	h.restartAt(began)
	known := h.askNow(alice, upload("llm", ""))
	h.elapsed = approval.DefaultWait
	h.Round(ctx, time.Now())
	e := upload("llm", "")
	e.Argv = append(e.Argv, "-v")
	unknown := h.askNow(alice, e)
	h.inDatabase(`DROP INDEX approvals_owner`, `DROP INDEX approvals_ending`, `DROP INDEX approvals_open`,
		`ALTER TABLE approvals DROP COLUMN ended`,
		`CREATE INDEX approvals_open ON approvals (until_ns, requester) WHERE state = 'pending'`,
		`ALTER TABLE workspaces RENAME COLUMN phase TO state`, `ALTER TABLE requests DROP COLUMN own`,
		`ALTER TABLE archives DROP COLUMN ttl_ns`, `ALTER TABLE archives DROP COLUMN idle_ns`, `ALTER TABLE archives DROP COLUMN reach`,
		`ALTER TABLE workspaces DROP COLUMN reach`, `DROP TABLE secrets`, `ALTER TABLE workspaces DROP COLUMN models`,
		`ALTER TABLE archives DROP COLUMN models`, `DROP TABLE model_sums`, `DROP TABLE sandboxes`,
		`DROP TABLE task_messages`, `DROP TABLE tasks`, `PRAGMA user_version = 4`,
		`UPDATE approvals SET until_ns = until_ns - 3600000000000`) // the migration goes by the host's clock
	h.clock = began.Add(time.Hour)
	h.start()
	if got := h.ends(); len(got) != 2 || got[string(known.ID)] != 1 || got[string(unknown.ID)] != 1 {
		t.Errorf("recorded %v", got)
	}
}

// As many as may wait end at one start.
func TestManyEnds(t *testing.T) {
	h := newHouse(t)
	h.create(alice, "demo")
	began := time.Now()
	h.restartAt(began)
	const many = 300
	for i := range many {
		e := upload("llm", "")
		e.Argv = append(e.Argv, string(id.NewTrace())[:8], string(rune('a'+i%26)))
		h.askQuietly(alice, e)
	}
	h.restartAt(began.Add(time.Hour))
	ends := h.ends()
	for name, n := range ends {
		if n != 1 {
			t.Errorf("%s is recorded %d times", name, n)
		}
	}
	if len(ends) != many {
		t.Errorf("%d are recorded", len(ends))
	}
}
