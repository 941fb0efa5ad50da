// Package models lets the workspaces of a daemon use models: it finds the key of each, counts what is asked for within
// the budgets of workspace, owner and model, and shows and records what was used.
//
// It must not show, log or record a key: it asks for each when it is needed, and hands it to the way out of a workspace.
package models

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/bucket"
	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/base/redact"
	"github.com/carrel-dev/carrel/internal/egress/conf"
	"github.com/carrel-dev/carrel/internal/egress/ways/bindings"
	"github.com/carrel-dev/carrel/internal/egress/ways/endpoints"
	"github.com/carrel-dev/carrel/internal/gate"
	"github.com/carrel-dev/carrel/internal/spec/netrule"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/state/audit"
	"github.com/carrel-dev/carrel/internal/wire/egressapi"
)

// Store is what the daemon keeps: store.Store.
type Store interface {
	Sums
	ByName(name id.Workspace) (workspace.Kept, bool)
	Workspaces() []workspace.Kept
}

// Log is where records go: record.Writer.
type Log interface {
	AppendAsync(r audit.Record) error
}

// Config holds the dependencies of New. What is not optional is required.
type Config struct {
	Gate  *gate.Gate
	Store Store
	// Find returns the workspace that a key or a name means.
	Find func(ref string) (operation.Target, error)
	// Held returns a secret of an owner with its value; not_found if there is none.
	Held func(ctx context.Context, owner, name string) (bindings.Held, error)
	// Conf is what holds for the host at that time: its models, prices and budgets.
	Conf    func() *conf.Config
	Records Log
	// Counted is told of each request that has ended, and of each that was refused. It must not block. Optional.
	Counted func(endpoint string, refused bool, tokens int64)
	// Now is the clock of budgets; nil is time.Now.
	Now func() time.Time
	Log *slog.Logger
}

// pace is how often one workspace may have requests judged: each may take a write, and a carrel-egress that was taken
// over can ask without end.
var pace = bucket.Bound{Burst: egressapi.MostLeased, Every: 20 * time.Millisecond}

// mostPaced bounds the workspaces whose pace is known. The others share one.
const mostPaced = 10_000

// Models are those of a daemon. They are safe for concurrent use.
type Models struct {
	cfg    Config
	ledger *ledger
	told   *told

	mu     sync.Mutex // of what follows
	priced *conf.Config
	paced  *bucket.Many[id.Workspace]
}

// New returns Models that count what they find in the Store.
func New(c Config) *Models {
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Counted == nil {
		c.Counted = func(string, bool, int64) {}
	}
	return &Models{
		cfg: c, ledger: newLedger(c.Store, c.Now, c.Log), told: newTold(c.Records, c.Log), paced: bucket.NewMany[id.Workspace](mostPaced),
	}
}

// Bind returns the models of a workspace once it uses those that are asked for too, each with the key that is used. own
// says why the caller may not use keys of the workspace's owner, nil if they may.
//
// Errors: invalid_argument for a model that there is not or that cannot be used, not_found for a key that there is not,
// permission_denied for one that the owner may not use.
func (m *Models) Bind(ctx context.Context, k workspace.Kept, add []workspace.ModelUse, own error) (workspace.Models, error) {
	host, now := m.cfg.Conf(), k.Models
	now.Uses = slices.Clone(now.Uses)
	for _, use := range add {
		of, err := host.Model(use.Name)
		if use = choose(of, use, k.Owner); err == nil && !use.Shared {
			err = own
		}
		if err == nil {
			_, err = m.key(ctx, of, use, k.Owner)
		}
		if err != nil {
			return k.Models, err
		}
		if i := slices.IndexFunc(now.Uses, func(u workspace.ModelUse) bool { return u.Name == use.Name }); i >= 0 {
			now.Uses[i] = use
		} else {
			now.Uses = append(now.Uses, use)
		}
	}
	k.Models = now
	return now, m.Check(k)
}

// choose returns a use with its key: the one that is named, else the host's if it is for the owner, else the owner's
// secret with the name of the model's variable.
func choose(of conf.Model, use workspace.ModelUse, owner string) workspace.ModelUse {
	switch {
	case use.Secret != "":
		use.Shared = false
	case of.SharedWith(owner):
		use.Shared = true
	default:
		use.Shared, use.Secret = false, of.Key
	}
	return use
}

// Check refuses what cannot hold together: models with other things that a workspace has.
func (m *Models) Check(k workspace.Kept) error {
	if err := workspace.CheckModels(k.Models.Uses); err != nil {
		return err
	}
	all := m.known(k.Models)
	for _, of := range all {
		if k.Models.Budget.Money > 0 && len(of.Prices) == 0 {
			return fmt.Errorf("cannot use a budget in money with the model %s: no prices are known for it; have them added to the host's "+
				"egress.yaml, or use requests or tokens: %w", of.Name, errdefs.ErrInvalidArgument)
		}
	}
	for _, name := range k.Secrets.Names() {
		if endpoints.Sets(all, name) {
			return fmt.Errorf("cannot use the secret %s in a workspace with a model that sets this variable; leave one of the two out: %w", name,
				errdefs.ErrInvalidArgument)
		}
	}
	return nil
}

// known are the models that a workspace uses and the host has.
func (m *Models) known(uses workspace.Models) (all []conf.Model) {
	host := m.cfg.Conf()
	for _, use := range uses.Uses {
		if of, err := host.Model(use.Name); err == nil {
			all = append(all, of)
		}
	}
	return all
}

