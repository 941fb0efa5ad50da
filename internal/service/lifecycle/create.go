package lifecycle

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"iter"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/crashpoint"
	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/gate"
	"github.com/carrel-dev/carrel/internal/service/archiver"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/spec/permit"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// maxNames is how many names are tried for one key before giving up.
const maxNames = 64

// Create makes the workspace that is wanted, owned by p, or returns the one there is for its
// key. It starts it too unless told not to. Mounts come with one grant, see package mountgrant.
//
// Errors: permission_denied if the key is another user's, resource_exhausted if there are as
// many as there may be, failed_precondition if it has other mounts or network rules than are
// wanted, and those of the runtime.
func (l *Lifecycle) Create(
	ctx context.Context, p principal.Principal, want workspace.Wanted, grant ...*os.File,
) (workspace.Workspace, bool, error) {
	none := workspace.Workspace{}
	op, err := operation.NewCreate(want)
	if err != nil {
		return none, false, err
	}
	mounts, err := mountsOf(want.Mounts, grant)
	if err != nil {
		return none, false, err
	}
	type made struct {
		Name    id.Workspace `json:"name"`
		Created bool         `json:"created"`
	}
	authorised, err := l.AuthoriseMaking(ctx, p, op, want.Key, p.Owner(), want.Wait)
	if err != nil {
		return none, false, err
	}
	if err := l.mayAllow(want); err != nil {
		return none, false, authorised.Deny(ctx, err)
	}
	if err := l.checkReach(p, want.Reach); errdefs.IsPermissionDenied(err) {
		return none, false, authorised.Deny(ctx, err)
	} else if err != nil {
		return none, false, err
	}
	m, err := Once(ctx, l, p, want.Request, op, operation.Target{}, "", func(at *Attempt) (m made, err error) {
		if m.Name, m.Created, err = l.Made(ctx, at); m.Created || err != nil {
			return m, err
		}
		k, err := l.Wanted(p.Owner(), want)
		if err != nil {
			return m, err
		}
		reaching := k
		if reaching.Reach, err = l.initial(k); err != nil {
			return m, err
		}
		k.Secrets, err = l.bind(ctx, p, reaching, workspace.SecretsChange{
			Add: want.Secrets, Files: want.SecretFiles, Templates: want.SecretTemplates,
		})
		if errdefs.IsPermissionDenied(err) {
			return m, authorised.Deny(ctx, err)
		} else if err != nil {
			return m, err
		}
		if k.Models, err = l.bindModels(ctx, p, k, want.Models); errdefs.IsPermissionDenied(err) {
			return m, authorised.Deny(ctx, err)
		} else if err != nil {
			return m, err
		}
		a, err := authorised.Admit(ctx) // nobody else waits for a person's answer
		if err != nil {
			return m, err
		}
		err = l.AloneWithKey(ctx, want.Key, operation.CreateWorkspace, func(ctx context.Context) (err error) {
			k, m.Created, err = l.create(ctx, at, a, op, k, mounts)
			return err
		})
		m.Name = k.Name
		return m, l.Unmade(at, k.Name, err)
	})
	if err != nil {
		return none, false, err
	}
	// The answer may be of an earlier attempt, and the workspace renamed since.
	if authorised, err = l.Authorise(ctx, p, string(m.Name), op); err != nil {
		return none, false, err
	}
	w, err := l.showNow(m.Name)
	if err != nil || want.NoStart {
		return w, m.Created, err
	}
	if w.State != workspace.StatePaused {
		if err := l.ensureRunning(ctx, authorised, m.Name); err != nil {
			return w, m.Created, fmt.Errorf("workspace %s is there but does not run: %w", m.Name, err)
		}
	}
	w, err = l.get(ctx, m.Name)
	return w, m.Created, err
}

