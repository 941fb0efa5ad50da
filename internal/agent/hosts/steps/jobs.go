package steps

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/agent/hosts/fleet"
	"github.com/carrel-dev/carrel/internal/agent/hosts/jobs"
	"github.com/carrel-dev/carrel/internal/boundary/hostrun"
	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

// Jobs are the background jobs of the caller on hosts.
type Jobs struct {
	*jobs.Registry
	mu sync.Mutex
	// remotes are the hosts of the inventories that were asked for, and those to close.
	remotes map[string]*Remotes
	own     []*Remotes
}

// OpenJobs opens the caller's jobs, which are kept in dir. The caller must call Close.
func OpenJobs(dir string) (*Jobs, error) {
	j := &Jobs{remotes: map[string]*Remotes{}}
	var err error
	j.Registry, err = jobs.Open(jobs.Config{Dir: dir, Shell: j.shell})
	if err != nil {
		return nil, err
	}
	return j, nil
}

// Background returns what begins commands in the background, on this machine and on the remote hosts r of the file
// inventory. The jobs are opened when there is one to begin.
func Background(open func() (*Jobs, error), r *Remotes, inventory string, h Holding) Run {
	return func(ctx context.Context, c runtime.HostCommand) (out runtime.HostResult, err error) {
		j, err := open()
		if err != nil {
			return out, err
		}
		defer j.Close()
		if r != nil {
			j.remotes[inventory] = r // it is not closed with j
		}
		return j.begin(ctx, c, inventory, h)
	}
}

// Close ends the connections. Jobs go on.
func (j *Jobs) Close() {
	for _, r := range j.own {
		_ = r.Close() // nothing of it is needed any more
	}
	j.Registry.Close()
}

// begin begins a command in the background, where it says. inventory is the file that its remote host is named in.
func (j *Jobs) begin(ctx context.Context, c runtime.HostCommand, inventory string, h Holding) (out runtime.HostResult, err error) {
	s := jobs.Spec{
		ID: c.Job, Argv: c.Argv, ReadOnly: c.ReadOnly, AsRoot: h.AsRoot, LimitMS: c.Timeout.Milliseconds(),
		Began:     time.Now().Truncate(time.Second),
		MaxMemory: c.Limits.Memory, MaxProcesses: c.Limits.Processes,
	}
	if c.Remote {
		s.Host, s.Inventory = c.Name, inventory
		var r *Remotes
		if r, err = j.in(inventory); err == nil {
			err = r.may(c)
		}
		if err == nil {
			err = j.BeginRemote(ctx, s)
		}
		out.Held = nothing
	} else {
		var profile hostrun.Profile
		if profile, s.Writes, err = h.of(c); err != nil {
			return out, err
		}
		s.Profile = string(profile)
		if s.Dir, err = os.Getwd(); err == nil {
			out.Held, err = j.Registry.By(h.program).Begin(ctx, s)
		}
	}
	if err == nil {
		out.Status = &execapi.Status{}
	}
	return out, err
}

// in is the hosts of an inventory.
func (j *Jobs) in(inventory string) (*Remotes, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if r := j.remotes[inventory]; r != nil {
		return r, nil
	}
	r, err := OpenRemotes(inventory)
	if err != nil {
		return nil, err
	}
	j.remotes[inventory], j.own = r, append(j.own, r)
	return r, nil
}

// shellTime is how long a remote host may take to answer, beside the connection. It takes longest to stop a job.
const shellTime = time.Minute

// shell implements jobs.Shell.
func (j *Jobs) shell(ctx context.Context, inventory, host string, argv []string) ([]byte, error) {
	r, err := j.in(inventory)
	if err != nil {
		return nil, err
	}
	h, ok := r.hosts[host]
	if !ok {
		return nil, fmt.Errorf("there is no remote host %q in %s any more: %w", host, inventory, errdefs.ErrNotFound)
	}
	res, err := r.client.Run(ctx, h, fleet.Step{Argv: argv, Own: true, Timeout: shellTime, MaxOutput: 4 * jobs.MaxChunk})
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: %w", jobs.ErrNotRun, err)
	case res.Outcome != fleet.Ended:
		return nil, fmt.Errorf("%s does not say what came of it: %s %s: %w", host, res.Outcome, res.Why, errdefs.ErrUnavailable)
	case !res.OK():
		return nil, fmt.Errorf("%.400s", strings.TrimSpace(strings.ToValidUTF8(string(res.Stderr.Bytes()), "\uFFFD")))
	case res.Stdout.Dropped > 0:
		return nil, errors.New("it says more than was asked for")
	}
	return res.Stdout.Bytes(), nil
}
