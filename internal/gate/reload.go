package gate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/action"
	"github.com/carrel-dev/carrel/internal/audit"
	"github.com/carrel-dev/carrel/internal/id"
	"github.com/carrel-dev/carrel/internal/principal"
)

// policyLoad is the Data of a record about other rules.
type policyLoad struct {
	Event string `json:"event"`
	Old   string `json:"old"`
	New   string `json:"new,omitempty"`
	Rules int    `json:"rules,omitempty"`
}

// ReloadPolicy reads the rules again and puts them in force for every decision that begins
// afterwards; those under way are made by the ones that they began with. Rules that cannot be
// used, or whose load cannot be recorded, leave the ones before in force.
func (g *Gate) ReloadPolicy(ctx context.Context, p principal.Principal) (was, now string, rules int, err error) {
	if err := g.Permit(ctx, p, action.Action{Kind: action.Policy}); err != nil {
		return "", "", 0, err
	}
	if _, err := g.rules(); err != nil {
		return "", "", 0, err
	}
	g.loading.Lock()
	defer g.loading.Unlock()
	was = g.policy.Load().engine.Digest()
	load := policyLoad{Event: "policy.load", Old: was}
	rec := audit.Record{Type: audit.Policy, Trace: id.NewTrace(), Principal: p.String(), Owner: onBehalf(p), Status: audit.StatusOK}
	next, err := g.load()
	if err != nil {
		rec.Status, rec.Error, rec.ErrorKind = audit.StatusFailed, clip(err.Error()), kindOf(err)
	} else {
		load.New, load.Rules = next.engine.Digest(), next.engine.Rules()
	}
	raw, merr := json.Marshal(load)
	rec.Data = raw
	_, aerr := g.record.Append(ctx, rec)
	if err = errors.Join(err, merr); err != nil {
		return was, was, 0, fmt.Errorf("cannot reload the policy, %.19s… stays in force: %w", was, err)
	}
	if aerr != nil {
		return was, was, 0, fmt.Errorf("cannot record that the policy was reloaded, so it was not, and %.19s… stays in force: %w: %w", was, aerr, errdefs.ErrUnavailable)
	}
	g.policy.Store(next)
	g.cfg.Log.Info("the policy was reloaded", "old", was, "new", load.New, "rules", load.Rules)
	return was, load.New, load.Rules, nil
}
