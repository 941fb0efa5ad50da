package compose_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/policy/rules"
	"github.com/carrel-dev/carrel/internal/spec/approval"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/state/audit"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

// upload is a command that a person has to approve, in a workspace too.
func upload(source, thread string) execapi.ExecParams {
	e := run("git", "push", "https://example.com/in", "notes")
	e.Asked = execapi.Asked{Source: source, Thread: thread}
	return e
}

// askNow has a command asked about and left, and returns the question.
func (h *house) askNow(p principal.Principal, e execapi.ExecParams) approval.View {
	h.t.Helper()
	e.Asked.WaitMS = -1
	_, _, err := h.Run(h.t.Context(), p, "demo", e)
	if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "a person has to approve it: approval ap-") {
		h.t.Fatalf("it was not asked: %v", err)
	}
	list, _, err := h.Approvals(h.t.Context(), root, approval.Filter{State: approval.Pending, Limit: 1})
	if err != nil || len(list) != 1 {
		h.t.Fatalf("%d pending, %v", len(list), err)
	}
	return list[0]
}

// started runs a command in the background and returns once a person is asked about it.
func (h *house) started(p principal.Principal, e execapi.ExecParams) (approval.View, <-chan error) {
	h.t.Helper()
	return h.startedUnder(h.t.Context(), p, e)
}

func (h *house) startedUnder(ctx context.Context, p principal.Principal, e execapi.ExecParams) (approval.View, <-chan error) {
	h.t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	h.t.Cleanup(cancel)
	asked := make(chan approval.View, 1)
	watching := make(chan struct{})
	go h.WatchApprovals(ctx, root, func(a *approval.View) error {
		if a == nil {
			close(watching)
			return nil
		}
		select {
		case <-watching:
		default:
			return nil // of before
		}
		asked <- *a
		return errors.New("enough")
	})
	<-watching
	done := make(chan error, 1)
	go func() {
		_, _, err := h.Run(ctx, p, "demo", e)
		done <- err
	}()
	select {
	case a := <-asked:
		return a, done
	case err := <-done:
		h.t.Fatalf("it was not asked: %v", err)
	}
	return approval.View{}, nil
}

func (h *house) answer(p principal.Principal, a approval.View, kind approval.Kind) {
	h.t.Helper()
	if _, err := h.Answer(h.t.Context(), p, a.ID, kind, "", false); err != nil {
		h.t.Fatal(err)
	}
}

func TestApproved(t *testing.T) {
	h := newHouse(t)
	h.create(alice, "demo")
	at := len(h.records())
	e := upload("llm", "")
	e.Env, e.Cwd = []string{"TOKEN=secret-value"}, "/tmp"
	a, done := h.started(alice, e)
	if a.State != approval.Pending || !a.Written || a.Subject.By != "uid:1000" || !slices.Equal(a.Argv, e.Argv) || a.Cwd != "/tmp" ||
		!slices.Equal(a.Env, []string{"TOKEN"}) ||
		a.Key != "demo" || a.Owner != "uid:1000" || a.Source != rules.LLM || a.Decision.Level != rules.Confirm ||
		len(a.Decision.Segments) == 0 || a.Decision.Profile != rules.Workspace ||
		!strings.Contains(a.Isolation, "boundary=namespace") || a.Until.Sub(a.AskedAt) != approval.DefaultWait {
		t.Errorf("asked %+v", a)
	}
	if h.rt.count("run") != 0 {
		t.Error("it ran unasked")
	}
	h.answer(admin, a, approval.Once)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	h.expect(at, "request command.exec", "approval ok", "intent command.exec", "outcome ok")
	all := h.records()[at:]
	for _, r := range all {
		if r.Trace != all[0].Trace {
			t.Errorf("%s has another trace", r.Type)
		}
	}
	if d := decided(t, all[0]); d.Level != "CONFIRM" || !slices.Contains(d.Capabilities, "network.out") || all[0].Approval != string(a.ID) {
		t.Errorf("%+v", d)
	}
	if all[1].Principal != "uid:1002" || all[1].Approval != string(a.ID) || string(all[1].Data) != `{"kind":"once"}` {
		t.Errorf("answer %+v", all[1])
	}
	if all[2].Approval != string(a.ID)+" once by uid:1002" {
		t.Errorf("intent %+v", all[2])
	}
	// It was for one time.
	if again := h.askNow(alice, e); again.ID == a.ID {
		t.Error("it was spent twice")
	}
	if _, err := h.Answer(t.Context(), admin, a.ID, approval.Once, "", false); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("answered again: %v", err)
	}
}

