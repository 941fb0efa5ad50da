package api

import (
	"context"
	"fmt"

	"connectrpc.com/connect"
	"github.com/containerd/errdefs"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/spec/budget"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/surface/authn"
	"github.com/carrel-dev/carrel/internal/wire/errcode"
)

type models struct{ *Server }

func (s models) ListModels(ctx context.Context, _ *request[carrelv1.ListModelsRequest]) (*response[carrelv1.ListModelsResponse], error) {
	all, own, err := s.gate.ListModels(ctx, authn.FromContext(ctx))
	if err != nil {
		return nil, errcode.ToWire(err)
	}
	out := &carrelv1.ListModelsResponse{Own: modelUsageTo(own), Models: make([]*carrelv1.Model, 0, len(all))}
	for _, x := range all {
		m := &carrelv1.Model{Name: x.Name, Api: x.API, Url: x.URL, Key: x.Key, Secret: x.Secret}
		if x.Budget.Requests+x.Budget.Tokens+x.Budget.Money > 0 {
			m.Budget, m.Used = modelBudgetTo(x.Budget), modelSumsTo(x.Used)
		}
		out.Models = append(out.Models, m)
	}
	return connect.NewResponse(out), nil
}

func (s models) ModelUsage(ctx context.Context, req *request[carrelv1.ModelUsageRequest]) (*response[carrelv1.ModelUsageResponse], error) {
	ref := req.Msg.GetWorkspace()
	if ref != "" {
		var err error
		if ref, err = parseRef(ref); err != nil {
			return nil, errcode.ToWire(err)
		}
	}
	all, err := s.gate.ModelUsage(ctx, authn.FromContext(ctx), ref)
	if err != nil {
		return nil, errcode.ToWire(err)
	}
	out := &carrelv1.ModelUsageResponse{Usage: make([]*carrelv1.ModelUsage, 0, len(all))}
	for _, x := range all {
		out.Usage = append(out.Usage, modelUsageTo(x))
	}
	return connect.NewResponse(out), nil
}

// modelUsesFrom are the models that a request names.
func modelUsesFrom(all []*carrelv1.ModelUse) (uses []workspace.ModelUse) {
	for _, x := range all {
		uses = append(uses, workspace.ModelUse{Name: x.GetName(), Secret: x.GetSecret()})
	}
	return uses
}

// modelBudgetFrom is the budget of a request. "-1" for money takes a limit away.
func modelBudgetFrom(b *carrelv1.ModelBudget) (workspace.ModelBudget, error) {
	out := workspace.ModelBudget{Requests: b.GetRequests(), Tokens: b.GetTokens(), Per: b.GetPer()}
	switch b.GetMoney() {
	case "":
	case "-1":
		out.Money = workspace.NoLimit
	default:
		money, err := budget.ParseMoney(b.GetMoney())
		if err != nil {
			return out, err
		}
		if money == 0 { // it would be no limit at all
			return out, fmt.Errorf("cannot use a budget of no money: name an amount such as 0.01, or leave money out for no limit: %w",
				errdefs.ErrInvalidArgument)
		}
		out.Money = int64(money)
	}
	return out, nil
}

func modelUsesTo(uses []workspace.ModelUse) (all []*carrelv1.ModelUse) {
	for _, u := range uses {
		all = append(all, &carrelv1.ModelUse{Name: u.Name, Secret: u.Secret})
	}
	return all
}

// modelBudgetTo is nil for a budget without a limit.
func modelBudgetTo(b workspace.ModelBudget) *carrelv1.ModelBudget {
	if b.Requests+b.Tokens+b.Money == 0 {
		return nil
	}
	per := b.Per
	if per == "" {
		per = workspace.PerDay
	}
	return &carrelv1.ModelBudget{Requests: b.Requests, Tokens: b.Tokens, Money: moneyTo(b.Money), Per: per}
}

func moneyTo(n int64) string {
	if n == 0 {
		return ""
	}
	return budget.Money(n).String()
}

func modelSumsTo(s workspace.ModelSums) *carrelv1.ModelSums {
	out := &carrelv1.ModelSums{Requests: s.Requests, Tokens: s.Tokens, Money: moneyTo(s.Money)}
	for _, x := range s.By {
		out.ByModel = append(out.ByModel, &carrelv1.ModelSum{Model: x.Model, Requests: x.Requests, Tokens: x.Tokens, Money: moneyTo(x.Money)})
	}
	return out
}

func modelUsageTo(u workspace.ModelUsage) *carrelv1.ModelUsage {
	return &carrelv1.ModelUsage{
		Workspace: string(u.Workspace), Key: string(u.Key), Owner: u.Owner, Models: modelUsesTo(u.Models), Budget: modelBudgetTo(u.Budget),
		Today: modelSumsTo(u.Today), Whole: modelSumsTo(u.Whole),
	}
}
