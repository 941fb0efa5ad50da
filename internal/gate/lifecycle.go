package gate

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/action"
	"github.com/carrel-dev/carrel/internal/crashpoint"
	"github.com/carrel-dev/carrel/internal/id"
	"github.com/carrel-dev/carrel/internal/principal"
	"github.com/carrel-dev/carrel/internal/runtime"
	"github.com/carrel-dev/carrel/internal/store"
	"github.com/carrel-dev/carrel/internal/workspace"
)

// maxNames is how many names are tried for one key before giving up.
const maxNames = 64

// Create makes the workspace that is wanted, owned by p, or returns the one there is for
// its key. It starts it too unless told not to.
//
// Errors: permission_denied if the key is another user's, resource_exhausted if
// there are as many as there may be, failed_precondition if it has other mounts than are
// wanted, and those of the runtime. Mounts come with one grant, see package grant.
func (g *Gate) Create(ctx context.Context, p principal.Principal, want workspace.Wanted, grant ...*os.File) (workspace.View, bool, error) {
	trace := id.NewTrace()
	a := action.Action{
		Kind: action.Create, Key: want.Key, Profile: want.Profile, TTLMS: millis(want.TTL), IdleMS: millis(want.Idle), NoStart: want.NoStart, Allow: want.Allow,
	}
	if err := g.permitKey(ctx, p, a, p.Owner()); err != nil {
		return workspace.View{}, false, err
	}
	if err := setLimits(&a, want.Limits); err != nil {
		return workspace.View{}, false, err
	}
	mounts, err := setMounts(&a, want.Mounts, grant)
	if err != nil {
		return workspace.View{}, false, err
	}
	if err := workspace.CheckOpenings(want.Allow, want.Mounts); err != nil {
		return workspace.View{}, false, err
	}
	if err := g.mayAllow(want); err != nil {
		return workspace.View{}, false, g.deny(ctx, request{by: p, trace: trace, action: a}, err)
	}
	type made struct {
		Name    id.Workspace `json:"name"`
		Created bool         `json:"created"`
	}
	m, err := once(ctx, g, p, want.Request, a, func(time.Time) (m made, err error) {
		w, err := g.wanted(p, want)
		if err != nil {
			return m, err
		}
		r := request{by: p, trace: trace, action: a}
		if err := g.clear(ctx, &r); err != nil { // nobody else waits for a person's answer
			return m, err
		}
		err = g.exclusive(ctx, slot{key: want.Key}, action.Create, false, func(ctx context.Context) (err error) {
			w, m.Created, err = g.create(ctx, r, w, mounts)
			return err
		})
		m.Name = w.Name
		return m, err
	})
	if err != nil {
		return workspace.View{}, false, err
	}
	w, err := g.living(m.Name)
	if err != nil {
		return workspace.View{}, false, err
	}
	if want.NoStart {
		return g.view(w), m.Created, nil
	}
	if w.State != workspace.StatePaused {
		if err := g.ensureRunning(ctx, p, trace, w.Name); err != nil {
			return g.view(w), m.Created, fmt.Errorf("workspace %s is there but does not run: %w", w.Name, err)
		}
	}
	v, err := g.Get(ctx, p, string(w.Name))
	return v, m.Created, err
}

// wanted fills in what was not asked for, from the profile or the configuration. The name
// comes later.
func (g *Gate) wanted(p principal.Principal, want workspace.Wanted) (store.Workspace, error) {
	w := store.Workspace{
		Key: want.Key, Owner: p.Owner(), Root: workspace.RootSystem, Boundary: workspace.BoundaryNamespace,
		Profile: want.Profile, State: workspace.StateCreating, CreatedAt: time.Now(),
	}
	profile, ok := g.cfg.Profiles[want.Profile]
	if !ok && want.Profile != "" {
		return w, fmt.Errorf("cannot use the profile %q: there is none; there are: %s: %w", want.Profile, strings.Join(slices.Sorted(maps.Keys(g.cfg.Profiles)), ", "), errdefs.ErrInvalidArgument)
	}
	w.Limits = want.Limits.Or(profile.Limits).Or(g.cfg.Limits)
	ttl, idle := cmp.Or(want.TTL, profile.Life.TTL), cmp.Or(want.Idle, profile.Life.Idle)
	w.Expires, w.Idle = expiry(ttl), idle
	return w, errors.Join(w.Limits.Validate(), workspace.ValidateLife(want.TTL, want.Idle, want.Request))
}