// key returns the key for a use of a model by an owner's workspace, if it is for the model's host.
func (m *Models) key(ctx context.Context, of conf.Model, use workspace.ModelUse, owner string) (redact.Value, error) {
	bad := func(kind error, format string, a ...any) (redact.Value, error) {
		return redact.Value{}, fmt.Errorf("cannot use the model %s: %s: %w", of.Name, fmt.Sprintf(format, a...), kind)
	}
	if err := endpoints.Check(of); err != nil {
		return bad(errdefs.ErrInvalidArgument, "%v", err)
	}
	name, whose := use.Secret, owner
	if use.Shared {
		if !of.SharedWith(owner) {
			return bad(errdefs.ErrPermissionDenied, "the host's key is no longer for %s; name a secret of yours: --model %s=NAME", owner, of.Name)
		}
		name, whose = of.Secret, conf.SharedOwner
	}
	h, err := m.cfg.Held(ctx, whose, name)
	switch {
	case errdefs.IsNotFound(err) && use.Shared:
		return bad(errdefs.ErrFailedPrecondition, "the host's key is not there; have root store it: carrel secret set %s", name)
	case errdefs.IsNotFound(err):
		return bad(errdefs.ErrNotFound, "%s has no secret %s, which would be its key; store it with \"carrel secret set %[2]s "+
			"--host %[3]s\", or name another: --model %[4]s=NAME", owner, name, hostOf(of), of.Name)
	case err != nil:
		return redact.Value{}, fmt.Errorf("cannot use the model %s: %w", of.Name, err)
	}
	to, err := endpoints.Target(of)
	if err != nil {
		return bad(errdefs.ErrInvalidArgument, "%v", err)
	}
	if !isFor(h.Hosts, to) {
		return bad(errdefs.ErrInvalidArgument, "the secret %s is not for its host %s; use one that is, or store it anew with --host %[2]s", name,
			to)
	}
	if len(h.Headers) > 0 && !slices.Contains(h.Headers, endpoints.Header(of)) {
		return bad(errdefs.ErrInvalidArgument, "the secret %s is not for the header %s, in which its host takes keys; store it anew", name,
			endpoints.Header(of))
	}
	if !endpoints.IsKey(h.Value) {
		return bad(errdefs.ErrInvalidArgument, "the secret %s is no key: it is too short or too long, or has a space; store another value", name)
	}
	return h.Value, nil
}

// hostOf is the host of a model as a rule names it.
func hostOf(of conf.Model) string {
	to, err := endpoints.Target(of)
	switch {
	case err != nil:
		return "HOST"
	case to.Port == 443:
		return to.Host.String()
	}
	return to.String()
}

// isFor reports whether a secret for hosts is for a target.
func isFor(hosts []string, to netrule.Target) bool {
	var rules []netrule.Rule
	for _, text := range hosts {
		r, err := netrule.ParseRule(netrule.Allow, text)
		if err != nil {
			return false
		}
		rules = append(rules, r)
	}
	judge, err := netrule.New(rules, netrule.Options{})
	return err == nil && judge.Judge(to).Action == netrule.Allow
}

// Open returns the models of a workspace as carrel-egress is told. missing says which it has not, and why: the others are
// served all the same.
func (m *Models) Open(ctx context.Context, k workspace.Kept) (all []egressapi.Model, missing []string, err error) {
	host := m.cfg.Conf()
	for _, use := range k.Models.Uses {
		of, err := host.Model(use.Name)
		var key redact.Value
		if err == nil {
			key, err = m.key(ctx, of, use, k.Owner)
		}
		switch {
		case errdefs.IsNotFound(err), errdefs.IsInvalidArgument(err), errdefs.IsFailedPrecondition(err), errdefs.IsPermissionDenied(err):
			missing = append(missing, err.Error())
		case err != nil:
			return nil, missing, err
		default:
			all = append(all, endpoints.Served(of, key))
		}
	}
	return all, missing, nil
}

// Uses reports whether a workspace may use a secret of an owner as a key.
func (m *Models) Uses(k *workspace.Kept, owner, secret string) bool {
	for _, use := range k.Models.Uses {
		if !use.Shared && k.Owner == owner && use.Secret == secret {
			return true
		}
		if use.Shared && owner == conf.SharedOwner {
			if of, err := m.cfg.Conf().Model(use.Name); err == nil && of.Secret == secret {
				return true
			}
		}
	}
	return false
}

// Variables are those that every command of a workspace has.
func (m *Models) Variables(uses workspace.Models) []string { return endpoints.Variables(m.known(uses)) }

// Forget is told that a workspace was destroyed. What its owner has used stays counted.
func (m *Models) Forget(name id.Workspace) {
	m.told.end(name)
	var keys []string
	for _, s := range ofWorkspace(name, workspace.ModelBudget{}) {
		keys = append(keys, s.key)
	}
	if err := m.ledger.forget(keys...); err != nil {
		m.cfg.Log.Error("cannot let go of what a workspace used of models", "workspace", name, "error", err)
	}
}

// Turn is told that a turn of an agent begins in a workspace. What the workspace uses until over is called is recorded under
// the turn's trace, unless another turn runs there at the same time: then nobody could tell whose it is.
func (m *Models) Turn(name id.Workspace, trace id.Trace) (over func()) {
	return m.told.turn(name, trace)
}

// Ended is told that the way out of a workspace has ended.
func (m *Models) Ended(name id.Workspace) { m.told.end(name) }

// Close records and keeps what is not yet. Every way out has ended.
func (m *Models) Close(ctx context.Context) error {
	m.told.close()
	return m.ledger.close(ctx)
}
