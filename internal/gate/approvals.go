package gate

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/action"
	"github.com/carrel-dev/carrel/internal/approval"
	"github.com/carrel-dev/carrel/internal/audit"
	"github.com/carrel-dev/carrel/internal/crashpoint"
	"github.com/carrel-dev/carrel/internal/id"
	"github.com/carrel-dev/carrel/internal/policy"
	"github.com/carrel-dev/carrel/internal/principal"
	"github.com/carrel-dev/carrel/internal/store"
	"github.com/carrel-dev/carrel/internal/workspace"
)

// What becomes of an action that a person is asked about, and what is on disk after each
// step. A crash between any two loses no answer, spends none twice and runs nothing that has
// no intent:
//
//	request recorded ─► question kept ─► …
//	answer recorded  ─► answer kept   ─► spent ─► intent recorded ─► settled ─► effect
//	                                       └─ found unsettled at a start: if the record has the
//	                                          intent it was used, else it is approved again
//
// The answer is recorded before it counts, so that none counts that the record does not
// have; after a crash in between, the question is asked again.

const (
	// maxAsked bounds the words of a command that a person is asked about, in bytes: what is
	// longer nobody reads.
	maxAsked = 16 << 10
	// maxQuestion bounds what is kept of a question, in bytes: its words three times over, as
	// what is asked, as what an answer is bound to and as the parts that were judged, and why.
	maxQuestion = 128 << 10
	// maxSegments bounds what is kept of how its parts were judged.
	maxSegments = 128
)

// pass is what let an action through that a person had to be asked about.
type pass struct {
	id approval.Approval
	// remembered: it was a permission that came of an earlier answer.
	remembered bool
}

// String is that in a record: "ap-… once by uid:0".
func (p pass) String() string {
	switch {
	case p.id.ID == "":
		return ""
	case p.remembered:
		return string(p.id.ID) + " remembered"
	case p.id.Answer.Self:
		return fmt.Sprintf("%s %s by %s, self", p.id.ID, p.id.Answer.Kind, p.id.Answer.By)
	}
	return fmt.Sprintf("%s %s by %s", p.id.ID, p.id.Answer.Kind, p.id.Answer.By)
}

// subjectOf is what an answer to a request is bound to. The id that carrel gives a command is
// no part of it: the same command asked for again is the same. Secrets among its words stand
// for themselves in the digests and are nowhere kept.
func (g *Gate) subjectOf(r *request) (approval.Subject, error) {
	a := r.action
	a.Command = ""
	canonical, err := a.Canonical()
	if err != nil {
		return approval.Subject{}, err
	}
	s := approval.Subject{Digest: action.Digest(canonical), By: r.by.String(), Workspace: r.on.Name, Policy: r.judged.Policy, Thread: r.thread}
	if a.Kind != action.Exec {
		return s, nil
	}
	s.Argv = g.clean(r).Argv(a.Argv)
	a.TimeoutMS = 0
	if canonical, err = a.Canonical(); err != nil {
		return s, err
	}
	s.Around = action.Digest(canonical)
	return s, nil
}

func (g *Gate) questionOf(r *request) approval.Question {
	clean := g.clean(r)
	q := approval.Question{
		Trace: r.trace, Kind: r.action.Kind, Key: r.on.Key, Owner: r.on.Owner, User: string(r.on.Name), Argv: clean.Argv(r.action.Argv), Cwd: clean.Text(r.action.Cwd),
		Env: clean.Texts(r.action.Env), Source: sourceOf(r), Decision: r.judged.Decision,
	}
	if r.on.Boundary != "" {
		q.Isolation = isolationOf(r)
	}
	// Copies where something changes: the decision is the cache's.
	q.Decision.Reasons = clean.Texts(q.Decision.Reasons)
	segments := q.Decision.Segments
	q.Decision.Segments = make([]policy.Segment, 0, min(len(segments), maxSegments))
	for _, s := range segments[:min(len(segments), maxSegments)] {
		s.Text, s.Reasons = clean.Text(s.Text), clean.Texts(s.Reasons)
		q.Decision.Segments = append(q.Decision.Segments, s)
	}
	return q
}

