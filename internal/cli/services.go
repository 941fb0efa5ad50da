package cli

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	carrel "github.com/carrel-dev/carrel/sdk/go"
)

// serviceTarget starts and ends the units together that run the default instance under systemd.
const serviceTarget = "carrel.target"

// stopServices ends them. The target alone returns before they have ended.
const stopServices = "systemctl stop " + serviceTarget + " carreld.socket carreld carrel-broker"

// brokerUnit is the unit of the broker.
const brokerUnit = "carrel-broker.service"

var serviceUnits = []string{brokerUnit, "carreld.socket", "carreld.service"}

// systemctlTimeout bounds a question to systemd.
const systemctlTimeout = 10 * time.Second

// services returns the units that run this instance, or are about to. There are none without systemd,
// and for other instances than the default one.
func (i *instance) services(ctx context.Context) []string {
	if !i.isDefault() || !booted() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, systemctlTimeout)
	defer cancel()
	// One line a unit, and an exit code other than 0 if none is active.
	out, _ := exec.CommandContext(ctx, "systemctl", append([]string{"is-active"}, serviceUnits...)...).Output()
	return liveUnits(string(out))
}

// booted reports whether systemd runs this host (sd_booted(3)).
func booted() bool {
	_, err := os.Stat("/run/systemd/system")
	return err == nil
}

// liveUnits are those units of which systemctl is-active says that they run, start or end.
func liveUnits(answer string) (live []string) {
	for n, state := range strings.Fields(answer) {
		switch state {
		case "active", "activating", "reloading", "deactivating":
			if n < len(serviceUnits) {
				live = append(live, serviceUnits[n])
			}
		}
	}
	return live
}

// upAsServices completes v for an instance that systemd runs. Its socket starts a daemon that does not run.
func (i *instance) upAsServices(ctx context.Context, v upView) (upView, error) {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	client, err := carrel.New(carrel.Options{Host: i.host()})
	var m *carrelv1.VersionResponse
	if err == nil {
		defer client.Close()
		m, err = askOf(ctx, client, system.Version, &carrelv1.VersionRequest{})
	}
	if err != nil {
		return v, fmt.Errorf("cannot reach the daemon, which systemd runs (%s): %w; see why with: systemctl status %s; "+
			"journalctl -u carreld -u carrel-broker", strings.Join(v.Services, ", "), err, strings.Join(serviceUnits, " "))
	}
	v.Address, v.Fingerprint, v.Already = m.GetAddress(), m.GetFingerprint(), true
	return v, nil
}

// refuseServices is the error of down while systemd runs the instance.
func refuseServices(live []string) error {
	return fmt.Errorf("cannot end what systemd runs (%s): it would start it again; stop the workspaces that shall not live on with "+
		"\"carrel stop $(carrel ls -q)\", end carrel with \"%s\", and run this again to remove the rest: %w",
		strings.Join(live, ", "), stopServices, errdefs.ErrFailedPrecondition)
}

// prepareOnly makes what the parts of an instance need, for a service manager that starts them.
func (a *app) prepareOnly(ctx context.Context, i *instance) error {
	if err := i.checkUp(); err != nil {
		return err
	}
	for name, pid := range i.parts() {
		return fmt.Errorf("cannot leave the start to a service manager: \"carrel up\" has started the %s, pid %d; end it first "+
			"with \"carrel down%s\": %w", name, pid, i.flags(), errdefs.ErrFailedPrecondition)
	}
	defer sayHeld(a.Err)()
	p, err := a.beforeStart(ctx, i)
	if err == nil {
		p.unlock()
	}
	return err
}
