package cli

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/rootless"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// openingsAndHosts tells the values of --allow apart: a host has a dot, a colon or a star, a set an at sign, and
// requests a space or a slash.
func openingsAndHosts(allow []string) (set []workspace.Opening, hosts []string, err error) {
	var names []string
	for _, v := range allow {
		if strings.ContainsAny(v, ".:*@ /") || v == "localhost" {
			hosts = append(hosts, v)
		} else {
			names = append(names, v)
		}
	}
	set, err = workspace.ParseOpenings(names)
	return set, hosts, err
}

// egress is what a run may reach: what the flags say, and with any of them what the caller's file says.
// mounts are what the command sees of the host.
func (a *app) egress(ctx context.Context, x *runFlags, hosts []string, mounts []workspace.Mount) (e rootless.Egress, err error) {
	if len(x.models.names) == 0 && x.models.budget() != nil {
		return e, noModels()
	}
	if x.models.money != "" || x.models.per != "" {
		return e, fmt.Errorf("cannot use --model-money or --model-per without root: a run has no period, and its budget in money is that of the "+
			"model in your egress.yaml; leave them out: %w", errdefs.ErrInvalidArgument)
	}
	if min(x.models.requests, x.models.tokens) < 0 {
		return e, fmt.Errorf("cannot use a negative bound: leave --model-requests or --model-tokens out for none: %w", errdefs.ErrInvalidArgument)
	}
	files, err := x.secretFiles.read()
	if err != nil {
		return e, err
	}
	uses := withFiles(x.secrets, files)
	if len(hosts)+len(x.ask)+len(x.deny)+len(uses)+len(x.models.names) == 0 {
		return e, nil
	}
	var writable []string
	for _, m := range mounts {
		if !m.ReadOnly {
			writable = append(writable, m.Source)
		}
	}
	reach := workspace.Reach{Allow: hosts, Ask: x.ask, Deny: x.deny}
	if e, err = rootless.ReadEgress(ctx, reach, uses, files, x.models.names, written(writable...), os.Getenv); err != nil {
		return e, err
	}
	e.Models.Requests, e.Models.Tokens = x.models.requests, x.models.tokens
	e.Refused = func(text string) { _ = say(a.Err, "carrel: %s\n", text) }
	e.Binary, err = findProgram("carrel-egress")
	return e, err
}

// written returns the directories that commands may have changed, now or in an earlier run: the current one, the
// repositories that it is in, and what is mounted writable. None of them has the caller's home in it, which is never
// mounted.
func written(writable ...string) (dirs []string) {
	home, err := os.UserHomeDir()
	if err == nil {
		home, err = filepath.EvalSymlinks(home)
	}
	if err != nil {
		home = "/"
	}
	if dir, err := rootless.Source("."); err == nil {
		for here := dir; !workspace.Within(dir, home); dir = filepath.Dir(dir) {
			if _, err := os.Lstat(filepath.Join(dir, ".git")); dir == here || err == nil {
				dirs = append(dirs, dir)
			}
		}
	}
	return append(dirs, writable...)
}
