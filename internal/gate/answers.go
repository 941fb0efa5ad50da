package gate

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/action"
	"github.com/carrel-dev/carrel/internal/approval"
	"github.com/carrel-dev/carrel/internal/audit"
	"github.com/carrel-dev/carrel/internal/crashpoint"
	"github.com/carrel-dev/carrel/internal/id"
	"github.com/carrel-dev/carrel/internal/principal"
	"github.com/carrel-dev/carrel/internal/store"
)

// sees reports whether p may see a question: who asked; who answers for others, of what is
// about workspaces that they reach; and administrators.
func sees(p principal.Principal, a *store.Approval) bool {
	return a.Subject.By == p.String() || p.Can(principal.Answer) && p.MayReach(a.Owner, string(shownOf(*a).Key), string(a.Subject.Workspace))
}

// Approvals returns a page of the approvals that p may see, the newest first, and what the
// next page begins after, "" if there is none.
func (g *Gate) Approvals(ctx context.Context, p principal.Principal, f approval.Filter) (list []approval.View, next string, err error) {
	if err := g.Permit(ctx, p, action.Action{Kind: action.InspectApproval}); err != nil {
		return nil, "", err
	}
	sf := store.ApprovalFilter{State: f.State, Requester: f.Requester, After: f.After, Limit: f.Limit, Now: g.approvals.now()}
	if f.Workspace != "" {
		w, err := g.reach(ctx, p, f.Workspace, action.Action{Kind: action.InspectApproval})
		if err != nil {
			return nil, "", err
		}
		sf.Workspace = w.Name
	}
	if !p.Can(principal.Any) {
		sf.Visible, sf.VisibleOwner = p.String(), p.Owner()
	}
	kept, next, err := g.cfg.Store.Approvals(ctx, sf)
	if err != nil {
		return nil, "", err
	}
	list = make([]approval.View, 0, len(kept))
	for _, a := range kept {
		if !sees(p, &a) { // a scope hides some: then a page is shorter
			continue
		}
		if v := g.current(a); f.State == "" || v.State == f.State { // as after a clock was set back
			list = append(list, v)
		}
	}
	return list, next, nil
}

// current is an approval with its state as of now.
func (g *Gate) current(a store.Approval) approval.View {
	v := shownOf(a)
	v.State = a.At(g.approvals.now())
	return g.shownTo(v)
}

// Approval returns one approval that p may see.
func (g *Gate) Approval(ctx context.Context, p principal.Principal, name id.Approval) (approval.View, error) {
	a, err := g.visible(ctx, p, name, action.InspectApproval)
	if err != nil {
		return approval.View{}, err
	}
	return g.current(a), nil
}

func (g *Gate) visible(ctx context.Context, p principal.Principal, name id.Approval, kind action.Kind) (store.Approval, error) {
	if err := g.Permit(ctx, p, action.Action{Kind: kind, Approval: name}); err != nil {
		return store.Approval{}, err
	}
	a, err := g.cfg.Store.Approval(ctx, name)
	if err != nil {
		return a, err
	}
	if sees(p, &a) {
		return a, nil
	}
	return a, g.deny(ctx, answering(p, a, kind),
		fmt.Errorf("cannot let %s %s: it is about another user's action; ask them or an administrator: %w", p, verb(kind)+" "+string(name), errdefs.ErrPermissionDenied))
}

func answering(p principal.Principal, a store.Approval, kind action.Kind) request {
	q := shownOf(a)
	return request{by: p, trace: q.Trace, on: store.Workspace{Name: a.Subject.Workspace}, action: action.Action{Kind: kind, Workspace: a.Subject.Workspace, Approval: a.ID}}
}

// Answer gives p's answer to a question. terminal is their word that they are a person who has
// seen it at a terminal: see docs/security.md on what that is worth.
//
// Errors: permission_denied if it is not theirs to answer, failed_precondition if it was
// answered before or its time is over.
func (g *Gate) Answer(ctx context.Context, p principal.Principal, name id.Approval, kind approval.Kind, reason string, terminal bool) (approval.View, error) {
	g.approvals.answering.Lock()
	defer g.approvals.answering.Unlock()
	a, err := g.visible(ctx, p, name, action.Answer)
	if err != nil {
		return approval.View{}, err
	}
	reason = g.cfg.Redact.Text(reason)
	now := g.approvals.now()
	reply := func(a approval.Approval) (approval.Approval, error) { return a.Reply(p, terminal, kind, reason, now) }
	replied, err := reply(a.Approval)
	if errdefs.IsPermissionDenied(err) {
		return approval.View{}, g.deny(ctx, answering(p, a, action.Answer), err)
	}
	if err != nil {
		return approval.View{}, err
	}
	q := shownOf(a)
	if _, err := g.record.Append(ctx, answerRecord(replied, q.Trace, p)); err != nil {
		return approval.View{}, fmt.Errorf("cannot record the answer, so it does not count: %w", err)
	}
	crashpoint.Here("daemon.approval.recorded")
	if a, err = g.cfg.Store.ChangeApproval(ctx, name, reply); err != nil {
		return approval.View{}, err
	}
	crashpoint.Here("daemon.approval.answered")
	g.approvals.finish(name)
	status := "ok"
	if a.State == approval.Denied {
		status = "failed"
	}
	g.changed(a.Approval, q.Question, "approval.answered", status)
	return g.shownTo(shownOf(a)), nil
}

