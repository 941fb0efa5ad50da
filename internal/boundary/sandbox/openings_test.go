package sandbox_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/internal/boundary/sandbox"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox/launch"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox/launch/launchtest"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// An opening turns off the controls that it gives up, and these alone; the others hold.
func TestOpeningsAreOffAndSaidToBe(t *testing.T) {
	for _, c := range []struct {
		allow []workspace.Opening
		off   map[string]workspace.Opening
	}{
		{[]workspace.Opening{workspace.UserNS}, map[string]workspace.Opening{
			"nested-namespaces": workspace.UserNS,
			"socket-count":      workspace.UserNS,
		}},
		{[]workspace.Opening{workspace.UserNS, workspace.NestedMounts}, map[string]workspace.Opening{
			"nested-namespaces": workspace.UserNS,
			"socket-count":      workspace.UserNS,
			"landlock":          workspace.NestedMounts,
		}},
		{[]workspace.Opening{workspace.IOUring}, map[string]workspace.Opening{
			"io_uring":     workspace.IOUring,
			"sockets":      workspace.IOUring,
			"socket-count": workspace.IOUring,
		}},
	} {
		t.Run(workspace.JoinOpenings(c.allow), func(t *testing.T) {
			ex, err := launchtest.Start(t, func(l *launch.Config) { l.Spec.Allow = c.allow })
			if err != nil {
				t.Fatal(err)
			}
			for _, x := range ex.Report.Controls {
				o, off := c.off[x.ID]
				if off && (x.State != workspace.Off || x.Opened != o || x.Required || x.Requested ||
					!strings.Contains(x.Evidence, "asked for with --allow "+string(o)) || x.Remedy == "") {
					t.Errorf("%+v", x)
				}
				if !off && (x.Opened != "" || x.Required && x.State != workspace.Verified) {
					t.Errorf("%+v", x)
				}
			}
		})
	}
}

// What an executor opens without having been asked to, leaves closed though it was asked to,
// or does not bound, is seen, and the start fails.
func TestOpeningsAreAsAskedFor(t *testing.T) {
	both := []workspace.Opening{workspace.UserNS, workspace.NestedMounts}
	for name, c := range map[string]struct {
		asked []workspace.Opening
		user  string
		want  string
	}{
		"namespaces that nobody asked for": {nil, openMark + "userns", "nested-namespaces is failed (open, and --allow userns was not asked for"},
		"mounts that nobody asked for": {
			both[:1], openMark + "userns mounts",
			"landlock is failed (open, and --allow mounts was not asked for",
		},
		"a ring that nobody asked for": {nil, openMark + "io_uring", "io_uring is failed (open, and --allow io_uring was not asked for"},
		"namespaces that are closed":   {both[:1], openMark, "nested-namespaces is failed (asked for with --allow userns, and closed"},
		"mounts that are closed":       {both, openMark + "userns", "landlock is failed (asked for with --allow mounts, and closed"},
		"a ring that is closed": {
			[]workspace.Opening{workspace.IOUring},
			openMark,
			"io_uring is failed (asked for with --allow io_uring, and closed",
		},
		"namespaces without a bound": {both[:1], skipMark + "nested namespaces", "nested-namespaces is failed (max_user_namespaces: "},
		"no filter":                  {[]workspace.Opening{workspace.IOUring}, skipMark + "seccomp", "seccomp is failed"},
		"a root that can be written": {both, skipMark + "read-only root", "mounts is failed"},
		"capabilities":               {both, skipMark + "capabilities", "capabilities is failed"},
		"an unmasked /proc":          {both, skipMark + "mask", "proc is failed"},
	} {
		t.Run(name, func(t *testing.T) {
			ex, err := launchtest.Start(t, func(l *launch.Config) { l.Spec.Allow, l.Spec.User, l.Log = c.asked, c.user, nil })
			if err == nil {
				t.Fatalf("it started: %+v", ex.Report)
			}
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("no %q in %v", c.want, err)
			}
		})
	}
}

// Every opening gives something up, of a control that there is.
func TestOpeningsHaveTheirControls(t *testing.T) {
	for _, o := range workspace.Openings {
		var all []sandbox.Finding
		for _, c := range sandbox.Judge(sandbox.Rootful, sandbox.Asked{}, nil, nil).Controls {
			all = append(all, sandbox.Finding{Control: c.ID, OK: true, Evidence: "held"}, sandbox.Finding{
				Control: c.ID, OK: true,
				Evidence: "open", Opened: o,
			})
		}
		r := sandbox.Judge(sandbox.Rootful, sandbox.Asked{Allow: []workspace.Opening{o}}, nil, all)
		if !slices.ContainsFunc(r.Controls, func(c workspace.Control) bool { return c.Opened == o && c.State == workspace.Off }) {
			t.Errorf("%s gives nothing up", o)
		}
	}
}
