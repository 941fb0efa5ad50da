package steps

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/boundary/hostrun"
	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

// Local returns what runs commands on this machine, as the caller's own user. A command that must not change anything runs
// under the profile system_inspect, or not at all, and others under that of h.
func Local(h Holding) Run {
	return func(ctx context.Context, c runtime.HostCommand) (runtime.HostResult, error) {
		profile, writes, err := h.of(c)
		if err != nil {
			return runtime.HostResult{}, err
		}
		res, err := h.run(ctx, hostrun.Command{
			Argv: c.Argv, Timeout: c.Timeout, MaxOutput: kept(c.MaxOutput), Profile: profile, Writes: writes, AllowRoot: h.AsRoot,
			Limits: hostrun.Limits(c.Limits),
		})
		out := runtime.HostResult{Held: hostrun.Held(profile, res.Controls)}
		out.Stdout = joined(res.Stdout.Head, res.Stdout.Tail, res.Stdout.Lost, &out.Lost)
		out.Stderr = joined(res.Stderr.Head, res.Stderr.Tail, res.Stderr.Lost, &out.Lost)
		if err != nil {
			if errdefs.IsFailedPrecondition(err) && !c.ReadOnly && profile != hostrun.None {
				err = fmt.Errorf("%w; without what holds it: --profile %s", err, hostrun.None)
			}
			if len(res.Left) > 0 {
				err = fmt.Errorf("%w; still there: %s", err, strings.Join(res.Left, ", "))
			}
			return out, err
		}
		out.Status = &execapi.Status{Code: res.Code, Signal: int(res.Signal), TimedOut: res.TimedOut}
		if len(res.Left) > 0 {
			return out, errors.New("what it started could not be ended: " + strings.Join(res.Left, ", "))
		}
		switch {
		case res.Hint != "":
			out.Stderr = append(out.Stderr, "\ncarrel: "+res.Hint+"\n"...)
		case h.held(profile, c, res):
			out.Stderr = append(out.Stderr, h.otherwise()...)
		}
		return out, nil
	}
}

func (h Holding) run(ctx context.Context, c hostrun.Command) (hostrun.Result, error) {
	if h.by == nil {
		return hostrun.Run(ctx, c)
	}
	return h.by.Run(ctx, c)
}

// Ready has what supervises commands that may change something ready for the next one, until rest is called, where that is possible.
func (h Holding) Ready() (rest func()) {
	if h.by == nil {
		return func() {}
	}
	return h.by.Ready(cmp.Or(h.Profile, hostrun.None))
}

// Check runs nothing but "true", and says what holds such a command: one that only reads, or one that may change something.
func Check(ctx context.Context, h Holding, reads bool) (string, error) {
	profile, writes, err := h.of(runtime.HostCommand{ReadOnly: reads})
	if err != nil {
		return "", err
	}
	res, err := h.run(ctx, hostrun.Command{Argv: []string{"/bin/true"}, Profile: profile, Writes: writes, AllowRoot: h.AsRoot})
	if err != nil {
		return "", err
	}
	held := hostrun.Held(profile, res.Controls)
	if len(writes) > 0 {
		held += "; it may change " + strings.Join(writes, " ")
	}
	return held, nil
}
