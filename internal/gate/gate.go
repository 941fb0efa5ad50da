// Package gate is the one place that turns an operation into an effect:
//
//	authorise → judge → ask → record the intent → effect → record the outcome
//
// Every surface goes through it, and so does the daemon itself as principal "system". A
// runtime changes nothing without the permit that the effect is handed, and only the gate
// issues permits.
//
// It must not speak any protocol, and it must not carry anything out itself.
package gate

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/crashpoint"
	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/gate/judge"
	"github.com/carrel-dev/carrel/internal/policy/rules"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/spec/permit"
)

// Effect carries an operation out. The permit lets it change the target. data is what the
// outcome says beside the error.
type Effect func(ctx context.Context, p permit.Permit) (data any, err error)

// Pending is what an effect returns as its data when its outcome comes later: Do then
// returns, and the outcome is recorded when Wait has returned.
type Pending struct {
	Wait   func() (data any, err error)
	record func()
}

// Recorded returns once the outcome is recorded. Who tells a caller that Wait has returned calls it first, so that a
// daemon that is killed then has told the truth.
func (p *Pending) Recorded() { p.record() }

// Do is the one way to an effect: it authorises a request, admits it and carries it out.
func (g *Gate) Do(ctx context.Context, r operation.Request, effect Effect) error {
	a, err := g.Admit(ctx, r, nil)
	if err != nil {
		return err
	}
	return a.Do(ctx, effect)
}

// Admit is Authorise and then Authorised.Admit.
func (g *Gate) Admit(ctx context.Context, r operation.Request, find Finder) (*Admitted, error) {
	a, err := g.Authorise(ctx, r, find)
	if err != nil {
		return nil, err
	}
	return a.Admit(ctx)
}

// Finder finds the target of a request once the caller is known to have the permission: others
// do not learn what there is.
type Finder func() (operation.Target, error)

// Authorise decides whether the caller has the permission, and then whether it reaches the
// target, which find finds unless it is nil. A refusal has been recorded when it returns.
func (g *Gate) Authorise(ctx context.Context, r operation.Request, find Finder) (*Authorised, error) {
	if r.Trace == "" && r.By.Bound != nil {
		r.Trace = r.By.Bound.Trace
	}
	if r.Trace == "" {
		r.Trace = id.NewTrace()
	}
	x := &passing{g: g, request: r, row: operation.Of(r.Op.Op())}
	x.begin()
	if !r.By.Can(x.row.Needs) {
		return nil, x.deny(ctx, lacks(r.By, x.row))
	}
	if find != nil {
		on, err := find()
		if err != nil {
			return nil, err
		}
		x.request.On = on
	}
	if !operation.Reaches(r.By, x.request.On) {
		return nil, x.deny(ctx, elsewhere(r.By, x.row, x.request.On))
	}
	if err := g.hold(ctx, &x.request); err != nil {
		return nil, x.deny(ctx, err)
	}
	if x.row.Class == operation.Observe {
		x.g.cfg.Records.Observed(&x.request)
	}
	return &Authorised{x}, nil
}

// Authorised is a request whose caller may make it.
type Authorised struct{ x *passing }

// On is the target.
func (a *Authorised) On() operation.Target { return a.x.request.On }

// Seen says whether every required control of the target was seen to hold, and which directories of the host it has.
func (a *Authorised) Seen(verified bool, mounted []string) {
	a.x.request.Verified, a.x.request.Mounted = verified, mounted
}

// Deny records that the request is refused after all, and returns why.
func (a *Authorised) Deny(ctx context.Context, why error) error { return a.x.deny(ctx, why) }

// Step is an operation that is part of another, by the same caller on the same target, or on
// the one that the other has made. It takes no permission of its own, as starting a workspace
// in order to run a command there.
func (a *Authorised) Step(op operation.Operation, made operation.Target) *Authorised {
	return a.x.step(op, made)
}

// Judge says how another operation of the same caller on the same target would be judged. Nothing is
// carried out, and nobody is asked.
func (a *Authorised) Judge(op operation.Operation) (*judge.Judgement, error) {
	r := a.x.request
	r.Op = op
	return a.x.g.cfg.Judge.Judge(&r)
}

