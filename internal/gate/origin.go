package gate

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/linux/lineage"
)

// supervisors are the names of carrel's own processes below which what an agent proposed runs: steps, jobs, workspaces. Such a
// process takes its name before there is anything below it.
var supervisors = []string{"carrel-hostrun", "carrel-job", "carrel-executor", "carrel-execut"}

// stepGroup is the control group of a step, which it stays in also if its supervisor was killed.
var stepGroup = regexp.MustCompile(`(?m)/carrel-step-[^/\n]*(/|$)`)

// Answering is the process that lets something pass, for the record: it gives an answer, a rule or a token. It is "" if that is no process
// of this machine. It is an error of kind permission denied if it comes from what carrel itself runs for an agent: a step that was
// approved must not answer the next question. What the process says of itself counts for nothing, its parents do.
func Answering(ctx context.Context) (who string, err error) {
	from := lineage.FromContext(ctx)
	if from.PID == 0 {
		return "", nil
	}
	l, err := lineage.Of(from)
	refused := func(why string) error {
		return fmt.Errorf("cannot let process %d say what may pass: %s; do that in a terminal of your own: %w", from.PID, why,
			errdefs.ErrPermissionDenied)
	}
	switch {
	case errors.Is(err, lineage.ErrGone) && from.Since > 0:
		if hidden() {
			return fmt.Sprintf("process %d, which the daemon may not see", from.PID), nil
		}
		return "", refused("it has ended, so that nobody can tell where it comes from")
	case err != nil:
		return "", refused("it cannot be told where it comes from: " + err.Error())
	case stepGroup.MatchString(l.Groups):
		return "", refused("it is in the control group of a step that carrel runs")
	}
	if i := slices.IndexFunc(l.Above, func(p lineage.Process) bool { return slices.Contains(supervisors, p.Name) }); i >= 0 {
		return "", refused(fmt.Sprintf("it was started below %s (%d), by a step, a job or a workspace", l.Above[i].Name, l.Above[i].PID))
	}
	return l.String(), nil
}

// hidden reports whether /proc hides the processes of others from this one (hidepid), so that a process cannot be told from one that has
// ended.
func hidden() bool {
	_, err := lineage.Of(lineage.Peer{PID: 1, Since: lineage.Now()})
	return errors.Is(err, lineage.ErrGone)
}
