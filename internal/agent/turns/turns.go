// Package turns carries out what an agent proposes: it reads a plan, finds all of its targets, has all of its commands
// judged and a person asked where the policy says so, and then runs them one after the other, each judged and recorded by
// itself. Tools that only read are judged as what a person typed, and nobody is asked about them.
//
// It must not run anything itself: commands in workspaces are for package commands, and those on hosts for runtime.Hosts, which
// is a process of the user who asked. No command ever runs on another target than its step names.
package turns

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/agent/plan"
	"github.com/carrel-dev/carrel/internal/agent/runbooks"
	"github.com/carrel-dev/carrel/internal/base/crashpoint"
	"github.com/carrel-dev/carrel/internal/base/errtext"
	"github.com/carrel-dev/carrel/internal/base/fanout"
	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/base/redact"
	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/gate"
	"github.com/carrel-dev/carrel/internal/service/commands"
	"github.com/carrel-dev/carrel/internal/service/files"
	"github.com/carrel-dev/carrel/internal/service/lifecycle"
	"github.com/carrel-dev/carrel/internal/spec/approval"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/spec/permit"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/state/record"
)

// Bounds.
const (
	// MaxPlans is how many plans one turn may have carried out, and maxRepairs how many answers that are no plan.
	MaxPlans   = 24
	maxRepairs = 2
	// maxRefused is how many proposals in a row may be refused: a model that has not understood by then repeats itself.
	maxRefused = 3
	// maxShown bounds what a person is asked about, in bytes: nobody reads more.
	maxShown = 8 << 10
	// maxDiff is maxShown where files are changed.
	maxDiff = 32 << 10
	// MaxOutput bounds what is kept of each stream of a step, and maxReply what the agent is told of all steps, in bytes.
	MaxOutput = 20_000
	maxReply  = 60_000
	// maxSteps bounds the commands of a plan once every remote host has its own.
	maxSteps = 256
	// DefaultTimeout is how long a step may take that names no time.
	DefaultTimeout = 5 * time.Minute
	// BackgroundTimeout is DefaultTimeout of a step in the background.
	BackgroundTimeout = time.Hour
)

// Config holds the dependencies of New. All but Redact and Runbooks are required.
type Config struct {
	Gate      *gate.Gate
	Lifecycle *lifecycle.Lifecycle
	Commands  *commands.Commands
	// Files make changes to files of workspaces.
	Files *files.Files
	// Token returns what is known of a token, good or ended.
	Token  func(id string) (principal.Issued, bool)
	Redact *redact.Redactor
	// Runbooks are those that an agent is told of. Optional.
	Runbooks func() []*runbooks.Runbook
	// Limits bound what runs on the machine of who asked. The zero value leaves it to their client.
	Limits runtime.HostLimits
	Log    *slog.Logger
}

// Turns carry out plans. Its methods may be called from any goroutine.
type Turns struct{ cfg Config }

// New returns turns.
func New(cfg Config) *Turns { return &Turns{cfg} }

// Turn is one turn of an agent: a prompt and what is done about it. It is for one proposal at a time.
type Turn struct {
	// By asked for it, and everything is done with their rights. Task is the agent's task, in the workspace On.
	By   principal.Principal
	Task id.Command
	// Trace joins the records of all that is done.
	Trace id.Trace
	On    operation.Target
	// Session is the first task of the session that the turn goes on with. What a person allows for a session is bound to it; "" is none.
	Session string
	// PlanOnly: plans are judged and shown, and not carried out.
	PlanOnly bool
	// Orders are how steps reach several hosts.
	Orders fanout.Orders
	// Wait is how long a person may take to answer, and Gone is closed when nobody waits for it any more.
	Wait time.Duration
	Gone <-chan struct{}
	// Hosts returns who carries out steps on hosts; nil if nobody does.
	Hosts func() runtime.Hosts
	// Note keeps what happens, for those who follow the turn.
	Note func(kind string, body any) error
	// Singly: each call of a tool is an answer of its own, so that calls are counted in the place of answers.
	Singly bool
	// DenialEnds: once a person has denied a plan nothing more is taken. carrel's own agent ends its turn then by itself.
	DenialEnds bool

	plans, repairs int
	// refused are the proposals since the last one that was carried out.
	refused int
	// rounds are the answers with calls of tools since the last plan, or the calls, and read what all calls printed, in bytes.
	rounds, read int
	// blocked is why nothing more is taken, "" while something is.
	blocked string
}