// Admit has the request judged, and a person asked where the policy says so. A refusal has
// been recorded when it returns.
func (a *Authorised) Admit(ctx context.Context) (*Admitted, error) {
	x := a.x
	if x.row.Class != operation.Change {
		return &Admitted{x}, nil
	}
	if x.g.cfg.Blocked != nil {
		if err := x.g.cfg.Blocked(); err != nil {
			return nil, fmt.Errorf("cannot do anything that is to be recorded: %w", err)
		}
	}
	if err := x.inRoom(); err != nil {
		x.passed(err)
		return nil, err
	}
	if err := x.clear(ctx); err != nil {
		if r, ok := errors.AsType[refusal](err); ok {
			return nil, x.deny(ctx, r.error)
		}
		x.passed(err)
		return nil, err
	}
	return &Admitted{x}, nil
}

// clear has a request judged, and a person asked where the policy says so.
func (x *passing) clear(ctx context.Context) (err error) {
	for {
		if x.judgement, err = x.g.cfg.Judge.Judge(&x.request); err != nil {
			return fmt.Errorf("cannot judge what is to be done, so it was not done: %w", err)
		}
		x.way.step("policy")
		switch x.judgement.Level {
		case rules.Safe:
			return nil
		case rules.Block:
			return Refuse(x.judgement.Refusal(x.row.Sentence(x.request.On)))
		case rules.Confirm:
		}
		if pass, ok := coverOf(ctx).spend(x); ok {
			x.pass = pass
			return nil
		}
		if err := x.entry(); err != nil {
			return err
		}
		if err := x.g.charge(&x.request, x.record.Intent(), x.row.Relieves); err != nil { // the question is recorded
			return fmt.Errorf("cannot ask a person, so it was not done: %w", err)
		}
		x.pass, err = x.g.cfg.Ask.Ask(ctx, &Question{&x.request, x.judgement, x.record})
		x.way.step("approval")
		if err == nil && len(x.pass.Files) > 0 {
			err = x.narrow()
		}
		if !errors.Is(err, ErrJudgeAgain) {
			return err
		}
		// What a person is shown of a plan has what the policy says of its steps.
		if p, ok := x.request.Op.(operation.Plan); ok && p.Again != nil {
			again, err := p.Again()
			if err != nil {
				return Refuse(err)
			}
			x.request.Op, x.record = again, nil
		}
	}
}

// narrow has the request be the part of its plan that a person let through. It is recorded as that, and nothing else is covered.
func (x *passing) narrow() error {
	p, ok := x.request.Op.(operation.Plan)
	if !ok || p.Part == nil {
		return Refuse(fmt.Errorf("cannot do a part of it: it is no plan that changes several files: %w", errdefs.ErrPermissionDenied))
	}
	part, err := p.Part(x.pass.Files)
	if err != nil {
		return err
	}
	digest, err := operation.Same(part, x.request.On)
	if err != nil {
		return err
	}
	if digest != x.pass.Digest {
		return Refuse(fmt.Errorf("cannot do a part of the plan: it is not the part that was approved: %w", errdefs.ErrPermissionDenied))
	}
	x.request.Op, x.record = part, nil
	return nil
}

// Admitted is a request that may be carried out.
type Admitted struct{ x *passing }

// Request is what was admitted.
func (a *Admitted) Request() *operation.Request { return &a.x.request }

// Making is an admitted operation that makes its target, under a name that was not known when
// it was admitted. Owner and key stay.
func (a *Admitted) Making(on operation.Target) *Admitted {
	made := *a.x
	made.request.On.Name, made.request.On.Boundary, made.request.On.Root = on.Name, on.Boundary, on.Root
	made.record = nil
	return &Admitted{&made}
}

// Files are those that a person chose of a plan's, nil if the plan was let through as it is.
func (a *Admitted) Files() []string { return a.x.pass.Files }

// Remembered are the permissions by which a plan passed without a question, nil if there are none.
func (a *Admitted) Remembered() []string { return a.x.pass.Remembered }

