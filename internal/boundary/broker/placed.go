package broker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox"
)

// A protected name that is absent in a writable source gets an empty directory, because
// the kernel can protect only a name that exists. Each directory is recorded before it is
// made, in <data_dir>/broker/placed/<name>, and removed when the workspace stops, if necessary by
// a later broker. rmdir removes only empty directories.
//
// Where two workspaces share a source, the last one to stop removes it.

// placedName is one such directory.
type placedName struct {
	Mount Mount  `json:"mount"`
	Name  string `json:"name"`
}

func (p placedName) same(o placedName) bool { return p.Name == o.Name && p.Mount.Is(o.Mount.Identity) }

// maxPlaced bounds a record: eight mounts with every name.
const maxPlaced = 1 << 20

// pin makes the protected names that a writable source must have, and returns all that it has.
func (h *Host) pin(name id.Workspace, m Mount, dir *os.File, home bool) ([]string, error) {
	h.placing.Lock()
	defer h.placing.Unlock()
	all, err := h.allPlaced()
	if err != nil {
		return nil, err
	}
	var present, missing []string
	var top unix.Stat_t
	err = withFD(dir, func(fd int) (err error) {
		if err = unix.Fstat(fd, &top); err == nil {
			present, missing, err = sandbox.ProtectedIn(fd, home)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("cannot look into %s: %w", m.Source, err)
	}
	pinned := slices.Concat(present, missing)
	for i, n := range pinned {
		this := placedName{m, n}
		// One that is there may be another workspace's: it stays as long as either runs.
		anothers := slices.ContainsFunc(all[""], this.same) && !slices.ContainsFunc(all[name], this.same)
		if i >= len(present) || anothers {
			all[name] = append(all[name], this)
		}
	}
	if err := h.keepPlaced(name, all[name]); err != nil {
		return nil, err
	}
	owner, err := h.credOf(m.OwnerUID, m.OwnerGID)
	if err != nil {
		return nil, err
	}
	owner.gid = m.OwnerGID
	err = owner.as(func() error {
		for _, n := range missing {
			err := withFD(dir, func(fd int) error { return unix.Mkdirat(fd, n, 0o755) })
			if errors.Is(err, unix.EACCES) && top.Uid != m.OwnerUID {
				// Nor can the workspace: it has the same owner, and fewer groups.
				pinned = slices.DeleteFunc(pinned, func(p string) bool { return p == n })
				continue
			}
			if err != nil && !errors.Is(err, unix.EEXIST) {
				return fmt.Errorf("cannot make %s in %s, so that nothing else can be put there: %w; mount it read-only (:ro), "+
					"or let uid %d write the directory", n, m.Source, err, m.OwnerUID)
			}
		}
		return nil
	})
	return pinned, err
}

// unplace removes what pin made for a workspace, once nothing of it runs.
func (h *Host) unplace(ctx context.Context, name id.Workspace) error {
	// Most workspaces have none, and need not wait for those that do.
	if _, there, err := statAt(h.placed, string(name)); !there && err == nil {
		return nil
	}
	h.placing.Lock()
	defer h.placing.Unlock()
	all, err := h.allPlaced()
	if err != nil || len(all[name]) == 0 {
		return err
	}
	var kept []placedName
	for _, p := range all[name] {
		shared := false
		for other, list := range all {
			shared = shared || other != "" && other != name && slices.ContainsFunc(list, p.same)
		}
		if shared {
			continue
		}
		_, err := callSlow(ctx, h.slow, func() (struct{}, error) { return struct{}{}, h.removePlaced(p) }, func(struct{}) {})
		if err != nil {
			h.log.Warn("an empty directory that protected a name is left", "workspace", name, "source", p.Mount.Source, "name", p.Name, "error", err)
			// Tried again at the next start of the broker.
			kept = append(kept, p)
		}
	}
	return h.keepPlaced(name, kept)
}

func (h *Host) removePlaced(p placedName) error {
	dir, _, err := h.openSource(p.Mount)
	if err != nil {
		return err
	}
	defer dir.Close()
	owner, err := h.credOf(p.Mount.OwnerUID, p.Mount.OwnerGID)
	if err != nil {
		return err
	}
	owner.gid = p.Mount.OwnerGID
	return owner.as(func() error {
		err := withFD(dir, func(fd int) error { return unix.Unlinkat(fd, p.Name, unix.AT_REMOVEDIR) })
		// Gone, or its user has put something there: both are fine.
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.ENOTDIR) {
			return nil
		}
		return err
	})
}

// allPlaced reads every record. Under "" is what all of them list together.
func (h *Host) allPlaced() (map[id.Workspace][]placedName, error) {
	all := map[id.Workspace][]placedName{}
	names, err := os.ReadDir(h.placed.Name())
	if err != nil {
		return nil, fmt.Errorf("cannot read which names are protected: %w", err)
	}
	for _, n := range names {
		if !id.IsWorkspace(n.Name()) {
			continue
		}
		b, err := readAt(h.placed, n.Name(), maxPlaced)
		var list []placedName
		if err == nil {
			err = json.Unmarshal(b, &list)
		}
		if err != nil {
			return nil, fmt.Errorf("cannot read which names are protected: %s/%s: %w; remove the file, and the empty directories that it names",
				h.placed.Name(), n.Name(), err)
		}
		all[id.Workspace(n.Name())] = list
		all[""] = append(all[""], list...)
	}
	return all, nil
}

// keepPlaced writes a workspace's record, durably: the directories outlive a crash too.
func (h *Host) keepPlaced(name id.Workspace, list []placedName) error {
	if len(list) == 0 {
		return removeAt(h.placed, string(name))
	}
	b, err := json.Marshal(list)
	if err == nil {
		err = replaceAt(h.placed, string(name), b)
	}
	if err != nil {
		return fmt.Errorf("cannot note the protected names of %s: %w", name, err)
	}
	return nil
}
