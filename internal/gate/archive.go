package gate

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
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

// Archive puts the home of the workspace that ref names away: on the shelf, or, if out is
// not nil, to out. A stopped workspace is started for it and stopped again. With
// want.Destroy it ends, and its home goes, once the archive is safe.
//
// Errors: failed_precondition while commands run, unless want.Live; resource_exhausted
// if there is no room.
func (g *Gate) Archive(ctx context.Context, p principal.Principal, ref string, want workspace.ArchiveWanted, out io.Writer, progress func(workspace.Progress)) (workspace.Archive, error) {
	a := action.Action{Kind: action.Archive, Key: id.Key(ref), Purge: want.Destroy, Live: want.Live, Export: out != nil}
	if err := workspace.ValidateLife(0, 0, want.Request); err != nil {
		return workspace.Archive{}, err
	}
	if err := g.Permit(ctx, p, a); err != nil {
		return workspace.Archive{}, err
	}
	if want.Destroy {
		if err := g.Permit(ctx, p, action.Action{Kind: action.Destroy, Key: id.Key(ref), Purge: true}); err != nil {
			return workspace.Archive{}, err
		}
	}
	if out != nil && (want.Destroy || want.Request != "") {
		return workspace.Archive{}, fmt.Errorf("cannot destroy a workspace whose archive is sent away, or keep an answer to it: whether it arrived is not known here; archive it here: %w", errdefs.ErrInvalidArgument)
	}
	return once(ctx, g, p, want.Request, a, func(began time.Time) (made workspace.Archive, err error) {
		if !began.IsZero() {
			if made, done, err := g.archivedBefore(ctx, p, ref, want.Destroy, began); done || err != nil {
				return made, err
			}
		}
		w, err := g.reach(ctx, p, ref, action.Action{Kind: action.Archive})
		if err != nil {
			return made, err
		}
		if w.State == workspace.StateRunning { // unless its executor has gone unnoticed
			if err := g.lost(ctx, w.Name); err != nil {
				return made, err
			}
		}
		a.Workspace = w.Name
		r := request{by: p, trace: id.NewTrace(), on: w, action: a}
		if err := g.clear(ctx, &r); err != nil {
			return made, err
		}
		err = g.exclusive(ctx, slot{name: w.Name}, action.Archive, false, func(context.Context) error {
			w, err := g.living(w.Name)
			if err != nil {
				return err
			}
			r.on = w
			return g.do(ctx, r, func(ctx context.Context) (any, error) {
				made, err = g.putAway(ctx, w, want.Live, out, progress)
				return archived{made.ID, made.SHA256, made.Size, made.Entries, made.Bytes}, err
			})
		})
		if err == nil && want.Destroy { // which was judged, and asked about, with the archive
			r.action = action.Action{Kind: action.Destroy, Workspace: w.Name, Purge: true}
			_, err = g.destroyAs(ctx, r)
		}
		return made, err
	})
}

// archivedBefore finds what the first attempt at a request made, and finishes what was to
// follow.
func (g *Gate) archivedBefore(ctx context.Context, p principal.Principal, ref string, destroy bool, began time.Time) (made workspace.Archive, done bool, err error) {
	made, err = g.cfg.Store.Archive(ctx, ref)
	if errdefs.IsNotFound(err) || err == nil && (made.CreatedAt.Before(began) || !reachesArchive(p, made)) {
		return made, false, nil
	}
	if err != nil || !destroy {
		return made, err == nil, err
	}
	// What has the key now is another workspace, if the first attempt came to the end.
	if w, ok := g.cfg.Store.ByName(made.Workspace); ok && reaches(p, w) {
		_, err = g.destroyAsked(ctx, p, w, true)
	}
	return made, true, err
}

// archived is the Data of an archive's outcome.
type archived struct {
	ID      string `json:"archive,omitempty"`
	SHA256  string `json:"sha256,omitempty"`
	Size    int64  `json:"size,omitempty"`
	Entries int64  `json:"entries,omitempty"`
	Bytes   int64  `json:"bytes,omitempty"`
}

