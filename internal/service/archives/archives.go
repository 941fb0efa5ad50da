// Package archives puts homes of workspaces away and makes workspaces from them again.
//
// It must not pack or unpack anything itself: package archiver has that done inside the
// workspace.
package archives

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/crashpoint"
	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/gate"
	"github.com/carrel-dev/carrel/internal/service/archiver"
	"github.com/carrel-dev/carrel/internal/service/lifecycle"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/spec/permit"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/state/archivestore"
	"github.com/carrel-dev/carrel/internal/state/store"
)

// Config holds the dependencies of New. All of it is required, but for Files and Archiver
// where nothing is archived.
type Config struct {
	Gate      *gate.Gate
	Lifecycle *lifecycle.Lifecycle
	Store     *store.Store
	// Files keeps the files.
	Files *archivestore.Store
	// Bounds are what one owner may have in it, and Keep how long, 0 without an end. Optional.
	Bounds   Bounds
	Keep     time.Duration
	Archiver *archiver.Archiver
	Log      *slog.Logger
}

// Archives are the archives of all workspaces. Its methods may be called from any goroutine.
type Archives struct {
	cfg   Config
	shelf *shelf
}

// New returns the archives in a store of files. Recover is called before anything else.
func New(cfg Config) *Archives {
	return &Archives{cfg, &shelf{files: cfg.Files, bounds: cfg.Bounds, owners: map[string]share{}}}
}

// Archive puts the home of the workspace that ref names away: in the store, or, if out is not
// nil, to out. A stopped workspace is started for it and stopped again. With want.Destroy it
// ends, and its home goes, once the archive is safe.
//
// Errors: failed_precondition while commands run, unless want.Live; resource_exhausted if
// there is no room.
func (s *Archives) Archive(ctx context.Context, p principal.Principal, ref string, want workspace.ArchiveWanted, out io.Writer,
	progress func(workspace.Progress),
) (workspace.Archive, error) {
	if err := workspace.ValidateLife(0, 0, want.Request); err != nil {
		return workspace.Archive{}, err
	}
	// By the ref, which is all that a repeated request has once the workspace is gone.
	op := operation.PutAway{Ref: id.Key(ref), Destroy: want.Destroy, Live: want.Live, Export: out != nil}
	if err := s.may(ctx, p, op); err != nil {
		return workspace.Archive{}, err
	}
	if want.Destroy {
		if err := s.may(ctx, p, operation.Destroy{Ref: id.Key(ref), Purge: true}); err != nil {
			return workspace.Archive{}, err
		}
	}
	if out != nil && (want.Destroy || want.Request != "") {
		return workspace.Archive{}, fmt.Errorf("cannot destroy a workspace whose archive is sent away, or keep an answer to it: whether it "+
			"arrived is not known here; archive it here: %w", errdefs.ErrInvalidArgument)
	}
	a, err := lifecycle.Once(ctx, s.cfg.Lifecycle, p, want.Request, op, operation.Target{}, s.newID(ref),
		func(at *lifecycle.Attempt) (made workspace.Archive, err error) {
			if !at.Began.IsZero() {
				if made, done, err := s.before(ctx, p, ref, at, want.Destroy); done || err != nil {
					return made, err
				}
			}
			made, err = s.putAway(ctx, p, ref, at.Own, op, out, progress)
			if err != nil && at.Own != "" {
				if _, noted := s.cfg.Store.Archive(ctx, at.Own); noted == nil {
					at.Keep() // and who asks again has the rest done
				}
			}
			return made, err
		})
	if err == nil && out == nil {
		a = s.shown(a)
	}
	return a, err
}

// newID is the id of the archive that is made now of the workspace that ref means, "" if there is
// none. It names the workspace too.
func (s *Archives) newID(ref string) string {
	on, err := s.cfg.Lifecycle.Find(ref)
	if err != nil {
		return ""
	}
	return id.NewArchive(on.Name, time.Now())
}

// may authorises an operation on no workspace in particular.
func (s *Archives) may(ctx context.Context, p principal.Principal, op operation.Operation) error {
	_, err := s.cfg.Gate.Authorise(ctx, operation.Request{By: p, Op: op}, nil)
	return err
}