// confirm has a person answer for a request. When it returns without an error, r.pass is what
// let it through, and it is spent; or, if the policy changed meanwhile, r is to be judged
// anew.
func (g *Gate) confirm(ctx context.Context, r *request) error {
	subject, err := g.subjectOf(r)
	if err != nil {
		return err
	}
	ask := approval.Ask{ID: id.NewApproval(), Subject: subject, Owner: r.by.Owner(), Written: sourceOf(r) != policy.User, Final: r.judged.NeverWhitelist}
	if n := bytesOf(r.action.Argv) + bytesOf(r.action.Env); n > maxAsked {
		return g.deny(ctx, *r, fmt.Errorf("cannot %s: a person has to approve it, and %d bytes are more than one reads; put what it does into a file of at most %d bytes or into smaller steps: %w",
			verbOf(&r.action), n, maxAsked, errdefs.ErrPermissionDenied))
	}
	if g.cfg.Store == nil {
		return g.askHere(ctx, r, ask)
	}
	a, x, err := g.openQuestion(ctx, r, ask)
	if err != nil || r.pass.remembered {
		return err
	}
	if x != nil {
		defer g.approvals.leave(x)
		if err := g.awaitAnswer(ctx, r, a, x); err != nil {
			return err
		}
	}
	return g.spend(ctx, r, a.ID, x != nil)
}

// openQuestion returns the question that a request has to wait for, or an approved one that
// it can spend and then no asking; or neither, if r.pass says that an earlier answer covers
// it. A question that was left by who asked the same before is taken up. An answer that was
// not used comes before what is remembered, so that none is left to be used later.
func (g *Gate) openQuestion(ctx context.Context, r *request, ask approval.Ask) (approval.Approval, *asking, error) {
	open, err := g.cfg.Store.OpenApprovals(ctx, ask.Subject)
	if err != nil {
		return approval.Approval{}, nil, err
	}
	for _, a := range open {
		switch a.At(g.approvals.now()) {
		case approval.Approved:
			return a.Approval, nil, nil
		case approval.Pending:
			if x := g.approvals.take(a.ID); x != nil {
				return a.Approval, x, nil
			}
		case approval.Denied, approval.Expired, approval.Spent:
		}
	}
	if ask.Subject.Thread != "" && !ask.Final {
		p, ok, err := g.cfg.Store.PermissionFor(ctx, ask.Subject)
		if err != nil {
			return approval.Approval{}, nil, err
		}
		if ok && p.Covers(ask.Subject, ask.Final) {
			r.pass = pass{id: approval.Approval{Ask: approval.Ask{ID: p.From}}, remembered: true}
			return approval.Approval{}, nil, nil
		}
	}
	wait := g.cfg.ApprovalWait
	if r.wait > 0 {
		wait = r.wait
	}
	a, err := approval.New(ask, g.approvals.now(), wait)
	if err != nil {
		return a, nil, err
	}
	kept := store.Approval{Approval: a, Owner: r.on.Owner}
	if err = kept.Show(g.questionOf(r)); err != nil {
		return a, nil, fmt.Errorf("cannot write down what a person is asked: %w", err)
	}
	size, err := kept.Bytes()
	if err != nil {
		return a, nil, fmt.Errorf("cannot write down what a person is asked: %w", err)
	}
	if size > maxQuestion {
		return a, nil, g.deny(ctx, *r, fmt.Errorf("cannot %s: a person has to approve it, and with how its parts were judged the question takes %d bytes, of at most %d; put what it does into a file or into smaller steps: %w",
			verbOf(&r.action), size, maxQuestion, errdefs.ErrPermissionDenied))
	}
	rec, err := g.intentOf(r)
	if err != nil {
		return a, nil, err
	}
	rec.Type, rec.Approval = audit.Request, string(a.ID)
	x, err := g.approvals.admit(&a, size) // before another who asks for the same sees it
	if err != nil {
		return a, nil, g.deny(ctx, *r, err)
	}
	if _, err := g.recordOf(r).Append(ctx, rec); err != nil {
		g.approvals.finish(a.ID)
		return a, nil, fmt.Errorf("cannot record what a person is asked, so it was not asked: %w", err)
	}
	crashpoint.Here("daemon.approval.requested")
	if err := g.cfg.Store.Ask(ctx, kept); err != nil {
		g.approvals.finish(a.ID)
		return a, nil, err
	}
	crashpoint.Here("daemon.approval.asked")
	g.changed(a, g.questionOf(r), "approval.asked", "ok")
	return a, x, nil
}

