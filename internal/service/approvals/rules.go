package approvals

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/gate"
	"github.com/carrel-dev/carrel/internal/spec/approval"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/spec/permit"
	"github.com/carrel-dev/carrel/internal/spec/principal"
)

// AllowCommand lets commands of the shape of argv pass unasked: in the workspace that ref names, in all of p's own if
// that is "", or in everybody's. It holds from the next command on, until RevokePermission.
//
// Errors: permission_denied if p may not say so, or if nobody may because of what the commands do.
func (q *Questions) AllowCommand(ctx context.Context, p principal.Principal, ref string, argv []string, everybody bool,
) (approval.Permission, error) {
	none := approval.Permission{}
	shape, err := approval.NewShape(argv)
	if err != nil {
		return none, err
	}
	if everybody && ref != "" {
		return none, fmt.Errorf("cannot allow that for one workspace and for everybody's: name the one or leave it out: %w",
			errdefs.ErrInvalidArgument)
	}
	var find gate.Finder
	if ref != "" {
		find = func() (operation.Target, error) { return q.find(ref) }
	}
	op := operation.Allow{Argv: argv, Everybody: everybody}
	authorised, err := q.gate.Authorise(ctx, operation.Request{By: p, Op: op}, find)
	if err != nil {
		return none, err
	}
	if err := approval.MayWrite(p, everybody); err != nil {
		return none, authorised.Deny(ctx, err)
	}
	if _, err := gate.Answering(ctx); err != nil {
		return none, authorised.Deny(ctx, err)
	}
	if clean := q.cfg.Records.Redactor().Argv(argv); len(clean) > 0 && &clean[0] != &argv[0] {
		return none, authorised.Deny(ctx, fmt.Errorf("cannot allow that: a word of it is a secret, which whoever lists the rules sees; give "+
			"the command the secret by a variable or a file: %w", errdefs.ErrInvalidArgument))
	}
	capabilities, err := q.cfg.Judge.Shape(argv, shape)
	if err != nil {
		return none, authorised.Deny(ctx, err)
	}
	on := authorised.On()
	rule := approval.Rule{Capabilities: capabilities, UID: p.UID, Admin: p.Can(principal.Any)}
	switch {
	case ref != "":
		rule.Owner = on.Owner
	case !everybody:
		rule.Owner = p.Owner()
	}
	made := approval.Permission{
		From: id.NewRule(), Subject: approval.Subject{Workspace: on.Name, Argv: argv}, By: p.String(), At: time.Now(), Rule: &rule,
	}
	a, err := authorised.Admit(ctx)
	if err != nil {
		return none, err
	}
	return made, a.Do(ctx, func(ctx context.Context, _ permit.Permit) (any, error) {
		if err := q.cfg.Store.AddRule(ctx, made); err != nil {
			return nil, err
		}
		return map[string]string{"rule": string(made.From)}, q.reloadRules(ctx)
	})
}

// reloadRules has the judge go by the rules that are kept.
func (q *Questions) reloadRules(ctx context.Context) error {
	q.allowing.Lock() // so that none of two changes is lost
	defer q.allowing.Unlock()
	kept, err := q.cfg.Store.Rules(ctx)
	if err != nil {
		return err
	}
	list := make([]approval.Permission, 0, len(kept))
	for _, x := range kept {
		list = append(list, x.Permission)
	}
	return q.cfg.Judge.Allow(list, q.cfg.Separate)
}