// putAway archives a workspace and then destroys it if that is wanted. own is the id of the archive,
// "" where there was no workspace to be archived.
func (s *Archives) putAway(ctx context.Context, p principal.Principal, ref, own string, op operation.PutAway, out io.Writer,
	progress func(workspace.Progress),
) (made workspace.Archive, err error) {
	life := s.cfg.Lifecycle
	if of, ok := id.ArchiveOf(own); ok {
		ref = string(of)
	}
	authorised, err := life.Authorise(ctx, p, ref, op)
	if err != nil {
		return made, err
	}
	name := authorised.On().Name
	if _, state, _ := life.Current(name); state == workspace.StateRunning { // unless its executor has gone unnoticed
		if err := life.Lost(ctx, name); err != nil {
			return made, err
		}
	}
	a, err := authorised.Admit(ctx) // nobody else waits for a person's answer
	if err != nil {
		return made, err
	}
	var destroy *gate.Admitted
	if op.Destroy {
		of, err := life.Authorise(ctx, p, string(name), operation.Destroy{Purge: true})
		if err == nil {
			destroy, err = of.Admit(ctx)
		}
		if err != nil {
			return made, err
		}
	}
	// Unlike other operations it ends with its caller, and when the workspace is to end: nothing
	// is changed until the archive is in its place.
	if err := life.AloneUntil(ctx, name, operation.ArchiveWorkspace, func(ctx context.Context) error {
		k, err := life.Living(name)
		if err != nil {
			return err
		}
		return a.Do(ctx, func(ctx context.Context, permit permit.Permit) (any, error) {
			made, err = s.pack(ctx, p, permit, k, cmp.Or(own, id.NewArchive(name, time.Now())), op, out, progress)
			return lifecycle.Archived{ID: made.ID, SHA256: made.SHA256, Size: made.Size, Entries: made.Entries, Bytes: made.Bytes}, err
		})
	}); err != nil || destroy == nil {
		return made, err
	}
	_, err = life.DestroyAdmitted(ctx, destroy, true)
	return made, err
}

// before finds what an earlier attempt at a request made, and finishes what was to follow.
func (s *Archives) before(ctx context.Context, p principal.Principal, ref string, at *lifecycle.Attempt, destroy bool,
) (made workspace.Archive, done bool, err error) {
	made, err = s.cfg.Store.Archive(ctx, cmp.Or(at.Own, ref))
	others := at.Own == "" && made.CreatedAt.Before(at.Began) // of an earlier request
	if errdefs.IsNotFound(err) || err == nil && (others || !operation.Reaches(p, targetOf(made))) {
		return workspace.Archive{}, false, nil
	}
	if err != nil || !destroy {
		return made, err == nil, err
	}
	// What has the key now is another workspace, if the first attempt came to the end.
	if _, err := s.cfg.Lifecycle.Living(made.Workspace); err != nil {
		return made, true, nil
	}
	if at.Own == "" {
		// There was no workspace then, so this archive is of another request: it may be older than what is
		// in the home now, and nobody saw that it can be restored.
		return workspace.Archive{}, false, nil
	}
	of, err := s.cfg.Lifecycle.Authorise(ctx, p, string(made.Workspace), operation.Destroy{Purge: true})
	if err != nil {
		return made, true, err
	}
	a, err := of.Admit(ctx)
	if err == nil {
		_, err = s.cfg.Lifecycle.DestroyAdmitted(ctx, a, true)
	}
	return made, true, err
}

func targetOf(a workspace.Archive) operation.Target {
	return operation.Target{Kind: operation.Archive, ID: a.ID, Name: a.Workspace, Key: a.Key, Owner: a.Owner}
}