// Outcomes of a proposal.
const (
	Done    = "done"    // every step was run and succeeded
	Failed  = "failed"  // a step failed, and those behind it were not run
	Refused = "refused" // the policy or a bound does not allow it
	Denied  = "denied"  // a person did not approve it
	Invalid = "invalid" // it is no plan, or names a target that there is not
	Blocked = "blocked" // nothing more is taken from the agent in this turn
	Planned = "planned" // it was judged and shown, which is all that was asked for
)

// Reply is what the agent is told of its proposal.
type Reply struct {
	Outcome string `json:"outcome"`
	// Why says what is wrong, and what the agent may do about it.
	Why   string       `json:"why,omitempty"`
	Steps []StepResult `json:"steps,omitempty"`
	// NotBegun are the steps that were not begun, each with the reason.
	NotBegun []NotBegun `json:"not_begun,omitempty"`
	// LeftOut are files of a plan's change that the person left out: they are as they were.
	LeftOut []string `json:"left_out,omitempty"`
	// Rollback is what became of the plan's rollback steps, which a person was asked about after a step had failed.
	Rollback *Reply `json:"rollback,omitempty"`
}

// NotBegun is a step that was not begun.
type NotBegun struct {
	Step   int    `json:"step"`
	Target string `json:"target"`
	Why    string `json:"why"`
}

// StepResult is what became of a step.
type StepResult struct {
	Step    int    `json:"step"`
	Part    string `json:"part"`
	Target  string `json:"target"`
	Command string `json:"command"`
	// Code is the exit code; nil if the command did not end by itself, and Error says why.
	Code   *int   `json:"exit_code,omitempty"`
	Error  string `json:"error,omitempty"`
	Stdout string `json:"stdout,omitempty"`
	Stderr string `json:"stderr,omitempty"`
	// Lost are the bytes of output that were not kept.
	Lost int64 `json:"lost,omitempty"`
	// Held says what held a command on a host: the profile and its verified controls.
	Held string `json:"held,omitempty"`
	// Job is the command of a step that runs in the background; Code is 0 then.
	Job id.Command `json:"job,omitempty"`
	// Undo is what "carrel undo" takes, of a change to files.
	Undo string `json:"undo,omitempty"`
	// Merged are the files of it that had changed since the plan was shown, elsewhere: the change was made to what they are now.
	Merged []string `json:"merged,omitempty"`
}

func (r StepResult) failed() bool { return r.Code == nil || *r.Code != 0 }

// nothingMore is what an agent is told that goes on after the end of what it may do.
const nothingMore = "nothing more is taken in this turn; answer with what you know"

// lastRefusal is what an agent is told before the end.
const lastRefusal = "; this is the second refusal in a row, and the next one ends the turn: propose something else, or answer"

// Propose carries out what an agent proposes, and returns what it is told. The error is one that ends the turn.
func (t *Turns) Propose(ctx context.Context, turn *Turn, text []byte) (Reply, error) {
	switch {
	case turn.blocked != "":
		return Reply{Outcome: Blocked, Why: turn.blocked}, nil
	case turn.plans >= MaxPlans:
		turn.blocked = nothingMore
		return Reply{Outcome: Blocked, Why: fmt.Sprintf("a turn has at most %d plans; answer with what you know", MaxPlans)}, nil
	}
	if err := t.valid(turn.By); err != nil {
		return Reply{}, err
	}
	reply, err := t.propose(ctx, turn, text)
	if err != nil {
		return Reply{}, err
	}
	if reply.Outcome == Invalid {
		if turn.repairs++; turn.repairs > maxRepairs {
			turn.blocked = nothingMore
			reply = Reply{Outcome: Blocked, Why: "this was the third answer that is no plan: " + reply.Why}
		}
	}
	turn.count(&reply)
	t.clean(&reply)
	switch {
	case !turn.DenialEnds:
	case reply.Outcome == Denied:
		turn.blocked = "nothing more is taken in this turn, because the last plan was not approved; tell the person what you know"
	case reply.Outcome == Planned:
		turn.blocked = "nothing more is taken in this turn, because only the plan was asked for; tell the person what you know"
	}
	if reply.Outcome != Done && reply.Outcome != Failed {
		err = turn.Note("refusal", map[string]string{"outcome": reply.Outcome, "why": reply.Why})
	}
	return reply, err
}

