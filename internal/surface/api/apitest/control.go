package apitest

import (
	"context"
	"slices"
	"time"

	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/surface/api"
)

// Revive implements api.Gate. It has no homes that were kept.
func (g *Gate) Revive(_ context.Context, p principal.Principal, ref string) (api.Workspace, error) {
	if err := g.permit(p, operation.ReviveWorkspace); err != nil {
		return api.Workspace{}, err
	}
	return g.with(p, ref, "workspace.revive", func(d *entry) error { d.State = workspace.StateStopped; return nil })
}

// Pause implements api.Gate.
func (g *Gate) Pause(_ context.Context, p principal.Principal, ref string) (api.Workspace, error) {
	if err := g.permit(p, operation.PauseWorkspace); err != nil {
		return api.Workspace{}, err
	}
	return g.with(p, ref, "workspace.pause", func(d *entry) error { d.State = workspace.StatePaused; return nil })
}

// Resume implements api.Gate.
func (g *Gate) Resume(_ context.Context, p principal.Principal, ref string) (api.Workspace, error) {
	if err := g.permit(p, operation.ResumeWorkspace); err != nil {
		return api.Workspace{}, err
	}
	return g.with(p, ref, "workspace.resume", func(d *entry) error { d.State = workspace.StateRunning; return nil })
}

// Update implements api.Gate.
func (g *Gate) Update(_ context.Context, p principal.Principal, ref string, c workspace.Change) (api.Workspace, error) {
	if _, err := operation.NewUpdate(c); err != nil {
		return api.Workspace{}, err
	}
	if err := g.permit(p, operation.UpdateWorkspace); err != nil {
		return api.Workspace{}, err
	}
	return g.with(p, ref, "workspace.update", func(d *entry) error {
		reach, err := d.Reach.With(c.Reach)
		if err != nil {
			return err
		}
		secrets, err := d.Secrets.Without(c.Secrets.Remove)
		if err != nil {
			return err
		}
		for _, name := range c.Secrets.Add {
			if !secrets.Has(name) {
				secrets.Uses = append(secrets.Uses, workspace.SecretUse{Name: name, Placeholder: "placeholder-of-" + name})
			}
		}
		if secrets, err = secrets.WithFiles(c.Secrets.Files); err != nil {
			return err
		}
		models, err := d.Models.Without(c.Models.Remove)
		if err != nil {
			return err
		}
		models.Uses, models.Budget = append(models.Uses, c.Models.Add...), models.Budget.With(c.Models.Budget)
		d.Reach, d.Secrets, d.Models = reach, secrets, models
		d.Limits = c.Limits.Or(d.Limits)
		if c.Key != "" {
			g.renamed(d, c.Key)
			d.Key = c.Key
		}
		switch {
		case c.TTL > 0:
			d.Expires = d.CreatedAt.Add(c.TTL)
		case c.TTL < 0:
			d.Expires = time.Time{}
		}
		if c.Idle != 0 {
			d.Idle = c.Idle
		}
		return nil
	})
}

// Stats implements api.Gate.
func (g *Gate) Stats(_ context.Context, p principal.Principal, refs []string) ([]workspace.Usage, error) {
	if err := g.permit(p, operation.StatWorkspace); err != nil {
		return nil, err
	}
	var out []workspace.Usage
	for _, ref := range refs {
		if _, err := g.with(p, ref, "", func(d *entry) error {
			out = append(out, workspace.Usage{
				Name: d.Name, Key: d.Key, State: d.State, Limits: d.Limits,
				Stats: workspace.Stats{Pids: 3, DiskBytes: -1},
			})
			return nil
		}); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// Watch implements api.Gate: it tells of one event, and of no other.
func (g *Gate) Watch(ctx context.Context, p principal.Principal, refs []string, after int64,
	emit func(ev workspace.Event, lost int64) error,
) error {
	if err := g.permit(p, operation.WatchWorkspace); err != nil {
		return err
	}
	for _, ref := range refs {
		w, err := g.with(p, ref, "", func(*entry) error { return nil })
		if err == nil {
			err = emit(workspace.Event{
				Number: after + 1, Time: time.Unix(1_700_000_000, 0), Workspace: w.Name, Key: w.Key,
				Kind: "workspace.start", State: w.State, Status: "ok",
			}, 2)
		}
		if err != nil {
			return err
		}
	}
	<-ctx.Done()
	return nil
}

// Connections implements api.Gate. There is one that is open and one that has ended.
func (g *Gate) Connections(_ context.Context, p principal.Principal, ref string, after uint64) (c workspace.Connections, err error) {
	if err := g.permit(p, operation.ListConnections); err != nil {
		return c, err
	}
	if _, err := g.find(p, ref); err != nil {
		return c, err
	}
	c.Open = []workspace.Connection{{Way: "transparent", Host: "example.org", Port: 443, SentBytes: 1, ReceivedBytes: 2, Count: 1}}
	if after < 1 {
		c.Ended = []workspace.Connection{{Number: 1, Way: "dns", Host: "example.net", Refused: "no rule allows it", Count: 3}}
	}
	return c, nil
}

// ExplainReach implements api.Gate. Hosts are allowed if a rule has their text.
func (g *Gate) ExplainReach(_ context.Context, p principal.Principal, ref string, hosts []string) (
	all []workspace.ReachVerdict, err error,
) {
	if err := g.permit(p, operation.ExplainReach); err != nil {
		return nil, err
	}
	d, err := g.find(p, ref)
	if err != nil {
		return nil, err
	}
	for _, h := range hosts {
		v := workspace.ReachVerdict{Host: h, Action: "deny", Reason: "no rule names it"}
		if slices.Contains(d.Reach.Allow, h) {
			v = workspace.ReachVerdict{Host: h, Action: "allow", Rule: h, Reason: "the rule " + h + " allows it", Secrets: d.Secrets.Names()}
		}
		all = append(all, v)
	}
	return all, nil
}
