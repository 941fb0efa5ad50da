package tasks

import (
	"fmt"

	"github.com/carrel-dev/carrel/internal/operation"
)

// maxTargets bounds the workspaces and hosts that an agent is told of.
const maxTargets = 256

// context is what an agent is told beside the prompt: where its steps can run, and what was said before.
func (a *agent) context() any {
	var targets, notes []string
	if h := a.c.hosts(); h != nil {
		if h.Local() {
			targets = append(targets, string(operation.Host))
			for _, line := range a.c.excess {
				notes = append(notes, "The host is over a threshold that the person has set: "+a.c.tasks.cfg.Redact.Text(line)+".")
			}
		}
		if p := h.Profile(); h.Local() && p != operation.Unheld {
			notes = append(notes, "The person has steps on the host run under the profile "+p+", which the kernel keeps: what a step may not "+
				"change there it cannot change, and fails. Say so, and do not try another way.")
		}
		for _, name := range h.Remotes() {
			targets = append(targets, string(operation.Remote)+" "+name)
		}
	}
	ctx := a.c.context()
	all, err := a.c.tasks.cfg.Lifecycle.List(ctx, a.c.by)
	if err != nil {
		a.c.tasks.cfg.Log.Warn("an agent is not told which workspaces there are", "task", a.c.task.ID, "error", err)
	}
	for _, w := range all {
		if w.Name != a.c.task.Workspace { // its own has nothing but itself
			targets = append(targets, fmt.Sprintf("%s %s", operation.Workspace, w.Key))
		}
	}
	more := len(targets) - maxTargets
	targets = targets[:min(len(targets), maxTargets)]
	out := map[string]any{"targets": targets, "history": a.c.tasks.history(ctx, a.c.task.Workspace, a.c.after)}
	if titles := a.c.tasks.cfg.Turns.Titles(); titles != "" {
		out["runbooks"] = titles
	}
	if more > 0 {
		notes = append(notes, fmt.Sprintf("There are %d targets more, which can be used by their names.", more))
	}
	if len(a.c.begins.Memory) > 0 {
		out["memory"] = a.c.tasks.cfg.Redact.Texts(a.c.begins.Memory)
	}
	if len(notes) > 0 {
		out["notes"] = notes
	}
	return map[string]any{"carrel": out}
}