// Argv is the command of the request without secrets; it is the same list if it has none.
func (a *Admitted) Argv() []string {
	if err := a.x.entry(); err != nil {
		return nil // and Do says why
	}
	return a.x.record.Argv()
}

// Deny records that the request is refused after all, and returns why.
func (a *Admitted) Deny(ctx context.Context, why error) error { return a.x.deny(ctx, why) }

// Do carries an admitted request out. The intent of a change is on disk before effect is
// called, and if it cannot be written, effect is not called.
func (a *Admitted) Do(ctx context.Context, effect Effect) (err error) {
	x := a.x
	defer func() { x.passed(err) }()
	if err := x.g.lost(ctx, x.request.By); err != nil { // while it waited
		return err
	}
	if x.row.Class == operation.Change {
		defer x.g.begun()()
	}
	seq, err := x.intent(ctx)
	if err != nil {
		return fmt.Errorf("cannot record what is about to be done, so it was not done: %w", err)
	}
	p, end := permit.Issue(x.request.On.Name)
	data, err := effect(ctx, p)
	if x.row.Class != operation.Change {
		end()
		return err
	}
	x.way.step("effect")
	crashpoint.Here("daemon.effect.done")
	if p, later := data.(*Pending); later && err == nil {
		p.record = sync.OnceFunc(func() {
			defer end()
			data, err := p.Wait()
			x.outcome(seq, data, err)
		})
		x.g.Later(p.record)
	} else {
		end()
		x.outcome(seq, data, err)
	}
	x.way.step("outcome")
	crashpoint.Here("daemon.outcome.written")
	return err
}

// intent records what is about to be done, by the class of the operation.
func (x *passing) intent(ctx context.Context) (seq int64, err error) {
	if x.row.Class == operation.Observe {
		return 0, nil
	}
	if x.row.Class == operation.Read && x.g.Full() != nil {
		x.g.cfg.Records.Observed(&x.request)
		return 0, nil
	}
	if x.row.Class == operation.Change {
		if err := x.inRoom(); err != nil { // it may have filled up since a person was asked
			return 0, err
		}
	}
	if err := x.entry(); err != nil {
		return 0, err
	}
	rec := x.record.Intent()
	if err := x.g.charge(&x.request, rec, x.row.Relieves); err != nil {
		return 0, err
	}
	if x.row.Class == operation.Read {
		return 0, x.record.AppendAsync(asRead(rec))
	}
	rec.Policy, rec.Decision = x.judgement.Level.String(), x.judgement.Recorded
	if x.pass.Text != "" {
		rec.Approval = x.pass.Text
	}
	if seq, err = x.record.Append(ctx, rec); err != nil {
		return 0, err
	}
	crashpoint.Here("daemon.intent.written")
	if x.pass.Spent != nil {
		x.pass.Spent(seq)
	}
	x.way.step("intent")
	return seq, nil
}

// outcome records what became of an intent.
func (x *passing) outcome(seq int64, data any, err error) {
	if x.g.cfg.Told != nil {
		shown := err
		if err != nil {
			shown = x.record.Error(err)
		}
		x.g.cfg.Told(&x.request, seq, shown)
	}
	rec := x.record.Outcome(seq, data, err)
	x.g.chargeOutcome(&x.request, rec)
	aerr := x.record.AppendAsync(rec)
	if aerr == nil && x.row.Lasts() {
		if aerr = x.record.Flush(); errdefs.IsResourceExhausted(aerr) {
			aerr = nil // it is written when there is room
		}
	}
	if aerr != nil {
		// The intent stays open, and the next start closes it as interrupted.
		x.g.cfg.Log.Error("cannot record an outcome", "intent", seq, "workspace", x.request.On.Name, "error", aerr)
	}
}

// step is an operation that is part of this one. made is the target where this one has made it.
func (x *passing) step(op operation.Operation, made operation.Target) *Authorised {
	on := x.request.On
	if on.Name == "" {
		on = made
	}
	r := operation.Request{By: x.request.By, Op: op, On: on, Trace: x.request.Trace}
	part := &passing{g: x.g, request: r, row: operation.Of(op.Op())}
	part.begin()
	return &Authorised{part}
}
