package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/base/crashpoint"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox/cgroup"
	"github.com/carrel-dev/carrel/internal/linux/removal"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	carrel "github.com/carrel-dev/carrel/sdk/go"
)

func (a *app) downCommand() *cobra.Command {
	var purge bool
	c := &cobra.Command{
		Use:   "down [flags]",
		Short: "Stop carrel on this host and remove what up made, or stop your own",
		Long: `Stop every workspace, then the daemon and the broker, and remove what "carrel up" made:
sockets, control groups, and the user carrel if no workspace needs it.
The data directory stays, with the workspaces' homes and the audit log. With --purge
it is removed too, which is refused while there are workspaces.

As an ordinary user it ends your own carrel, which starts again when it is needed.`,
		Example: `  sudo carrel down
  sudo carrel down --purge --data /srv/carrel --runtime-dir /run/carrel-test`,
		Args: exactly(),
	}
	i := instanceFlags(c)
	c.Flags().BoolVar(&purge, "purge", false, "remove the data directory too")
	c.RunE = func(c *cobra.Command, _ []string) error {
		if os.Geteuid() != 0 {
			if t, err := a.target(); err != nil || t.host == "" && i.isDefault() && !purge {
				if err != nil {
					return err
				}
				return a.downOwn(c.Context(), t.own)
			}
			return needRoot("down" + i.flags())
		}
		if err := i.absolute(); err != nil {
			return err
		}
		if live := i.services(c.Context()); len(live) > 0 {
			return refuseServices(live)
		}
		return a.down(c.Context(), i, purge)
	}
	return c
}

// down stops an instance and removes what up made for it. Every step can be repeated: after a
// failure the next run does the rest.
func (a *app) down(ctx context.Context, i *instance, purge bool) error {
	defer sayHeld(a.Err)()
	if _, err := os.Stat(i.stateFile()); errors.Is(err, os.ErrNotExist) {
		if err := i.removeUnnoted(); err != nil {
			return err
		}
		if _, err := os.Stat(accountsLock); err == nil { // an up was cut off, or is under way
			if err := a.dropAccount(ctx); err != nil {
				return err
			}
		}
		err := say(a.Out, "Nothing to do: no carrel was brought up with its data in %s.\n", i.data)
		return err
	}
	unlock, err := i.lock()
	if err != nil {
		return err
	}
	defer unlock()
	m, err := i.readMade()
	if err != nil {
		return err
	}
	if purge {
		if err := i.refusePurge(ctx); err != nil {
			return err
		}
	}
	// The daemon first: it speaks with the broker while it ends. A client may have started a workspace again before that.
	for again := stopAgain; ; again-- {
		if err := a.stopWorkspaces(ctx, i); err != nil {
			return err
		}
		crashpoint.Here("cli.down.workspaces-stopped")
		if err := a.stopPart(i, "daemon"); err != nil {
			return err
		}
		if live, err := i.liveSockets(); err != nil || len(live) == 0 || again == 0 {
			break
		}
	}
	if err := a.stopPart(i, "broker"); err != nil {
		return err
	}
	i.awaitUnnoted()
	if err := i.removeRuntime(); err != nil {
		return err
	}
	crashpoint.Here("cli.down.runtime-removed")
	if err := i.removeCgroups(); err != nil {
		return err
	}
	crashpoint.Here("cli.down.cgroups-removed")
	return a.removeRest(ctx, i, m, purge)
}

// stopAgain is how often down stops workspaces again that were started while the daemon ended.
const stopAgain = 3

func (a *app) stopPart(i *instance, name string) error {
	stopped, err := i.stop(name)
	if err != nil {
		return err
	}
	crashpoint.Here("cli.down.part-ended")
	if stopped {
		a.progress("The %s has ended.", name)
	}
	return nil
}

// liveSockets are those of executors, which are there while these run.
func (i *instance) liveSockets() ([]string, error) {
	return filepath.Glob(filepath.Join(i.socketsDir(), "*.sock"))
}