// create runs with the key's slot held.
func (g *Gate) create(ctx context.Context, r request, fresh store.Workspace, mounts *runtime.Mounts) (store.Workspace, bool, error) {
	key := r.action.Key
	if err := g.clearRestoring(ctx, key); err != nil {
		return fresh, false, err
	}
	w, exists := g.cfg.Store.ByKey(key)
	if exists && !reaches(r.by, w) {
		r.on, r.action.Workspace = w, w.Name
		return w, false, g.deny(ctx, r, fmt.Errorf("cannot create workspace %q: another user has one with this key; choose another key: %w", key, errdefs.ErrPermissionDenied))
	}
	if exists && w.State == workspace.StateDestroying {
		return w, false, fmt.Errorf("cannot create workspace %q: the one there is, %s, is %s; run \"carrel destroy\" to finish that: %w", key, w.Name, w.State, errdefs.ErrFailedPrecondition)
	}
	if exists && w.State != workspace.StateCreating {
		return w, false, g.sameMounts(r, w, mounts)
	}
	if exists { // begun before, and broken off at a point that is not known
		w, err := g.make(ctx, r, w, mounts, false, nil)
		return w, err == nil, err
	}
	if err := g.usableKey(key); err != nil {
		return w, false, err
	}
	skeleton := g.cfg.Profiles[fresh.Profile].Skeleton
	if skeleton == nil {
		w, err := g.named(ctx, r, fresh, mounts, nil)
		return w, err == nil, err
	}
	if mounts != nil {
		for _, m := range mounts.List {
			if m.BelowHome() {
				return fresh, false, fmt.Errorf("cannot mount at %s in workspace %q: the home of profile %q is filled with files when it is made, and has to be empty then; mount it at /workspace, or below /srv or /mnt: %w", m.Destination, key, fresh.Profile, errdefs.ErrInvalidArgument)
			}
		}
	}
	w, err := g.fresh(ctx, r, fresh, mounts, func(ctx context.Context, w store.Workspace) (any, error) {
		in, err := skeleton(ctx)
		if err != nil {
			return nil, err
		}
		n, err := g.unpack(ctx, w.Name, in, false, nil)
		return archived{Entries: n.Entries, Bytes: n.Bytes}, err
	})
	if err == nil && r.action.NoStart {
		err = g.stop(ctx, r.by, w.Name)
	}
	return w, err == nil, err
}

// filling makes what a workspace has from the start, and leaves it running. It is told
// how the runtime made it. What it returns beside is for the record.
type filling func(context.Context, store.Workspace, runtime.Workspace) (runtime.Workspace, any, error)

// named makes a workspace under the first name of its key that is free.
func (g *Gate) named(ctx context.Context, r request, fresh store.Workspace, mounts *runtime.Mounts, fill filling) (store.Workspace, error) {
	key := fresh.Key
	prefix := cmp.Or(g.cfg.Profiles[fresh.Profile].Prefix, g.cfg.Prefix)
	n, err := g.cfg.Store.FreeSuffix(ctx, prefix, key)
	if err != nil {
		return fresh, err
	}
	for last := min(n+maxNames, id.MaxCollision+1); n < last; n++ {
		fresh.Name = id.Derive(prefix, key, n)
		w, err := g.make(ctx, r, fresh, mounts, true, fill)
		// The name has another key: of a collision, or of a life before.
		if !errdefs.IsAlreadyExists(err) {
			return w, err
		}
	}
	return fresh, fmt.Errorf("cannot create workspace %q: every name up to %s is taken: %w", key, id.Derive(prefix, key, n-1), errdefs.ErrResourceExhausted)
}

// usableKey refuses a key that could be taken for the name of another workspace.
func (g *Gate) usableKey(key id.Key) error {
	_, taken := g.cfg.Store.ByName(id.Workspace(key))
	derived := false
	for prefix := range g.prefixes() {
		derived = derived || strings.HasPrefix(string(key), prefix+"-")
	}
	if taken || derived && id.IsWorkspace(string(key)) {
		return fmt.Errorf("cannot use %q as a key: it has the form of a derived name and could be taken for another workspace; choose another key: %w", key, errdefs.ErrInvalidArgument)
	}
	return nil
}

// prefixes yields what derived names begin with.
func (g *Gate) prefixes() iter.Seq[string] {
	return func(yield func(string) bool) {
		if !yield(g.cfg.Prefix) {
			return
		}
		for _, p := range g.cfg.Profiles {
			if p.Prefix != "" && !yield(p.Prefix) {
				return
			}
		}
	}
}