// clean takes secrets out of what an agent is told of its proposal: reasons may have what hosts and errors say.
func (t *Turns) clean(reply *Reply) {
	for r := reply; r != nil; r = r.Rollback {
		r.Why = t.cfg.Redact.Text(r.Why)
		for i := range r.NotBegun {
			r.NotBegun[i].Why = t.cfg.Redact.Text(r.NotBegun[i].Why)
		}
	}
}

// count ends what is taken from an agent whose proposals are refused one after the other, and tells it before. Single calls of tools are
// bounded by their number.
func (turn *Turn) count(reply *Reply) {
	switch {
	case reply.Outcome == Done || reply.Outcome == Failed:
		turn.refused = 0
	case reply.Outcome != Refused || turn.Singly:
	case turn.refused == maxRefused-1:
		turn.blocked = nothingMore
		*reply = Reply{Outcome: Blocked, Why: fmt.Sprintf("%d proposals in a row were refused, the last one because of %s", maxRefused,
			reply.Why)}
	default:
		if turn.refused++; turn.refused == maxRefused-1 {
			reply.Why += lastRefusal
		}
	}
}

// valid says why who asked may do nothing any more: the rights of a turn end with those of its token.
func (t *Turns) valid(by principal.Principal) error {
	if by.Kind != principal.Token {
		return nil
	}
	why := "gone"
	if i, ok := t.cfg.Token(by.Grant.ID); ok {
		i.MaxUses = 0 // the turn is one use
		why = i.Ended(time.Now())
	}
	if why == "" {
		return nil
	}
	return fmt.Errorf("cannot go on: %s, which asked for it, is %s: %w", by, why, errdefs.ErrPermissionDenied)
}

func (t *Turns) propose(ctx context.Context, turn *Turn, text []byte) (Reply, error) {
	answer, err := plan.Parse(text)
	if err != nil {
		return Reply{Outcome: Invalid, Why: errtext.Text(err)}, nil
	}
	if answer.Tools != nil {
		return t.readAll(ctx, turn, answer.Tools.Calls)
	}
	p, err := planned(answer)
	if err != nil {
		return Reply{Outcome: Invalid, Why: errtext.Text(err)}, nil
	}
	turn.plans++
	turn.rounds = 0
	steps, err := t.resolve(ctx, turn, p)
	if no, ok := errors.AsType[*unread](err); ok {
		return t.refuse(ctx, turn, operation.Plan{ID: turn.Task, Number: turn.plans, Goal: oneLine(p.Goal)}, no)
	}
	if err != nil {
		return Reply{Outcome: Invalid, Why: errtext.Text(err)}, nil
	}
	return t.consider(ctx, turn, p, operation.Plan{ID: turn.Task, Number: turn.plans, Goal: oneLine(p.Goal), Says: p.says()}, steps)
}

