package apitest

import (
	"context"

	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// ListModels implements api.Gate. It has one model.
func (g *Gate) ListModels(_ context.Context, p principal.Principal) ([]workspace.ModelOffer, workspace.ModelUsage, error) {
	own := workspace.ModelUsage{Owner: p.Owner(), Budget: workspace.ModelBudget{Requests: 10, Per: workspace.PerDay}}
	if err := g.permit(p, operation.ListModels); err != nil {
		return nil, own, err
	}
	return []workspace.ModelOffer{{
		Name: "house", API: "openai", URL: "https://llm.example/v1", Key: workspace.KeyShared,
		Budget: workspace.ModelBudget{Tokens: 1000, Per: workspace.PerDay}, Used: workspace.ModelSums{Requests: 2, Tokens: 300},
	}}, own, nil
}

// ModelUsage implements api.Gate. Workspaces have used nothing.
func (g *Gate) ModelUsage(_ context.Context, p principal.Principal, ref string) (all []workspace.ModelUsage, err error) {
	if err := g.permit(p, operation.ModelUsage); err != nil {
		return nil, err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, d := range g.workspaces {
		if (ref == "" || ref == string(d.Key) || ref == string(d.Name)) && p.MayReach(d.Owner, string(d.Key), string(d.Name)) {
			all = append(all, workspace.ModelUsage{Workspace: d.Name, Key: d.Key, Owner: d.Owner, Models: d.Models.Uses, Budget: d.Models.Budget})
		}
	}
	return all, nil
}
