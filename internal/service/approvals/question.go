package approvals

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/base/redact"
	"github.com/carrel-dev/carrel/internal/gate"
	"github.com/carrel-dev/carrel/internal/gate/judge"
	"github.com/carrel-dev/carrel/internal/policy/rules"
	"github.com/carrel-dev/carrel/internal/spec/approval"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/state/audit"
	"github.com/carrel-dev/carrel/internal/state/record"
	"github.com/carrel-dev/carrel/internal/state/store"
)

// subjectOf is what an answer to a request is bound to. The id that carrel gives a command is
// no part of it: the same command asked for again is the same. Secrets among its words stand
// for themselves in the digests and are nowhere kept.
func subjectOf(x *gate.Question) (approval.Subject, error) {
	r := x.Request
	digest, err := operation.Same(r.Op, r.On)
	if err != nil {
		return approval.Subject{}, err
	}
	s := approval.Subject{
		Digest: digest, By: r.By.String(), Workspace: r.On.Workspace(), Policy: x.Judgement.Policy, Thread: r.Thread,
	}
	command, commands := r.Op.(operation.Commanding)
	if !commands || r.Op.Op() != operation.ExecCommand {
		return s, nil
	}
	s.Argv = x.Record.Argv()
	words := command.Command()
	words.TimeoutMS = 0
	s.Around, err = operation.Same(command.With(words), r.On)
	return s, err
}

// questionOf is what a person is shown of a request, without secrets.
func questionOf(x *gate.Question) approval.Question {
	r, clean := x.Request, x.Record.Redactor()
	q := approval.Question{
		Trace: r.Trace, Kind: r.Op.Op(), Key: r.On.Key, Owner: r.On.Owner, User: string(r.On.Name), Source: judge.SourceOf(r),
		Isolation: r.On.Isolation(), Decision: x.Judgement.Decision,
	}
	if c, ok := r.Op.(operation.Commanding); ok {
		words := c.Command()
		q.Argv, q.Cwd, q.Env = x.Record.Argv(), clean.Text(words.Cwd), clean.Texts(words.Env)
	}
	if c, ok := r.Op.(operation.Connect); ok {
		q.Host, q.Port, q.Rule = clean.Text(c.Host), c.Port, clean.Text(c.Rule)
	}
	reasons := q.Decision.Reasons
	if c, ok := r.Op.(operation.TaskAsks); ok {
		q.Argv = clean.Argv(c.Asked)
		reasons = append(slices.Clone(reasons), "task "+string(c.ID)+" says: "+c.Title)
	}
	if p, ok := r.Op.(operation.Plan); ok {
		q.Argv = clean.Texts(p.Lines())
		reasons = append(slices.Concat(reasons, stepReasons(p)), "the agent says that it is for: "+p.Goal)
		if p.From > 0 {
			reasons = append(reasons, fmt.Sprintf("you approve plan %d one step at a time: it has %d steps", p.Number, p.Whole))
		}
	}
	// Copies where something changes: the decision is the cache's.
	q.Decision.Reasons = clean.Texts(reasons)
	segments := q.Decision.Segments
	q.Decision.Segments = make([]rules.Segment, 0, min(len(segments), maxSegments))
	for _, s := range segments[:min(len(segments), maxSegments)] {
		s.Text, s.Reasons = clean.Text(s.Text), clean.Texts(s.Reasons)
		q.Decision.Segments = append(q.Decision.Segments, s)
	}
	return q
}

// A question names the reasons of at most so many steps of a plan, of each so many, and of each reason so many bytes.
const maxStepReasons, maxReasonsOfStep, maxReasonOfStep = 16, 3, 200

// stepReasons are what the policy asks about steps of a plan for. The same step on several hosts is named once.
func stepReasons(p operation.Plan) (all []string) {
	more := 0
	for i, s := range p.Steps {
		if len(s.Why) == 0 || i > 0 && s.Command == p.Steps[i-1].Command && slices.Equal(s.Why, p.Steps[i-1].Why) {
			continue
		}
		if len(all) == maxStepReasons {
			more++
			continue
		}
		var why []string
		for _, r := range s.Why[:min(len(s.Why), maxReasonsOfStep)] {
			if len(r) > maxReasonOfStep {
				r = strings.ToValidUTF8(r[:maxReasonOfStep], "") + "…"
			}
			why = append(why, r)
		}
		all = append(all, fmt.Sprintf("step %d: %s", max(p.From-1, 0)+i+1, strings.Join(why, "; ")))
	}
	if more > 0 {
		all = append(all, fmt.Sprintf("%d steps more have reasons of their own", more))
	}
	return all
}