// pack runs with the workspace's slot held.
func (s *Archives) pack(ctx context.Context, by principal.Principal, p permit.Permit, k workspace.Kept, own string, op operation.PutAway,
	out io.Writer, progress func(workspace.Progress),
) (a workspace.Archive, err error) {
	rt, err := s.cfg.Lifecycle.Runtime(k.Boundary)
	if err != nil {
		return a, err
	}
	var on *place
	kept := false
	if out == nil {
		if on, err = s.shelf.reserve(by, k); err != nil {
			return a, err
		}
		defer func() {
			if !kept {
				on.leave()
			}
		}()
	}
	_, state, _ := s.cfg.Lifecycle.Current(k.Name)
	switch state {
	case workspace.StateRunning:
		if err := quietEnough(ctx, rt, k.Name, op.Live); err != nil {
			return a, err
		}
	case workspace.StateStopped:
		end, err := s.startFor(ctx, rt, p, k)
		if err != nil {
			return a, err
		}
		defer func() { err = errors.Join(err, end()) }()
	default:
		return a, fmt.Errorf("cannot archive workspace %s: it is %s: %w", k.Name, state, errdefs.ErrFailedPrecondition)
	}
	a = workspace.Archive{
		ID: own, Workspace: k.Name, Key: k.Key, Owner: k.Owner, Profile: k.Profile, Limits: k.Limits, CreatedAt: time.Now(),
		Life: k.Left(time.Now()), Reach: k.Reach, Models: k.Models,
	}
	if out != nil {
		sum := newDigest()
		n, err := s.cfg.Archiver.Pack(ctx, rt, p, io.MultiWriter(&boundedWriter{out, most(k.Limits)}, sum), progress)
		a.SHA256, a.Size, a.Entries, a.Bytes = sum.text(), sum.n, n.Entries, n.Bytes
		return a, err
	}
	d, err := s.cfg.Files.Create(a.ID)
	if err != nil {
		return a, err
	}
	defer d.Discard()
	on.w = d
	crashpoint.Here("daemon.archive.begun")
	n, err := s.cfg.Archiver.Pack(ctx, rt, p, &boundedWriter{on, most(k.Limits)}, progress)
	if err != nil {
		return a, err
	}
	crashpoint.Here("daemon.archive.packed")
	a.Entries, a.Bytes = n.Entries, n.Bytes
	if a.SHA256, a.Size, err = d.Commit(); err != nil {
		return a, err
	}
	on.settle(a.Size)
	crashpoint.Here("daemon.archive.placed")
	if op.Destroy {
		// Before anybody knows of it: what is noted of a workspace that is to end has been verified.
		if err := s.verify(ctx, rt, p, a, progress); err != nil {
			return a, errors.Join(err, s.cfg.Files.Remove(a.ID))
		}
		crashpoint.Here("daemon.archive.verified")
	}
	if err := s.cfg.Store.AddArchive(context.WithoutCancel(ctx), a); err != nil {
		return a, errors.Join(err, s.cfg.Files.Remove(a.ID))
	}
	kept = true
	crashpoint.Here("daemon.archive.noted")
	return a, nil
}

// verify reads an archive back from the disk and has all of it decoded inside the workspace that it
// is of, as a restore would.
func (s *Archives) verify(ctx context.Context, rt runtime.Runtime, p permit.Permit, a workspace.Archive,
	progress func(workspace.Progress),
) error {
	fail := func(err error) error {
		return fmt.Errorf("cannot destroy workspace %s: that its archive can be restored was not seen, so the archive is removed, and "+
			"workspace and home stay: %w", a.Workspace, err)
	}
	f, err := s.cfg.Files.OpenFromDisk(a.ID)
	if err != nil {
		return fail(err)
	}
	defer f.Close()
	sum := newDigest()
	n, err := s.cfg.Archiver.Verify(ctx, rt, p, io.TeeReader(f, sum), progress)
	if err != nil {
		return fail(err)
	}
	if is := sum.text(); is != a.SHA256 {
		return fail(fmt.Errorf("its SHA-256 was %s when it was written and is %s on the disk; see whether the disk is well: %w",
			a.SHA256, is, errdefs.ErrDataLoss))
	}
	if n.Entries != a.Entries || n.Bytes != a.Bytes {
		return fail(fmt.Errorf("%d entries and %d bytes were packed, and %d and %d can be unpacked; archive it again while no commands run: %w",
			a.Entries, a.Bytes, n.Entries, n.Bytes, errdefs.ErrDataLoss))
	}
	return nil
}

// quietEnough refuses a workspace in which commands run, unless that is wanted.
func quietEnough(ctx context.Context, rt runtime.Runtime, name id.Workspace, alive bool) error {
	if alive {
		return nil
	}
	list, err := rt.Commands(ctx, name)
	if err != nil {
		return err
	}
	for _, c := range list {
		if c.Status == nil || c.Status.Stuck > 0 {
			return fmt.Errorf("cannot archive workspace %s: commands run in it and may change what is read; stop it first, or ask for it "+
				"live: %w", name, errdefs.ErrFailedPrecondition)
		}
	}
	return nil
}

// startFor starts a stopped workspace, whose slot is held, for the archiver alone; end stops
// it again.
func (s *Archives) startFor(ctx context.Context, rt runtime.Runtime, p permit.Permit, k workspace.Kept) (end func() error, err error) {
	leave, err := s.cfg.Lifecycle.Room(k)
	if err != nil {
		return nil, err
	}
	if _, _, err := rt.Start(ctx, p, runtime.Way{}); err != nil {
		leave()
		return nil, err
	}
	return func() error {
		defer leave()
		_, err := rt.Stop(context.WithoutCancel(ctx), p)
		return err
	}, nil
}

