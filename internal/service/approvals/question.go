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

// questionOf is what a person is shown of a request, without secrets. What a model wrote is shown whole, but for secrets that are one
// plain word: see hiddenOf.
func questionOf(x *gate.Question) approval.Question {
	r, clean := x.Request, x.Record.Redactor()
	text, argv := clean.Text, x.Record.Argv
	if written(r) {
		text = func(s string) string {
			s, _ = clean.Plain(s)
			return s
		}
	}
	texts := func(list []string) []string {
		out := make([]string, 0, len(list))
		for _, s := range list {
			out = append(out, text(s))
		}
		return out
	}
	q := approval.Question{
		Trace: r.Trace, Kind: r.Op.Op(), Key: r.On.Key, Owner: r.On.Owner, User: string(r.On.Name), Source: judge.SourceOf(r),
		Isolation: r.On.Isolation(), Decision: x.Judgement.Decision,
	}
	if c, ok := r.Op.(operation.Commanding); ok {
		words := c.Command()
		q.Argv, q.Cwd, q.Env = argv(), text(words.Cwd), texts(words.Env)
		if written(r) {
			q.Argv, _ = record.ShownWords(clean, words.Argv)
		}
	}
	if c, ok := r.Op.(operation.Connect); ok {
		q.Host, q.Port, q.Rule = clean.Text(c.Host), c.Port, clean.Text(c.Rule)
	}
	reasons := texts(q.Decision.Reasons)
	if c, ok := r.Op.(operation.TaskAsks); ok {
		q.Argv, _ = record.ShownWords(clean, c.Asked)
		reasons = append(reasons, "task "+string(c.ID)+" says: "+text(c.Title))
	}
	if p, ok := r.Op.(operation.Plan); ok {
		p, _ = record.ShownPlan(clean, p)
		q.User = "" // each step says as whom it runs; the agent's workspace is only where it was proposed
		q.Argv = p.Lines()
		reasons = append(slices.Concat(reasons, stepReasons(p)), "the agent says that it is for: "+p.Goal)
		reasons = append(reasons, p.Says...)
		if p.From > 0 {
			reasons = append(reasons, fmt.Sprintf("you approve plan %d one step at a time: it has %d steps", p.Number, p.Whole))
		}
	}
	// Copies where something changes: the decision is the cache's.
	q.Decision.Reasons = reasons
	segments := q.Decision.Segments
	q.Decision.Segments = make([]rules.Segment, 0, min(len(segments), maxSegments))
	for _, s := range segments[:min(len(segments), maxSegments)] {
		s.Text, s.Reasons = text(s.Text), texts(s.Reasons)
		q.Decision.Segments = append(q.Decision.Segments, s)
	}
	return q
}

// written reports whether a model wrote what is asked about, or a program that asks in a workspace.
func written(r *operation.Request) bool {
	switch r.Op.(type) {
	case operation.Plan, operation.TaskAsks:
		return true
	}
	return judge.SourceOf(r) != rules.User
}

// hiddenOf is what a mask would hide from a person who is asked about something that a model wrote, beside plain words: what runs is
// not masked. It is "" if nothing is hidden.
func hiddenOf(x *gate.Question) (hidden string) {
	if !written(x.Request) {
		return ""
	}
	clean := x.Record.Redactor()
	switch op := x.Request.Op.(type) {
	case operation.Plan:
		_, hidden = record.ShownPlan(clean, op)
	case operation.TaskAsks:
		_, hidden = record.ShownWords(clean, op.Asked)
	case operation.Commanding:
		if _, hidden = record.ShownWords(clean, op.Command().Argv); hidden == "" {
			_, hidden = clean.Plain(op.Command().Cwd)
		}
	}
	return hidden
}

// stepReasons are all that the policy asks about steps of a plan for. The same step on several hosts is named once.
func stepReasons(p operation.Plan) (all []string) {
	for i, s := range p.Steps {
		if len(s.Why) > 0 && (i == 0 || s.Command != p.Steps[i-1].Command || !slices.Equal(s.Why, p.Steps[i-1].Why)) {
			all = append(all, fmt.Sprintf("step %d: %s", max(p.From-1, 0)+i+1, strings.Join(s.Why, "; ")))
		}
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
	text, argv := r.Text, r.Argv
	if q.Kind == operation.RunPlan || q.Kind == operation.AskTask || q.Source != rules.User {
		// It was cleaned part by part, and put together with other words: only what has become known since is looked for.
		text = r.KnownText
		argv = func(list []string) []string { return eachOf(list, r.KnownText) }
	}
	q.Key, q.Cwd, q.Argv, q.Env = id.Key(r.Text(string(q.Key))), text(q.Cwd), argv(q.Argv), eachOf(q.Env, text)
	q.Host, q.Rule = r.Text(q.Host), r.Text(q.Rule)
	q.Decision.Reasons = eachOf(q.Decision.Reasons, text)
	q.Decision.Segments = slices.Clone(q.Decision.Segments) // others look at these
	for i := range q.Decision.Segments {
		s := &q.Decision.Segments[i]
		s.Text, s.Reasons = text(s.Text), eachOf(s.Reasons, text)
	}
	v.Subject.Argv, v.Files = r.Argv(v.Subject.Argv), r.Texts(v.Files)
	if v.Answer != nil {
		answer := *v.Answer
		answer.Reason, answer.Files = r.Text(answer.Reason), r.Texts(answer.Files)
		v.Answer = &answer
	}
	return v
}

// eachOf is a list of texts, each changed.
func eachOf(list []string, change func(string) string) []string {
	out := slices.Clone(list)
	for i, s := range out {
		out[i] = change(s)
	}
	return out
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
	// Process is the process that gave it, with those that it comes from; "" if it is none of this machine.
	Process string `json:"process,omitempty"`
}

// expired is the kind of an answer that nobody gave.
const expired approval.Kind = "expired"

// answerOf is what a record of an answer says of it.
func answerOf(r audit.Record) (a answered) {
	_ = json.Unmarshal(r.Data, &a) // one that says nothing is no answer
	return a
}

func answerRecord(a approval.Approval, asked approval.Question, by principal.Principal, process string) audit.Record {
	data := answered{Kind: expired, Process: process}
	rec := audit.Record{
		Type: audit.Approval, Trace: asked.Trace, Principal: by.String(), Owner: record.OnBehalf(by), Workspace: a.Subject.Workspace,
		ActionDigest: a.Subject.Digest, Approval: string(a.ID), Status: audit.StatusDenied,
	}
	if a.Answer != nil {
		data = answered{Kind: a.Answer.Kind, Reason: a.Answer.Reason, Self: a.Answer.Self, Process: process}
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