func TestDenied(t *testing.T) {
	h := newHouse(t)
	h.create(alice, "demo")
	at := len(h.records())
	a, done := h.started(alice, upload("llm", ""))
	if _, err := h.Answer(t.Context(), root, a.ID, approval.Deny, "not today", false); err != nil {
		t.Fatal(err)
	}
	if err := <-done; !errdefs.IsPermissionDenied(err) || !strings.Contains(err.Error(), "not today") {
		t.Error(err)
	}
	h.expect(at, "request command.exec", "approval denied", "denial command.exec denied permission_denied")
	if h.rt.count("run") != 0 {
		t.Error("it ran")
	}
}

// Nobody answers what they or a program in their name wrote, nor for others; and each try
// is recorded.
func TestWhoMayAnswer(t *testing.T) {
	h := newHouse(t)
	ctx := t.Context()
	h.create(alice, "demo")
	mine := h.askNow(alice, upload("user", ""))
	written := h.askNow(alice, upload("llm", ""))
	for name, c := range map[string]struct {
		p        principal.Principal
		a        approval.View
		terminal bool
		kind     approval.Kind
	}{
		"a stranger":                         {bob, mine, true, approval.Once},
		"a stranger's denial":                {bob, written, true, approval.Deny},
		"who asked, not at a terminal":       {alice, mine, false, approval.Once},
		"who asked, of what a model wrote":   {alice, written, true, approval.Once},
		"who asked, for the thread":          {alice, written, true, approval.Thread},
		"the daemon itself":                  {principal.Self(), mine, true, approval.Once},
		"nobody":                             {principal.Principal{}, mine, true, approval.Once},
		"a program with the rights of alice": {principal.Principal{Kind: "token", UID: 1000}, mine, true, approval.Once},
	} {
		at := len(h.records())
		if _, err := h.Answer(ctx, c.p, c.a.ID, c.kind, "", c.terminal); !errdefs.IsPermissionDenied(err) {
			t.Errorf("%s: %v", name, err)
		}
		h.expect(at, "denial approval.answer denied permission_denied")
	}
	if _, err := h.Approval(ctx, bob, mine.ID); !errdefs.IsPermissionDenied(err) {
		t.Error(err)
	}
	if list, _, err := h.Approvals(ctx, bob, approval.Filter{Limit: 10}); err != nil || len(list) != 0 {
		t.Errorf("a stranger sees %d, %v", len(list), err)
	}
	// Who typed it, at a terminal: and the record says that it was they.
	at := len(h.records())
	if _, err := h.Answer(ctx, alice, mine.ID, approval.Once, "", true); err != nil {
		t.Fatal(err)
	}
	if r := h.records()[at]; string(r.Data) != `{"kind":"once","self":true,"source":"user"}` || r.Principal != "uid:1000" {
		t.Errorf("%+v", r)
	}
	// Asked for again, the same is let pass, once, and nothing else is.
	other := upload("user", "")
	other.Argv = append(other.Argv, "-v")
	h.askNow(alice, other)
	if _, _, err := h.Run(ctx, alice, "demo", upload("user", "")); err != nil {
		t.Error(err)
	}
	h.askNow(alice, upload("user", ""))
}

// An administrator answers their own, and the record says so and who wrote it; unless askers and answerers
// are kept separate.
func TestAdministratorsAnswerTheirOwn(t *testing.T) {
	h := newHouse(t)
	ctx := t.Context()
	h.create(root, "demo")
	mine := h.askNow(root, upload("llm", ""))
	at := len(h.records())
	if _, err := h.Answer(ctx, root, mine.ID, approval.Once, "", false); err != nil {
		t.Fatal(err)
	}
	if r := h.records()[at]; string(r.Data) != `{"kind":"once","self":true,"source":"llm"}` || r.Principal != "uid:0" {
		t.Errorf("%+v", r)
	}
	if _, _, err := h.Run(ctx, root, "demo", upload("llm", "")); err != nil {
		t.Error(err)
	}
	h.crash()
	h.separate = true
	h.start()
	mine = h.askNow(root, upload("llm", ""))
	if _, err := h.Answer(ctx, root, mine.ID, approval.Once, "", true); !errdefs.IsPermissionDenied(err) {
		t.Errorf("where they are separate: %v", err)
	}
}

