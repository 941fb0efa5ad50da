package broker

import (
	"context"
	"fmt"
	"os"

	"github.com/carrel-dev/carrel/internal/id"
	"github.com/carrel-dev/carrel/internal/sandbox"
	"github.com/carrel-dev/carrel/internal/sandbox/launch"
)

// lend opens the directories that the executor of e is given, for c. The files are the caller's to
// close.
func (h *Host) lend(ctx context.Context, e Entry, c *launch.Config) (files []*os.File, err error) {
	if e.Limits.DiskBytes > 0 {
		m, err := h.mountImage(ctx, e)
		if err != nil {
			return nil, err
		}
		c.Home, c.Tmp, c.VarTmp, c.Detached = m.Trees[0], m.Trees[1], m.Trees[2], true
		c.Outside = func(pid int) []sandbox.Finding { return h.diskFindings(e, pid, m.Device) }
		return m.Trees[:], nil
	}
	if c.Home, err = h.homeFor(e.Name, e.IDs); err == nil {
		c.Tmp, c.VarTmp, err = h.temporaryFor(e.Name)
	}
	return []*os.File{c.Home, c.Tmp, c.VarTmp}, err
}

func (h *Host) temporaryFor(name id.Workspace) (tmp, varTmp *os.File, err error) {
	t, err := beneath(h.tmp, string(name))
	if err != nil {
		return nil, nil, fmt.Errorf("cannot open the temporary directories of %s: %w", name, err)
	}
	defer t.Close()
	var opened [2]*os.File
	for i, sub := range temporary {
		if opened[i], err = beneath(t, sub); err != nil {
			closeFiles(opened[:]...)
			return nil, nil, fmt.Errorf("cannot open the temporary directories of %s: %w", name, err)
		}
	}
	return opened[0], opened[1], nil
}