// consider has the steps of a plan judged and shown, and carries them out.
func (t *Turns) consider(ctx context.Context, turn *Turn, p *proposal, op operation.Plan, steps []step) (Reply, error) {
	at, why := t.judge(ctx, turn, steps)
	if why != nil {
		op.Steps = []operation.PlanStep{steps[at].shown}
		return t.refuse(ctx, turn, op, why)
	}
	reply, err := t.put(turn, p, &op, steps)
	if reply != nil || err != nil {
		return *cmp.Or(reply, &Reply{}), err
	}
	crashpoint.Here("daemon.plan.told")
	if turn.PlanOnly {
		return Reply{Outcome: Planned, Why: "only the plan was asked for, and nothing was run"}, nil
	}
	// The policy may change while a person is asked.
	var refused *Reply
	op.Again = func() (operation.Plan, error) {
		if _, err := t.judge(ctx, turn, steps); err != nil {
			refused = &Reply{Outcome: Refused, Why: errtext.Text(err)}
			return op, err
		}
		no, err := t.put(turn, p, &op, steps)
		if refused = no; no != nil {
			err = fmt.Errorf("%s: %w", no.Why, errdefs.ErrPermissionDenied)
		}
		return op, err
	}
	done, err := t.carryOut(ctx, turn, &op, steps)
	crashpoint.Here("daemon.plan.carried-out")
	switch {
	case err == nil && refused != nil:
		return *refused, nil
	case err == nil && done.Outcome == Failed && op.Asks && len(p.Rollback) > 0:
		err = t.offerRollback(ctx, turn, p, op, steps, &done)
	}
	return done, err
}

// put makes of judged steps the plan that a person sees, and tells those who follow the turn of it. A reply is why it is not shown.
func (t *Turns) put(turn *Turn, p *proposal, op *operation.Plan, steps []step) (*Reply, error) {
	joinQuiet(steps)
	op.Asks = op.Undoes > 0 // which nothing does by itself
	first := !op.Asks
	op.Steps, op.Files, op.Part = nil, nil, nil
	for _, s := range steps {
		op.Steps = append(op.Steps, s.shown)
		op.Asks = op.Asks || s.asks
		first = first && (!s.asks || s.shown.FirstRun && s.hosts == 1)
	}
	chooseFrom(op, steps)
	op.Keep = turn.keep(*op, steps)
	most := maxShown
	if p.patch != nil {
		most = maxDiff
	}
	shown, hidden := record.ShownPlan(t.cfg.Redact, *op)
	if hidden != "" && (op.Asks || turn.PlanOnly) {
		return &Reply{Outcome: Invalid, Why: "a person could not see all of the plan: " + record.Veiled(hidden)}, nil
	}
	if n := len(strings.Join(op.Lines(), "\n")) + len(op.Goal) + len(strings.Join(op.Says, "")) + reasons(op.Steps); n > most {
		return &Reply{Outcome: Invalid, Why: fmt.Sprintf("the plan takes %d bytes where it is shown, and at most %d are; propose fewer steps, "+
			"or put what they do into a file", n, most)}, nil
	}
	digest, err := operation.Same(*op, turn.On)
	if err != nil {
		return nil, err
	}
	return nil, turn.Note("plan", t.planNote(shown, digest, op.Asks && first, p))
}

// authorise has a plan pass the first half of the gate.
func (t *Turns) authorise(ctx context.Context, turn *Turn, op operation.Plan) (*gate.Authorised, error) {
	return t.cfg.Gate.Authorise(ctx, operation.Request{
		By: principal.InWorkspace(turn.On.Name, turn.On.Owner), Op: op, On: turn.On, Wait: turn.Wait, Gone: turn.Gone, Trace: turn.Trace,
		Thread: string(turn.Task), // so that clients know whose question it is
	}, nil)
}

// refuse records that a plan is refused, with the step that it is refused for.
func (t *Turns) refuse(ctx context.Context, turn *Turn, op operation.Plan, why error) (Reply, error) {
	authorised, err := t.authorise(ctx, turn, op)
	if err != nil {
		return Reply{}, err
	}
	return Reply{Outcome: Refused, Why: errtext.Text(authorised.Deny(ctx, why))}, nil
}