// WatchApprovals calls emit with the pending questions that p may see, the oldest first, then
// once with nil, and from then on with each that changes, until ctx ends.
func (g *Gate) WatchApprovals(ctx context.Context, p principal.Principal, emit func(*approval.View) error) error {
	if err := g.Permit(ctx, p, action.Action{Kind: action.InspectApproval}); err != nil {
		return err
	}
	_, at, _, _ := g.approvals.since(0)
	if err := g.emitPending(ctx, p, emit); err != nil {
		return err
	}
	if err := emit(nil); err != nil {
		return err
	}
	for {
		var names []id.Approval
		var lost bool
		var more <-chan struct{}
		names, at, lost, more = g.approvals.since(at)
		if lost {
			if err := g.emitPending(ctx, p, emit); err != nil {
				return err
			}
		}
		for _, name := range names {
			a, err := g.cfg.Store.Approval(ctx, name)
			if errdefs.IsNotFound(err) {
				continue
			}
			if err != nil {
				return err
			}
			if !sees(p, &a) {
				continue
			}
			v := g.current(a)
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

func (g *Gate) emitPending(ctx context.Context, p principal.Principal, emit func(*approval.View) error) error {
	// Only their names are held: what all of them show may be more than memory.
	var names []id.Approval
	f := approval.Filter{State: approval.Pending, Limit: 100}
	for {
		list, next, err := g.Approvals(ctx, p, f)
		if err != nil {
			return err
		}
		for i := range list {
			names = append(names, list[i].ID)
		}
		if next == "" {
			break
		}
		f.After = next
	}
	for _, name := range slices.Backward(names) {
		a, err := g.cfg.Store.Approval(ctx, name)
		if err != nil {
			return err
		}
		if v := g.current(a); v.State == approval.Pending { // it may have been answered meanwhile
			if err := emit(&v); err != nil {
				return err
			}
		}
	}
	return nil
}

// Permissions returns what is remembered of answers, of those that p may see.
func (g *Gate) Permissions(ctx context.Context, p principal.Principal, ref, thread string) ([]approval.Permission, error) {
	if err := g.Permit(ctx, p, action.Action{Kind: action.InspectApproval}); err != nil {
		return nil, err
	}
	var on id.Workspace
	if ref != "" {
		w, err := g.reach(ctx, p, ref, action.Action{Kind: action.InspectApproval})
		if err != nil {
			return nil, err
		}
		on = w.Name
	}
	list, err := g.cfg.Store.Permissions(ctx, "", on, thread)
	if err != nil {
		return nil, err
	}
	var mine []approval.Permission
	for _, x := range list {
		if seesPermission(p, &x) {
			mine = append(mine, x.Permission)
		}
	}
	return mine, nil
}

func seesPermission(p principal.Principal, x *store.Permission) bool {
	return x.Subject.By == p.String() || p.Can(principal.Answer) && p.MayReach(x.Owner, "", string(x.Subject.Workspace))
}

// RevokePermission takes a permission back: what it let pass is asked about again.
func (g *Gate) RevokePermission(ctx context.Context, p principal.Principal, name id.Approval) error {
	if err := g.Permit(ctx, p, action.Action{Kind: action.Revoke, Approval: name}); err != nil {
		return err
	}
	x, err := g.cfg.Store.Permission(ctx, name)
	if err != nil {
		return err
	}
	on, _ := g.cfg.Store.ByName(x.Subject.Workspace) // it may be gone
	on.Name = x.Subject.Workspace
	a := action.Action{Kind: action.Revoke, Workspace: on.Name, Approval: name}
	if !seesPermission(p, &x) {
		return g.deny(ctx, request{by: p, trace: id.NewTrace(), on: on, action: a},
			fmt.Errorf("cannot let %s revoke permission %s: it is another user's; ask them or an administrator: %w", p, name, errdefs.ErrPermissionDenied))
	}
	return g.do(ctx, request{by: p, trace: id.NewTrace(), on: on, action: a}, func(ctx context.Context) (any, error) {
		return nil, g.cfg.Store.Revoke(ctx, name)
	})
}

// intentsOf finds the intents that approvals were spent on in the record.
func (g *Gate) intentsOf(ctx context.Context, list []store.Approval) (map[id.Approval]int64, error) {
	found := map[id.Approval]int64{}
	err := g.cfg.Audit.Read(ctx, 0, 0, false, func(lines [][]byte) error {
		for _, line := range lines {
			for _, a := range list {
				if !bytes.Contains(line, []byte(a.ID)) {
					continue
				}
				r, err := audit.Decode(line)
				if err != nil {
					return err
				}
				if r.Type == audit.Intent && len(r.Approval) > len(a.ID) && r.Approval[:len(a.ID)] == string(a.ID) {
					found[a.ID] = r.Seq
				}
			}
		}
		return nil
	})
	return found, err
}
