package compose_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carrel-dev/carrel/internal/base/redact"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/state/audit"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

// history is what h tells p of demo, as "TYPE KIND WORDS".
func (h *house) history(p principal.Principal, want workspace.EntriesWanted) (list []string, entries []workspace.Entry) {
	h.t.Helper()
	if _, err := h.log.Mark(); err != nil { // what was recorded without waiting is on disk
		h.t.Fatal(err)
	}
	if want.Take == nil {
		want.Take = func(e *workspace.Entry) bool { return e.Kind == "command.exec" }
	}
	entries, err := h.History(h.t.Context(), p, "demo", want)
	if err != nil {
		h.t.Fatal(err)
	}
	for _, e := range entries {
		list = append(list, strings.Join(append([]string{e.Type, e.Kind}, e.Words...), " "))
	}
	return list, entries
}

func (h *house) ran(p principal.Principal, ref string, argv ...string) {
	h.t.Helper()
	if _, _, err := h.Run(h.t.Context(), p, ref, execapi.ExecParams{Argv: argv}); err != nil {
		h.t.Fatal(err)
	}
}

// History has what was done in the workspace, and of it what is asked for, in order.
func TestHistory(t *testing.T) {
	h := newHouse(t)
	made := h.create(alice, "demo")
	other := h.create(bob, "other")
	h.ran(alice, "demo", "echo", "1")
	h.ran(bob, "other", "echo", "of-bob")
	if err := h.log.AppendAsync(audit.Record{ // of another one's, that names this one
		Type: audit.Denial, Workspace: other.Name, Policy: "BLOCK",
		Action: []byte(`{"kind":"command.exec","workspace":"` + string(made.Name) + `","argv":["not","here"]}`),
	}); err != nil {
		t.Fatal(err)
	}
	if err := h.log.AppendAsync(audit.Record{ // from before it was made: of one that had its name
		Type: audit.Denial, Workspace: made.Name, Policy: "BLOCK", Time: made.CreatedAt.Add(-time.Nanosecond),
		Action: []byte(`{"kind":"command.exec","argv":["before"]}`),
	}); err != nil {
		t.Fatal(err)
	}
	h.ran(alice, "demo", "echo", "2")
	all, entries := h.history(alice, workspace.EntriesWanted{Most: 10})
	if want := []string{
		"intent command.exec echo 1", "outcome command.exec echo 1", "intent command.exec echo 2", "outcome command.exec echo 2",
	}; !slices.Equal(all, want) {
		t.Fatalf("%q", all)
	}
	if e := entries[1]; e.Intent != entries[0].Seq || e.Status != audit.StatusOK || e.Exit == nil || e.Command != entries[0].Command ||
		e.Command == "" || e.Principal != alice.String() {
		t.Errorf("the outcome: %+v", e)
	}
	third := entries[2].Time
	for what, x := range map[string]struct {
		want workspace.EntriesWanted
		list []string
	}{
		"from":   {workspace.EntriesWanted{From: third, Most: 10}, all[2:]},
		"until":  {workspace.EntriesWanted{Until: third, Most: 10}, all[:2]},
		"first":  {workspace.EntriesWanted{Most: 3}, all[:3]},
		"newest": {workspace.EntriesWanted{Most: 3, Newest: true}, all[1:]},
		"none":   {workspace.EntriesWanted{Most: 0}, nil},
		// Its intent is from before, and is looked up.
		"an outcome alone": {workspace.EntriesWanted{From: entries[3].Time, Most: 10}, all[3:]},
	} {
		if list, _ := h.history(alice, x.want); !slices.Equal(list, x.list) {
			t.Errorf("%s: %q", what, list)
		}
	}
}

// A secret that became known since is not shown, nor the words of who was refused before it was judged.
func TestHistoryWithoutSecrets(t *testing.T) {
	h := &house{t: t, dir: t.TempDir(), rt: newDouble(), redact: redact.New([]byte("k"))}
	h.start()
	t.Cleanup(h.crash)
	w := h.create(alice, "demo")
	long := strings.Repeat("x", 1012)
	h.ran(alice, "demo", "echo", long, "known-since-then")
	if _, _, err := h.Run(t.Context(), bob, "demo", execapi.ExecParams{Argv: []string{"words", "of-bob"}}); err == nil {
		t.Fatal("bob may")
	}
	if err := h.log.AppendAsync(audit.Record{
		Type: audit.Denial, Workspace: w.Name, Policy: "BLOCK", Error: long + " known-since-then",
		Action: []byte(`{"kind":"file.write","path":"` + long + ` known-since-then"}`),
	}); err != nil {
		t.Fatal(err)
	}
	// It is cut off at 1 KiB: half a secret must not be left of it.
	h.redact.Know("test", "known-since-then")
	list, entries := h.history(alice, workspace.EntriesWanted{Most: 10, Take: func(*workspace.Entry) bool { return true }})
	text := strings.Join(list, "\n")
	for _, e := range entries {
		text += "\n" + e.Error
	}
	if strings.Contains(text, "known-") || strings.Contains(text, "of-bob") || !strings.Contains(text, long) ||
		!slices.Contains(list, "denial command.exec") {
		t.Errorf("%s", text)
	}
}

// One request looks at a bounded part of the log, whosever records it is full of.
func TestHistoryIsBounded(t *testing.T) {
	h := newHouse(t)
	w := h.create(alice, "demo")
	h.ran(alice, "demo", "echo", "old")
	add := func(n int, of string) {
		for i := range n {
			err := h.log.AppendAsync(audit.Record{
				Type: audit.Denial, Workspace: w.Name, Policy: "BLOCK", Time: time.Now(),
				Action: []byte(fmt.Sprintf(`{"kind":"command.exec","argv":[%q,"%d"]}`, of, i)),
			})
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	add(20000-1, "many")
	h.ran(alice, "demo", "echo", "new")
	looked := 0
	take := func(e *workspace.Entry) bool { looked++; return e.Type == string(audit.Intent) }
	list, _ := h.history(alice, workspace.EntriesWanted{Most: 10, Take: take})
	if !slices.Equal(list, []string{"intent command.exec echo new"}) || looked > 20000 {
		t.Errorf("%q, of %d records", list, looked)
	}
}
