package asking

import (
	"context"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/approval"
	"github.com/carrel-dev/carrel/internal/audit"
	"github.com/carrel-dev/carrel/internal/crashpoint"
	"github.com/carrel-dev/carrel/internal/gate"
	"github.com/carrel-dev/carrel/internal/id"
	"github.com/carrel-dev/carrel/internal/operation"
	"github.com/carrel-dev/carrel/internal/permit"
	"github.com/carrel-dev/carrel/internal/principal"
	"github.com/carrel-dev/carrel/internal/store"
)

// targetOf is a question as a target: of its requester, and of those who answer for the
// workspace that it is about, by what that is called now.
func (q *Questions) targetOf(a *store.Approval) operation.Target {
	t := operation.Target{
		Kind: operation.Approval, ID: string(a.ID), Requester: a.Subject.By, Owner: a.Owner, Name: a.Subject.Workspace,
	}
	if w, lives := q.cfg.Store.ByName(t.Name); lives {
		t.Key = w.Key
	} else {
		t.Key = shownOf(*a).Key // as it was called when it was asked about
	}
	return t
}

// permissionTarget is what came of an answer as a target.
func permissionTarget(x *store.Permission) operation.Target {
	return operation.Target{
		Kind: operation.Approval, ID: string(x.From), Requester: x.Subject.By, Owner: x.Owner, Name: x.Subject.Workspace,
	}
}

// look authorises p to look at approvals, of the workspace that ref names if it is not "",
// whose name it returns.
func (q *Questions) look(ctx context.Context, p principal.Principal, ref string) (id.Workspace, error) {
	var find gate.Finder
	if ref != "" {
		find = func() (operation.Target, error) { return q.find(ref) }
	}
	a, err := q.gate.Authorise(ctx, operation.Request{By: p, Op: operation.Simple(operation.InspectApproval)}, find)
	if err != nil {
		return "", err
	}
	return a.On().Name, nil
}

// Approvals returns a page of the approvals that p may see, the newest first, and what the
// next page begins after, "" if there is none.
func (q *Questions) Approvals(
	ctx context.Context, p principal.Principal, f approval.Filter,
) (list []approval.View, next string, err error) {
	sf := store.ApprovalFilter{State: f.State, Requester: f.Requester, After: f.After, Limit: f.Limit, Now: q.clock.now()}
	if sf.Workspace, err = q.look(ctx, p, f.Workspace); err != nil {
		return nil, "", err
	}
	return q.page(ctx, p, sf, f.State)
}

// page reads a page for somebody who may look.
func (q *Questions) page(
	ctx context.Context, p principal.Principal, f store.ApprovalFilter, state approval.State,
) ([]approval.View, string, error) {
	kept, next, err := q.kept(ctx, p, f)
	if err != nil {
		return nil, "", err
	}
	list := make([]approval.View, 0, len(kept))
	for _, a := range kept {
		if v := q.current(a); state == "" || v.State == state { // as after a clock was set back
			list = append(list, v)
		}
	}
	return list, next, nil
}

// kept reads a page of what p may see. A scope hides some: then a page is shorter.
func (q *Questions) kept(ctx context.Context, p principal.Principal, f store.ApprovalFilter) ([]store.Approval, string, error) {
	if !p.Can(principal.Any) {
		f.Visible, f.VisibleOwner = p.String(), p.Owner()
	}
	back, err := q.reading.take(ctx, p)
	if err != nil {
		return nil, "", err
	}
	defer back()
	list, next, err := q.cfg.Store.Approvals(ctx, f)
	return slices.DeleteFunc(list, func(a store.Approval) bool { return !operation.Reaches(p, q.targetOf(&a)) }), next, err
}

// one reads an approval for p.
func (q *Questions) one(ctx context.Context, p principal.Principal, name id.Approval) (store.Approval, error) {
	back, err := q.reading.take(ctx, p)
	if err != nil {
		return store.Approval{}, err
	}
	defer back()
	return q.cfg.Store.Approval(ctx, name)
}

// current is an approval with its state as of now.
func (q *Questions) current(a store.Approval) approval.View {
	v := shownOf(a)
	v.State = a.At(q.clock.now())
	return cleaned(q.cfg.Records.Redactor(), v)
}

// Approval returns one approval that p may see.
func (q *Questions) Approval(ctx context.Context, p principal.Principal, name id.Approval) (approval.View, error) {
	_, a, err := q.visible(ctx, p, name, operation.InspectApproval)
	if err != nil {
		return approval.View{}, err
	}
	return q.current(a), nil
}

// visible authorises an operation on one approval, and returns that.
func (q *Questions) visible(
	ctx context.Context, p principal.Principal, name id.Approval, op operation.Name,
) (*gate.Authorised, store.Approval, error) {
	var a store.Approval
	authorised, err := q.gate.Authorise(ctx, operation.Request{By: p, Op: operation.OnApproval(op, name)},
		func() (t operation.Target, err error) {
			if a, err = q.cfg.Store.Approval(ctx, name); err != nil {
				return t, err
			}
			return q.targetOf(&a), nil
		})
	return authorised, a, err
}

