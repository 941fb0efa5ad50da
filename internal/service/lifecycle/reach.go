package lifecycle

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/spec/permit"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/wire/egressapi"
)

// Ways are the ways out of workspaces that run, by their names. Package ways has what each method does.
type Ways interface {
	Initial(profile string) workspace.Reach
	Connections(ctx context.Context, name id.Workspace, after uint64) (workspace.Connections, error)
	Check(r workspace.Reach, inner bool) error
	InsideTLS(r workspace.Reach) (rule string)
	Explain(r workspace.Reach, secrets []egressapi.Secret, hosts []string) ([]workspace.ReachVerdict, error)
	CheckSecrets(r workspace.Reach, secrets []egressapi.Secret) error
	Open(ctx context.Context, name id.Workspace, r workspace.Reach, secrets egressapi.Secrets) error
	Change(ctx context.Context, name id.Workspace, r workspace.Reach, secrets egressapi.Secrets) error
	Close(name id.Workspace)
}

// openWay opens the way out of a workspace that was just started with one. If that fails, it is stopped again: what
// runs there would take the network for broken.
func (l *Lifecycle) openWay(
	ctx context.Context, rt runtime.Runtime, p permit.Permit, k workspace.Kept, real workspace.Real,
) (workspace.Real, error) {
	if !real.Egress || real.State != workspace.StateRunning {
		return real, nil
	}
	err := l.checkReach(principal.Self(), k.Reach) // a restore brings rules that nobody has checked here
	var secrets egressapi.Secrets
	if err == nil {
		secrets, err = l.keysOf(ctx, k, real.Trust)
	}
	if err == nil {
		err = l.cfg.Ways.Open(ctx, k.Name, k.Reach, secrets)
	}
	if err == nil {
		return real, nil
	}
	err = fmt.Errorf("cannot open the way out of workspace %s, and so it is stopped: %w", k.Name, err)
	stopped, serr := rt.Stop(context.WithoutCancel(ctx), p)
	if serr != nil {
		return real, errors.Join(err, serr)
	}
	return stopped, err
}

// takeWay opens the way out of a workspace that runs already. Without one it reaches nothing.
func (l *Lifecycle) takeWay(ctx context.Context, w workspace.Workspace) {
	if !w.Egress || !w.State.Live() || l.cfg.Ways == nil {
		return
	}
	secrets, err := l.keysOf(ctx, w.Kept, w.Trust)
	if err != nil { // it reaches its hosts, and they get placeholders
		l.cfg.Log.Error("a workspace that runs has none of its secrets", "workspace", w.Name, "error", err)
	}
	if err := l.cfg.Ways.Open(ctx, w.Name, w.Reach, secrets); err != nil {
		l.cfg.Log.Error("cannot open the way out of a workspace that runs: it reaches nothing until its rules are changed or it is started again",
			"workspace", w.Name, "error", err)
	}
}

// closeWay ends the way out of a workspace that is to be ended.
func (l *Lifecycle) closeWay(name id.Workspace) {
	if l.cfg.Ways != nil {
		l.cfg.Ways.Close(name)
	}
	if l.cfg.Models != nil {
		l.cfg.Models.Ended(name)
	}
}

// checkReach refuses rules of the network that this daemon cannot put in force, and those that by may not give: only who
// reaches every workspace may let one reach what is not public.
func (l *Lifecycle) checkReach(by principal.Principal, r workspace.Reach) error {
	switch {
	case r.Empty():
		return nil
	case l.cfg.Ways == nil:
		return fmt.Errorf("cannot use the rule %q: this daemon has no carrel-egress, so that its workspaces reach nothing; install it beside "+
			"carreld and restart the daemon: %w", r.Texts()[0], errdefs.ErrFailedPrecondition)
	}
	return l.cfg.Ways.Check(r, by.Can(principal.Any))
}

// initial returns the rules of a new workspace that is wanted with some of its own: with those of its profile, which an
// administrator has written.
func (l *Lifecycle) initial(k workspace.Kept) (workspace.Reach, error) {
	if l.cfg.Ways == nil {
		return k.Reach, nil
	}
	of := l.cfg.Ways.Initial(k.Profile)
	if of.Empty() {
		return k.Reach, nil
	}
	all, err := k.Reach.With(workspace.ReachChange{Allow: of.Allow, Ask: of.Ask, Deny: of.Deny})
	if err == nil {
		err = l.checkReach(principal.Self(), all)
	}
	if err != nil {
		return k.Reach, fmt.Errorf("cannot use the network rules of the profile %q with those of workspace %q: %w", cmp.Or(k.Profile, "default"),
			k.Key, err)
	}
	return all, nil
}

