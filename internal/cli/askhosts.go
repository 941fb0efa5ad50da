package cli

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/carrel-dev/carrel/internal/steps"
)

// inventoryName is the file of remote hosts in the user's configuration directory.
const inventoryName = "hosts.yaml"

// servedHosts are the hosts that this process serves to the agent. The caller must call the function that it returns.
func (a *app) servedHosts(x *askFlags) (cfg steps.Config, closeAll func(), err error) {
	closeAll = func() {}
	if slices.Contains(x.on, onHost) {
		if os.Geteuid() == 0 && !x.asRoot {
			_ = say(a.Err, "carrel: this machine is not offered to the agent, because its commands would run as root; offer it with --as-root, "+
				"or ask as an ordinary user\n")
		} else {
			cfg.Local = steps.Local(x.asRoot)
		}
	}
	if !slices.Contains(x.on, onRemote) {
		return cfg, closeAll, nil
	}
	file := x.inventory
	if file == "" {
		dir, err := os.UserConfigDir()
		if err != nil {
			return cfg, closeAll, nil // a user without a home has no file of hosts
		}
		file = filepath.Join(dir, "carrel", inventoryName)
	}
	r, err := steps.OpenRemotes(file)
	if errors.Is(err, fs.ErrNotExist) && x.inventory == "" {
		return cfg, closeAll, nil
	}
	if err != nil {
		return cfg, closeAll, err
	}
	cfg.Remote, cfg.Remotes = r.Run, r.Names()
	return cfg, func() { _ = r.Close() }, nil // nothing of it is needed any more
}
