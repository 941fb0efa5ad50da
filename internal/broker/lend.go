package broker

import (
	"context"
	"fmt"
	"os"

	"github.com/carrel-dev/carrel/internal/id"
	"github.com/carrel-dev/carrel/internal/sandbox/image"
)

// lent are the directories that an executor is given.
type lent struct {
	home, tmp, varTmp *os.File
	// image is where they lie, if disk space is limited.
	image *image.Mounted
}

func (l *lent) close() { closeFiles(l.home, l.tmp, l.varTmp) }

// lend opens them.
func (h *Host) lend(ctx context.Context, e Entry) (l lent, err error) {
	if e.Limits.DiskBytes > 0 {
		if l.image, err = h.mountImage(ctx, e); err != nil {
			return l, err
		}
		l.home, l.tmp, l.varTmp = l.image.Trees[0], l.image.Trees[1], l.image.Trees[2]
		return l, nil
	}
	if l.home, err = h.homeFor(e.Name, e.IDs); err != nil {
		return l, err
	}
	if l.tmp, l.varTmp, err = h.temporaryFor(e.Name); err != nil {
		l.close()
	}
	return l, err
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
