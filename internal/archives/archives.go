// Package archives puts homes of workspaces away and makes workspaces from them again.
//
// It must not pack or unpack anything itself: package archiver has that done inside the
// workspace.
package archives

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"log/slog"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/archiver"
	"github.com/carrel-dev/carrel/internal/archivestore"
	"github.com/carrel-dev/carrel/internal/crashpoint"
	"github.com/carrel-dev/carrel/internal/gate"
	"github.com/carrel-dev/carrel/internal/id"
	"github.com/carrel-dev/carrel/internal/lifecycle"
	"github.com/carrel-dev/carrel/internal/operation"
	"github.com/carrel-dev/carrel/internal/permit"
	"github.com/carrel-dev/carrel/internal/principal"
	"github.com/carrel-dev/carrel/internal/runtime"
	"github.com/carrel-dev/carrel/internal/store"
	"github.com/carrel-dev/carrel/internal/workspace"
)

// Config holds the dependencies of New. All of it is required, but for Files and Archiver
// where nothing is archived.
type Config struct {
	Gate      *gate.Gate
	Lifecycle *lifecycle.Lifecycle
	Store     *store.Store
	// Files keeps the files.
	Files    *archivestore.Store
	Archiver *archiver.Archiver
	Log      *slog.Logger
}

// Archives are the archives of all workspaces. Its methods may be called from any goroutine.
type Archives struct{ cfg Config }

// New returns the archives in a store of files.
func New(cfg Config) *Archives { return &Archives{cfg} }

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
	return lifecycle.Once(ctx, s.cfg.Store, p, want.Request, op, operation.Target{},
		func(began time.Time) (made workspace.Archive, err error) {
			if !began.IsZero() {
				if made, done, err := s.before(ctx, p, ref, want.Destroy, began); done || err != nil {
					return made, err
				}
			}
			return s.putAway(ctx, p, ref, op, out, progress)
		})
}

// may authorises an operation on no workspace in particular.
func (s *Archives) may(ctx context.Context, p principal.Principal, op operation.Operation) error {
	_, err := s.cfg.Gate.Authorise(ctx, operation.Request{By: p, Op: op}, nil)
	return err
}

// putAway archives a workspace and then destroys it if that is wanted.
func (s *Archives) putAway(ctx context.Context, p principal.Principal, ref string, op operation.PutAway, out io.Writer,
	progress func(workspace.Progress),
) (made workspace.Archive, err error) {
	life := s.cfg.Lifecycle
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
			made, err = s.pack(ctx, permit, k, op.Live, out, progress)
			return lifecycle.Archived{ID: made.ID, SHA256: made.SHA256, Size: made.Size, Entries: made.Entries, Bytes: made.Bytes}, err
		})
	}); err != nil || destroy == nil {
		return made, err
	}
	_, err = life.DestroyAdmitted(ctx, destroy, true)
	return made, err
}

