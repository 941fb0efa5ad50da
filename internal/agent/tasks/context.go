package tasks

import (
	"fmt"

	"github.com/carrel-dev/carrel/internal/agent/seat"
	"github.com/carrel-dev/carrel/internal/spec/operation"
)

// maxTargets bounds the workspaces and hosts that an agent is told of.
const maxTargets = 256

// situation is what an agent is told beside the prompt: where its steps can run, and what was said before.
func (c *conversation) situation() seat.Context {
	var targets, notes []string
	var hostFiles, remoteFiles bool
	if h := c.hosts(); h != nil {
		hostFiles, remoteFiles = h.Local() && h.Patches(), len(h.Remotes()) > 0 && h.RemotePatches()
		if h.Local() {
			targets = append(targets, string(operation.Host))
			for _, line := range c.excess {
				notes = append(notes, "The host is over a threshold that the person has set: "+c.tasks.cfg.Redact.Text(line)+".")
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
	ctx := c.context()
	all, err := c.tasks.cfg.Lifecycle.List(ctx, c.by)
	if err != nil {
		c.tasks.cfg.Log.Warn("an agent is not told which workspaces there are", "task", c.task.ID, "error", err)
	}
	for _, w := range all {
		if w.Name != c.task.Workspace { // its own has nothing but itself
			targets = append(targets, fmt.Sprintf("%s %s", operation.Workspace, w.Key))
		}
	}
	if more := len(targets) - maxTargets; more > 0 {
		targets = targets[:maxTargets]
		notes = append(notes, fmt.Sprintf("There are %d targets more, which can be used by their names.", more))
	}
	return seat.Context{
		Targets: targets, HostFiles: hostFiles, RemoteFiles: remoteFiles, Heard: c.begins.Foreign, Notes: notes,
		Runbooks: c.tasks.cfg.Turns.Titles(), Memory: c.tasks.cfg.Redact.Texts(c.begins.Memory),
		History: c.tasks.history(ctx, c.task.Workspace, c.after),
	}
}