// carryOut asks a person where that is needed, and runs the steps.
func (t *Turns) carryOut(ctx context.Context, turn *Turn, asked *operation.Plan, steps []step) (Reply, error) {
	authorised, err := t.authorise(ctx, turn, *asked)
	if err != nil {
		return Reply{}, err
	}
	a, err := authorised.Admit(ctx)
	op := *asked // as the policy says of it by now
	switch {
	case op.Asks && turn.Wait < 0 && errdefs.IsPermissionDenied(err):
		return Reply{Outcome: Denied, Why: errtext.Text(err)}, nil
	case err != nil:
		return unanswered(err)
	}
	if ids := a.Remembered(); len(ids) > 0 {
		if err := turn.Note("remembered", map[string]any{"plan": op.Number, "permissions": ids}); err != nil {
			return Reply{}, err
		}
	}
	op, steps, out, err := t.chosen(ctx, turn, a, op, steps)
	if err != nil {
		return Reply{}, err
	}
	cover := a.Cover()
	defer cover.End()
	var reply Reply
	err = a.Do(gate.Covered(ctx, cover), func(ctx context.Context, _ permit.Permit) (any, error) {
		var next func(context.Context, int, int, func(context.Context) error) error
		if a.Stepwise() {
			steps = slices.Clone(steps) // a part of the first may take its place
			next = t.stepwise(turn, op, steps, &out)
		}
		reply, err = t.runAll(ctx, turn, steps, next)
		reply.LeftOut = out
		return ended{Outcome: reply.Outcome, Steps: len(reply.Steps), NotBegun: len(reply.NotBegun)}, err
	})
	return reply, err
}

// unanswered is what an agent is told of a plan that was not let through; the error is one that ends the turn.
func unanswered(err error) (Reply, error) {
	var denial *approval.Denial
	switch {
	case errors.As(err, &denial):
		return Reply{Outcome: Denied, Why: denial.Error()}, nil
	case errdefs.IsPermissionDenied(err):
		return Reply{Outcome: Denied, Why: "nobody approved it in time"}, nil
	case errdefs.IsResourceExhausted(err):
		return Reply{Outcome: Refused, Why: errtext.Text(err)}, nil
	}
	return Reply{}, err
}

// ended is what the outcome of a plan says in the record.
type ended struct {
	Outcome string `json:"plan,omitempty"`
	Steps   int    `json:"steps_run,omitempty"`
	// NotBegun is how many steps were not begun.
	NotBegun int `json:"steps_not_begun,omitempty"`
}

// reasons are how many bytes say why a person is asked about steps.
func reasons(steps []operation.PlanStep) (n int) {
	for i := range steps {
		if i == 0 || steps[i].Command != steps[i-1].Command {
			n += len(strings.Join(steps[i].Why, "; "))
		}
	}
	return n
}

// Shown is the body of a note of which each part was cleaned by itself, and nothing is to be masked once more: a mask could hide words
// that stand behind others only here.
type Shown map[string]any

// planNote is a plan as those who follow the turn see it: op is what is shown of it. first: a person is asked about it only because a
// model wrote it.
func (t *Turns) planNote(op operation.Plan, digest string, first bool, p *proposal) Shown {
	clean := t.cfg.Redact
	prose := func(s string) string {
		s, _ = clean.Plain(oneLine(s))
		return s
	}
	purposes := make([]string, 0, len(op.Steps))
	for _, list := range [][]plan.Step{p.PreflightChecks, p.Commands, p.Verification} {
		for _, s := range list {
			purposes = append(purposes, prose(s.Purpose))
		}
	}
	diff := ""
	if p.patch != nil {
		diff = op.Steps[0].Diff
	}
	if !op.Asks { // nobody judges it
		for i := range op.Steps { // a copy
			op.Steps[i].Command = clean.Text(op.Steps[i].Command)
		}
	}
	rollback := []string{}
	for _, s := range p.Rollback {
		text, _ := record.ShownCommand(clean, s.Command)
		rollback = append(rollback, s.Target.String()+": "+text)
	}
	return Shown{
		"number": op.Number, "digest": digest, "goal": op.Goal, "steps": op.Steps, "asks": op.Asks, "purposes": purposes,
		"risk_summary": prose(p.RiskSummary), "rollback": rollback, "diff": diff,
		"only_first_run": first, "session": op.Keep != nil, "undoes": op.Undoes, "files": op.Files, "says": op.Says,
	}
}

// oneLine is prose on one line, without what a terminal takes for a command.
func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 {
			return ' '
		}
		return r
	}, s)
}