// putAway runs with the workspace's slot held. Unlike other operations it ends with its
// caller: nothing is changed until the archive is in its place.
func (g *Gate) putAway(ctx context.Context, w store.Workspace, alive bool, out io.Writer, progress func(workspace.Progress)) (a workspace.Archive, err error) {
	switch w.State {
	case workspace.StateRunning:
		if err := g.quietEnough(ctx, w.Name, alive); err != nil {
			return a, err
		}
	case workspace.StateStopped:
		end, err := g.forArchiver(ctx, w)
		if err != nil {
			return a, err
		}
		defer func() { err = errors.Join(err, end()) }()
	default:
		return a, fmt.Errorf("cannot archive workspace %s: it is %s: %w", w.Name, w.State, errdefs.ErrFailedPrecondition)
	}
	a = workspace.Archive{
		ID: fmt.Sprintf("%s-%s", w.Name, time.Now().UTC().Format("20060102T150405.000000")), Workspace: w.Name, Key: w.Key, Owner: w.Owner,
		Profile: w.Profile, Limits: w.Limits, CreatedAt: time.Now(),
	}
	if out != nil {
		s := &summed{w: out, sum: sha256.New()}
		n, err := g.pack(ctx, w.Name, s, progress)
		a.SHA256, a.Size, a.Entries, a.Bytes = hex.EncodeToString(s.sum.Sum(nil)), s.n, n.Entries, n.Bytes
		return a, err
	}
	d, err := g.cfg.Shelf.Create(a.ID)
	if err != nil {
		return a, err
	}
	defer d.Discard()
	crashpoint.Here("daemon.archive.begun")
	n, err := g.pack(ctx, w.Name, d, progress)
	if err != nil {
		return a, err
	}
	crashpoint.Here("daemon.archive.packed")
	a.Entries, a.Bytes = n.Entries, n.Bytes
	if a.SHA256, a.Size, err = d.Commit(); err != nil {
		return a, err
	}
	crashpoint.Here("daemon.archive.placed")
	if err := g.cfg.Store.AddArchive(context.WithoutCancel(ctx), a); err != nil {
		return a, errors.Join(err, g.cfg.Shelf.Remove(a.ID))
	}
	crashpoint.Here("daemon.archive.noted")
	return a, nil
}

// summed passes on what is written, and sums it.
type summed struct {
	w   io.Writer
	sum hash.Hash
	n   int64
}

func (s *summed) Write(p []byte) (int, error) {
	n, err := s.w.Write(p)
	s.sum.Write(p[:n])
	s.n += int64(n)
	return n, err
}

// quietEnough refuses a workspace in which commands run, unless that is wanted.
func (g *Gate) quietEnough(ctx context.Context, name id.Workspace, alive bool) error {
	if alive {
		return nil
	}
	list, err := g.cfg.Runtime.Commands(ctx, name)
	if err != nil {
		return err
	}
	for _, c := range list {
		if c.Status == nil || c.Status.Stuck > 0 {
			return fmt.Errorf("cannot archive workspace %s: commands run in it and may change what is read; stop it first, or ask for it live: %w", name, errdefs.ErrFailedPrecondition)
		}
	}
	return nil
}

// forArchiver starts a stopped workspace whose slot is held, for the archiver alone; end
// stops it again.
func (g *Gate) forArchiver(ctx context.Context, w store.Workspace) (end func() error, err error) {
	leave, err := g.admit(w)
	if err != nil {
		return nil, err
	}
	if _, _, err := g.cfg.Runtime.Start(ctx, w.Name); err != nil {
		leave()
		return nil, err
	}
	return func() error {
		defer leave()
		_, err := g.cfg.Runtime.Stop(context.WithoutCancel(ctx), w.Name)
		return err
	}, nil
}

