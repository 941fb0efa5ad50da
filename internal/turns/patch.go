package turns

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/operation"
	"github.com/carrel-dev/carrel/internal/permit"
	"github.com/carrel-dev/carrel/internal/plan"
	"github.com/carrel-dev/carrel/internal/runtime"
)

// patchPart is the part of a plan that changes files.
const patchPart = "patch"

// proposal is a plan of commands, or of a change to files with commands that check it.
type proposal struct {
	plan.CommandPlan

	patch *plan.FilePatchPlan
}

// planned is the proposal of an answer.
func planned(a plan.Answer) (*proposal, error) {
	switch {
	case a.Commands != nil:
		return &proposal{CommandPlan: *a.Commands}, nil
	case a.Patch != nil:
		p := &proposal{patch: a.Patch}
		p.Goal, p.RiskSummary, p.Verification, p.Rollback = a.Patch.Goal, a.Patch.RiskSummary, a.Patch.Verification, a.Patch.Rollback
		return p, nil
	}
	return nil, fmt.Errorf("%s is not carried out here; propose a command_plan or a file_patch_plan: %w", a.Type, errdefs.ErrInvalidArgument)
}

// patched is a change to files that was computed.
type patched struct {
	change runtime.HostPatch
	op     operation.Patch
}

// resolvePatch has the change computed where it is to be made. Nothing is changed.
func (t *Turns) resolvePatch(ctx context.Context, turn *Turn, p *plan.FilePatchPlan) (s step, err error) {
	if p.Target.Kind != operation.Host {
		return s, fmt.Errorf("cannot change files on %s by a file_patch_plan: that is for the host; propose commands for other targets: %w",
			p.Target, errdefs.ErrInvalidArgument)
	}
	if _, err := t.names(turn, p.Target); err != nil {
		return s, err
	}
	hosts := turn.Hosts()
	if hosts == nil || !hosts.Patches() {
		return s, fmt.Errorf("cannot change files on the host: the user did not offer any; propose commands: %w", errdefs.ErrPermissionDenied)
	}
	change := runtime.HostPatch{Text: p.Text(), Modes: map[string]uint32{}}
	for _, m := range p.Permissions {
		change.Modes[m.Path] = m.Bits()
	}
	soon, cancel := late(ctx, 0)
	defer cancel()
	done, err := hosts.Patch(soon, change)
	if err != nil {
		return s, err
	}
	change.Digest = done.Digest
	s = step{
		shown: operation.PlanStep{
			Part: patchPart, Target: string(operation.Host), Command: "change " + counted(len(done.Files), "file", "files"), Diff: done.Diff,
		},
		hosts: 1,
		on:    operation.Target{Kind: operation.Host, Owner: turn.By.Owner()},
		patch: &patched{change, operation.Patch{Digest: done.Digest, Files: done.Files, Risks: done.Risks}},
	}
	if s.look, err = t.cfg.Gate.Authorise(ctx, operation.Request{
		By: turn.By, Op: operation.Simple(operation.ExplainCommand), On: s.on,
	}, nil); err != nil {
		return s, err
	}
	s.shown.Digest, err = operation.Same(s.patch.op, s.on)
	return s, err
}

// apply makes the change that was computed, if it is still exactly that.
func (t *Turns) apply(ctx context.Context, turn *Turn, s *step, out StepResult) StepResult {
	var done runtime.HostPatched
	a, err := t.cfg.Gate.Admit(ctx, operation.Request{By: turn.By, Op: s.patch.op, On: s.on, Wait: -1, Trace: turn.Trace}, nil)
	if err == nil {
		err = a.Do(ctx, func(ctx context.Context, _ permit.Permit) (any, error) {
			ctx, cancel := late(ctx, 0)
			defer cancel()
			by := turn.Hosts()
			if by == nil {
				return nil, fmt.Errorf("cannot change files: who served them has gone: %w", errdefs.ErrUnavailable)
			}
			done, err = by.Patch(ctx, s.patch.change)
			return changed{Undo: done.ID}, err
		})
	}
	if err != nil {
		out.Error = t.cfg.Redact.Text(err.Error())
		return out
	}
	code := 0
	out.Code, out.Undo = &code, done.ID
	return out
}

// changed is what the outcome of a change to files says in the record.
type changed struct {
	Undo string `json:"undo,omitempty"`
}