// Made returns the workspace that an earlier attempt made, if it came to that.
func (l *Lifecycle) Made(ctx context.Context, at *Attempt) (name id.Workspace, made bool, err error) {
	if at.Own == "" {
		return "", false, nil
	}
	name = id.Workspace(at.Own)
	if k, there := l.cfg.Store.ByName(name); there {
		return name, k.Phase == workspace.Settled || k.Phase == workspace.Destroying, nil
	}
	_, _, made, err = l.cfg.Store.Destroyed(ctx, at.Own, time.Time{})
	return name, made, err
}

// Unmade is the end of an attempt at making a workspace: one that failed and could not be undone
// is kept.
func (l *Lifecycle) Unmade(at *Attempt, name id.Workspace, err error) error {
	if k, there := l.cfg.Store.ByName(name); err != nil && there && k.Phase != workspace.Settled {
		at.Keep()
	}
	return err
}

// AuthoriseMaking authorises an operation that makes a workspace with a key, for an owner. A
// workspace that has this key already must be one that the caller reaches. wait is how long a person may
// take to answer, 0 for not at all.
func (l *Lifecycle) AuthoriseMaking(ctx context.Context, p principal.Principal, op operation.Operation, key id.Key,
	owner string, wait time.Duration,
) (*gate.Authorised, error) {
	return l.cfg.Gate.Authorise(ctx, operation.Request{By: p, Op: op, Wait: wait}, func() (operation.Target, error) {
		on := operation.Target{Kind: operation.Workspace, Key: key, Owner: owner}
		if k, ok := l.cfg.Store.ByKey(key); ok && operation.Reaches(p, on) && !operation.Reaches(p, targetOf(k)) {
			on = targetOf(k)
			on.Taken = true
		}
		return on, nil
	})
}

// Wanted is what is kept of the workspace that is wanted: what was not asked for is the
// profile's or as configured. It has no name yet.
func (l *Lifecycle) Wanted(owner string, want workspace.Wanted) (workspace.Kept, error) {
	k := workspace.New(want.Key, owner, time.Now())
	k.Profile, k.Reach, k.Models.Budget, k.OneUse = want.Profile, want.Reach.Unique(), want.ModelBudget, want.OneUse
	profile, ok := l.cfg.Profiles[want.Profile]
	if !ok && want.Profile != "" {
		return k, fmt.Errorf("cannot use the profile %q: there is none; there are: %s: %w",
			want.Profile, strings.Join(slices.Sorted(maps.Keys(l.cfg.Profiles)), ", "), errdefs.ErrInvalidArgument)
	}
	k.Limits = want.Limits.Or(profile.Limits).Or(l.cfg.Limits)
	k.Expires, k.Idle = expiry(cmp.Or(want.TTL, profile.Life.TTL)), cmp.Or(want.Idle, profile.Life.Idle)
	return k, k.Limits.Validate()
}

// expiry is the time at which a lifetime that begins now ends.
func expiry(ttl time.Duration) time.Time {
	if ttl <= 0 {
		return time.Time{}
	}
	return time.Now().Add(ttl)
}

