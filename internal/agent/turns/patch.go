package turns

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/agent/plan"
	"github.com/carrel-dev/carrel/internal/base/errtext"
	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/files/patch"
	"github.com/carrel-dev/carrel/internal/policy/rules"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/spec/permit"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

// patchPart is the part of a plan that changes files.
const patchPart = "patch"

// remoteTime is how long a change to files of a remote host may take to be computed or made, beside the grace.
const remoteTime = 5 * time.Minute

// proposal is a plan of commands, or of a change to files with commands that check it.
type proposal struct {
	plan.CommandPlan

	patch *plan.FilePatchPlan
}

// says is what the agent says of a proposal beside its goal, as a person reads it.
func (p *proposal) says() (all []string) {
	if text := oneLine(p.RiskSummary); text != "" {
		all = append(all, "the agent says of its risk: "+text)
	}
	if p.RequiresRoot {
		all = append(all, "the agent says that it needs root")
	}
	for _, effect := range p.SideEffects {
		all = append(all, "the agent says that it also does this: "+oneLine(effect))
	}
	return all
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
	// parts are what is done to each file; nil if the change is made as a whole or not.
	parts []runtime.PatchPart
}

// resolvePatch has the change computed where it is to be made. Nothing is changed.
func (t *Turns) resolvePatch(ctx context.Context, turn *Turn, p *plan.FilePatchPlan) (s step, err error) {
	names, err := t.names(turn, p.Target)
	if err != nil {
		return s, err
	}
	if p.Target.Kind == operation.Host {
		if hosts := turn.Hosts(); hosts == nil || !hosts.Patches() {
			return s, fmt.Errorf("cannot change files on the host: the user did not offer any; propose commands: %w", errdefs.ErrPermissionDenied)
		}
	}
	change := runtime.HostPatch{Text: p.Text(), Modes: map[string]uint32{}}
	if p.Intent == plan.Create {
		if _, reads, err := (patch.Wanted{Text: p.Text()}).Read(); err == nil && len(reads) > 0 {
			return s, &unread{fmt.Errorf("cannot change %.200q: the files are to be new (request_intent create), and this one is changed, moved or "+
				"removed; propose that as an update: %w", reads[0], errdefs.ErrInvalidArgument)}
		}
	}
	if p.Target.Kind == operation.Remote {
		if hosts := turn.Hosts(); hosts == nil || !hosts.RemotePatches() || len(names) != 1 {
			return s, fmt.Errorf("cannot change files on %s: the client that serves it does not, or these are several hosts; propose commands: %w",
				p.Target, errdefs.ErrPermissionDenied)
		}
		change.Remote = names[0]
	}
	s = step{shown: operation.PlanStep{Part: patchPart}, hosts: 1}
	if err := t.place(ctx, turn, &s, p.Target.Kind, names[0]); err != nil {
		return s, err
	}
	for _, m := range p.Permissions {
		change.Modes[m.Path] = m.Bits()
	}
	done, err := t.compute(ctx, turn, &s, change)
	if err != nil {
		return s, err
	}
	change.Digest = done.Digest
	s.patch = &patched{change: change, op: operation.Patch{Digest: done.Digest, Files: done.Files, Risks: done.Risks}, parts: choosable(&done)}
	s.shown.Command, s.shown.Diff = "change "+counted(len(done.Files), "file", "files"), done.Diff
	s.shown.Digest, err = operation.Same(s.patch.op, s.on)
	return s, err
}

// unread is that a change needs a file to be read that tools may not read.
type unread struct{ error }

func (u *unread) Unwrap() error { return u.error }

// compute has a change computed where it is to be made. That reads its files, so each of them is judged as a tool that reads it, before
// one is opened, and the reading is recorded.
func (t *Turns) compute(ctx context.Context, turn *Turn, s *step, change runtime.HostPatch) (done runtime.HostPatched, err error) {
	names, reads, err := patch.Wanted{Text: change.Text, Modes: change.Modes}.Read()
	if err != nil {
		return done, err
	}
	if s.on.Kind == operation.Workspace {
		if _, _, err := t.cfg.Lifecycle.Seen(ctx, s.look); err != nil {
			return done, err
		}
	}
	if err := t.mayRead(turn, s, reads); err != nil {
		return done, err
	}
	op := operation.ForPatch(names)
	if s.on.Kind == operation.Workspace {
		done, err = t.patchOn(ctx, turn, s, op, change)
	} else {
		a, err := t.cfg.Gate.Admit(ctx, operation.Request{By: turn.By, Op: op, On: s.on, Wait: -1, Trace: turn.Trace}, nil)
		if err != nil {
			return done, err
		}
		err = a.Do(ctx, func(ctx context.Context, _ permit.Permit) (any, error) {
			done, err = t.patchOn(ctx, turn, s, op, change)
			return nil, err
		})
		if err != nil {
			return done, err
		}
	}
	if err != nil || len(reads) == 0 {
		return done, err
	}
	// A directory in which files may be changed can be reached by a link: where they are is judged too, before the model is told anything.
	return done, t.mayRead(turn, s, done.Files)
}

