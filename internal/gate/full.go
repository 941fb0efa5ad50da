package gate

import (
	"cmp"
	"fmt"

	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/state/record"
)

// Full says why only what makes room is done now; nil if there is room.
func (g *Gate) Full() error {
	if g.cfg.Full == nil {
		return nil
	}
	return g.cfg.Full()
}

// inRoom refuses a change on a full disk, unless it makes room. What it records goes into the room that is
// kept for it, of which the last part is for administrators, so that nobody can keep them from ending
// what fills the disk. A refusal is counted only.
func (x *passing) inRoom() error {
	err := x.g.Full()
	if err == nil {
		return nil
	}
	if x.row.Relieves && (x.g.cfg.Scarce == nil || x.request.By.Can(principal.Any) || !x.g.cfg.Scarce()) {
		return nil
	}
	x.g.cfg.Records.Unrecorded(x.owner(), x.row.Name, record.DiskFull)
	return fmt.Errorf("cannot %s: %w", x.row.Sentence(x.request.On), err)
}

// owner is on whose behalf the request is made.
func (x *passing) owner() string {
	return cmp.Or(record.OnBehalf(x.request.By), x.request.By.String())
}