// sameReach is an error if rules that are asked for are not those that there are. A caller that asks for none takes
// what there is.
func (l *Lifecycle) sameReach(asked workspace.Reach, k workspace.Kept) error {
	there, fresh := k.Reach, k
	there.Approved = nil // they came later, with answers
	if asked.Empty() || asked.Equal(there) {
		return nil
	}
	fresh.Reach = asked
	if all, err := l.initial(fresh); err == nil && all.Equal(there) {
		return nil
	}
	return fmt.Errorf("cannot give workspace %q other network rules: it is there already, and \"carrel create\" changes none; \"carrel "+
		"egress rules\" shows those that it has, \"carrel egress allow\", ask, deny and rm change them: %w", k.Key, errdefs.ErrFailedPrecondition)
}

// reachAfter returns the rules that a workspace has after a change, if it can have them. Rules can always be removed.
func (l *Lifecycle) reachAfter(by principal.Principal, k workspace.Kept, c workspace.ReachChange) (workspace.Reach, error) {
	if c.Empty() {
		return k.Reach, nil
	}
	now, err := k.Reach.With(c)
	if err != nil || !c.Adds() {
		return now, err
	}
	if err := l.checkReach(by, c.Added()); err != nil {
		return now, err
	}
	if err := l.checkReach(principal.Self(), now); err != nil { // together with what somebody else gave
		return now, err
	}
	// One that was started without a way out gets it when it starts next, and the rules hold then.
	added := workspace.Reach{Allow: c.Allow}
	if w := l.join(k); added.Any() && w.State.Live() && w.Egress && w.Trust == "" {
		// What only denies is always possible: until the next start nothing passes to its hosts by TLS.
		if rule := l.cfg.Ways.InsideTLS(added); rule != "" && l.cfg.Ways.InsideTLS(workspace.Reach{}) != rule {
			return now, fmt.Errorf("cannot give workspace %s the rule %q: it was started without an authority and trusts nobody yet who could read "+
				"its requests inside TLS; stop it first (carrel stop %s), then change the rules: %w", k.Name, rule, k.Name,
				errdefs.ErrFailedPrecondition)
		}
	}
	return now, nil
}

// reached puts the stored rules and secrets of a workspace in force if it is live and has a way out.
func (l *Lifecycle) reached(ctx context.Context, name id.Workspace) error {
	w, err := l.living(name)
	if err != nil || l.cfg.Ways == nil || !w.State.Live() || !w.Egress {
		return err
	}
	secrets, err := l.keysOf(ctx, w.Kept, w.Trust)
	if serr := l.cfg.Ways.Change(ctx, name, w.Reach, secrets); serr != nil {
		return fmt.Errorf("cannot put the network rules of workspace %s in force: %w; they are stored, and hold when it starts next: carrel "+
			"stop %s", name, serr, name)
	}
	return err
}

// ExplainReach returns what the rules in force for the workspace that ref names say of hosts, in their order. It resolves
// no name.
func (l *Lifecycle) ExplainReach(ctx context.Context, p principal.Principal, ref string, hosts []string) ([]workspace.ReachVerdict, error) {
	a, err := l.Authorise(ctx, p, ref, operation.Simple(operation.ExplainReach))
	if err != nil {
		return nil, err
	}
	if len(hosts) == 0 || len(hosts) > workspace.MaxReachQuestions {
		return nil, fmt.Errorf("cannot judge %d hosts: name 1 to %d: %w", len(hosts), workspace.MaxReachQuestions, errdefs.ErrInvalidArgument)
	}
	w, err := l.living(a.On().Name)
	if err != nil {
		return nil, err
	}
	if l.cfg.Ways == nil {
		return nil, fmt.Errorf("cannot judge hosts: this daemon has no carrel-egress, so that its workspaces reach nothing: %w",
			errdefs.ErrFailedPrecondition)
	}
	var secrets []egressapi.Secret
	if l.cfg.Bindings != nil {
		if _, secrets, err = l.cfg.Bindings.Bind(ctx, w.Kept, nil); err != nil {
			return nil, err
		}
	}
	return l.cfg.Ways.Explain(w.Reach, secrets, hosts)
}

// Connections returns what the workspace that ref names is connected to, and its newest connections that have ended,
// whose number is greater than after.
func (l *Lifecycle) Connections(ctx context.Context, p principal.Principal, ref string, after uint64) (c workspace.Connections, err error) {
	a, err := l.Authorise(ctx, p, ref, operation.Simple(operation.ListConnections))
	if err != nil {
		return c, err
	}
	w, err := l.living(a.On().Name)
	if err != nil || l.cfg.Ways == nil {
		return c, err
	}
	return l.cfg.Ways.Connections(ctx, w.Name, after)
}
