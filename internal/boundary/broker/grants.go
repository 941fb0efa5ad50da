package broker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/boundary/sandbox"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox/launch"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/wire/brokerapi"
	"github.com/carrel-dev/carrel/internal/wire/mountgrant"
)

// TakeMounts is part of Effects.
func (h *Host) TakeMounts(ctx context.Context, p brokerapi.CreateParams, file *os.File) ([]Mount, error) {
	return callSlow(ctx, h.slow, func() ([]Mount, error) {
		return TakeGrant(p, file, h.judge)
	}, func([]Mount) {})
}

// TakeGrant reads the grant in file, once, sees that it is about the mounts that p asks for, and
// has judge decide on each, which is given the mount, who granted it, its open directory and, if it has one, its open stage.
func TakeGrant(
	p brokerapi.CreateParams, file *os.File, judge func(m workspace.Mount, who mountgrant.Cred, dir, stage *os.File) (Mount, error),
) ([]Mount, error) {
	m, who, opened, err := mountgrant.Take(file)
	if err != nil {
		return nil, err
	}
	defer closeFiles(opened...)
	switch {
	case m.KeyDigest != p.KeyDigest:
		return nil, fmt.Errorf("cannot mount directories: they were granted to a workspace with another key: %w", errdefs.ErrPermissionDenied)
	case !slices.Equal(m.Mounts, p.Mounts):
		return nil, fmt.Errorf("cannot mount directories: other mounts were granted than are asked for: %w", errdefs.ErrPermissionDenied)
	}
	if err := workspace.CheckMounts(m.Mounts); err != nil {
		return nil, err
	}
	mounts := make([]Mount, len(m.Mounts))
	stages := opened[len(mounts):]
	for i, asked := range m.Mounts {
		var stage *os.File
		if asked.Stage != "" {
			stage, stages = stages[0], stages[1:]
		} else if asked.Staged {
			return nil, fmt.Errorf("cannot make a staged copy of %s: it is not said where what is written is kept: %w", asked.Source,
				errdefs.ErrInvalidArgument)
		}
		if mounts[i], err = judge(asked.AtHome(), who, opened[i], stage); err != nil {
			return nil, err
		}
		if m.Held == nil || asked.ReadOnly || asked.Staged {
			continue
		}
		mounts[i].Held = m.Held[i]
		if n := len(m.Held[i]); n > sandbox.MaxHeld {
			return nil, fmt.Errorf("cannot hold %d paths in %s: %d at most: %w", n, asked.Source, sandbox.MaxHeld, errdefs.ErrInvalidArgument)
		}
		for _, p := range m.Held[i] {
			if !fs.ValidPath(p) || p == "." {
				return nil, fmt.Errorf("cannot hold %.100q in %s: it must be a path below it: %w", p, asked.Source, errdefs.ErrInvalidArgument)
			}
		}
	}
	return mounts, nil
}

// judge decides on one mount. The descriptor shows that the calling process, however it is
// confined, can open the directory. The path must lead to the same directory, and the caller's
// user must be able to open it, now and at each start.
func (h *Host) judge(asked workspace.Mount, who mountgrant.Cred, d, stage *os.File) (Mount, error) {
	m := Mount{Mount: asked, CallerUID: who.UID, CallerGID: who.GID, OwnerGID: who.GID}
	m.OwnerUID = who.UID
	if who.UID == h.settings.DaemonUID || h.settings.InRange(who.UID) {
		return m, fmt.Errorf("cannot mount directories for uid %d: it is not a user of carrel but a part of it: %w",
			who.UID, errdefs.ErrPermissionDenied)
	}
	st, id, err := h.granted(d)
	if err != nil {
		return m, fmt.Errorf("cannot mount %s: %w", m.Source, err)
	}
	m.Identity = id
	if stage != nil {
		_, id, err := h.granted(stage)
		if err != nil {
			return m, fmt.Errorf("cannot make a staged copy of %s: %w", m.Source, err)
		}
		m.StageIdentity = &id
		if err := h.keptFrom(m.Stage, fmt.Sprintf("cannot make a staged copy of %s in %s", m.Source, m.Stage)); err != nil {
			return m, err
		}
	}
	if m.AsRoot {
		if err := h.mayAsRoot(m); err != nil {
			return m, err
		}
	}
	if who.UID == 0 && !m.ReadOnly {
		// Files of root that a workspace writes would be root's.
		if (st.Uid == 0 || st.Gid == 0) && !m.AsRoot && !m.Staged {
			return m, fmt.Errorf("cannot mount %s for root: a workspace could leave files of root in it; add :ro, or chown the directory to the "+
				"user and group that the files shall belong to; or add :root, if commands shall write files of root there: %w",
				m.Source, errdefs.ErrPermissionDenied)
		}
		m.OwnerUID, m.OwnerGID = st.Uid, st.Gid
	}
	again, _, err := h.openSource(m)
	if err != nil {
		return m, err
	}
	defer again.Close()
	err = launch.Mappable(h.binary, launch.Project{
		Project: sandbox.Project{ReadOnly: m.ReadOnly || m.Staged}, Dir: again, OwnerUID: m.OwnerUID, OwnerGID: m.OwnerGID,
	})
	if err != nil || stage == nil {
		return m, err
	}
	kept, err := h.openStage(m)
	if err != nil {
		return m, err
	}
	defer kept.Close()
	return m, launch.Mappable(h.binary, launch.Project{Dir: kept, OwnerUID: m.OwnerUID, OwnerGID: m.OwnerGID})
}

// granted looks at a directory that was granted.
func (h *Host) granted(d *os.File) (st unix.Stat_t, id Identity, err error) {
	err = withFD(d, func(fd int) error {
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
		if err == nil && flags&unix.O_PATH != 0 {
			err = fmt.Errorf("what was granted is not open for reading: %w", errdefs.ErrInvalidArgument)
		}
		return errors.Join(err, unix.Fstat(fd, &st))
	})
	if err == nil {
		id, err = Identify(d, h.bootID)
	}
	return st, id, err
}

// mayAsRoot says why commands may not write files of root in the source of m: nobody but root may say so, and a
// broker cannot trust what a workspace could have written.
func (h *Host) mayAsRoot(m Mount) error {
	if m.CallerUID != 0 {
		return fmt.Errorf("cannot mount %s with :root for uid %d: only root can; leave it out, and the files are yours: %w",
			m.Source, m.CallerUID, errdefs.ErrPermissionDenied)
	}
	return h.keptFrom(m.Source, fmt.Sprintf("cannot mount %s with :root", m.Source))
}

// keptFrom refuses a directory that lies in what carrel trusts, or has it in it.
func (h *Host) keptFrom(dir, what string) error {
	s := h.settings
	for _, place := range []string{s.DataDir, s.RuntimeDir, s.HomeRoot, filepath.Dir(DefaultSettings), filepath.Dir(s.ExecutorPath)} {
		if real, err := filepath.EvalSymlinks(place); err == nil {
			place = real
		}
		if workspace.Within(place, dir) || workspace.Within(dir, place) {
			return fmt.Errorf("%s: carrel keeps in %s what it trusts; use another directory: %w", what, place, errdefs.ErrPermissionDenied)
		}
	}
	return nil
}
