package steps

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/spec/tools"
)

// resolver returns the path of a command without symbolic links, as it is where the command runs.
type resolver func(ctx context.Context, c runtime.HostCommand) (string, error)

// reading runs a command that reads one path, if that is the path itself and it is below what tools may read. Where the path
// leads elsewhere, the result says where, and nothing is run: the daemon has judged what it was told, and judges that again.
func reading(ctx context.Context, c runtime.HostCommand, resolve resolver, roots []string, run Run) (runtime.HostResult, error) {
	if c.Path == "" {
		return run(ctx, c)
	}
	found, err := resolve(ctx, c)
	if err == nil {
		err = tools.Below(found, roots...)
	} else if outside := tools.Below(c.Path, roots...); outside != nil {
		err = outside // whether there is such a file is not told
	}
	if err != nil {
		return runtime.HostResult{}, fmt.Errorf("it was not run: %w", err)
	}
	if found != c.Path {
		return runtime.HostResult{Path: found}, nil
	}
	return run(ctx, c)
}

// here resolves a path on this machine.
func here(_ context.Context, c runtime.HostCommand) (string, error) {
	if !filepath.IsAbs(c.Path) {
		return "", fmt.Errorf("%q is no absolute path", c.Path)
	}
	return filepath.EvalSymlinks(c.Path)
}

// there resolves a path on a remote host, by a command of its own.
func there(run Run) resolver {
	return func(ctx context.Context, c runtime.HostCommand) (string, error) {
		c.Argv = []string{"/bin/sh", "-c", `[ -e "$1" ] || { echo "$1 is not there" >&2; exit 1; }; realpath -- "$1"`, "realpath", c.Path}
		r, err := run(ctx, c)
		if err != nil {
			return "", err
		}
		found, whole := strings.CutSuffix(string(r.Stdout), "\n")
		switch {
		case r.Status == nil || r.Status.Code != 0 || !whole:
			return "", fmt.Errorf("cannot say where %s leads: %.200s", c.Path, r.Stderr)
		case r.Lost > 0 || strings.Contains(found, "\n"):
			return "", errors.New("cannot say where " + c.Path + " leads: the host answered with another form")
		}
		return found, nil
	}
}
