package workspace

import (
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
)

// Models are the APIs of models that a workspace may use, and the budget of all of them together. They hold no key.
//
// Models are not changed in place: they are shared by those who have read them.
type Models struct {
	// Uses are in the order in which they were added. The first of each API has the variables of that API.
	Uses   []ModelUse  `json:"uses,omitempty"`
	Budget ModelBudget `json:"budget,omitzero"`
}

// ModelUse is one model, by its name on the host, and the key that requests to it have outside.
type ModelUse struct {
	Name string `json:"name"`
	// Secret is the name of the owner's secret that is the key. It is "" with Shared.
	Secret string `json:"secret,omitempty"`
	// Shared: the key is that of the host's administrator, as long as the host's file lets the owner use it.
	Shared bool `json:"shared,omitempty"`
}

// String is the model for people and records: NAME for the host's key, else NAME=SECRET.
func (u ModelUse) String() string {
	if u.Secret == "" {
		return u.Name
	}
	return u.Name + "=" + u.Secret
}

// ModelBudget is where the models of a workspace end. A limit that is 0 does not hold. Money is in billionths of the
// currency of the host's prices.
type ModelBudget struct {
	Requests int64 `json:"requests,omitempty"`
	Tokens   int64 `json:"tokens,omitempty"`
	Money    int64 `json:"money,omitempty"`
	// Per is PerDay or PerWhole; "" is PerDay.
	Per string `json:"per,omitempty"`
}

// The periods of a ModelBudget: each day from 00:00 UTC, or all of the workspace's life.
const (
	PerDay   = "day"
	PerWhole = "whole"
)

// NoLimit, in a change of a ModelBudget, takes a limit away.
const NoLimit = -1

// Bounds of models.
const (
	// MaxModels is how many models one workspace may use.
	MaxModels = 32
	// MaxModelName bounds the name of one, in bytes.
	MaxModelName = 63
)

// Any reports whether any model is used.
func (m Models) Any() bool { return len(m.Uses) > 0 }

// Names are those of the models, in their order.
func (m Models) Names() (names []string) {
	for _, u := range m.Uses {
		names = append(names, u.Name)
	}
	return names
}

// Has reports whether a model is used.
func (m Models) Has(name string) bool {
	return slices.ContainsFunc(m.Uses, func(u ModelUse) bool { return u.Name == name })
}

// Texts are the models for people and records, as ModelUse.String.
func (m Models) Texts() (all []string) {
	for _, u := range m.Uses {
		all = append(all, u.String())
	}
	return all
}

// Without returns the models without those named.
//
// Errors: not_found if one of them is not used.
func (m Models) Without(names []string) (Models, error) {
	for _, name := range names {
		if !m.Has(name) {
			return m, fmt.Errorf("cannot take the model %q from the workspace: it does not use it; \"carrel inspect\" shows those that it "+
				"uses: %w", name, errdefs.ErrNotFound)
		}
	}
	m.Uses = slices.DeleteFunc(slices.Clone(m.Uses), func(u ModelUse) bool { return slices.Contains(names, u.Name) })
	return m, nil
}

// ModelsChange adds models, takes some, and changes limits. The zero value changes nothing.
type ModelsChange struct {
	// Add are models as they are asked for: Secret is "" for the key that a model has without one being named. One that is
	// used already gets the key that is named.
	Add []ModelUse
	// Remove are names of some that are used. They are removed before others are added.
	Remove []string
	// Budget has the limits that change: one that is 0 stays, NoLimit takes it away.
	Budget ModelBudget
}

// Empty reports whether it changes nothing.
func (c ModelsChange) Empty() bool {
	return len(c.Add)+len(c.Remove) == 0 && c.Budget == ModelBudget{}
}

