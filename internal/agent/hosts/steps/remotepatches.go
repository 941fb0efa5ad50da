package steps

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/agent/hosts/fleet"
	"github.com/carrel-dev/carrel/internal/agent/hosts/remotepatch"
	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/files/patch"
)

// remotePatchTime bounds each of the two requests by which files of a remote host are changed, beside the connection.
const remotePatchTime = 2 * time.Minute

// Patch computes a change to files on the host that it names, or makes it if it is still exactly the one that was computed, or merges
// into what is there now.
func (r *Remotes) Patch(ctx context.Context, x runtime.HostPatch) (runtime.HostPatched, error) {
	w := patch.Wanted{Text: x.Text, Modes: x.Modes, Only: x.Only, Digest: x.Digest}
	done, err := remotepatch.Do(ctx, r.shell(x.Remote), &r.seen, x.Remote, w)
	return patched(done), err
}

// Undo undoes a change to files on a host. The id that it returns undoes the undoing.
func (r *Remotes) Undo(ctx context.Context, host, id string) (undoing string, err error) {
	return remotepatch.Undo(ctx, r.shell(host), id)
}

// Changes lists the changes to files on a host that can be undone, those that were undone included.
func (r *Remotes) Changes(ctx context.Context, host string) ([]patch.Record, error) {
	return remotepatch.Records(ctx, r.shell(host))
}

// shell runs carrel's own programs on a host.
func (r *Remotes) shell(host string) remotepatch.Run {
	return func(ctx context.Context, argv []string, input []byte) ([]byte, error) {
		h, ok := r.hosts[host]
		if !ok {
			return nil, fmt.Errorf("there is no remote host %q: %w", host, errdefs.ErrNotFound)
		}
		res, err := r.client.Run(ctx, h, fleet.Step{
			Argv: argv, Own: true, Input: input, Timeout: remotePatchTime, MaxOutput: remotepatch.MaxOutput,
		})
		switch {
		case err != nil:
			return nil, err
		case res.Outcome != fleet.Ended:
			return nil, fmt.Errorf("%s does not say what came of it: %s %s: %w", host, res.Outcome, res.Why, errdefs.ErrUnavailable)
		case !res.OK():
			return nil, fmt.Errorf("%s: %.1000s", host, strings.TrimSpace(strings.ToValidUTF8(string(res.Stderr.Bytes()), "\uFFFD")))
		case res.Stdout.Dropped > 0:
			return nil, errors.New("it says more than was asked for")
		}
		return res.Stdout.Bytes(), nil
	}
}
