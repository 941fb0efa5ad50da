package rootless

import (
	"fmt"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/rootless/subid"
)

// IDs says which ids the executor of a run has, and its command.
type IDs string

// The ids of a run: both have the caller's; or the executor one of a range of the caller's
// (package subid), or there is no run; or that where the caller has a range.
const (
	OneID   IDs = "one"
	RangeID IDs = "range"
	AutoID  IDs = "auto"
)

// ranges are those to use, or nil and why not.
func (i IDs) ranges() (r *subid.Ranges, why string, err error) {
	switch i {
	case "", OneID:
		return nil, "it was not asked for with --ids", nil
	case RangeID, AutoID:
	default:
		return nil, "", fmt.Errorf("cannot use %q as --ids: it is one, range or auto: %w", string(i), errdefs.ErrInvalidArgument)
	}
	r, err = subid.Find()
	switch {
	case err != nil && i == RangeID:
		return nil, "", fmt.Errorf("cannot use a range of ids: %w", err)
	case err != nil:
		return nil, err.Error(), nil
	}
	return r, "", nil
}