// Answer gives p's answer to a question. terminal is their word that they are a person who has
// seen it at a terminal: see docs/security.md on what that is worth.
//
// Errors: permission_denied if it is not theirs to answer, failed_precondition if it was
// answered before or its time is over.
func (q *Questions) Answer(ctx context.Context, p principal.Principal, name id.Approval, kind approval.Kind, reason string,
	terminal bool,
) (approval.View, error) {
	q.answering.Lock()
	defer q.answering.Unlock()
	authorised, a, err := q.visible(ctx, p, name, operation.AnswerApproval)
	if err != nil {
		return approval.View{}, err
	}
	reason = q.cfg.Records.Redactor().Text(reason)
	now := q.clock.now()
	reply := func(a approval.Approval) (approval.Approval, error) {
		a.Separate = q.cfg.Separate
		return a.Reply(p, terminal, kind, reason, now)
	}
	replied, err := reply(a.Approval)
	if errdefs.IsPermissionDenied(err) {
		return approval.View{}, authorised.Deny(ctx, err)
	}
	if err != nil {
		return approval.View{}, err
	}
	shown := shownOf(a)
	if _, err := q.cfg.Records.Append(ctx, answerRecord(replied, shown.Question, p)); err != nil {
		return approval.View{}, fmt.Errorf("cannot record the answer, so it does not count: %w", err)
	}
	crashpoint.Here("daemon.approval.recorded")
	if a, err = q.cfg.Store.ChangeApproval(ctx, name, reply); err != nil {
		return approval.View{}, err
	}
	crashpoint.Here("daemon.approval.answered")
	q.waiting.finish(name)
	status := audit.StatusOK
	if a.State == approval.Denied {
		status = audit.StatusFailed
	}
	q.changed(a.Approval, shown.Question, "approval.answered", status)
	return cleaned(q.cfg.Records.Redactor(), shownOf(a)), nil
}

// WatchApprovals calls emit with the pending questions that p may see, the oldest first, then
// once with nil, and from then on with each that changes, until ctx ends.
func (q *Questions) WatchApprovals(ctx context.Context, p principal.Principal, emit func(*approval.View) error) error {
	if _, err := q.look(ctx, p, ""); err != nil {
		return err
	}
	_, at, _, _ := q.waiting.since(0)
	if err := q.emitPending(ctx, p, emit); err != nil {
		return err
	}
	if err := emit(nil); err != nil {
		return err
	}
	for {
		var names []id.Approval
		var lost bool
		var more <-chan struct{}
		names, at, lost, more = q.waiting.since(at)
		if lost {
			if err := q.emitPending(ctx, p, emit); err != nil {
				return err
			}
		}
		for _, name := range names {
			a, err := q.one(ctx, p, name)
			if errdefs.IsNotFound(err) {
				continue
			}
			if err != nil {
				return err
			}
			if ctx.Err() != nil {
				return nil
			}
			if !operation.Reaches(p, q.targetOf(&a)) {
				continue
			}
			v := q.current(a)
			if err := emit(&v); err != nil {
				return err
			}
		}
		select {
		case <-more:
		case <-ctx.Done():
			return nil
		}
	}
}

func (q *Questions) emitPending(ctx context.Context, p principal.Principal, emit func(*approval.View) error) error {
	// Only their names are held: what all of them show may be more than memory.
	var names []id.Approval
	for after := ""; ; {
		f := store.ApprovalFilter{State: approval.Pending, After: after, Limit: 100, Now: q.clock.now()}
		list, next, err := q.kept(ctx, p, f)
		if err != nil {
			return err
		}
		for i := range list {
			names = append(names, list[i].ID)
		}
		if next == "" {
			break
		}
		after = next
	}
	for _, name := range slices.Backward(names) {
		a, err := q.one(ctx, p, name)
		if err != nil {
			return err
		}
		// It may have been answered meanwhile, or its workspace renamed.
		if v := q.current(a); v.State == approval.Pending && operation.Reaches(p, q.targetOf(&a)) {
			if err := emit(&v); err != nil {
				return err
			}
		}
	}
	return nil
}

// Permissions returns what is remembered of answers, of those that p may see.
func (q *Questions) Permissions(ctx context.Context, p principal.Principal, ref, thread string) ([]approval.Permission, error) {
	on, err := q.look(ctx, p, ref)
	if err != nil {
		return nil, err
	}
	list, err := q.cfg.Store.Permissions(ctx, "", on, thread)
	if err != nil {
		return nil, err
	}
	var mine []approval.Permission
	for _, x := range list {
		if operation.Reaches(p, permissionTarget(&x)) {
			mine = append(mine, x.Permission)
		}
	}
	return mine, nil
}

// RevokePermission takes a permission back: what it let pass is asked about again.
func (q *Questions) RevokePermission(ctx context.Context, p principal.Principal, name id.Approval) error {
	a, err := q.gate.Admit(ctx, operation.Request{By: p, Op: operation.OnApproval(operation.RevokePermission, name)},
		func() (operation.Target, error) {
			x, err := q.cfg.Store.Permission(ctx, name)
			if err != nil {
				return operation.Target{}, err
			}
			t := permissionTarget(&x)
			if w, ok := q.cfg.Store.ByName(x.Subject.Workspace); ok { // it may be gone
				t.Boundary, t.Root = w.Boundary, w.Root
			}
			return t, nil
		})
	if err != nil {
		return err
	}
	return a.Do(ctx, func(ctx context.Context, _ permit.Permit) (any, error) {
		if err := q.cfg.Store.Revoke(ctx, name); err != nil {
			return nil, err
		}
		return nil, q.reloadRules(ctx)
	})
}