// Restore makes a workspace from an archive: from the one that want names, or from in. It
// is there when all of it is, and runs.
//
// Errors: already_exists if the key has a workspace, data_loss if the archive is not what
// it was, invalid_argument or resource_exhausted for one that breaks the rules.
func (g *Gate) Restore(ctx context.Context, p principal.Principal, want workspace.RestoreWanted, in io.Reader, progress func(workspace.Progress)) (workspace.View, error) {
	var from workspace.Archive
	if want.From != "" {
		var err error
		if from, err = g.archive(ctx, p, want.From, action.Restore); err != nil {
			return workspace.View{}, err
		}
	}
	key := cmp.Or(want.Key, from.Key)
	if key == "" {
		return workspace.View{}, fmt.Errorf("cannot restore without a key: give the new workspace one: %w", errdefs.ErrInvalidArgument)
	}
	a := action.Action{Kind: action.Restore, Key: key, Archive: from.ID, Profile: want.Profile, TTLMS: millis(want.Life.TTL), IdleMS: millis(want.Life.Idle)}
	if err := setLimits(&a, want.Limits); err != nil {
		return workspace.View{}, err
	}
	if err := g.permitKey(ctx, p, a, cmp.Or(from.Owner, p.Owner())); err != nil {
		return workspace.View{}, err
	}
	name, err := once(ctx, g, p, want.Request, a, func(time.Time) (id.Workspace, error) {
		w, err := g.wanted(p, workspace.Wanted{
			Key: key, Profile: cmp.Or(want.Profile, from.Profile), Limits: want.Limits.Or(from.Limits), TTL: want.Life.TTL, Idle: want.Life.Idle, Request: want.Request,
		})
		if err != nil {
			return "", err
		}
		w.Owner = cmp.Or(from.Owner, w.Owner)
		if from.ID != "" {
			f, err := g.cfg.Shelf.Open(from.ID)
			if err != nil {
				return "", err
			}
			defer f.Close()
			in = f
		}
		err = g.exclusive(ctx, slot{key: key}, action.Restore, false, func(finish context.Context) error {
			if err := g.clearRestoring(finish, key); err != nil {
				return err
			}
			if o, exists := g.cfg.Store.ByKey(key); exists {
				return fmt.Errorf("cannot restore to key %q: workspace %s has it; destroy that one, or choose another key: %w", key, o.Name, errdefs.ErrAlreadyExists)
			}
			w, err = g.fresh(finish, request{by: p, trace: id.NewTrace(), action: a}, w, nil, func(_ context.Context, w store.Workspace) (any, error) {
				// Until it is whole it can be given up, and is when its caller goes.
				s := &summing{r: in, sum: sha256.New()}
				n, err := g.unpack(ctx, w.Name, s, true, progress)
				if err != nil {
					return nil, err
				}
				sum := hex.EncodeToString(s.sum.Sum(nil))
				if from.ID != "" && sum != from.SHA256 {
					return nil, fmt.Errorf("cannot restore archive %s: its file was changed since it was written: its SHA-256 is %s and was %s: %w", from.ID, sum, from.SHA256, errdefs.ErrDataLoss)
				}
				return archived{from.ID, sum, s.n, n.Entries, n.Bytes}, nil
			})
			return err
		})
		return w.Name, err
	})
	if err != nil {
		return workspace.View{}, err
	}
	return g.Get(ctx, p, string(name))
}

// summing passes on what is read, and sums it. Its end is the end of the archive.
type summing struct {
	r   io.Reader
	sum hash.Hash
	n   int64
}

func (s *summing) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	s.sum.Write(p[:n])
	s.n += int64(n)
	return n, err
}

// fresh makes a workspace whose home is filled before anybody can use it. It is restoring
// until then, and a crash or an error undoes it. It runs when it is done.
func (g *Gate) fresh(ctx context.Context, r request, w store.Workspace, mounts *runtime.Mounts, fill func(context.Context, store.Workspace) (any, error)) (store.Workspace, error) {
	w.State = workspace.StateRestoring
	if err := g.usableKey(w.Key); err != nil {
		return w, err
	}
	return g.named(ctx, r, w, mounts, func(ctx context.Context, w store.Workspace, rt runtime.Workspace) (runtime.Workspace, any, error) {
		if rt.State != workspace.StateRunning {
			leave, err := g.admit(w)
			if err != nil {
				return rt, nil, err
			}
			defer leave()
			if rt, _, err = g.cfg.Runtime.Start(ctx, w.Name); err != nil {
				return rt, nil, err
			}
		}
		crashpoint.Here("daemon.fill.started")
		data, err := fill(ctx, w)
		crashpoint.Here("daemon.fill.done")
		return rt, data, err
	})
}

// clearRestoring takes back what has key if it broke off while it was being filled, and
// could not be taken back then. The key's slot is held, so that nobody fills it now.
func (g *Gate) clearRestoring(ctx context.Context, key id.Key) error {
	w, exists := g.cfg.Store.ByKey(key)
	if !exists || w.State != workspace.StateRestoring {
		return nil
	}
	return g.exclusive(ctx, slot{name: w.Name}, quiet, false, func(ctx context.Context) error {
		return g.recovering(ctx, w, func(ctx context.Context) error { return g.unmake(ctx, w) })
	})
}