// setMounts puts the mounts that are asked for into the action.
func setMounts(a *action.Action, mounts []workspace.Mount, grant []*os.File) (*runtime.Mounts, error) {
	if len(mounts) == 0 && len(grant) == 0 {
		return nil, nil
	}
	if len(mounts) == 0 || len(grant) != 1 {
		return nil, fmt.Errorf("cannot mount %d directories with %d grants: %w", len(mounts), len(grant), errdefs.ErrInvalidArgument)
	}
	if err := workspace.CheckMounts(mounts); err != nil {
		return nil, err
	}
	raw, err := json.Marshal(mounts)
	if err != nil {
		return nil, fmt.Errorf("cannot read the mounts: %w", err)
	}
	a.Mounts = raw
	return &runtime.Mounts{List: mounts, Grant: grant[0]}, nil
}

// mayAllow is an error if the configuration does not permit what is to be opened.
func (g *Gate) mayAllow(want workspace.Wanted) error {
	may, of := g.cfg.Allow, "allow"
	if p, ok := g.cfg.Profiles[want.Profile]; ok {
		may, of = p.Allow, want.Profile+".allow"
	}
	for _, o := range want.Allow {
		if !slices.Contains(may, o) {
			return fmt.Errorf("cannot create workspace %q with --allow %s: the daemon's configuration does not permit it (%s: %q); leave it out, or have it added there: %w",
				want.Key, o, of, workspace.JoinOpenings(may), errdefs.ErrPermissionDenied)
		}
	}
	return nil
}

// sameMounts is an error if mounts or openings that are asked for are not those that there are.
// Who asks for none takes what there is.
func (g *Gate) sameMounts(r request, w store.Workspace, mounts *runtime.Mounts) error {
	if asked, has := r.action.Allow, g.view(w).Allow; len(asked) > 0 && !slices.Equal(asked, has) {
		return fmt.Errorf("cannot allow %s in workspace %q: it is there already, with %q, and that is chosen when one is made; destroy it first, or choose another key: %w",
			workspace.JoinOpenings(asked), w.Key, workspace.JoinOpenings(has), errdefs.ErrFailedPrecondition)
	}
	if mounts == nil {
		return nil
	}
	if v := g.view(w); workspace.SameMounts(mounts.List, v.Mounts, "/home/"+string(w.Name)) {
		return nil
	}
	return fmt.Errorf("cannot mount other directories into workspace %q: it is there already, and mounts are chosen when one is made; \"carrel inspect\" shows those that it has; destroy it first, or choose another key: %w", w.Key, errdefs.ErrFailedPrecondition)
}

// make carries one creation out under one name. What fails is undone; if that
// fails too, the workspace stays as creating and the next attempt goes on.
func (g *Gate) make(ctx context.Context, r request, w store.Workspace, mounts *runtime.Mounts, insert bool, fill filling) (store.Workspace, error) {
	r.on, r.action.Workspace = w, w.Name
	to, start := workspace.StateStopped, fill != nil || !r.action.NoStart
	err := g.exclusive(ctx, slot{name: w.Name}, action.Create, false, func(ctx context.Context) error {
		return g.do(ctx, r, func(ctx context.Context) (any, error) {
			if insert {
				if err := g.insert(ctx, w); err != nil {
					return nil, err
				}
			}
			crashpoint.Here("daemon.create.inserted")
			sum := sha256.Sum256([]byte(w.Key))
			plan := runtime.Plan{KeyDigest: hex.EncodeToString(sum[:]), Limits: w.Limits, Allow: r.action.Allow, Mounts: mounts}
			if start {
				// One that may not run is made all the same; its start says why.
				if leave, err := g.admit(w); err == nil {
					defer leave()
					plan.Start = true
				}
			}
			rt, rep, err := g.cfg.Runtime.Create(ctx, w.Name, plan)
			if errdefs.IsUnavailable(err) {
				// It may have been made: only asking again tells.
				return nil, err
			}
			if err != nil {
				return nil, errors.Join(err, g.cfg.Store.Delete(ctx, w.Name))
			}
			crashpoint.Here("daemon.create.made")
			var data any
			if len(rep.Controls) > 0 {
				data = proof(rep)
			}
			if fill != nil {
				if rt, data, err = fill(ctx, w, rt); err != nil {
					return nil, errors.Join(err, g.unmake(ctx, w))
				}
			}
			g.note(rt)
			if rt.State == workspace.StateRunning {
				to = rt.State
				g.prove(w.Name, rep)
			}
			if err := g.cfg.Store.SetState(ctx, w.Name, to); err != nil {
				return data, err
			}
			// Made by an attempt that broke off, it has what that one asked for.
			return data, g.sameMounts(r, w, mounts)
		})
	})
	w.State = to
	return w, err
}

