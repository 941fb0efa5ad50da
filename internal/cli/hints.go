package cli

import (
	"context"
	"regexp"
	"strings"
	"time"

	"connectrpc.com/connect"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/cli/habits"
	"github.com/carrel-dev/carrel/internal/rootless"
)

var (
	noSet       = regexp.MustCompile(`cannot find the set "(@[A-Za-z0-9._-]+)"`)
	noWorkspace = regexp.MustCompile(`^cannot find workspace "([^"\\]+)": there is none`)
)

// hint is what somebody may have meant by a name that an error says there is none of, with what goes before it; "" if nothing is near.
func (a *app) hint(text string) string {
	if m := noSet.FindStringSubmatch(text); m != nil {
		return setHint(m[1], text)
	}
	if m := noWorkspace.FindStringSubmatch(text); m != nil && a.connected != nil {
		return a.workspaceHint(m[1])
	}
	return ""
}

// setHint is for the name of a set. A daemon lists those that it has, and not those of the caller's package clients.
func setHint(set, text string) string {
	all := rootless.SetNames()
	if near := habits.Set(set, all); near != "" {
		return "; did you mean " + near + "?"
	}
	var more []string
	for _, name := range all {
		if !strings.Contains(text, name) {
			more = append(more, name)
		}
	}
	if len(more) == 0 {
		return ""
	}
	return "; and those of this host's package clients: " + strings.Join(more, ", ")
}

// hintTime is how long a person waits for a hint.
const hintTime = time.Second

// workspaceHint is for the key or name of a workspace.
func (a *app) workspaceHint(ref string) string {
	ctx, cancel := context.WithTimeout(context.Background(), hintTime)
	defer cancel()
	m, err := a.connected.Workspaces().List(ctx, connect.NewRequest(&carrelv1.ListRequest{}))
	if err != nil {
		return ""
	}
	var names []string
	for _, w := range m.Msg.GetWorkspaces() {
		names = append(names, w.GetKey(), w.GetName())
	}
	if near := habits.Near(ref, names); near != "" {
		return "; did you mean " + printable(keyText(near)) + "?"
	}
	return ""
}