// refusePurge refuses to remove the data while there are workspaces: destroying those is an
// operation of its own, which passes the gate.
func (i *instance) refusePurge(ctx context.Context) error {
	n := len(workspaceUsers(filepath.Join(i.data, "homes")))
	if ws, client, err := i.list(ctx); err == nil {
		client.Close()
		n = max(n, len(ws))
	}
	if n > 0 {
		return fmt.Errorf("cannot remove %s: it holds %s; destroy first what is there: carrel up --detach%s; export %s=%s; carrel destroy "+
			"--purge $(carrel ls -q): %w", i.data, counted(n, "workspace"), i.flags(), carrel.HostEnv, i.host(), errdefs.ErrFailedPrecondition)
	}
	return nil
}

// stopWorkspaces stops running workspaces through the daemon, so that it is recorded. If the
// daemon has ended and executors still run, it is started again for that.
func (a *app) stopWorkspaces(ctx context.Context, i *instance) error {
	if _, ok := i.isUp(ctx, upView{}); !ok {
		live, err := i.liveSockets()
		if err != nil || len(live) == 0 {
			return nil
		}
		a.progress("The daemon has ended and workspaces may run: starting it to stop them.")
		if err := a.restart(ctx, i); err != nil {
			return fmt.Errorf("cannot stop the workspaces that may still run: %w; mend that and run this again", err)
		}
	}
	// A create that is under way ends in a workspace that runs: what is there is looked at again.
	for round := 1; ; round++ {
		left, err := a.stopListed(ctx, i)
		if err != nil || left == 0 {
			return err
		}
		if round == stopRounds {
			return fmt.Errorf("cannot stop every workspace: %s were begun or started meanwhile; end what does that, and run this again: %w",
				counted(left, "workspace"), errdefs.ErrUnavailable)
		}
	}
}

// stopRounds is how often down looks for workspaces to stop.
const stopRounds = 5

// stopListed stops every workspace that is not stopped, whatever its state, and reports how many there were.
func (a *app) stopListed(ctx context.Context, i *instance) (found int, err error) {
	ws, client, err := i.list(ctx)
	if err != nil {
		return 0, fmt.Errorf("cannot list the workspaces to stop: %w", err)
	}
	defer client.Close()
	ws = slices.DeleteFunc(ws, func(w *carrelv1.Workspace) bool { return w.GetState() == string(workspace.StateStopped) })
	if len(ws) == 0 {
		return 0, nil
	}
	a.progress("Stopping %s.", counted(len(ws), "workspace"))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(8)
	for _, w := range ws {
		g.Go(func() error {
			_, err := askOf(ctx, client, workspaces.Stop, &carrelv1.StopRequest{Workspace: w.GetName()})
			if err != nil && !errdefs.IsNotFound(err) {
				return fmt.Errorf("cannot stop %s: %w", w.GetName(), err)
			}
			return nil
		})
	}
	return len(ws), g.Wait()
}

// restart starts the parts of an instance that have ended.
func (a *app) restart(ctx context.Context, i *instance) error {
	programs, err := findPrograms()
	if err != nil {
		return err
	}
	accounts, err := lockAccounts(ctx)
	if err != nil {
		return err
	}
	defer accounts.unlock()
	m, err := i.readMade()
	if err != nil {
		return err
	}
	i.recall(m)
	who, err := ensureAccount(ctx, accounts)
	if err != nil {
		return err
	}
	_, err = i.startBoth(ctx, programs, who, true, nil)
	return err
}

// removeRuntime removes the files of an instance by their names, so that other files in the
// directory stay.
func (i *instance) removeRuntime() error {
	sockets, err := filepath.Glob(filepath.Join(i.socketsDir(), "*.sock"))
	if err != nil {
		return err
	}
	files := append(sockets, i.socket(), filepath.Join(i.runtime, "broker.sock"), i.pidFile("daemon"), i.pidFile("broker"))
	for _, f := range files {
		if err := remove(f); err != nil {
			return err
		}
	}
	if err := sweep(i.runtime); err != nil {
		return err
	}
	_, err = removeIfEmpty(i.socketsDir())
	return err
}