// mayRead says which of some files tools may not read where a step is.
func (t *Turns) mayRead(turn *Turn, s *step, paths []string) error {
	for _, p := range paths {
		exec := execapi.ExecParams{
			Argv: []string{"cat", "--", p}, Stdout: execapi.Capture, Stderr: execapi.Capture,
			Asked: execapi.Asked{Source: string(rules.User), WaitMS: -1, Trace: turn.Trace},
		}
		op, err := t.cfg.Commands.Operation(turn.By, &exec)
		if err != nil {
			return err
		}
		j, err := s.look.Judge(op)
		if err != nil {
			return err
		}
		if j.Level != rules.Safe || rules.Changes(j.Capabilities) {
			return &unread{fmt.Errorf("cannot change %.200q on %s by a patch, which reads it: the policy does not let tools read it without a "+
				"question: %s; propose a command, about which a person is asked: %w", p, s.shown.Target, strings.Join(j.Reasons, "; "),
				errdefs.ErrPermissionDenied)}
		}
	}
	return nil
}

// patchOn has a change computed or made where a step is: by the user's own process, or in the workspace. There op is what is
// admitted; on a host the caller has done that.
func (t *Turns) patchOn(ctx context.Context, turn *Turn, s *step, op operation.Operation, change runtime.HostPatch) (runtime.HostPatched,
	error,
) {
	if s.on.Kind == operation.Workspace {
		return t.cfg.Files.Patch(ctx, operation.Request{By: turn.By, Op: op, Wait: -1, Trace: turn.Trace}, string(s.on.Name), change)
	}
	limit := time.Duration(0)
	if change.Remote != "" {
		limit = remoteTime
	}
	ctx, cancel := late(ctx, limit)
	defer cancel()
	by := turn.Hosts()
	if by == nil {
		return runtime.HostPatched{}, fmt.Errorf("cannot change files: who served them has gone: %w", errdefs.ErrUnavailable)
	}
	if change.Remote != "" && !by.RemotePatches() { // one of an earlier release would change files of its own machine
		return runtime.HostPatched{}, fmt.Errorf("cannot change files on %s: the client that serves it now does not: %w", s.shown.Target,
			errdefs.ErrUnavailable)
	}
	return by.Patch(ctx, change)
}

// apply makes the change that was computed, if it is still exactly that.
func (t *Turns) apply(ctx context.Context, turn *Turn, s *step, out StepResult) StepResult {
	done, err := t.make(ctx, turn, s)
	if err != nil {
		out.Error = t.cfg.Redact.Text(errtext.Text(err))
		return out
	}
	code := 0
	out.Code, out.Undo, out.Merged = &code, done.ID, oneLines(done.Merged)
	return out
}

func (t *Turns) make(ctx context.Context, turn *Turn, s *step) (done runtime.HostPatched, err error) {
	if s.on.Kind == operation.Workspace {
		return t.patchOn(ctx, turn, s, s.patch.op, s.patch.change)
	}
	a, err := t.cfg.Gate.Admit(ctx, operation.Request{By: turn.By, Op: s.patch.op, On: s.on, Wait: -1, Trace: turn.Trace}, nil)
	if err != nil {
		return done, err
	}
	return done, a.Do(ctx, func(ctx context.Context, _ permit.Permit) (any, error) {
		done, err = t.patchOn(ctx, turn, s, s.patch.op, s.patch.change)
		return changed{done.ID, oneLines(done.Merged), done.Made}, err
	})
}

// changed is what the outcome of a change to files says in the record.
type changed struct {
	Undo string `json:"undo,omitempty"`
	// Merged are files that had changed since the question, but nothing that was shown of them, and Made is the digest of what
	// was made.
	Merged []string `json:"merged,omitempty"`
	Made   string   `json:"made,omitempty"`
}

// oneLines are names, each on one line.
func oneLines(names []string) (all []string) {
	for _, n := range names {
		all = append(all, oneLine(n))
	}
	return all
}
