// Package approvals has people answer for operations that the policy does not let pass by
// itself: it keeps questions and answers, spends each answer once, remembers what a person
// allowed for a conversation, and ends questions that nobody answers in time.
//
// It must not judge, and it must not carry anything out.
package approvals

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/crashpoint"
	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/base/keylock"
	"github.com/carrel-dev/carrel/internal/gate"
	"github.com/carrel-dev/carrel/internal/gate/judge"
	"github.com/carrel-dev/carrel/internal/policy/rules"
	"github.com/carrel-dev/carrel/internal/service/events"
	"github.com/carrel-dev/carrel/internal/spec/approval"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/state/audit"
	"github.com/carrel-dev/carrel/internal/state/record"
	"github.com/carrel-dev/carrel/internal/state/store"
)

// What becomes of a request that a person is asked about, and what is on disk after each
// step. A crash between any two loses no answer, spends none twice and runs nothing that has
// no intent:
//
//	request recorded ─► question kept ─► …
//	answer recorded  ─► answer kept   ─► spent ─► intent recorded ─► settled ─► effect
//	                                       └─ found unsettled at a start: if the record has the
//	                                          intent it was used, else it is approved again
//
// The answer is recorded before it counts, so that none counts that the record does not have;
// after a crash in between, the question is asked again.

const (
	// maxAsked bounds the words of a command that a person is asked about, in bytes: nobody
	// reads more.
	maxAsked = 16 << 10
	// maxQuestion bounds what is kept of a question, in bytes: its words three times over, as
	// the question, as what an answer is bound to and as the parts that were judged, and why.
	maxQuestion = 128 << 10
	// maxSegments bounds what is kept of how its parts were judged.
	maxSegments = 128
)

// Config holds the dependencies of New. All but Wait and Clock are required.
type Config struct {
	Store   *store.Store
	Audit   *audit.Log
	Records *record.Writer
	Judge   *judge.Judge
	Events  *events.Events
	// Wait is how long a question is open, 0 for the default.
	Wait time.Duration
	// Separate is whether administrators may not approve what they asked for themselves.
	Separate bool
	// Clock is for tests of a clock that steps.
	Clock Clock
	Log   *slog.Logger
}

// Questions are the questions that people are asked. Its methods may be called from any
// goroutine.
type Questions struct {
	cfg     Config
	gate    *gate.Gate
	find    func(ref string) (operation.Target, error)
	addRule AddRule

	clock   clock
	waiting waiting
	view    view
	// reading lets each owner read what is kept once at a time, however many of their streams want to: the database answers in
	// order, and who opens many watches must wait for themselves.
	reading keylock.Turns
	// answering is held from the look at a question to its change, for each question.
	answering locks
	// allowing is held while the rules that allow commands are read.
	allowing sync.Mutex

	quit     chan struct{} // closed when nobody is to wait any more
	quitOnce sync.Once
}

// New returns questions without a gate, which is bound before anything is asked.
func New(cfg Config) *Questions {
	return &Questions{cfg: cfg, clock: newClock(cfg.Clock), waiting: newWaiting(), view: newView(), quit: make(chan struct{})}
}

// AddRule lets a workspace reach what a network rule names, as by asks, if they may.
type AddRule func(ctx context.Context, by principal.Principal, name id.Workspace, rule string) error

// Bind says which gate authorises those who answer, how a workspace is found, and how an answer of kind Always adds its
// rule.
func (q *Questions) Bind(g *gate.Gate, find func(ref string) (operation.Target, error), add AddRule) {
	q.gate, q.find, q.addRule = g, find, add
}

var _ gate.Asker = (*Questions)(nil)

// Ask implements gate.Asker.
func (q *Questions) Ask(ctx context.Context, x *gate.Question) (gate.Pass, error) {
	subject, err := subjectOf(x)
	if err != nil {
		return gate.Pass{}, err
	}
	if hidden := hiddenOf(x); hidden != "" {
		return gate.Pass{}, refused(x, "a person has to approve it, and would not see all of it: %s", record.Veiled(hidden))
	}
	if c, ok := x.Request.Op.(operation.Commanding); ok {
		if n := size(c.Command().Argv) + size(c.Command().Env); n > maxAsked {
			return gate.Pass{}, refused(x, "a person has to approve it, and %d bytes are more than one reads; put what it does into a file of "+
				"at most %d bytes or into smaller steps", n, maxAsked)
		}
	}
	o, err := q.open(ctx, x, askOf(x, subject))
	if err != nil || o.pass.Text != "" {
		return o.pass, err
	}
	if o.waiter != nil {
		defer q.waiting.leave(o.waiter)
		if err := q.await(ctx, x, o.approval, o.waiter); err != nil {
			return gate.Pass{}, err
		}
	}
	return q.spend(ctx, x, subject, o.approval.ID, o.waiter != nil)
}