// removeCgroups removes the instance's groups, which are empty after its workspaces have stopped.
func (i *instance) removeCgroups() error {
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return fmt.Errorf("cannot find the control groups: %w", err)
	}
	m := cgroup.ParseMounts(string(b))
	points := []string{}
	if m.V2 != "" {
		points = append(points, m.V2)
	}
	for _, v := range m.V1 {
		points = append(points, v.Point)
	}
	for _, p := range points {
		dir := filepath.Join(p, i.cgroupName())
		owners, err := filepath.Glob(dir + "/o-*") // a broker that was killed left them
		if err != nil {
			return err
		}
		for _, o := range owners {
			if _, err := removeIfEmpty(o); err != nil {
				return err
			}
		}
		if removed, err := removeIfEmpty(dir); err != nil {
			return err
		} else if !removed {
			return fmt.Errorf("cannot remove the control group %s: something is in it; see what with: cat %s/cgroup.procs %s/*/*/cgroup.procs: %w",
				dir, dir, dir, errdefs.ErrFailedPrecondition)
		}
	}
	return nil
}

// dropAccount removes the daemon's account unless another instance needs it.
func (a *app) dropAccount(ctx context.Context) error {
	accounts, err := lockAccounts(ctx)
	if err != nil {
		return err
	}
	defer accounts.unlock()
	if err := removeAccount(ctx, accounts); err != nil {
		a.progress("The user %s stays: %v", daemonUser, err)
	}
	return nil
}

// removeRest removes the account and the directories, and prints what stays.
func (a *app) removeRest(ctx context.Context, i *instance, m made, purge bool) error {
	users := workspaceUsers(filepath.Join(i.data, "homes"))
	if err := a.dropAccount(ctx); err != nil {
		return err
	}
	crashpoint.Here("cli.down.account-removed")
	if purge {
		for _, name := range []string{"daemon", "broker", "homes", "tmp", "images", "retained", "log", "broker.json"} {
			if err := removal.Path(ctx, filepath.Join(i.data, name)); err != nil {
				return fmt.Errorf("cannot remove %s: %w", filepath.Join(i.data, name), err)
			}
		}
	}
	crashpoint.Here("cli.down.data-removed")
	if err := errors.Join(sweep(i.data), removeUnnotedAt(i.runtime)); err != nil {
		return err
	}
	var stay, holding []string
	for _, d := range slices.Backward(m.Dirs) {
		if i.data == d || strings.HasPrefix(i.data, d+"/") {
			holding = append(holding, d)
			stay = append(stay, d)
			continue
		}
		removed, err := removeIfEmpty(d)
		if err != nil {
			return err
		}
		if !removed {
			stay = append(stay, d)
		}
	}
	slices.Reverse(stay)
	m.Dirs = stay
	if purge {
		return a.removeData(i, holding)
	}
	if err := i.writeMade(m); err != nil {
		return err
	}
	err := say(a.Out, "carrel is down. Its state, %s and the audit log stay in %s.\n", counted(len(users), "workspace"), i.data)
	return err
}

// removeData removes the record of what up made, the data directory and the directories of
// holding above it, unless something else is in them.
func (a *app) removeData(i *instance, holding []string) error {
	if err := i.strikeOff(holding); err != nil {
		return err
	}
	for _, name := range []string{"up.json", "up.lock"} {
		if err := remove(filepath.Join(i.data, name)); err != nil {
			return err
		}
		crashpoint.Here("cli.down.note-removed")
	}
	// Removed even if up did not make it, if it is empty.
	if _, err := removeIfEmpty(i.data); err != nil {
		return err
	}
	for _, d := range holding { // the innermost first
		if _, err := removeIfEmpty(d); err != nil {
			return err
		}
		crashpoint.Here("cli.down.dir-removed")
	}
	err := say(a.Out, "carrel is down and its data in %s is removed.\n", i.data)
	return err
}
