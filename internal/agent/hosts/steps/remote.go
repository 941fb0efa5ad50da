package steps

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/carrel-dev/carrel/internal/agent/hosts/fleet"
	"github.com/carrel-dev/carrel/internal/agent/hosts/remotepatch"
	"github.com/carrel-dev/carrel/internal/base/fanout"
	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

// maxInventory bounds a file of hosts, in bytes.
const maxInventory = 4 << 20

// Remotes are the remote hosts of one user.
type Remotes struct {
	client *fleet.Client
	hosts  map[string]fleet.Host
	names  []string
	order  fanout.Settings
	groups []fleet.GroupOrder
	digest string
	// seen are what files were when changes to them were computed.
	seen remotepatch.Seen
}

// OpenRemotes reads an inventory: see fleet.ParseInventory. It connects to nothing yet.
func OpenRemotes(inventory string) (*Remotes, error) { return openRemotes(inventory, fleet.FromUser) }

func openRemotes(inventory string, user func() (fleet.Config, error)) (*Remotes, error) {
	f, err := os.Open(inventory)
	if err != nil {
		return nil, fmt.Errorf("cannot read the remote hosts: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxInventory+1))
	if err != nil {
		return nil, fmt.Errorf("cannot read the remote hosts: %w", err)
	}
	if len(b) > maxInventory {
		return nil, fmt.Errorf("cannot read the remote hosts: %s has more than %d bytes", inventory, maxInventory)
	}
	inv, err := fleet.ParseInventory(inventory, b)
	if err != nil {
		return nil, err
	}
	cfg, err := user()
	if err != nil {
		return nil, err
	}
	client, err := fleet.New(cfg)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(b)
	r := &Remotes{client: client, hosts: map[string]fleet.Host{}, order: inv.Order(), groups: inv.GroupOrders()}
	r.digest = hex.EncodeToString(sum[:])
	for _, h := range inv.Hosts() {
		r.hosts[h.Name] = h
		r.names = append(r.names, h.Name)
	}
	return r, nil
}

// Digest is that of the file that names the hosts.
func (r *Remotes) Digest() string { return r.digest }

// Names are the names of the hosts, in the order of the file.
func (r *Remotes) Names() []string { return r.names }

// As says as whom and where commands run on each host, as far as that can be told.
func (r *Remotes) As() map[string]string {
	all := map[string]string{}
	for name, h := range r.hosts {
		if as, err := r.client.As(h); err == nil {
			all[name] = as
		}
	}
	return all
}

// Orders are how a step reaches several hosts: as set says, and where it says nothing as the inventory does.
func (r *Remotes) Orders(set fanout.Settings) fanout.Orders {
	o := fanout.Orders{All: set.Over(r.order).Order()}
	for _, g := range r.groups {
		o.Groups = append(o.Groups, fanout.Group{Name: g.Group, Hosts: g.Hosts, Order: set.Over(g.Order.Over(r.order)).Order()})
	}
	return o
}

// Close ends all connections.
func (r *Remotes) Close() error { return r.client.Close() }

// nothing says what holds a command on a remote host.
const nothing = "nothing but the rights of the user there"

// may says why a command would not be run on the host that it names.
func (r *Remotes) may(c runtime.HostCommand) error {
	h, ok := r.hosts[c.Name]
	if !ok {
		return fmt.Errorf("it was not run: there is no remote host %q", c.Name)
	}
	s := fleet.Step{Argv: c.Argv, Timeout: c.Timeout}
	return s.Check(&h)
}

// Run runs a command on the host that it names.
func (r *Remotes) Run(ctx context.Context, c runtime.HostCommand) (runtime.HostResult, error) {
	h, ok := r.hosts[c.Name]
	if !ok {
		return runtime.HostResult{}, fmt.Errorf("it was not run: there is no remote host %q", c.Name)
	}
	res, err := r.client.Run(ctx, h, fleet.Step{Argv: c.Argv, Timeout: c.Timeout, MaxOutput: kept(c.MaxOutput)})
	if err != nil {
		return runtime.HostResult{}, err
	}
	out := runtime.HostResult{Held: nothing}
	out.Stdout = joined(res.Stdout.Head, res.Stdout.Tail, res.Stdout.Dropped, &out.Lost)
	out.Stderr = joined(res.Stderr.Head, res.Stderr.Tail, res.Stderr.Dropped, &out.Lost)
	switch res.Outcome {
	case fleet.Ended:
		out.Status = &execapi.Status{Code: res.Exit}
		if res.Signal != "" {
			out.Status.Code, out.Status.Signal = 128+signals[res.Signal], signals[res.Signal]
		}
		return out, nil
	case fleet.TimedOut:
		out.Status = &execapi.Status{Code: 137, Signal: 9, TimedOut: true}
		if !res.Kill.Confirmed {
			return out, fmt.Errorf("it ran out of its time, and it is not certain that it was ended: %s", res.Kill.Why)
		}
		return out, nil
	case fleet.Canceled:
		if !res.Kill.Confirmed {
			return out, fmt.Errorf("it was told to stop, and it is not certain that it was ended: %s", res.Kill.Why)
		}
		return out, errors.New("it was told to stop, and was ended")
	case fleet.Lost:
	}
	return out, fmt.Errorf("it is not known whether it ended, and it was not tried again: %s", res.Why)
}

// signals are the numbers of signals by the names that SSH has for them (RFC 4254, 6.10).
var signals = map[string]int{
	"ABRT": 6, "ALRM": 14, "FPE": 8, "HUP": 1, "ILL": 4, "INT": 2, "KILL": 9, "PIPE": 13, "QUIT": 3, "SEGV": 11, "TERM": 15,
	"USR1": 10, "USR2": 12,
}
