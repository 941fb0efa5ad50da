package steps

import "github.com/carrel-dev/carrel/internal/agent/hosts/fleet"

// OpenRemotesAs is OpenRemotes for a user whose files are elsewhere.
func OpenRemotesAs(inventory string, cfg fleet.Config) (*Remotes, error) {
	return openRemotes(inventory, func() (fleet.Config, error) { return cfg, nil })
}

// Use has the hosts of an inventory reached by what is open already.
func (j *Jobs) Use(inventory string, r *Remotes) { j.remotes[inventory] = r }