// Restore makes a workspace from an archive: from the one that want names, or from in. It is
// there when all of it is, and runs.
//
// Errors: already_exists if the key has a workspace, data_loss if the archive is not what it
// was, invalid_argument or resource_exhausted for one that breaks the rules.
func (s *Archives) Restore(ctx context.Context, p principal.Principal, want workspace.RestoreWanted, in io.Reader,
	progress func(workspace.Progress),
) (workspace.Workspace, error) {
	none := workspace.Workspace{}
	// By the ref, which is all that a repeated request has once the archive is gone.
	repeated, err := operation.NewRestore(want.Key, want.From, want)
	if err != nil {
		return none, err
	}
	if err := s.may(ctx, p, repeated); err != nil {
		return none, err
	}
	name, err := lifecycle.Once(ctx, s.cfg.Lifecycle, p, want.Request, repeated, operation.Target{}, "",
		func(at *lifecycle.Attempt) (id.Workspace, error) {
			if name, made, err := s.cfg.Lifecycle.Made(ctx, at); made || err != nil {
				return name, err
			}
			name, err := s.restoreOnce(ctx, p, at, want, in, progress)
			return name, s.cfg.Lifecycle.Unmade(at, name, err)
		})
	if err != nil {
		return none, err
	}
	return s.cfg.Lifecycle.Get(ctx, p, string(name))
}

// restoreOnce is one attempt at Restore.
func (s *Archives) restoreOnce(ctx context.Context, p principal.Principal, at *lifecycle.Attempt, want workspace.RestoreWanted,
	in io.Reader, progress func(workspace.Progress),
) (id.Workspace, error) {
	var from workspace.Archive
	if want.From != "" {
		var err error
		if from, err = s.authorise(ctx, p, operation.RestoreWorkspace, want.From); err != nil {
			return "", err
		}
	}
	key := cmp.Or(want.Key, from.Key)
	if key == "" {
		return "", fmt.Errorf("cannot restore without a key: give the new workspace one: %w", errdefs.ErrInvalidArgument)
	}
	op, err := operation.NewRestore(key, from.ID, want)
	if err != nil {
		return "", err
	}
	owner := cmp.Or(from.Owner, p.Owner())
	authorised, err := s.cfg.Lifecycle.AuthoriseMaking(ctx, p, op, key, owner, 0)
	if err != nil {
		return "", err
	}
	k, err := s.cfg.Lifecycle.Wanted(owner, workspace.Wanted{
		Key: key, Profile: cmp.Or(want.Profile, from.Profile), Limits: want.Limits.Or(from.Limits),
		TTL: cmp.Or(want.Life.TTL, from.Life.TTL), Idle: cmp.Or(want.Life.Idle, from.Life.Idle), Reach: from.Reach,
	})
	if err != nil {
		return "", err
	}
	k.Models = from.Models // its owner is the same; keys are looked for when it starts
	a, err := authorised.Admit(ctx)
	if err != nil {
		return "", err
	}
	if from.ID != "" {
		f, err := s.cfg.Files.Open(from.ID)
		if err != nil {
			return "", err
		}
		defer f.Close()
		in = f
	}
	return s.restore(ctx, at, a, k, from, in, progress)
}

func (s *Archives) restore(ctx context.Context, at *lifecycle.Attempt, a *gate.Admitted, k workspace.Kept, from workspace.Archive,
	in io.Reader, progress func(workspace.Progress),
) (id.Workspace, error) {
	life := s.cfg.Lifecycle
	err := life.AloneWithKey(ctx, k.Key, operation.RestoreWorkspace, func(finish context.Context) (err error) {
		if err := life.ClearRestoring(finish, k.Key); err != nil {
			return err
		}
		if o, exists := s.cfg.Store.ByKey(k.Key); exists {
			return fmt.Errorf("cannot restore to key %q: workspace %s has it; destroy that one, or choose another key: %w", k.Key, o.Name,
				errdefs.ErrAlreadyExists)
		}
		k, err = life.Fill(finish, at, a, k, func(_ context.Context, rt runtime.Runtime, p permit.Permit) (any, error) {
			// Until it is whole it can be given up, and is when its caller goes.
			sum := newDigest()
			limits := s.cfg.Archiver.Strange
			if from.ID != "" {
				// It was packed here, and its sum shows that it is the same still. What could be packed must
				// be unpacked: the disk limit of the new workspace is what bounds it.
				limits = archiver.Limits{}
			}
			n, err := s.cfg.Archiver.Unpack(ctx, rt, p, io.TeeReader(in, sum), limits, true, progress)
			if err != nil {
				return nil, err
			}
			is := sum.text()
			if from.ID != "" && is != from.SHA256 {
				return nil, fmt.Errorf("cannot restore archive %s: its file was changed since it was written: its SHA-256 is %s and was %s: %w",
					from.ID, is, from.SHA256, errdefs.ErrDataLoss)
			}
			return lifecycle.Archived{ID: from.ID, SHA256: is, Size: sum.n, Entries: n.Entries, Bytes: n.Bytes}, nil
		})
		return err
	})
	return k.Name, err
}