// shownOf is a kept question as it was shown.
func shownOf(a store.Approval) approval.View {
	out := approval.View{Approval: a.Approval}
	if err := json.Unmarshal(a.Shown, &out.Question); err != nil {
		out.Argv = a.Subject.Argv // what it is bound to can be shown all the same
	}
	out.Owner = a.Owner
	return out
}

// cleaned is a question as a person sees it now: what is known to be secret may not have been
// when it was asked. Its key stays in what is kept, where it says whom it belongs to.
func cleaned(r *redact.Redactor, v approval.View) approval.View {
	if r == nil {
		return v
	}
	q := &v.Question
	q.Key, q.Cwd, q.Argv, q.Env = id.Key(r.Text(string(q.Key))), r.Text(q.Cwd), r.Argv(q.Argv), r.Texts(q.Env)
	q.Host, q.Rule = r.Text(q.Host), r.Text(q.Rule)
	q.Decision.Reasons = r.Texts(q.Decision.Reasons)
	q.Decision.Segments = slices.Clone(q.Decision.Segments) // others look at these
	for i := range q.Decision.Segments {
		s := &q.Decision.Segments[i]
		s.Text, s.Reasons = r.Text(s.Text), r.Texts(s.Reasons)
	}
	v.Subject.Argv, v.Files = r.Argv(v.Subject.Argv), r.Texts(v.Files)
	if v.Answer != nil {
		answer := *v.Answer
		answer.Reason, answer.Files = r.Text(answer.Reason), r.Texts(answer.Files)
		v.Answer = &answer
	}
	return v
}

// answered is the Data of a record of an answer.
type answered struct {
	Kind   approval.Kind `json:"kind"`
	Reason string        `json:"reason,omitempty"`
	Self   bool          `json:"self,omitempty"`
	// Files are those of an answer to some of a plan's files. The digest of the record is then that of the smaller plan, and Whole
	// that of the plan that was asked about.
	Files []string `json:"files,omitempty"`
	Whole string   `json:"whole,omitempty"`
	// Source is who wrote what they approved for themselves.
	Source rules.Origin `json:"source,omitempty"`
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

func answerRecord(a approval.Approval, asked approval.Question, by principal.Principal) audit.Record {
	data := answered{Kind: expired}
	rec := audit.Record{
		Type: audit.Approval, Trace: asked.Trace, Principal: by.String(), Owner: record.OnBehalf(by), Workspace: a.Subject.Workspace,
		ActionDigest: a.Subject.Digest, Approval: string(a.ID), Status: audit.StatusDenied,
	}
	if a.Answer != nil {
		data = answered{Kind: a.Answer.Kind, Reason: a.Answer.Reason, Self: a.Answer.Self}
		if data.Self {
			data.Source = asked.Source
		}
		if a.Answer.Kind == approval.Files {
			data.Files, data.Whole, rec.ActionDigest = a.Answer.Files, a.Subject.Digest, a.Answer.Digest
		}
		if a.Answer.Kind != approval.Deny {
			rec.Status = audit.StatusOK
		}
		if p, ok := a.Permission(); ok {
			data.Permission = record.Clip(p.String())
		}
	}
	rec.Data, _ = json.Marshal(data) // texts and truth values always marshal
	return rec
}

func size(list []string) int {
	n := 0
	for _, s := range list {
		n += len(s)
	}
	return n
}

// partOf returns the digest of the part of a request's plan that is about some of its files; nil if there is no such part.
func partOf(x *gate.Question) func(files []string) (string, error) {
	p, ok := x.Request.Op.(operation.Plan)
	if !ok || p.Part == nil {
		return nil
	}
	on := x.Request.On
	return func(files []string) (string, error) {
		part, err := p.Part(files)
		if err != nil {
			return "", err
		}
		return operation.Same(part, on)
	}
}

// clean is an approval whose answer has no secrets in the names of files.
func (q *Questions) clean(a approval.Approval) approval.Approval {
	if a.Answer != nil {
		answer := *a.Answer
		answer.Files = q.cfg.Records.Redactor().Texts(answer.Files)
		a.Answer = &answer
	}
	return a
}
