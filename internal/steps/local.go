package steps

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/carrel-dev/carrel/internal/execapi"
	"github.com/carrel-dev/carrel/internal/hostrun"
	"github.com/carrel-dev/carrel/internal/runtime"
)

// Local returns what runs commands on this machine, as the caller's own user. A command that must not change anything runs
// under the profile system_inspect, or not at all. asRoot lets commands run as root where the caller is root.
func Local(asRoot bool) Run {
	return func(ctx context.Context, c runtime.HostCommand) (runtime.HostResult, error) {
		profile := hostrun.None
		if c.ReadOnly {
			profile = hostrun.SystemInspect
		}
		res, err := hostrun.Run(ctx, hostrun.Command{
			Argv: c.Argv, Timeout: c.Timeout, MaxOutput: kept(c.MaxOutput), Profile: profile, AllowRoot: asRoot,
			Limits: hostrun.Limits(c.Limits),
		})
		out := runtime.HostResult{Held: hostrun.Held(profile, res.Controls)}
		out.Stdout = joined(res.Stdout.Head, res.Stdout.Tail, res.Stdout.Lost, &out.Lost)
		out.Stderr = joined(res.Stderr.Head, res.Stderr.Tail, res.Stderr.Lost, &out.Lost)
		if err != nil {
			if len(res.Left) > 0 {
				err = fmt.Errorf("%w; still there: %s", err, strings.Join(res.Left, ", "))
			}
			return out, err
		}
		out.Status = &execapi.Status{Code: res.Code, Signal: int(res.Signal), TimedOut: res.TimedOut}
		if len(res.Left) > 0 {
			return out, errors.New("what it started could not be ended: " + strings.Join(res.Left, ", "))
		}
		if res.Hint != "" {
			out.Stderr = append(out.Stderr, "\ncarrel: "+res.Hint+"\n"...)
		}
		return out, nil
	}
}

// Check runs nothing but "true", under the profile of commands that only read, and says what holds such a command.
func Check(ctx context.Context, asRoot bool) (string, error) {
	res, err := hostrun.Run(ctx, hostrun.Command{Argv: []string{"/bin/true"}, Profile: hostrun.SystemInspect, AllowRoot: asRoot})
	if err != nil {
		return "", err
	}
	return hostrun.Held(hostrun.SystemInspect, res.Controls), nil
}