// With returns a budget after a change.
func (b ModelBudget) With(c ModelBudget) ModelBudget {
	for _, x := range []struct {
		now *int64
		to  int64
	}{{&b.Requests, c.Requests}, {&b.Tokens, c.Tokens}, {&b.Money, c.Money}} {
		switch {
		case x.to == NoLimit:
			*x.now = 0
		case x.to != 0:
			*x.now = x.to
		}
	}
	if c.Per != "" {
		b.Per = c.Per
	}
	return b
}

// Validate reports what is out of bounds.
func (c ModelsChange) Validate() error {
	if err := CheckModels(c.Add); err != nil {
		return err
	}
	for _, name := range c.Remove {
		if err := checkModelName(name); err != nil {
			return err
		}
	}
	return c.Budget.check(NoLimit)
}

// Validate reports what is out of bounds.
func (b ModelBudget) Validate() error { return b.check(0) }

func (b ModelBudget) check(least int64) error {
	if min(b.Requests, b.Tokens, b.Money) < least {
		return fmt.Errorf("cannot use a negative budget for models: leave a limit out that shall not hold; a change takes one away "+
			"with -1: %w", errdefs.ErrInvalidArgument)
	}
	if b.Per != "" && b.Per != PerDay && b.Per != PerWhole {
		return fmt.Errorf("cannot use a budget for the period %.20q: use %s or %s: %w", b.Per, PerDay, PerWhole, errdefs.ErrInvalidArgument)
	}
	return nil
}

// CheckModels refuses what is no list of models.
func CheckModels(uses []ModelUse) error {
	if len(uses) > MaxModels {
		return fmt.Errorf("cannot use %d models in one workspace: at most %d are allowed; name fewer: %w", len(uses), MaxModels,
			errdefs.ErrInvalidArgument)
	}
	for i, u := range uses {
		if err := checkModelName(u.Name); err != nil {
			return err
		}
		if u.Secret != "" {
			if err := CheckSecretNames([]string{u.Secret}); err != nil {
				return err
			}
		}
		if slices.ContainsFunc(uses[:i], func(o ModelUse) bool { return o.Name == u.Name }) {
			return fmt.Errorf("cannot use the model %s twice in one workspace: name it once: %w", u.Name, errdefs.ErrInvalidArgument)
		}
	}
	return nil
}

// checkModelName refuses what is no label of a name. It is not shown in full: it may be a key.
func checkModelName(name string) error {
	const letters = "abcdefghijklmnopqrstuvwxyz0123456789"
	if name != "" && len(name) <= MaxModelName && strings.Trim(name, letters+"-") == "" && name[0] != '-' && name[len(name)-1] != '-' {
		return nil
	}
	return fmt.Errorf("cannot use a model: %.16q is not the name of one; \"carrel model ls\" lists those that there are: %w", name,
		errdefs.ErrInvalidArgument)
}

// ModelSums are what was used in a period: today, or in all. Money is in billionths, and only of what has a price.
type ModelSums struct {
	Requests, Tokens, Money int64
	// By has the sums by ENDPOINT/MODEL, as programs named it, sorted; "(others)" is for what is not told apart.
	By []ModelSum
}

// ModelSum is what was used of one model.
type ModelSum struct {
	Model                   string
	Requests, Tokens, Money int64
}

// ModelUsage is what a workspace has used of models, or, without a Workspace, all that an owner ever had.
type ModelUsage struct {
	Workspace id.Workspace
	Key       id.Key
	Owner     string
	// Models are those that it may use now, with Budget.
	Models       []ModelUse
	Budget       ModelBudget
	Today, Whole ModelSums
}

// ModelOffer is a model of the host as one owner may use it.
type ModelOffer struct {
	Name, API, URL string
	// Key is KeyShared, KeyOwn or KeyMissing. Secret is the name of the owner's secret that is used, or would be.
	Key, Secret string
	// Budget is that of all workspaces of the host together, and Used what they have used of it.
	Budget ModelBudget
	Used   ModelSums
}

// What a ModelOffer says of the key.
const (
	KeyShared  = "shared"
	KeyOwn     = "own"
	KeyMissing = "missing"
)