func askOf(x *gate.Question, s approval.Subject) approval.Ask {
	r := x.Request
	a := approval.Ask{
		ID: id.NewApproval(), Subject: s, Owner: r.By.Owner(), Makers: r.By.Makers(), Written: judge.SourceOf(r) != rules.User,
		Final: x.Judgement.NeverWhitelist,
	}
	if c, ok := r.Op.(operation.Connect); ok {
		a.Always = c.Target()
	}
	if p, ok := r.Op.(operation.Plan); ok {
		a.Steps, a.Files = p.First() < len(p.Steps), p.Files
		a.Keep = keepOf(x, p)
	}
	return a
}

// refused is a refusal of the request that a question is about.
func refused(x *gate.Question, format string, v ...any) error {
	return gate.Refuse(fmt.Errorf("cannot %s: "+format+": %w", append(append([]any{sentence(x.Request)}, v...),
		errdefs.ErrPermissionDenied)...))
}

// sentence is a request as a person reads it.
func sentence(r *operation.Request) string { return operation.Of(r.Op.Op()).Sentence(r.On) }

// opened is a question that a request can wait for: one that waits for an answer, or one that
// is approved and then has no waiter; or pass, if an earlier answer covers it.
type opened struct {
	approval approval.Approval
	waiter   *waiter
	pass     gate.Pass
}

// open finds or asks the question. One that an earlier request with the same subject left is
// taken up. An answer that was not used comes before what is remembered, so that none is left
// to be used later.
func (q *Questions) open(ctx context.Context, x *gate.Question, ask approval.Ask) (opened, error) {
	same, err := q.cfg.Store.OpenApprovals(ctx, ask.Subject)
	if err != nil {
		return opened{}, err
	}
	for _, a := range same {
		switch a.At(q.clock.now()) {
		case approval.Approved:
			return opened{approval: a.Approval}, nil
		case approval.Pending:
			if w := q.waiting.take(a.ID); w != nil {
				q.waiting.offer(w, partOf(x))
				return opened{approval: a.Approval, waiter: w}, nil
			}
		case approval.Denied, approval.Expired, approval.Spent:
		}
	}
	if ask.Subject.Thread != "" && !ask.Final {
		p, ok, err := q.cfg.Store.PermissionFor(ctx, ask.Subject)
		if err != nil {
			return opened{}, err
		}
		if ok && p.Covers(ask.Subject, ask.Final) {
			return opened{pass: gate.Pass{Text: string(p.From) + " remembered"}}, nil
		}
	}
	if pass, ok, err := q.remembered(ctx, ask); ok || err != nil {
		return opened{pass: pass}, err
	}
	if _, plan := x.Request.Op.(operation.Plan); plan && x.Request.Wait < 0 {
		return opened{}, gate.Refuse(fmt.Errorf("a person has to approve it, and nobody is asked in this turn: ask at a terminal, or say how "+
			"long to wait for an answer (--wait): %w", errdefs.ErrPermissionDenied))
	}
	return q.ask(ctx, x, ask)
}

// ask keeps a new question and tells of it.
func (q *Questions) ask(ctx context.Context, x *gate.Question, ask approval.Ask) (o opened, err error) {
	wait := q.cfg.Wait
	if x.Request.Wait > 0 {
		wait = x.Request.Wait
	}
	a, err := approval.New(ask, q.clock.now(), wait)
	if err != nil {
		return o, err
	}
	kept := store.Approval{Approval: a, Owner: x.Request.On.Owner}
	bytes := int64(0)
	if err = kept.Show(questionOf(x)); err == nil {
		bytes, err = kept.Bytes()
	}
	if err != nil {
		return o, fmt.Errorf("cannot write down what a person is asked: %w", err)
	}
	if bytes > maxQuestion {
		return o, refused(x, "a person has to approve it, and with how its parts were judged the question takes %d bytes, of at most %d; "+
			"put what it does into a file or into smaller steps", bytes, maxQuestion)
	}
	w, err := q.waiting.admit(&a, bytes) // before another request with the same subject sees it
	if err != nil {
		return o, gate.Refuse(err)
	}
	q.waiting.offer(w, partOf(x))
	if err := appendRequest(ctx, x, a.ID); err != nil {
		q.waiting.finish(a.ID, false)
		return o, err
	}
	crashpoint.Here("daemon.approval.requested")
	// What is recorded is kept, so that it gets an end: whoever asked may have left.
	if err := q.cfg.Store.Ask(context.WithoutCancel(ctx), kept); err != nil {
		q.waiting.finish(a.ID, false)
		return o, err
	}
	crashpoint.Here("daemon.approval.asked")
	v := shownOf(kept)
	q.show(v, bytes)
	q.tell(&v, "approval.asked", audit.StatusOK)
	return opened{approval: a, waiter: w}, nil
}

