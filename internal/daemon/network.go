package daemon

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/egress/conf"
	"github.com/carrel-dev/carrel/internal/egress/ways"
	"github.com/carrel-dev/carrel/internal/state/config"
)

// readNetwork reads the network's file, which may name the daemon's profiles.
func readNetwork(cfg *config.Config) (*conf.Config, error) {
	network, err := ways.ReadHost(cfg.EgressFile)
	if err != nil {
		return nil, err
	}
	known := profiles(cfg)
	for name := range network.Profiles {
		if _, ok := known[name]; !ok && name != ways.NoProfile {
			return nil, fmt.Errorf("cannot use %s: there is no profile %q; there are %s, and %s for workspaces without one: %w", cfg.EgressFile,
				name, strings.Join(slices.Sorted(maps.Keys(known)), ", "), ways.NoProfile, errdefs.ErrInvalidArgument)
		}
	}
	return network, nil
}