// create runs with the key's slot held.
func (l *Lifecycle) create(ctx context.Context, at *Attempt, a *gate.Admitted, op operation.Create, fresh workspace.Kept,
	mounts *runtime.Mounts,
) (workspace.Kept, bool, error) {
	key, by := op.Key, a.Request().By
	if err := l.ClearRestoring(ctx, key); err != nil {
		return fresh, false, err
	}
	k, exists := l.cfg.Store.ByKey(key)
	if exists && !operation.Reaches(by, targetOf(k)) { // it was made meanwhile
		return k, false, a.Deny(ctx, fmt.Errorf("cannot create workspace %q: another user has one with this key; choose another key: %w",
			key, errdefs.ErrPermissionDenied))
	}
	if exists && k.Phase == workspace.Destroying {
		return k, false, fmt.Errorf("cannot create workspace %q: the one there is, %s, is %s; run \"carrel destroy\" to finish that: %w",
			key, k.Name, k.Phase, errdefs.ErrFailedPrecondition)
	}
	if exists && k.Phase != workspace.Creating {
		// What an earlier attempt at this request began, upkeep may have finished.
		other := errors.Join(l.sameMounts(op.Allow, k, mounts), l.sameReach(fresh.Reach, k), sameSecrets(fresh.Secrets, k),
			sameModels(fresh.Models, k))
		return k, at.Own == string(k.Name), other
	}
	plan := making{
		attempt: at, admitted: a, allow: op.Allow, mounts: mounts, reach: fresh.Reach, secrets: fresh.Secrets, models: fresh.Models,
		start: !op.NoStart,
	}
	if exists { // begun before, and broken off at a point that is not known
		err := l.make(ctx, plan, k, false)
		return k, err == nil, err
	}
	if err := l.UsableKey(key); err != nil {
		return k, false, err
	}
	var err error
	if fresh.Reach, err = l.initial(fresh); err != nil {
		return fresh, false, err
	}
	if skeleton := l.cfg.Profiles[fresh.Profile].Skeleton; skeleton != nil {
		if err := emptyHome(fresh, mounts); err != nil {
			return fresh, false, err
		}
		plan.fill = func(ctx context.Context, rt runtime.Runtime, p permit.Permit) (any, error) {
			in, err := skeleton(ctx)
			if err != nil {
				return nil, err
			}
			n, err := l.cfg.Archiver.Unpack(ctx, rt, p, in, archiver.Limits{}, false, nil)
			return Archived{Entries: n.Entries, Bytes: n.Bytes}, err
		}
	}
	k, err = l.named(ctx, plan, fresh)
	return k, err == nil, err
}

// emptyHome refuses mounts below a home that is filled when it is made.
func emptyHome(k workspace.Kept, mounts *runtime.Mounts) error {
	if mounts == nil {
		return nil
	}
	for _, m := range mounts.List {
		if m.BelowHome() {
			return fmt.Errorf("cannot mount at %s in workspace %q: the home of profile %q is filled with files when it is made, and has to be "+
				"empty then; mount it at /workspace, or below /srv or /mnt: %w",
				m.Destination, k.Key, k.Profile, errdefs.ErrInvalidArgument)
		}
	}
	return nil
}

// Archived is what the outcome of an archive or of a restore says.
type Archived struct {
	ID      string `json:"archive,omitempty"`
	SHA256  string `json:"sha256,omitempty"`
	Size    int64  `json:"size,omitempty"`
	Entries int64  `json:"entries,omitempty"`
	Bytes   int64  `json:"bytes,omitempty"`
}

// UsableKey refuses a key that could be taken for the name of another workspace, or for the id of
// something else.
func (l *Lifecycle) UsableKey(key id.Key) error {
	if what := key.Reserved(); what != "" {
		return fmt.Errorf("cannot use %q as a key: it has the form of an id (%s) and could be taken for one; choose another key: %w",
			key, what, errdefs.ErrInvalidArgument)
	}
	_, taken := l.cfg.Store.ByName(id.Workspace(key))
	derived := false
	for prefix := range l.prefixes() {
		derived = derived || strings.HasPrefix(string(key), prefix+"-")
	}
	if taken || derived && id.IsWorkspace(string(key)) {
		return fmt.Errorf("cannot use %q as a key: it has the form of a derived name and could be taken for another workspace; choose "+
			"another key: %w",
			key, errdefs.ErrInvalidArgument)
	}
	return nil
}

// prefixes yields what derived names begin with.
func (l *Lifecycle) prefixes() iter.Seq[string] {
	return func(yield func(string) bool) {
		if !yield(l.cfg.Prefix) {
			return
		}
		for _, p := range l.cfg.Profiles {
			if p.Prefix != "" && !yield(p.Prefix) {
				return
			}
		}
	}
}