// appendRequest records what a person is asked.
func appendRequest(ctx context.Context, x *gate.Question, name id.Approval) error {
	rec := x.Record.Intent()
	rec.Type, rec.Approval = audit.Request, string(name)
	rec.Policy, rec.Decision = x.Judgement.Level.String(), x.Judgement.Recorded
	if _, err := x.Record.Append(ctx, rec); err != nil {
		return fmt.Errorf("cannot record what a person is asked, so it was not asked: %w", err)
	}
	return nil
}

// show shows a question, of which so many bytes are kept, as the store has it now. Whoever waits for a change
// goes on only then, and so makes the next one.
func (q *Questions) show(v approval.View, size int64) { q.view.put(questionIn(&v, size)) }

// tell tells those who watch the workspace.
func (q *Questions) tell(v *approval.View, event, status string) {
	q.cfg.Events.Add(workspace.Event{
		Time: time.Now(), Workspace: v.Subject.Workspace, Key: v.Key, Owner: v.Owner, Kind: event, Status: status,
		Principal: v.Subject.By, Note: string(v.ID),
	})
}

// await returns when a question was answered.
func (q *Questions) await(ctx context.Context, x *gate.Question, a approval.Approval, w *waiter) error {
	what := sentence(x.Request)
	left := fmt.Sprintf("a person has to approve it: approval %s, open until %s; see it with \"carrel approvals show %s\", answer it "+
		"with \"carrel approvals approve %s\" or deny, and ask again",
		a.ID, a.Until.UTC().Format(time.RFC3339), a.ID, a.ID)
	limit := x.Request.Wait
	if limit == 0 && !operation.Of(x.Request.Op.Op()).Judged.Command {
		limit = -1 // only who runs a command may have been told that it waits
	}
	if limit < 0 {
		return fmt.Errorf("cannot %s yet: %s: %w", what, left, errdefs.ErrFailedPrecondition)
	}
	wait := w.until.Sub(q.clock.now())
	if limit > 0 {
		wait = min(wait, limit)
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-w.done:
		return nil
	case <-q.cfg.Judge.Changed(x.Judgement.Policy):
		// It is put anew with what the policy says now. An answer that came a moment before is looked at with the policy of then.
		if q.expire(context.WithoutCancel(ctx), a.ID); w.answered {
			return nil
		}
		return gate.ErrJudgeAgain
	case <-t.C:
		if q.clock.now().Before(w.until) { // it waited for less long than the question does
			return refused(x, "nobody has answered in the time that it was to wait; %s", left)
		}
		q.expire(context.WithoutCancel(ctx), a.ID)
		return refused(x, "nobody answered approval %s in time; ask for it again, and have it answered with \"carrel approvals approve "+
			"ID\" (\"carrel approvals list\" shows what waits)", a.ID)
	case <-x.Request.Gone:
		if q.expire(context.WithoutCancel(ctx), a.ID); w.answered {
			return nil // a moment before
		}
		return refused(x, "it is gone, and approval %s with it", a.ID)
	case <-q.quit:
		return fmt.Errorf("cannot %s: the daemon is stopping; %s: %w", what, left, errdefs.ErrUnavailable)
	case <-ctx.Done():
		return gate.Refuse(fmt.Errorf("cannot %s: its caller has gone; %s: %w", what, left, context.Cause(ctx)))
	}
}

