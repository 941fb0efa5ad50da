package broker

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// A ledger that has lost lines at its end, to a disk or to a copy from a backup, is rebuilt from what
// user database and homes show: a workspace has a user with a comment of carrel's, whose home lies where
// the settings say. What only the ledger had is lost: the key's digest, the limits, the mounts and what
// commands were allowed. The daemon has key and limits, and puts the limits in force again.

// Found is part of Effects.
func (h *Host) Found() (all []Entry, spent uint32, err error) {
	text, err := os.ReadFile(h.etc + "/passwd")
	if err != nil {
		return nil, 0, fmt.Errorf("cannot read the users of this host: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), ":")
		if len(f) != 7 || f[4] != comment || !id.IsWorkspace(f[0]) || f[5] != h.home(id.Workspace(f[0])) {
			continue
		}
		ids, ok := h.inRange(f[2], 1)
		if !ok {
			continue
		}
		e := Entry{Name: id.Workspace(f[0]), IDs: ids, State: workspace.StateStopped, Home: f[5], Limits: workspace.DefaultLimits}
		if there, err := h.ownImage(e.Name, ids); err == nil && there {
			if st, _, err := statAt(h.images, imageName(e.Name)); err == nil {
				e.Limits.DiskBytes = st.Size
			}
		}
		all, spent = append(all, e), max(spent, ids.Agent)
	}
	kept, err := os.ReadDir(h.retained.Name())
	if err != nil {
		return nil, 0, fmt.Errorf("cannot look for the homes that were kept in %s: %w", h.retained.Name(), err)
	}
	for _, f := range kept {
		_, first, _ := strings.Cut(f.Name(), ".")
		if ids, ok := h.inRange(first, 0); ok {
			spent = max(spent, ids.Agent)
		}
	}
	return all, spent, nil
}

// inRange returns the ids of a workspace of which text is the one at a place, if they can be.
func (h *Host) inRange(text string, place uint32) (ids workspace.IDs, ok bool) {
	n, err := strconv.ParseUint(text, 10, 32)
	first := uint32(n) - place
	return workspace.IDsFrom(first), err == nil && first >= h.settings.UIDFirst && first-h.settings.UIDFirst < h.settings.UIDCount
}

// Whole is part of Effects.
func (h *Host) Whole(e Entry) bool {
	if !h.complete(e.Name, e.IDs) {
		return false
	}
	home, err := h.homeFor(e.Name, e.IDs)
	if err != nil {
		return false
	}
	tmp, varTmp, err := h.temporaryFor(e.Name)
	closeFiles(home, tmp, varTmp)
	if err != nil {
		return false
	}
	image, err := h.ownImage(e.Name, e.IDs)
	_, half, herr := statAt(h.images, newImageName(e.Name))
	return err == nil && herr == nil && !half && image == (e.Limits.DiskBytes > 0)
}

// Cut is the line without an end that was cut off when the ledger was opened, "" if there was none.
func (l *Ledger) Cut() string { return l.cut }

// Spend has no id up to and with last given out from now on.
func (l *Ledger) Spend(last uint32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.next = max(l.next, last+1)
}

// rebuild enters into the ledger what the host shows and the ledger does not have, and tells so. Ids that
// are seen are spent.
func (l *Lifecycle) rebuild() error {
	if cut := l.ledger.Cut(); cut != "" {
		l.log.Error("the last line of the ledger had no end and was cut off", "line", cut)
		l.tell(workspace.LedgerCut, "", fmt.Sprintf("the last line had no end, as a crash of the host leaves one, and was cut off: %q", cut), nil)
	}
	found, spent, err := l.host.Found()
	if err != nil {
		return err
	}
	l.ledger.Spend(spent)
	for _, e := range found {
		known, ok := l.ledger.Get(e.Name)
		if ok && (known.State != workspace.StateDestroyed || known.IDs.Executor >= e.IDs.Executor) {
			continue // a destroyed one of before had lower ids
		}
		if err := l.ledger.Put(e); err != nil {
			return err
		}
		l.log.Error("the ledger had lost a workspace that the host shows", "workspace", e.Name, "ids", e.IDs)
		l.tell(workspace.LedgerRebuilt, e.Name, "the ledger had lost it, and has it again as its user and its home show it; its limits are the "+
			"default ones until the daemon sets its own; its mounts and what it was allowed are lost", nil)
	}
	return nil
}

// finishCreate takes a create that broke off for done where all is there that it makes: the line that
// says so may have been lost after the client had its answer. Nothing of it runs.
func (l *Lifecycle) finishCreate(ctx context.Context, e Entry) error {
	if err := l.endAll(ctx, e); err != nil {
		return err
	}
	e.State, e.Executor = workspace.StateStopped, nil
	return l.ledger.Put(e)
}