// making is how a workspace is to be made.
type making struct {
	attempt  *Attempt
	admitted *gate.Admitted
	allow    []workspace.Opening
	mounts   *runtime.Mounts
	reach    workspace.Reach
	secrets  workspace.Secrets
	models   workspace.Models
	start    bool
	// fill makes what the workspace has from the start. It runs then, and its phase is
	// restoring: a crash undoes it. What it returns is for the record.
	fill Filling
}

// Filling fills the home of a running workspace that was just made.
type Filling func(ctx context.Context, rt runtime.Runtime, p permit.Permit) (data any, err error)

// named makes a workspace under the first name of its key that is free.
func (l *Lifecycle) named(ctx context.Context, m making, fresh workspace.Kept) (workspace.Kept, error) {
	if m.fill != nil {
		fresh.Phase = workspace.Restoring
	}
	key := fresh.Key
	prefix := cmp.Or(l.cfg.Profiles[fresh.Profile].Prefix, l.cfg.Prefix)
	n, err := l.cfg.Store.FreeSuffix(ctx, prefix, key)
	if err != nil {
		return fresh, err
	}
	for last := min(n+maxNames, id.MaxCollision+1); n < last; n++ {
		fresh.Name = id.Derive(prefix, key, n)
		err := l.make(ctx, m, fresh, true)
		// The name has another key: of a collision, or of a life before.
		if !errdefs.IsAlreadyExists(err) {
			return fresh, err
		}
	}
	return fresh, fmt.Errorf("cannot create workspace %q: every name up to %s is taken: %w", key, id.Derive(prefix, key, n-1),
		errdefs.ErrResourceExhausted)
}

// Fill makes a workspace whose home is filled before anybody sees it, and leaves it running.
// The slot of its key is held.
func (l *Lifecycle) Fill(ctx context.Context, at *Attempt, a *gate.Admitted, fresh workspace.Kept, fill Filling) (workspace.Kept, error) {
	if err := l.UsableKey(fresh.Key); err != nil {
		return fresh, err
	}
	return l.named(ctx, making{attempt: at, admitted: a, start: true, reach: fresh.Reach, fill: fill}, fresh)
}

// make carries one creation out under one name. What fails is undone; if that fails too, the
// workspace stays as it is and the next attempt goes on.
func (l *Lifecycle) make(ctx context.Context, m making, k workspace.Kept, insert bool) error {
	return l.Alone(ctx, k.Name, operation.CreateWorkspace, func(ctx context.Context) error {
		return m.admitted.Making(targetOf(k)).Do(ctx, func(ctx context.Context, p permit.Permit) (any, error) {
			rt, err := l.Runtime(k.Boundary)
			if err != nil {
				return nil, err
			}
			var way runtime.Way
			if insert {
				if way, err = l.wayOf(&k); err == nil {
					err = l.insert(ctx, m, k)
				}
			} else {
				way, err = l.keptWay(ctx, &k)
			}
			if err != nil {
				return nil, err
			}
			crashpoint.Here("daemon.create.inserted")
			sum := sha256.Sum256([]byte(k.Key))
			plan := runtime.Plan{
				KeyDigest: hex.EncodeToString(sum[:]), Limits: k.Limits, Allow: m.allow, Mounts: m.mounts,
			}
			if !m.admitted.Request().By.Can(principal.Any) { // an administrator may fill the host
				owner := sha256.Sum256([]byte(k.Owner))
				plan.Owner = hex.EncodeToString(owner[:8])
			}
			if m.start {
				plan.Way = way
			}
			if m.start || m.fill != nil {
				// One that may not run is made all the same; its start says why.
				if leave, err := l.Room(k); err == nil {
					defer leave()
					plan.Start = true
				} else if m.fill != nil {
					return nil, errors.Join(err, l.cfg.Store.Delete(ctx, k.Name))
				}
			}
			real, rep, err := rt.Create(ctx, p, plan)
			if errdefs.IsUnavailable(err) {
				// It may have been made: only asking again tells.
				return nil, fmt.Errorf("%w; whether workspace %q was made is not known, and it is finished or undone as soon as that can be done",
					err, k.Key)
			}
			if err != nil {
				return nil, errors.Join(err, l.cfg.Store.Delete(ctx, k.Name))
			}
			crashpoint.Here("daemon.create.made")
			var data any
			if len(rep.Controls) > 0 {
				data = proof(rep)
			}
			if m.fill != nil {
				if real, rep, data, err = l.fill(ctx, m, plan.Way, rt, p, real, rep); err != nil {
					return nil, errors.Join(err, l.unmake(ctx, rt, p, k))
				}
			}
			if real, err = l.openWay(ctx, rt, p, k, real); err != nil { // its start says so
				l.cfg.Log.Warn("a new workspace is stopped", "workspace", k.Name, "error", err)
			}
			l.note(k.Name, real)
			var unplaced error
			if real.State == workspace.StateRunning {
				l.prove(k, rep)
				unplaced = l.placeFiles(ctx, rt, p, k.Secrets.Uses)
			}
			if err := l.cfg.Store.SetPhase(ctx, k.Name, workspace.Settled); err != nil {
				return data, err
			}
			// Made by an attempt that broke off, it has what that one asked for.
			return data, errors.Join(unplaced, l.sameMounts(m.allow, k, m.mounts), l.sameReach(m.reach, k), sameSecrets(m.secrets, k),
				sameModels(m.models, k))
		})
	})
}