// unmake takes back a workspace that could not be filled. If that fails too, the next
// start does it.
func (g *Gate) unmake(ctx context.Context, w store.Workspace) error {
	if _, err := g.cfg.Runtime.Destroy(ctx, w.Name, true); err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("cannot take workspace %s back, the next start of the daemon does: %w", w.Name, err)
	}
	return g.cfg.Store.Delete(ctx, w.Name)
}

// insert adds a workspace to those that live, if there is room for it.
func (g *Gate) insert(ctx context.Context, w store.Workspace) error {
	g.admission.Lock()
	defer g.admission.Unlock()
	if err := g.mayLive(w); err != nil {
		return err
	}
	return g.cfg.Store.Insert(ctx, w)
}

// Start starts the workspace that ref names and returns it with its proof.
func (g *Gate) Start(ctx context.Context, p principal.Principal, ref string) (workspace.View, error) {
	w, err := g.reach(ctx, p, ref, action.Action{Kind: action.Start})
	if err != nil {
		return workspace.View{}, err
	}
	if w.State == workspace.StateRunning && errors.Is(g.cfg.Runtime.Ping(ctx, w.Name), runtime.ErrNotRunning) {
		if err := g.lost(ctx, w.Name); err != nil {
			return workspace.View{}, err
		}
	}
	if err := g.start(ctx, p, id.NewTrace(), w.Name); err != nil {
		return workspace.View{}, err
	}
	return g.Get(ctx, p, string(w.Name))
}

// ensureRunning returns at once if the workspace runs and else starts it. One
// that is being ended is not started again behind the back of who ends it.
func (g *Gate) ensureRunning(ctx context.Context, p principal.Principal, trace id.Trace, name id.Workspace) error {
	closing := g.use(name)
	if g.ending(name) {
		return fmt.Errorf("cannot run anything in workspace %s: it is being stopped; try again when it has: %w", name, errdefs.ErrFailedPrecondition)
	}
	if w, ok := g.cfg.Store.ByName(name); ok && w.State == workspace.StateRunning && !closing {
		return nil
	}
	return g.start(ctx, p, trace, name)
}

// start starts a workspace unless it runs. Concurrent starts are one.
func (g *Gate) start(ctx context.Context, p principal.Principal, trace id.Trace, name id.Workspace) error {
	return g.exclusive(ctx, slot{name: name}, action.Start, true, func(ctx context.Context) error {
		w, err := g.living(name)
		if err != nil || w.State == workspace.StateRunning {
			return err
		}
		if w.State == workspace.StatePaused {
			return fmt.Errorf("cannot run anything in workspace %s: it is paused; let it go on with \"carrel resume %s\": %w", name, name, errdefs.ErrFailedPrecondition)
		}
		if w.State != workspace.StateStopped {
			return fmt.Errorf("cannot start workspace %s: it is %s; repeat what was begun to finish it: %w", name, w.State, errdefs.ErrFailedPrecondition)
		}
		return g.do(ctx, request{by: p, trace: trace, on: w, action: action.Action{Kind: action.Start, Workspace: name}}, func(ctx context.Context) (any, error) {
			leave, err := g.admit(w)
			if err != nil {
				return nil, err
			}
			defer leave()
			rt, rep, err := g.cfg.Runtime.Start(ctx, name)
			if err != nil {
				return nil, err
			}
			crashpoint.Here("daemon.start.started")
			g.note(rt)
			g.prove(name, rep)
			return proof(rep), g.cfg.Store.SetState(ctx, name, workspace.StateRunning)
		})
	})
}

// proof counts a report's controls by state, for the record of a start.
func proof(rep workspace.Report) any {
	n := make(map[workspace.ControlState]int)
	for _, c := range rep.Controls {
		n[c.State]++
	}
	return struct {
		Controls map[workspace.ControlState]int `json:"controls"`
	}{n}
}

func (g *Gate) living(name id.Workspace) (store.Workspace, error) {
	w, ok := g.cfg.Store.ByName(name)
	if !ok {
		return w, fmt.Errorf("cannot find workspace %s: it was destroyed meanwhile: %w", name, errdefs.ErrNotFound)
	}
	return w, nil
}