// An answer for a thread is for exactly those words, there, by them, in that thread, in
// that directory with those variables; and never for what a rule forbids to remember.
func TestThreadDoesNotWiden(t *testing.T) {
	h := newHouse(t)
	ctx := t.Context()
	h.create(alice, "demo")
	h.create(alice, "other")
	h.answer(root, h.askNow(alice, upload("llm", "t1")), approval.Thread)
	for range 3 { // the answer itself, and then what is remembered
		if _, _, err := h.Run(ctx, alice, "demo", upload("llm", "t1")); err != nil {
			t.Fatal(err)
		}
	}
	last := slices.IndexFunc(h.records(), func(r audit.Record) bool { return strings.HasSuffix(r.Approval, " remembered") })
	if last < 0 {
		t.Error("the record does not say that it was remembered")
	}
	for name, change := range map[string]func(*execapi.ExecParams){
		"another word":      func(e *execapi.ExecParams) { e.Argv[2] = "@/etc/passwd" },
		"one word more":     func(e *execapi.ExecParams) { e.Argv = append(e.Argv, "https://evil.example") },
		"another thread":    func(e *execapi.ExecParams) { e.Asked.Thread = "t2" },
		"no thread":         func(e *execapi.ExecParams) { e.Asked.Thread = "" },
		"another directory": func(e *execapi.ExecParams) { e.Cwd = "/tmp" },
		"a variable":        func(e *execapi.ExecParams) { e.Env = []string{"PATH=/tmp"} },
		"on a shell":        func(e *execapi.ExecParams) { e.Argv = []string{"sh", "-c", strings.Join(e.Argv, " ")} },
	} {
		e := upload("llm", "t1")
		e.Asked.WaitMS = -1
		change(&e)
		if _, _, err := h.Run(ctx, alice, "demo", e); !errdefs.IsFailedPrecondition(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, c := range map[string]struct {
		p  principal.Principal
		in string
	}{"another workspace": {alice, "other"}, "another principal": {root, "demo"}} {
		e := upload("llm", "t1")
		e.Asked.WaitMS = -1
		if _, _, err := h.Run(ctx, c.p, c.in, e); !errdefs.IsFailedPrecondition(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// It is listed, and taken back.
	list, err := h.Permissions(ctx, alice, "", "")
	if err != nil || len(list) != 1 || list[0].String() != "Bash(git push https://example.com/in notes)" {
		t.Fatalf("%v %v", list, err)
	}
	if list, err := h.Permissions(ctx, bob, "", ""); err != nil || len(list) != 0 {
		t.Errorf("a stranger sees %v %v", list, err)
	}
	if err := h.RevokePermission(ctx, bob, list[0].From); !errdefs.IsPermissionDenied(err) {
		t.Error(err)
	}
	if err := h.RevokePermission(ctx, alice, list[0].From); err != nil {
		t.Fatal(err)
	}
	h.askNow(alice, upload("llm", "t1"))

	home := run("rm", "-rf", "/home/work")
	home.Asked = execapi.Asked{Source: "llm", Thread: "t1"}
	a := h.askNow(alice, home)
	if _, err := h.Answer(ctx, root, a.ID, approval.Thread, "", false); !a.Final || !errdefs.IsPermissionDenied(err) {
		t.Errorf("an answer to what destroys was remembered: %v", err)
	}
}

// Without an answer nothing runs, and the denial says how to answer.
func TestNobodyAnswers(t *testing.T) {
	h := newHouse(t)
	h.create(alice, "demo")
	at := len(h.records())
	h.wait = 30 * time.Millisecond
	h.crash()
	h.start()
	at++ // that it was started
	_, _, err := h.Run(t.Context(), alice, "demo", upload("llm", ""))
	if !errdefs.IsPermissionDenied(err) || !strings.Contains(err.Error(), "nobody answered approval ap-") ||
		!strings.Contains(err.Error(), "carrel approvals approve") {
		t.Error(err)
	}
	h.expect(at, "request command.exec", "approval denied", "denial command.exec denied permission_denied")
	if list, _, err := h.Approvals(t.Context(), alice, approval.Filter{Limit: 9}); err != nil || len(list) != 1 ||
		list[0].State != approval.Expired {
		t.Errorf("%+v %v", list, err)
	}
	// A request bounds its own question.
	h.wait = 0
	h.crash()
	h.start()
	e := upload("llm", "")
	e.Asked.WaitMS = 20
	if _, _, err = h.Run(t.Context(), alice, "demo", e); !errdefs.IsPermissionDenied(err) || !strings.Contains(err.Error(), "in time") {
		t.Error(err)
	}
	if h.rt.count("run") != 0 {
		t.Error("it ran")
	}
}

// Questions and answers survive a crash; a question that nobody waits for any more is taken
// up by who asks for the same.
func TestApprovalsSurviveACrash(t *testing.T) {
	h := newHouse(t)
	ctx := t.Context()
	h.create(alice, "demo")
	first := h.askNow(alice, upload("llm", ""))
	h.crash()
	h.start()
	a, done := h.startedAgain(alice, upload("llm", ""), first.ID)
	if a.ID != first.ID || !a.Until.Equal(first.Until) {
		t.Errorf("%s until %s became %s until %s", first.ID, first.Until, a.ID, a.Until)
	}
	h.answer(root, a, approval.Once)
	if err := <-done; err != nil {
		t.Fatal(err)
	}

	second := h.askNow(alice, upload("llm", ""))
	h.answer(root, second, approval.Once)
	h.crash()
	h.start()
	at := len(h.records())
	if _, _, err := h.Run(ctx, alice, "demo", upload("llm", "")); err != nil {
		t.Error(err)
	}
	if r := h.records()[at]; r.Type != audit.Intent || r.Approval != string(second.ID)+" once by uid:0" {
		t.Errorf("%+v", r)
	}
	h.askNow(alice, upload("llm", ""))
}

func (h *house) startedAgain(p principal.Principal, e execapi.ExecParams, name id.Approval) (approval.View, <-chan error) {
	h.t.Helper()
	done := make(chan error, 1)
	go func() {
		_, _, err := h.Run(h.t.Context(), p, "demo", e)
		done <- err
	}()
	a, err := h.Approval(h.t.Context(), root, name)
	if err != nil {
		h.t.Fatal(err)
	}
	return a, done
}

// Of an approval that was spent, a start finds out whether its intent was written.
func TestSpentWithoutIntent(t *testing.T) {
	h := newHouse(t)
	ctx := t.Context()
	h.create(alice, "demo")
	a := h.askNow(alice, upload("llm", ""))
	h.answer(root, a, approval.Once)
	spend := func() {
		if _, err := h.store.ChangeApproval(ctx, a.ID, func(a approval.Approval) (approval.Approval,
			error,
		) {
			return a.Spend(a.Subject, time.Now())
		}); err != nil {
			t.Fatal(err)
		}
	}
	spend() // and there it crashed
	h.crash()
	h.start()
	if now, err := h.Approval(ctx, root, a.ID); err != nil || now.State != approval.Approved {
		t.Fatalf("an answer was lost: %s %v", now.State, err)
	}
	if _, _, err := h.Run(ctx, alice, "demo", upload("llm", "")); err != nil {
		t.Fatal(err)
	}
	if err := h.store.SettleApproval(ctx, a.ID, 0); err != nil { // as if it had crashed before that
		t.Fatal(err)
	}
	h.crash()
	h.start()
	if now, err := h.Approval(ctx, root, a.ID); err != nil || now.State != approval.Spent {
		t.Errorf("an answer could be spent twice: %s %v", now.State, err)
	}
}

// Two that ask for the same at once need two answers.
func TestOneAnswerForOne(t *testing.T) {
	h := newHouse(t)
	h.create(alice, "demo")
	a, first := h.started(alice, upload("llm", ""))
	b, second := h.started(alice, upload("llm", ""))
	if a.ID == b.ID {
		t.Fatal("they share a question")
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() { _, _ = h.Answer(t.Context(), root, a.ID, approval.Once, "", false) })
	}
	wg.Wait()
	if err := <-first; err != nil {
		t.Error(err)
	}
	if n := h.rt.count("run"); n != 1 {
		t.Errorf("%d ran", n)
	}
	h.answer(root, b, approval.Deny)
	if err := <-second; !errdefs.IsPermissionDenied(err) {
		t.Error(err)
	}
	answers := 0
	for _, r := range h.records() {
		if r.Type == audit.Approval && r.Approval == string(a.ID) {
			answers++
		}
	}
	if answers != 1 {
		t.Errorf("%d answers are recorded", answers)
	}
}

// A command that is longer than a person reads is not asked about.
func TestTooLongToAsk(t *testing.T) {
	h := newHouse(t)
	h.create(alice, "demo")
	e := upload("llm", "")
	e.Argv = append(e.Argv, strings.Repeat("x", 20_000))
	if _, _, err := h.Run(t.Context(), alice, "demo", e); !errdefs.IsPermissionDenied(err) || !strings.Contains(err.Error(), "smaller steps") {
		t.Error(err)
	}
}

// A daemon that stops lets go of those who wait, and keeps the questions.
func TestStopAsking(t *testing.T) {
	h := newHouse(t)
	h.create(alice, "demo")
	a, done := h.started(alice, upload("llm", ""))
	h.StopAsking()
	if err := <-done; !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), string(a.ID)) {
		t.Error(err)
	}
	if a, err := h.Approval(t.Context(), alice, a.ID); err != nil || a.State != approval.Pending {
		t.Errorf("%s %v", a.State, err)
	}
}

// From a person's answer to the start of the command: the record, the database twice and
// the intent.
func BenchmarkAnsweredToStarted(b *testing.B) {
	h := newHouse(b)
	h.create(alice, "demo")
	started := make(chan time.Time, 1)
	h.rt.setHook(func(op string, _ id.Workspace) error {
		if op == "run" {
			started <- time.Now()
		}
		return nil
	})
	var took []time.Duration
	for b.Loop() {
		a, done := h.started(alice, upload("llm", ""))
		began := time.Now()
		h.answer(root, a, approval.Once)
		took = append(took, (<-started).Sub(began))
		if err := <-done; err != nil {
			b.Fatal(err)
		}
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "µs-p50")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "µs-p99")
}
