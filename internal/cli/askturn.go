package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/containerd/errdefs"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/agent/messages"
	"github.com/carrel-dev/carrel/internal/spec/approval"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	carrel "github.com/carrel-dev/carrel/sdk/go"
)

// newestTask is the newest task of the agent's workspace.
func newestTask(ctx context.Context, client *carrel.Client, ws string) (string, error) {
	m, err := askOf(ctx, client, tasks.ListTasks, &carrelv1.ListTasksRequest{Workspace: ws})
	if err != nil {
		return "", err
	}
	for _, t := range m.GetTasks() {
		if p := t.GetProtocol(); p == ownAgent || p == seatAgent {
			return t.GetId(), nil
		}
	}
	return "", fmt.Errorf("cannot resume: the agent has no task that is kept; ask without --resume: %w", errdefs.ErrNotFound)
}

// turnView shows a turn to a person.
type turnView struct {
	a        *app
	client   *carrel.Client
	ws       string
	task     *carrelv1.Task
	out      format
	answered bool
	// yesSafe: plans that only a model's hand makes ask are approved. plans are those that were shown.
	yesSafe bool
	plans   *plans
	to      teller
	// foreign: the session has read what others wrote.
	foreign bool
	// offered takes a note that the agent proposes.
	offered func(note string)
}

// stop ends the turn if it has not ended.
func (t *turnView) stop(ctx context.Context) {
	if t.answered {
		return
	}
	_, _ = askOf(ctx, t.client, tasks.StopTask, &carrelv1.StopTaskRequest{Workspace: t.ws, TaskId: t.task.GetId()}) // it ends by its time too
}

// answer asks the person at the terminal about each plan that needs it, and about each wish of an agent that others made, until ctx ends.
func (t *turnView) answer(ctx context.Context) error {
	err := (&approvalSource{t.client}).stream(ctx, func(m *carrelv1.Approval) error {
		kind := operation.Name(m.GetKind())
		if m == nil || !isPending(m) || kind != operation.RunPlan && kind != operation.AskTask || m.GetThread() != t.task.GetId() {
			return nil
		}
		return t.decide(ctx, m)
	})
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// decide shows one question and sends the answer.
func (t *turnView) decide(ctx context.Context, m *carrelv1.Approval) error {
	open, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	go func() {
		if t.a.untilAnswered(open, t.client, m.GetId()) == nil {
			stop(errSettled)
		}
	}()
	var r reply
	p, err := &planShown{}, error(nil)
	if m.GetKind() == string(operation.RunPlan) {
		p, err = t.plans.wait(open, m.GetActionDigest())
	}
	if err == nil && t.yesSafe && p.OnlyFirstRun {
		_ = t.to.note(t.a.lang.Say(messages.YesSafe))
		r.kind = approval.Once
	} else {
		r = t.to.ask(open, m, err == nil && p.several())
	}
	switch {
	case errors.Is(r.err, errSettled):
		return t.to.settled(m)
	case ctx.Err() != nil:
		return nil
	case r.err != nil:
		r.kind, r.reason = approval.Deny, "no answer"
	}
	_, err = askOf(ctx, t.client, approvals.AnswerApproval,
		&carrelv1.AnswerApprovalRequest{Id: m.GetId(), Kind: string(r.kind), Reason: r.reason, Files: r.files, Terminal: true})
	if r.sent != nil {
		r.sent <- err
	}
	if errdefs.IsFailedPrecondition(err) { // somebody was faster
		return nil
	}
	return err
}

// follow shows what happens until the turn has ended. A daemon that has gone is waited for.
func (t *turnView) follow(ctx context.Context) (*carrelv1.Task, error) {
	end, err := t.a.receiveTask(ctx, t.client, &carrelv1.FollowTaskRequest{Workspace: t.ws, TaskId: t.task.GetId()}, reconnectsOfTurn, t.show)
	t.answered = err == nil
	return end, err
}