// before finds what the first attempt at a request made, and finishes what was to follow.
func (s *Archives) before(ctx context.Context, p principal.Principal, ref string, destroy bool,
	began time.Time,
) (made workspace.Archive, done bool, err error) {
	made, err = s.cfg.Store.Archive(ctx, ref)
	if errdefs.IsNotFound(err) || err == nil && (made.CreatedAt.Before(began) || !operation.Reaches(p, targetOf(made))) {
		return made, false, nil
	}
	if err != nil || !destroy {
		return made, err == nil, err
	}
	// What has the key now is another workspace, if the first attempt came to the end.
	if _, err := s.cfg.Lifecycle.Living(made.Workspace); err != nil {
		return made, true, nil
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
func (s *Archives) pack(ctx context.Context, p permit.Permit, k workspace.Kept, alive bool, out io.Writer,
	progress func(workspace.Progress),
) (a workspace.Archive, err error) {
	rt, err := s.cfg.Lifecycle.Runtime(k.Boundary)
	if err != nil {
		return a, err
	}
	_, state, _ := s.cfg.Lifecycle.Current(k.Name)
	switch state {
	case workspace.StateRunning:
		if err := quietEnough(ctx, rt, k.Name, alive); err != nil {
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
		ID:        fmt.Sprintf("%s-%s", k.Name, time.Now().UTC().Format("20060102T150405.000000")),
		Workspace: k.Name, Key: k.Key, Owner: k.Owner, Profile: k.Profile, Limits: k.Limits, CreatedAt: time.Now(),
	}
	most, err := s.most(k.Limits)
	if err != nil {
		return a, err
	}
	if out != nil {
		sum := &summedWriter{w: &boundedWriter{out, most}, sum: sha256.New()}
		n, err := s.cfg.Archiver.Pack(ctx, rt, p, sum, progress)
		a.SHA256, a.Size, a.Entries, a.Bytes = hex.EncodeToString(sum.sum.Sum(nil)), sum.n, n.Entries, n.Bytes
		return a, err
	}
	d, err := s.cfg.Files.Create(a.ID)
	if err != nil {
		return a, err
	}
	defer d.Discard()
	crashpoint.Here("daemon.archive.begun")
	n, err := s.cfg.Archiver.Pack(ctx, rt, p, &boundedWriter{d, most}, progress)
	if err != nil {
		return a, err
	}
	crashpoint.Here("daemon.archive.packed")
	a.Entries, a.Bytes = n.Entries, n.Bytes
	if a.SHA256, a.Size, err = d.Commit(); err != nil {
		return a, err
	}
	crashpoint.Here("daemon.archive.placed")
	if err := s.cfg.Store.AddArchive(context.WithoutCancel(ctx), a); err != nil {
		return a, errors.Join(err, s.cfg.Files.Remove(a.ID))
	}
	crashpoint.Here("daemon.archive.noted")
	return a, nil
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
	if _, _, err := rt.Start(ctx, p); err != nil {
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
	var from workspace.Archive
	if want.From != "" {
		var err error
		if from, err = s.authorise(ctx, p, operation.RestoreWorkspace, want.From); err != nil {
			return none, err
		}
	}
	key := cmp.Or(want.Key, from.Key)
	if key == "" {
		return none, fmt.Errorf("cannot restore without a key: give the new workspace one: %w", errdefs.ErrInvalidArgument)
	}
	op, err := operation.NewRestore(key, from.ID, want)
	if err != nil {
		return none, err
	}
	owner := cmp.Or(from.Owner, p.Owner())
	authorised, err := s.cfg.Lifecycle.AuthoriseMaking(ctx, p, op, key, owner)
	if err != nil {
		return none, err
	}
	name, err := lifecycle.Once(ctx, s.cfg.Store, p, want.Request, op, operation.Target{}, func(time.Time) (id.Workspace, error) {
		k, err := s.cfg.Lifecycle.Wanted(owner, workspace.Wanted{
			Key: key, Profile: cmp.Or(want.Profile, from.Profile), Limits: want.Limits.Or(from.Limits), TTL: want.Life.TTL, Idle: want.Life.Idle,
		})
		if err != nil {
			return "", err
		}
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
		return s.restore(ctx, a, k, from, in, progress)
	})
	if err != nil {
		return none, err
	}
	return s.cfg.Lifecycle.Get(ctx, p, string(name))
}

func (s *Archives) restore(ctx context.Context, a *gate.Admitted, k workspace.Kept, from workspace.Archive, in io.Reader,
	progress func(workspace.Progress),
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
		k, err = life.Fill(finish, a, k, func(_ context.Context, rt runtime.Runtime, p permit.Permit) (any, error) {
			// Until it is whole it can be given up, and is when its caller goes.
			sum := &summedReader{r: in, sum: sha256.New()}
			n, err := s.cfg.Archiver.Unpack(ctx, rt, p, sum, true, progress)
			if err != nil {
				return nil, err
			}
			is := hex.EncodeToString(sum.sum.Sum(nil))
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

const (
	// maxArchive bounds an archive of a workspace without a disk limit, in bytes: what the
	// archiver packs at most, and some for its frames.
	maxArchive = 65 << 30
	// keepFree is the part of the file system of the archives that no archive may fill: one
	// in so many bytes.
	keepFree = 20
)

// most is how many bytes an archive of a workspace with those limits may have: what its home
// can hold and a tenth for what does not compress, and no more than is free.
func (s *Archives) most(l workspace.Limits) (int64, error) {
	size, free, err := s.cfg.Files.Space()
	if err != nil {
		return 0, err
	}
	most := int64(maxArchive)
	if l.DiskBytes > 0 {
		most = l.DiskBytes + l.DiskBytes/10 + 16<<20
	}
	if most = min(most, free-size/keepFree); most <= 0 {
		return 0, fmt.Errorf("cannot archive: less than one part in %d is free where archives are kept; remove some with "+
			"\"carrel archive rm\": %w", keepFree, errdefs.ErrResourceExhausted)
	}
	return most, nil
}

// boundedWriter passes on what is written, up to a number of bytes.
type boundedWriter struct {
	w    io.Writer
	left int64
}

func (b *boundedWriter) Write(p []byte) (int, error) {
	if b.left -= int64(len(p)); b.left < 0 {
		return 0, fmt.Errorf("cannot archive: it takes more bytes than the workspace's disk limit lets it have, or than are free: %w",
			errdefs.ErrResourceExhausted)
	}
	return b.w.Write(p)
}

// summedWriter passes on what is written, and sums it.
type summedWriter struct {
	w   io.Writer
	sum hash.Hash
	n   int64
}

func (s *summedWriter) Write(p []byte) (int, error) {
	n, err := s.w.Write(p)
	s.sum.Write(p[:n])
	s.n += int64(n)
	return n, err
}

// summedReader passes on what is read, and sums it. Its end is the end of the archive.
type summedReader struct {
	r   io.Reader
	sum hash.Hash
	n   int64
}

func (s *summedReader) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	s.sum.Write(p[:n])
	s.n += int64(n)
	return n, err
}