// spend uses an answer up for a request, unless the policy has changed since.
func (q *Questions) spend(ctx context.Context, x *gate.Question, s approval.Subject, name id.Approval, woken bool) (gate.Pass, error) {
	now, err := q.cfg.Judge.Digest()
	if err != nil {
		return gate.Pass{}, err
	}
	if now != x.Judgement.Policy {
		return gate.Pass{}, gate.ErrJudgeAgain
	}
	a, err := q.cfg.Store.ChangeApproval(ctx, name, func(a approval.Approval) (approval.Approval, error) {
		at := q.clock.now()
		if woken && a.Answer != nil {
			at = a.Answer.At // it has waited for nothing else
		}
		return a.Spend(s, at)
	})
	if errdefs.IsPermissionDenied(err) {
		return gate.Pass{}, gate.Refuse(err)
	}
	if err != nil {
		return gate.Pass{}, err
	}
	crashpoint.Here("daemon.approval.spent")
	q.show(shownOf(a), int64(len(a.Shown)))
	ctx = context.WithoutCancel(ctx)
	return gate.Pass{
		Text: passed(a.Approval), First: a.Answer.Kind == approval.Steps, Files: a.Answer.Files, Digest: a.Answer.Digest,
		Spent: func(intent int64) { q.settle(ctx, name, intent) },
	}, nil
}

// passed is an answer in the record of an intent: "ap-… once by uid:0".
func passed(a approval.Approval) string {
	text := fmt.Sprintf("%s %s by %s", a.ID, a.Answer.Kind, a.Answer.By)
	if a.Answer.Self {
		text += ", self"
	}
	return text
}

// settle notes on which intent an approval was spent, beside what goes on.
func (q *Questions) settle(ctx context.Context, name id.Approval, intent int64) {
	q.gate.Later(func() { q.settled(ctx, name, intent) })
}

func (q *Questions) settled(ctx context.Context, name id.Approval, intent int64) {
	if err := q.cfg.Store.SettleApproval(ctx, name, intent); err != nil {
		q.cfg.Log.Error("cannot note what an approval was spent on; the next start finds it in the record", "approval", name, "error", err)
	}
	crashpoint.Here("daemon.approval.settled")
}

// StopAsking ends the waiting for answers: those who wait are told to ask again. The questions
// stay.
func (q *Questions) StopAsking() { q.quitOnce.Do(func() { close(q.quit) }) }

// Here has the person who started this process answer: for a process without a store.
type Here struct {
	// Prompt shows a question and returns the answer; nil is nobody.
	Prompt  func(ctx context.Context, q approval.Question) (approval.Kind, string, error)
	Records *record.Writer
	// Wait is how long an answer may take, 0 for the default.
	Wait time.Duration
}

var _ gate.Asker = Here{}

// Ask implements gate.Asker.
func (h Here) Ask(ctx context.Context, x *gate.Question) (gate.Pass, error) {
	subject, err := subjectOf(x)
	if err != nil {
		return gate.Pass{}, err
	}
	if hidden := hiddenOf(x); hidden != "" {
		return gate.Pass{}, refused(x, "a person has to approve it, and would not see all of it: %s", record.Veiled(hidden))
	}
	subject.Thread = ""
	a, err := approval.New(askOf(x, subject), time.Now(), h.Wait)
	if err != nil {
		return gate.Pass{}, err
	}
	if err := appendRequest(ctx, x, a.ID); err != nil {
		return gate.Pass{}, err
	}
	if h.Prompt == nil {
		return gate.Pass{}, refused(x, "a person has to approve it (%s), and there is no terminal to ask at; run it on one",
			x.Record.Redactor().Text(x.Judgement.Reason()))
	}
	kind, reason, err := h.Prompt(ctx, questionOf(x))
	if err != nil {
		return gate.Pass{}, gate.Refuse(errors.Join(fmt.Errorf("cannot %s: a person has to approve it, and nobody could be asked: %w: %w",
			sentence(x.Request), err, errdefs.ErrPermissionDenied)))
	}
	by := x.Request.By
	if a, err = a.Reply(by, true, kind, reason, time.Now()); err != nil {
		return gate.Pass{}, gate.Refuse(err)
	}
	if _, err := h.Records.Append(context.WithoutCancel(ctx), answerRecord(a, questionOf(x), by, "")); err != nil {
		return gate.Pass{}, fmt.Errorf("cannot record the answer, so it was not done: %w", err)
	}
	if a, err = a.Spend(subject, time.Now()); err != nil {
		return gate.Pass{}, gate.Refuse(err)
	}
	return gate.Pass{Text: passed(a), First: a.Answer.Kind == approval.Steps}, nil
}