// changed tells those who watch.
func (g *Gate) changed(a approval.Approval, q approval.Question, event, status string) {
	g.approvals.note(a.ID)
	g.events.add(workspace.Event{
		Time: time.Now(), Workspace: a.Subject.Workspace, Key: q.Key, Owner: q.Owner, Kind: event, Status: status, Principal: a.Subject.By, Note: string(a.ID),
	})
}

// awaitAnswer returns when a question was answered. What it returns has been recorded as a
// denial, but for what leaves the question open.
func (g *Gate) awaitAnswer(ctx context.Context, r *request, a approval.Approval, x *asking) error {
	left := fmt.Sprintf("a person has to approve it: approval %s, open until %s; see it with \"carrel approvals show %s\", answer it with \"carrel approvals approve %s\" or deny, and ask again",
		a.ID, a.Until.UTC().Format(time.RFC3339), a.ID, a.ID)
	if r.wait < 0 {
		return fmt.Errorf("cannot %s yet: %s: %w", verbOf(&r.action), left, errdefs.ErrFailedPrecondition)
	}
	wait := x.until.Sub(g.approvals.now())
	if r.wait > 0 {
		wait = min(wait, r.wait)
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-x.done:
		return nil
	case <-t.C:
		if g.approvals.now().Before(x.until) { // it waited for less than the question does
			return g.deny(ctx, *r, fmt.Errorf("cannot %s: nobody has answered in the time that it was to wait; %s: %w", verbOf(&r.action), left, errdefs.ErrPermissionDenied))
		}
		g.expire(a.ID)
		return g.deny(ctx, *r, fmt.Errorf("cannot %s: nobody answered approval %s in time; ask for it again, and have it answered with \"carrel approvals approve ID\" by who may (\"carrel approvals list\" shows what waits): %w",
			verbOf(&r.action), a.ID, errdefs.ErrPermissionDenied))
	case <-g.approvals.quit:
		return fmt.Errorf("cannot %s: the daemon is stopping; %s: %w", verbOf(&r.action), left, errdefs.ErrUnavailable)
	case <-ctx.Done():
		return g.deny(ctx, *r, fmt.Errorf("cannot %s: whoever asked has gone; %s: %w", verbOf(&r.action), left, context.Cause(ctx)))
	}
}

// spend uses an answer up for a request. Of a policy that has changed since, nothing is
// taken: the request is judged again.
func (g *Gate) spend(ctx context.Context, r *request, name id.Approval, woken bool) error {
	f, err := g.rules()
	if err != nil {
		return err
	}
	if f.engine.Digest() != r.judged.Policy {
		r.judged = nil
		return nil
	}
	subject, err := g.subjectOf(r)
	if err != nil {
		return err
	}
	a, err := g.cfg.Store.ChangeApproval(ctx, name, func(a approval.Approval) (approval.Approval, error) {
		now := g.approvals.now()
		if woken && a.Answer != nil {
			now = a.Answer.At // it has waited for nothing else
		}
		return a.Spend(subject, now)
	})
	if errdefs.IsPermissionDenied(err) {
		return g.deny(ctx, *r, err)
	}
	if err != nil {
		return err
	}
	crashpoint.Here("daemon.approval.spent")
	r.pass = pass{id: a.Approval}
	g.approvals.note(name)
	return nil
}

// settle notes what an approval was spent on, beside what goes on.
func (g *Gate) settle(r *request, intent int64) {
	if r.pass.id.ID == "" || r.pass.remembered || g.cfg.Store == nil {
		return
	}
	name := r.pass.id.ID
	g.later(func() {
		if err := g.cfg.Store.SettleApproval(context.Background(), name, intent); err != nil {
			g.cfg.Log.Error("cannot note what an approval was spent on; the next start finds it in the record", "approval", name, "error", err)
		}
		crashpoint.Here("daemon.approval.settled")
	})
}