// fill starts a workspace that was just made if it does not run, fills it, and stops it again
// unless it is to run.
func (l *Lifecycle) fill(ctx context.Context, m making, way runtime.Way, rt runtime.Runtime, p permit.Permit, real workspace.Real,
	rep workspace.Report,
) (workspace.Real, workspace.Report, any, error) {
	var err error
	if real.State != workspace.StateRunning {
		if real, rep, err = rt.Start(ctx, p, way); err != nil {
			return real, rep, nil, err
		}
	}
	crashpoint.Here("daemon.fill.started")
	data, err := m.fill(ctx, rt, p)
	if err != nil {
		return real, rep, nil, err
	}
	crashpoint.Here("daemon.fill.done")
	if !m.start {
		real, err = rt.Stop(ctx, p)
	}
	return real, rep, data, err
}

// unmake takes back a workspace that could not be filled. If that fails too, upkeep does it.
func (l *Lifecycle) unmake(ctx context.Context, rt runtime.Runtime, p permit.Permit, k workspace.Kept) error {
	if _, err := rt.Destroy(ctx, p, true); err != nil && !errdefs.IsNotFound(err) {
		l.unended(k.Name, err)
		return fmt.Errorf("cannot take workspace %s back, which is tried again: %w", k.Name, err)
	}
	l.forget(k.Name)
	return l.cfg.Store.Delete(ctx, k.Name)
}

// insert adds a workspace to those that live, if there is room for it.
func (l *Lifecycle) insert(ctx context.Context, m making, k workspace.Kept) error {
	return l.cfg.Store.Insert(ctx, k, func() error {
		l.admission.Lock()
		defer l.admission.Unlock()
		return l.mayLive(m.admitted.Request().By, k)
	}, m.attempt.by...)
}

// ClearRestoring takes back a workspace with that key which was to be filled and nobody fills
// any more. The key's slot is held, so that nobody fills it now.
func (l *Lifecycle) ClearRestoring(ctx context.Context, key id.Key) error {
	k, exists := l.cfg.Store.ByKey(key)
	if !exists || k.Phase != workspace.Restoring {
		return nil
	}
	return l.Alone(ctx, k.Name, background, func(ctx context.Context) error {
		return l.recovering(ctx, k, func(ctx context.Context, rt runtime.Runtime, p permit.Permit) error { return l.unmake(ctx, rt, p, k) })
	})
}
