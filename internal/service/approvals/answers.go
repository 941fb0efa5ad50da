package approvals

import (
	"context"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/crashpoint"
	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/gate"
	"github.com/carrel-dev/carrel/internal/spec/approval"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/spec/permit"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/state/audit"
	"github.com/carrel-dev/carrel/internal/state/store"
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

// targetOn is targetOf of a question in the view.
func (q *Questions) targetOn(x *question) operation.Target {
	t := operation.Target{
		Kind: operation.Approval, ID: string(x.name), Requester: x.requester, Owner: x.owner, Name: x.workspace, Key: x.key,
	}
	if w, lives := q.cfg.Store.ByName(t.Name); lives {
		t.Key = w.Key
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

// decodeAtOnce is how many approvals are made ready to be seen in one turn at that.
const decodeAtOnce = 64

// Approvals returns a page of the approvals that p may see, the newest first, and what the
// next page begins after, "" if there is none. A page may be shorter than it might be.
func (q *Questions) Approvals(
	ctx context.Context, p principal.Principal, f approval.Filter,
) (list []approval.View, next string, err error) {
	sf := store.ApprovalFilter{State: f.State, Requester: f.Requester, After: f.After, Limit: f.Limit, Now: q.clock.now()}
	if sf.Workspace, err = q.look(ctx, p, f.Workspace); err != nil {
		return nil, "", err
	}
	if !p.Can(principal.Any) {
		sf.Visible, sf.VisibleOwner = p.String(), p.Owner()
	}
	back, err := q.reading.Take(ctx, p.Owner())
	if err != nil {
		return nil, "", err
	}
	defer back()
	if f.State == approval.Pending {
		return q.openPage(ctx, p, sf)
	}
	kept, next, err := q.cfg.Store.Approvals(ctx, sf)
	if err != nil {
		return nil, "", err
	}
	for part := range slices.Chunk(kept, decodeAtOnce) {
		give, err := q.cfg.Store.Decode(ctx)
		if err != nil {
			return nil, "", err
		}
		for _, a := range part {
			if !operation.Reaches(p, q.targetOf(&a)) {
				continue
			}
			if v := q.current(q.shown(a)); f.State == "" || v.State == f.State { // as after a clock was set back
				list = append(list, v)
			}
		}
		give()
	}
	return list, next, nil
}

// openPage returns a page of the open questions.
func (q *Questions) openPage(
	ctx context.Context, p principal.Principal, f store.ApprovalFilter,
) (list []approval.View, next string, err error) {
	limit := min(max(f.Limit, 1), store.MaxPage)
	found, err := q.view.page(p, f, limit+1)
	if err != nil {
		return nil, "", err
	}
	bytes := int64(0)
	for len(found) > 0 {
		var views []approval.View
		var these []*question
		for len(found) > 0 && len(views) < decodeAtOnce && limit > 0 && bytes < store.PageBytes {
			x := found[0]
			found, limit = found[1:], limit-1
			v, size, err := q.viewOf(ctx, x)
			if errdefs.IsNotFound(err) {
				continue
			}
			if err != nil {
				return nil, "", err
			}
			views, these, bytes = append(views, v), append(these, x), bytes+size
			next = store.Mark(x.asked, x.name)
		}
		if list, err = q.addOpen(ctx, p, list, views, these); err != nil {
			return nil, "", err
		}
		if len(found) > 0 && (limit == 0 || bytes >= store.PageBytes) {
			return list, next, nil
		}
	}
	return list, "", nil
}

// addOpen adds those views to a list that are still open and that p may see, in one turn. these are their questions.
func (q *Questions) addOpen(
	ctx context.Context, p principal.Principal, list, views []approval.View, these []*question,
) ([]approval.View, error) {
	give, err := q.cfg.Store.Decode(ctx)
	if err != nil {
		return nil, err
	}
	defer give()
	for i, v := range views {
		if v = q.current(v); v.State == approval.Pending && operation.Reaches(p, q.targetOn(these[i])) {
			list = append(list, v)
		}
	}
	return list, nil
}

// shown is shownOf, without decoding what is held.
func (q *Questions) shown(a store.Approval) approval.View {
	x := q.view.find(a.ID)
	if x == nil || x.view == nil {
		return shownOf(a)
	}
	v := *x.view
	v.Approval = a.Approval
	return v
}

// viewOf returns what a question in the view says, which is not to be changed, and about how many bytes that is.
func (q *Questions) viewOf(ctx context.Context, x *question) (approval.View, int64, error) {
	if x.view != nil {
		return *x.view, x.size, nil
	}
	a, err := q.cfg.Store.Approval(ctx, x.name)
	return shownOf(a), int64(2 * len(a.Shown)), err
}

// one returns an approval as it is now, and what it is as a target.
func (q *Questions) one(ctx context.Context, name id.Approval) (approval.View, operation.Target, error) {
	if x := q.view.find(name); x != nil && x.view != nil {
		return q.current(*x.view), q.targetOn(x), nil
	}
	a, err := q.cfg.Store.Approval(ctx, name)
	if err != nil {
		return approval.View{}, operation.Target{}, err
	}
	return q.current(shownOf(a)), q.targetOf(&a), nil
}

// oneFor is one for p, of whose streams one at a time looks.
func (q *Questions) oneFor(ctx context.Context, p principal.Principal, name id.Approval) (approval.View, operation.Target, error) {
	back, err := q.reading.Take(ctx, p.Owner())
	if err != nil {
		return approval.View{}, operation.Target{}, err
	}
	defer back()
	give, err := q.cfg.Store.Decode(ctx)
	if err != nil {
		return approval.View{}, operation.Target{}, err
	}
	if x := q.view.find(name); x != nil && x.view != nil {
		defer give()
		return q.current(*x.view), q.targetOn(x), nil
	}
	give()
	return q.one(ctx, name)
}

// current is an approval with its state as of now.
func (q *Questions) current(v approval.View) approval.View {
	v.State = v.At(q.clock.now())
	return cleaned(q.cfg.Records.Redactor(), v)
}

// Approval returns one approval that p may see.
func (q *Questions) Approval(ctx context.Context, p principal.Principal, name id.Approval) (approval.View, error) {
	var v approval.View
	_, err := q.gate.Authorise(ctx, operation.Request{By: p, Op: operation.OnApproval(operation.InspectApproval, name)},
		func() (t operation.Target, err error) {
			v, t, err = q.one(ctx, name)
			return t, err
		})
	if err != nil {
		return approval.View{}, err
	}
	return v, nil
}

// answerable authorises the answer to a question, and returns that.
func (q *Questions) answerable(ctx context.Context, p principal.Principal, name id.Approval) (*gate.Authorised, store.Approval, error) {
	var a store.Approval
	authorised, err := q.gate.Authorise(ctx, operation.Request{By: p, Op: operation.OnApproval(operation.AnswerApproval, name)},
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
// files are those of an answer of kind Files: the part of the plan that is about them is let through, with a digest of its own.
//
// Errors: permission_denied if it is not theirs to answer, failed_precondition if it was
// answered before or its time is over.
func (q *Questions) Answer(ctx context.Context, p principal.Principal, name id.Approval, kind approval.Kind, reason string,
	terminal bool, files ...string,
) (approval.View, error) {
	defer q.answering.lock(name)()
	authorised, a, err := q.answerable(ctx, p, name)
	if err != nil {
		return approval.View{}, err
	}
	process, err := gate.Answering(ctx)
	if err != nil && kind != approval.Deny {
		return approval.View{}, authorised.Deny(ctx, err)
	}
	reason = q.cfg.Records.Redactor().Text(reason)
	now, digest := q.clock.now(), ""
	a.Separate = q.cfg.Separate
	if kind == approval.Files && len(a.Files) > 0 && a.MayAnswer(p, kind, terminal) == nil {
		part := q.waiting.part(name)
		if part == nil {
			return approval.View{}, fmt.Errorf("cannot answer approval %s for some files: nobody waits for it any more; have the agent propose "+
				"it again: %w", name, errdefs.ErrFailedPrecondition)
		}
		if digest, err = part(files); err != nil {
			return approval.View{}, err
		}
	}
	reply := func(a approval.Approval) (approval.Approval, error) {
		a.Separate = q.cfg.Separate
		if kind == approval.Files {
			return a.Choose(p, terminal, files, digest, reason, now)
		}
		return a.Reply(p, terminal, kind, reason, now)
	}
	replied, err := reply(a.Approval)
	if errdefs.IsPermissionDenied(err) {
		return approval.View{}, authorised.Deny(ctx, err)
	}
	if err != nil {
		return approval.View{}, err
	}
	if kind == approval.Always {
		// First the rule: who may answer may still not give it, and then nothing is answered.
		if err := q.addRule(ctx, p, a.Subject.Workspace, a.Always); err != nil {
			return approval.View{}, fmt.Errorf("cannot allow %s from now on, so approval %s is as it was: %w", a.Always, name, err)
		}
	}
	shown := shownOf(a)
	ctx = context.WithoutCancel(ctx) // an answer that is recorded counts, whoever waits to hear of it
	if _, err := q.cfg.Records.Append(ctx, answerRecord(q.clean(replied), shown.Question, p, process)); err != nil {
		return approval.View{}, fmt.Errorf("cannot record the answer, so it does not count: %w", err)
	}
	crashpoint.Here("daemon.approval.recorded")
	if a, err = q.cfg.Store.ChangeApproval(ctx, name, reply); err != nil {
		return approval.View{}, err
	}
	crashpoint.Here("daemon.approval.answered")
	v := shownOf(a)
	q.show(v, int64(len(a.Shown)))
	q.waiting.finish(name, true)
	status := audit.StatusOK
	if a.State == approval.Denied {
		status = audit.StatusFailed
	}
	q.tell(&v, "approval.answered", status)
	return cleaned(q.cfg.Records.Redactor(), v), nil
}

// WatchApprovals calls emit with the pending questions that p may see, the oldest first, then
// once with nil, and from then on with each that changes, until ctx ends.
func (q *Questions) WatchApprovals(ctx context.Context, p principal.Principal, emit func(*approval.View) error) error {
	if _, err := q.look(ctx, p, ""); err != nil {
		return err
	}
	w, leave := q.view.watch(p)
	defer leave()
	if err := q.emitPending(ctx, p, emit); err != nil {
		return err
	}
	if err := emit(nil); err != nil {
		return err
	}
	for {
		names, lost := q.view.news(w)
		if lost {
			if err := q.emitPending(ctx, p, emit); err != nil {
				return err
			}
		}
		for _, name := range names {
			if ctx.Err() != nil {
				return nil
			}
			if err := q.emitOne(ctx, p, name, false, emit); err != nil {
				return err
			}
		}
		select {
		case <-w.more:
		case <-ctx.Done():
			return nil
		}
	}
}

func (q *Questions) emitPending(ctx context.Context, p principal.Principal, emit func(*approval.View) error) error {
	// Only their names are held: what all of them show may be more than memory.
	for _, name := range q.view.names(p) {
		if err := q.emitOne(ctx, p, name, true, emit); err != nil {
			return err
		}
	}
	return nil
}

// emitOne calls emit with an approval as it is now, if p may see it and, where that is asked, it is pending: it may
// have been answered meanwhile, or its workspace renamed.
func (q *Questions) emitOne(ctx context.Context, p principal.Principal, name id.Approval, pending bool,
	emit func(*approval.View) error,
) error {
	v, on, err := q.oneFor(ctx, p, name)
	if errdefs.IsNotFound(err) {
		return nil
	}
	if err != nil || !operation.Reaches(p, on) || pending && v.State != approval.Pending {
		return err
	}
	return emit(&v)
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
