package lifecycle

import (
	"fmt"
	"os"
	"slices"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// mountsOf are the mounts that are wanted, with the grant that came for them.
func mountsOf(mounts []workspace.Mount, grant []*os.File) (*runtime.Mounts, error) {
	if len(mounts) == 0 && len(grant) == 0 {
		return nil, nil
	}
	if len(mounts) == 0 || len(grant) != 1 {
		return nil, fmt.Errorf("cannot mount %d directories with %d grants: %w", len(mounts), len(grant), errdefs.ErrInvalidArgument)
	}
	return &runtime.Mounts{List: mounts, Grant: grant[0]}, nil
}

// mayAllow refuses openings that the configuration does not permit.
func (l *Lifecycle) mayAllow(want workspace.Wanted) error {
	may, of := l.cfg.Allow, "allow"
	if p, ok := l.cfg.Profiles[want.Profile]; ok {
		may, of = p.Allow, want.Profile+".allow"
	}
	for _, o := range want.Allow {
		if !slices.Contains(may, o) {
			return fmt.Errorf("cannot create workspace %q with --allow %s: the daemon's configuration does not permit it (%s: %q); leave it "+
				"out, or have it added there: %w",
				want.Key, o, of, workspace.JoinOpenings(may), errdefs.ErrPermissionDenied)
		}
	}
	return nil
}

// sameMounts is an error if mounts or openings that are asked for are not those that there
// are. A caller that asks for none takes what there is.
func (l *Lifecycle) sameMounts(allow []workspace.Opening, k workspace.Kept, mounts *runtime.Mounts) error {
	w := l.join(k)
	if len(allow) > 0 && !slices.Equal(allow, w.Allow) {
		return fmt.Errorf("cannot allow %s in workspace %q: it is there already, with %q, and that is chosen when one is made; destroy it "+
			"first, or choose another key: %w",
			workspace.JoinOpenings(allow), w.Key, workspace.JoinOpenings(w.Allow), errdefs.ErrFailedPrecondition)
	}
	if mounts == nil || workspace.SameMounts(mounts.List, w.Mounts) {
		return nil
	}
	return fmt.Errorf("cannot mount other directories into workspace %q: it is there already, and mounts are chosen when one is made; "+
		"\"carrel inspect\" shows those that it has; destroy it first, or choose another key: %w",
		w.Key, errdefs.ErrFailedPrecondition)
}
