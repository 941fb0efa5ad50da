package cli

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/agent/hosts/fleet"
	"github.com/carrel-dev/carrel/internal/agent/hosts/steps"
	"github.com/carrel-dev/carrel/internal/base/fanout"
	"github.com/carrel-dev/carrel/internal/rootless/paths"
	"github.com/carrel-dev/carrel/internal/spec/operation"
)

// inventoryName is the file of remote hosts in the user's configuration directory.
const inventoryName = "hosts.yaml"

// servedHosts are the hosts that this process serves to the agent, with how steps reach several of them. The caller must call
// the function that it returns.
func (a *app) servedHosts(c context.Context, x *askFlags, h steps.Holding) (
	cfg steps.Config, orders fanout.Orders, closeAll func(), err error,
) {
	closeAll = func() {}
	inventory := ""
	defer func() {
		if err == nil {
			cfg.Place, err = placeOf(x.asRoot, h, inventory)
			cfg.As = asHere()
		}
	}()
	orders.All = x.set.Order()
	if slices.Contains(x.on, onHost) {
		if !x.offersHost() {
			_ = say(a.Err, "carrel: this machine is not offered to the agent, because its commands would run as root; offer it with --as-root, "+
				"or ask as an ordinary user\n")
		} else {
			cfg.Local, cfg.Profile, cfg.Ready = steps.Local(h), h.Profile, h.Ready
			cfg.Background = steps.Background(openJobs, nil, "", h)
			roots, err := filesRoots(x)
			if err != nil {
				return cfg, orders, closeAll, err
			}
			for _, d := range roots {
				if found, err := filepath.EvalSymlinks(d); err == nil { // what tools read is held to where it leads
					cfg.Roots = append(cfg.Roots, found)
				}
			}
			if cfg.Patch, err = a.patches(c, roots); err != nil {
				return cfg, orders, closeAll, err
			}
		}
	}
	if !slices.Contains(x.on, onRemote) {
		return cfg, orders, closeAll, nil
	}
	file, err := inventoryFile(x.inventory)
	if err != nil {
		return cfg, orders, closeAll, nil //nolint:nilerr // a user without a home has no file of hosts
	}
	r, err := steps.OpenRemotes(file)
	if errors.Is(err, fs.ErrNotExist) && x.inventory == "" {
		return cfg, orders, closeAll, nil
	}
	if err != nil {
		return cfg, orders, closeAll, err
	}
	if file, err = filepath.Abs(file); err != nil {
		_ = r.Close()
		return cfg, orders, closeAll, err
	}
	orders = r.Orders(x.set)
	if err := orders.Check(); err != nil {
		_ = r.Close()
		return cfg, orders, closeAll, fmt.Errorf("%s: %w", file, err)
	}
	inventory = r.Digest()
	cfg.Remote, cfg.Remotes, cfg.RemotesAs, cfg.RemotePatch = r.Run, r.Names(), r.As(), r.Patch
	cfg.Background = steps.Background(openJobs, r, file, h)
	return cfg, orders, func() { _ = r.Close() }, nil // nothing of it is needed any more
}

// placeOf stands for where the agent's steps on hosts are carried out: what is allowed for a session is not for another directory, not
// where programs are looked up elsewhere (PATH), and not under another profile or for hosts of another inventory. "" is a directory that
// is gone.
func placeOf(asRoot bool, h steps.Holding, inventory string) (string, error) {
	here, err := os.Getwd()
	if err != nil {
		return "", nil
	}
	b, err := json.Marshal([]any{here, os.Geteuid(), asRoot, h.Profile, h.Writes, inventory, os.Getenv("PATH")})
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:]), err
}

// asHere says as whom, on which machine and in which directory this process runs commands.
func asHere() string {
	name := "uid " + strconv.Itoa(os.Geteuid())
	if u, err := user.LookupId(strconv.Itoa(os.Geteuid())); err == nil {
		name = u.Username
	}
	if os.Geteuid() == 0 {
		name = "root"
	}
	text := fleet.Named(name)
	if host, err := os.Hostname(); err == nil {
		text += " on " + host
	}
	if here, err := os.Getwd(); err == nil {
		text += ", in " + here
	}
	return cut(printable(text), maxAs)
}

// maxAs bounds what is said of where steps run, in bytes.
const maxAs = 512

// offersHost reports whether this machine is offered to the agent.
func (x *askFlags) offersHost() bool {
	return slices.Contains(x.on, onHost) && (os.Geteuid() != 0 || x.asRoot)
}

// holding is what holds commands on this machine: as the flag says, or else the user's file of settings.
func (x *askFlags) holding(set string) (steps.Holding, error) {
	profile := cmp.Or(x.profile, set, operation.Unheld)
	if !slices.Contains(operation.Profiles, profile) {
		return steps.Holding{}, fmt.Errorf("cannot use %s of carrel's configuration directory: there is no profile %.40q; name one of %s: %w",
			settingsName, profile, strings.Join(operation.Profiles, ", "), errdefs.ErrInvalidArgument)
	}
	dirs, err := filesRoots(x)
	if err != nil {
		return steps.Holding{}, err
	}
	return steps.Hold(profile, dirs, x.asRoot, x.offersHost())
}

// hostrun is the program that supervises commands on this machine.
const hostrun = "carrel-hostrun"

// supervised has commands on this machine supervised by a program of their own, where it is offered to the agent.
func (x *askFlags) supervised(h steps.Holding) (_ steps.Holding, done func(), err error) {
	if !x.offersHost() {
		return h, func() {}, nil
	}
	program, err := findProgram(hostrun)
	if err != nil {
		return h, nil, err
	}
	return h.Supervised(program)
}

// inventoryFile is the file of remote hosts: the one that a flag names, or else the user's own.
func inventoryFile(named string) (string, error) {
	if named != "" {
		return named, nil
	}
	dir, err := os.UserConfigDir()
	return filepath.Join(dir, "carrel", inventoryName), err
}

// patchesDir is where what undoes changes to files is kept, in the user's state directory.
func patchesDir() (string, error) {
	state, err := paths.State()
	if err != nil {
		return "", err
	}
	return filepath.Join(state, "patches"), nil
}

// filesRoots are the directories that the flags name, or else this one; none where that is the root directory.
func filesRoots(x *askFlags) ([]string, error) {
	var roots []string
	for _, d := range x.files {
		d, err := filepath.Abs(d)
		if err != nil {
			return nil, fmt.Errorf("cannot use --files: %w", err)
		}
		roots = append(roots, d)
	}
	if len(roots) == 0 {
		here, err := os.Getwd()
		if err != nil || here == "/" {
			return nil, nil
		}
		roots = []string{here}
	}
	return roots, nil
}

// patches changes files below some directories. It is nil where there is none.
func (a *app) patches(ctx context.Context, roots []string) (steps.Change, error) {
	if len(roots) == 0 {
		return nil, nil
	}
	dir, err := patchesDir()
	if err != nil {
		return nil, err
	}
	p, err := steps.OpenPatches(ctx, dir, roots...)
	if err != nil {
		return nil, err
	}
	return p.Do, nil
}