// askHere has the person who started this process answer.
func (g *Gate) askHere(ctx context.Context, r *request, ask approval.Ask) error {
	ask.Subject.Thread = ""
	a, err := approval.New(ask, time.Now(), g.cfg.ApprovalWait)
	if err != nil {
		return err
	}
	rec, err := g.intentOf(r)
	if err != nil {
		return err
	}
	rec.Type, rec.Approval = audit.Request, string(a.ID)
	if _, err := g.recordOf(r).Append(ctx, rec); err != nil {
		return fmt.Errorf("cannot record what you are asked, so it was not done: %w", err)
	}
	if g.cfg.Ask == nil {
		return g.deny(ctx, *r, fmt.Errorf("cannot %s: a person has to approve it (%s), and there is no terminal to ask at; run it on one: %w",
			verbOf(&r.action), g.clean(r).Text(firstReason(r.judged)), errdefs.ErrPermissionDenied))
	}
	kind, reason, err := g.cfg.Ask(ctx, g.questionOf(r))
	if err != nil {
		return g.deny(ctx, *r, fmt.Errorf("cannot %s: a person has to approve it, and nobody could be asked: %w: %w", verbOf(&r.action), err, errdefs.ErrPermissionDenied))
	}
	subject := a.Subject
	if a, err = a.Reply(r.by, true, kind, reason, time.Now()); err != nil {
		return g.deny(ctx, *r, err)
	}
	if _, err := g.record.Append(ctx, answerRecord(a, r.trace, r.by)); err != nil {
		return fmt.Errorf("cannot record the answer, so it was not done: %w", err)
	}
	if a, err = a.Spend(subject, time.Now()); err != nil {
		return g.deny(ctx, *r, err)
	}
	r.pass = pass{id: a}
	return nil
}

func firstReason(j *judgement) string {
	if len(j.Reasons) == 0 {
		return "no rule speaks of it"
	}
	return shortReason(j.Reasons[0])
}

// answered is the Data of a record of an answer.
type answered struct {
	Kind   approval.Kind `json:"kind"`
	Reason string        `json:"reason,omitempty"`
	Self   bool          `json:"self,omitempty"`
	// Permission is what is remembered of it, as "Bash(cat /etc/os-release)".
	Permission string `json:"permission,omitempty"`
}

// expired is the kind of an answer that nobody gave.
const expired approval.Kind = "expired"

// answerOf is what a record of an answer says of it.
func answerOf(r audit.Record) (a answered) {
	_ = json.Unmarshal(r.Data, &a) // one that says nothing is no answer
	return a
}

func answerRecord(a approval.Approval, trace id.Trace, by principal.Principal) audit.Record {
	data := answered{Kind: expired}
	rec := audit.Record{
		Type: audit.Approval, Trace: trace, Principal: by.String(), Owner: onBehalf(by), Workspace: a.Subject.Workspace, ActionDigest: a.Subject.Digest,
		Approval: string(a.ID), Status: audit.StatusDenied,
	}
	if a.Answer != nil {
		data = answered{Kind: a.Answer.Kind, Reason: a.Answer.Reason, Self: a.Answer.Self}
		if a.Answer.Kind != approval.Deny {
			rec.Status = audit.StatusOK
		}
		if p, ok := a.Permission(); ok {
			data.Permission = clipTo(p.String(), maxError)
		}
	}
	rec.Data, _ = json.Marshal(data) // texts and truth values always marshal
	return rec
}

// settleLeft finds for approvals that were spent whether the record has their intent. One
// whose intent was not written let nothing pass: it is approved as before.
func (g *Gate) settleLeft(ctx context.Context) error {
	left, err := g.cfg.Store.UnsettledApprovals(ctx)
	if err != nil || len(left) == 0 {
		return err
	}
	found, err := g.intentsOf(ctx, left)
	if err != nil {
		return err
	}
	for _, a := range left {
		if seq := found[a.ID]; seq != 0 {
			if err := g.cfg.Store.SettleApproval(ctx, a.ID, seq); err != nil {
				return err
			}
			continue
		}
		g.cfg.Log.Warn("an approval was not used before the last end; it is as before", "approval", a.ID)
		if _, err := g.cfg.Store.ChangeApproval(ctx, a.ID, func(a approval.Approval) (approval.Approval, error) {
			a.State = approval.Approved
			return a, nil
		}); err != nil {
			return err
		}
	}
	return nil
}

func isolationOf(r *request) string {
	return "boundary=" + string(r.on.Boundary) + " root=" + string(r.on.Root)
}

func shownOf(a store.Approval) approval.View {
	out := approval.View{Approval: a.Approval}
	if err := json.Unmarshal(a.Shown, &out.Question); err != nil {
		out.Argv = a.Subject.Argv // what it is bound to can be shown all the same
	}
	out.Owner = a.Owner
	return out
}
