package apitest

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/spec/approval"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/spec/principal"
)

// Pend adds a question.
func (g *Gate) Pend(v approval.View) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.pending = append(g.pending, v)
}

// Approvals implements api.Gate; a mark is the number of those before.
func (g *Gate) Approvals(_ context.Context, p principal.Principal, f approval.Filter) (list []approval.View, next string, err error) {
	if err := g.permit(p, operation.InspectApproval); err != nil {
		return nil, "", err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	from := 0
	if f.After != "" {
		if from, err = strconv.Atoi(f.After); err != nil {
			return nil, "", fmt.Errorf("cannot go on after %q: %w", f.After, errdefs.ErrInvalidArgument)
		}
	}
	for i, v := range g.pending {
		if i < from || !p.MayReach(v.Subject.By) || f.State != "" && v.State != f.State {
			continue
		}
		if len(list) == f.Limit {
			return list, strconv.Itoa(i), nil
		}
		list = append(list, v)
	}
	return list, "", nil
}

func (g *Gate) at(p principal.Principal, name id.Approval) (int, error) {
	i := slices.IndexFunc(g.pending, func(v approval.View) bool { return v.ID == name })
	switch {
	case i < 0:
		return 0, fmt.Errorf("cannot find approval %s: %w", name, errdefs.ErrNotFound)
	case !p.MayReach(g.pending[i].Subject.By):
		return 0, fmt.Errorf("cannot let %s see approval %s: %w", p, name, errdefs.ErrPermissionDenied)
	}
	return i, nil
}

// Approval implements api.Gate.
func (g *Gate) Approval(_ context.Context, p principal.Principal, name id.Approval) (v approval.View, err error) {
	if err := g.permit(p, operation.InspectApproval); err != nil {
		return approval.View{}, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	i, err := g.at(p, name)
	if err != nil {
		return v, err
	}
	return g.pending[i], nil
}

// Answer implements api.Gate.
func (g *Gate) Answer(_ context.Context, p principal.Principal, name id.Approval, kind approval.Kind, reason string,
	terminal bool, files ...string,
) (approval.View, error) {
	if err := g.permit(p, operation.AnswerApproval); err != nil {
		return approval.View{}, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	i, err := g.at(p, name)
	if err != nil {
		return approval.View{}, err
	}
	v := &g.pending[i]
	if kind == approval.Files {
		v.Approval, err = v.Choose(p, terminal, files, "sha256:part", reason, time.Now())
	} else {
		v.Approval, err = v.Reply(p, terminal, kind, reason, time.Now())
	}
	return *v, err
}

// WatchApprovals implements api.Gate: nothing changes later.
func (g *Gate) WatchApprovals(ctx context.Context, p principal.Principal, emit func(*approval.View) error) error {
	if err := g.permit(p, operation.InspectApproval); err != nil {
		return err
	}
	list, _, err := g.Approvals(ctx, p, approval.Filter{State: approval.Pending, Limit: 1000})
	if err != nil {
		return err
	}
	for i := range list {
		if err := emit(&list[i]); err != nil {
			return err
		}
	}
	if err := emit(nil); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// Permissions implements api.Gate.
func (g *Gate) Permissions(_ context.Context, p principal.Principal, _, thread string) (list []approval.Permission, err error) {
	if err := g.permit(p, operation.InspectApproval); err != nil {
		return nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	list = append(list, g.allowed...)
	for _, v := range g.pending {
		if x, ok := v.Permission(); ok && p.MayReach(v.Subject.By) && (thread == "" || v.Subject.Thread == thread) {
			list = append(list, x)
		}
	}
	return list, nil
}

// AllowCommand implements api.Gate.
func (g *Gate) AllowCommand(
	_ context.Context, p principal.Principal, _ string, argv []string, everybody bool,
) (approval.Permission, error) {
	if err := g.permit(p, operation.AllowCommands); err != nil {
		return approval.Permission{}, err
	}
	if err := approval.MayWrite(p, everybody); err != nil {
		return approval.Permission{}, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	rule := approval.Permission{
		From: id.NewRule(), Subject: approval.Subject{Argv: argv}, By: p.String(), At: time.Now(),
		Rule: &approval.Rule{Owner: p.Owner(), Capabilities: []string{"network.out"}, UID: p.UID},
	}
	g.allowed = append(g.allowed, rule)
	return rule, nil
}

// RevokePermission implements api.Gate.
func (g *Gate) RevokePermission(_ context.Context, p principal.Principal, name id.Approval) error {
	if err := g.permit(p, operation.RevokePermission); err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if i := slices.IndexFunc(g.allowed, func(x approval.Permission) bool { return x.From == name }); i >= 0 {
		g.allowed = slices.Delete(g.allowed, i, i+1)
		return nil
	}
	i, err := g.at(p, name)
	if err == nil {
		g.pending[i].State = approval.Denied
	}
	return err
}
