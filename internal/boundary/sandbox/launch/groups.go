package launch

import (
	"context"
	"errors"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox/cgroup"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// JoinGroups makes the control groups of the workspace that c starts, and has c use them. The
// caller closes the files when it is started. Groups that an interrupted start left are removed.
func (c *Config) JoinGroups(ctx context.Context, in *cgroup.Instance) (*cgroup.Files, error) {
	name, executor, limits := c.Spec.Name, c.Spec.IDs.Executor, c.Spec.Limits
	made, err := in.Create(name, c.Owner, executor, limits)
	if errors.Is(err, unix.EEXIST) {
		if err = in.Remove(ctx, name); err == nil {
			made, err = in.Create(name, c.Owner, executor, limits)
		}
	}
	if err != nil {
		return nil, err
	}
	c.Spec.Cgroup = sandbox.Cgroup{V1: made.V1, V2Controllers: made.V2Controllers}
	c.V1Sup, c.V1Cmd, c.Born, c.Cmd, c.SupProcs, c.Give = made.V1Sup, made.V1Cmd, made.Born, made.Cmd, made.SupProcs, made.Give
	c.Hurry = func() (done func() error) { return in.Hurry(name, limits) }
	c.Moved = func() error { return in.EnableSubtree(name, limits) }
	more := c.Outside
	c.Outside = func(pid int) []sandbox.Finding {
		found := readLimits(in, name, pid, limits)
		if more != nil {
			found = append(found, more(pid)...)
		}
		return found
	}
	return made, nil
}

func readLimits(in *cgroup.Instance, name id.Workspace, pid int, limits workspace.Limits) []sandbox.Finding {
	var found []sandbox.Finding
	for _, x := range in.Check(name, pid, limits) {
		found = append(found, sandbox.Finding{Control: x.Control, OK: x.OK, Evidence: "outside: " + x.Text})
	}
	return found
}

// ChangeLimits puts other limits in force for a workspace whose executor is pid, reads them back,
// and returns the report with what was read. After an error the old limits hold.
func ChangeLimits(
	in *cgroup.Instance, name id.Workspace, pid int, old, limits workspace.Limits, report workspace.Report,
) (workspace.Report, error) {
	if err := in.Update(name, old, limits); err != nil {
		return report, err
	}
	after := report
	after.Controls = slices.Clone(report.Controls)
	sandbox.Amend(&after, readLimits(in, name, pid, limits))
	if err := after.Err(); err != nil {
		return report, errors.Join(err, in.Update(name, limits, old))
	}
	return after, nil
}