// archive returns the archive that ref names if p may have it, and records a refusal.
func (g *Gate) archive(ctx context.Context, p principal.Principal, ref string, kind action.Kind) (workspace.Archive, error) {
	if err := g.Permit(ctx, p, action.Action{Kind: kind}); err != nil {
		return workspace.Archive{}, err
	}
	a, err := g.cfg.Store.Archive(ctx, ref)
	if err != nil || reachesArchive(p, a) {
		return a, err
	}
	return a, g.deny(ctx, request{by: p, trace: id.NewTrace(), action: action.Action{Kind: kind, Archive: a.ID}},
		fmt.Errorf("cannot let %s %s archive %q: %s; ask its owner or an administrator: %w", p, verb(kind), ref, elsewhere(p), errdefs.ErrPermissionDenied))
}

// Archives returns the archives that p may have, the newest first.
func (g *Gate) Archives(ctx context.Context, p principal.Principal) ([]workspace.Archive, error) {
	if err := g.Permit(ctx, p, action.Action{Kind: action.Archives}); err != nil {
		return nil, err
	}
	all, err := g.cfg.Store.Archives(ctx)
	own := all[:0]
	for _, a := range all {
		if reachesArchive(p, a) {
			own = append(own, a)
		}
	}
	return own, err
}

// ReadArchive writes the file of an archive to out.
func (g *Gate) ReadArchive(ctx context.Context, p principal.Principal, ref string, out io.Writer) (workspace.Archive, error) {
	a, err := g.archive(ctx, p, ref, action.ReadArchive)
	if err != nil {
		return a, err
	}
	return a, g.do(ctx, request{by: p, trace: id.NewTrace(), action: action.Action{Kind: action.ReadArchive, Archive: a.ID}}, func(context.Context) (any, error) {
		f, err := g.cfg.Shelf.Open(a.ID)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		s := &summing{r: f, sum: sha256.New()}
		if _, err := io.CopyBuffer(struct{ io.Writer }{out}, s, make([]byte, 256<<10)); err != nil {
			return nil, fmt.Errorf("cannot read archive %s: %w", a.ID, err)
		}
		if sum := hex.EncodeToString(s.sum.Sum(nil)); sum != a.SHA256 {
			return nil, fmt.Errorf("cannot trust archive %s: its file was changed since it was written: its SHA-256 is %s and was %s: %w", a.ID, sum, a.SHA256, errdefs.ErrDataLoss)
		}
		return nil, nil
	})
}

// RemoveArchive removes an archive for good.
func (g *Gate) RemoveArchive(ctx context.Context, p principal.Principal, ref string) error {
	a, err := g.archive(ctx, p, ref, action.RemoveArchive)
	if err != nil {
		return err
	}
	return g.removeArchive(ctx, p, a)
}

// removeArchive forgets the archive before its file goes: a file that nobody knows of is
// removed at the next start.
func (g *Gate) removeArchive(ctx context.Context, p principal.Principal, a workspace.Archive) error {
	return g.do(ctx, request{by: p, trace: id.NewTrace(), action: action.Action{Kind: action.RemoveArchive, Archive: a.ID}}, func(ctx context.Context) (any, error) {
		if err := g.cfg.Store.RemoveArchive(ctx, a.ID); err != nil {
			return nil, err
		}
		crashpoint.Here("daemon.archive.forgotten")
		return nil, g.cfg.Shelf.Remove(a.ID)
	})
}

// tidyShelf brings files and what is known of them together after a crash.
func (g *Gate) tidyShelf(ctx context.Context) error {
	if g.cfg.Shelf == nil {
		return nil
	}
	known, err := g.cfg.Store.Archives(ctx)
	if err != nil {
		return err
	}
	files, err := g.cfg.Shelf.IDs()
	if err != nil {
		return err
	}
	has := make(map[string]bool, len(known))
	for _, a := range known {
		has[a.ID] = true
	}
	for _, f := range files {
		if has[f] {
			delete(has, f)
			continue
		}
		g.cfg.Log.Warn("removing an archive that was not acknowledged, or was being removed", "archive", f)
		if err := g.cfg.Shelf.Remove(f); err != nil {
			return err
		}
	}
	for missing := range has {
		g.cfg.Log.Error("the file of an archive is gone", "archive", missing)
	}
	return nil
}

// forgetOld removes archives that have been kept for their time.
func (g *Gate) forgetOld(ctx context.Context, now time.Time) error {
	if g.cfg.KeepArchives <= 0 {
		return nil
	}
	all, err := g.cfg.Store.Archives(ctx)
	if err != nil {
		return err
	}
	for _, a := range all {
		if now.Sub(a.CreatedAt) > g.cfg.KeepArchives {
			if err := g.removeArchive(ctx, principal.Self(), a); err != nil {
				return err
			}
		}
	}
	return nil
}
