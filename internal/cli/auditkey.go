package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	carrel "github.com/carrel-dev/carrel/sdk/go"
)

// recordedName is the derived name that the records of a workspace have, for its name or a key of it. A key moves between
// workspaces, so what is found is said on stderr unless the key has only ever had the one that has it now.
// before is what stands before a derived name on a command line that asks for its records, as "--workspace ".
func (a *app) recordedName(ctx context.Context, ref, before string) (string, error) {
	if ref == "" || id.IsWorkspace(ref) {
		return ref, nil
	}
	client, err := a.client()
	if err != nil {
		return "", err
	}
	names, err := namesOf(ctx, client, ref)
	if err != nil {
		return "", err
	}
	now := ""
	// Who may read the log need not be allowed to look at workspaces.
	if m, err := askOf(ctx, client, workspaces.Get, &carrelv1.GetRequest{Workspace: ref}); err == nil {
		now = m.GetWorkspace().GetName()
		names = append(slices.DeleteFunc(names, func(n string) bool { return n == now }), now)
	}
	if len(names) == 0 {
		return "", fmt.Errorf("cannot find records of %q: no workspace has this key, and none had it in the records that are kept; "+
			"give the derived name, as in %sws-2a97516c: %w", ref, before, errdefs.ErrNotFound)
	}
	last := len(names) - 1
	if now == "" {
		_ = say(a.Err, "carrel: these are the records of %s, which had the key %s%s\n", names[last], shellQuote([]string{ref}),
			since(ctx, client, names[last]))
	}
	for _, n := range names[:last] {
		_ = say(a.Err, "carrel: %s had this key too%s; its records: %s%s\n", n, since(ctx, client, n), before, n)
	}
	return names[last], nil
}

// since says what has become of a workspace that had a key, as far as the caller may see it.
func since(ctx context.Context, client *carrel.Client, name string) string {
	m, err := askOf(ctx, client, workspaces.Get, &carrelv1.GetRequest{Workspace: name})
	switch {
	case err == nil:
		return " and has the key " + shellQuote([]string{m.GetWorkspace().GetKey()}) + " now"
	case errdefs.IsNotFound(err):
		return " and is destroyed"
	}
	return ""
}

// giveKeys are the operations that give a workspace a key.
var giveKeys = []operation.Name{operation.CreateWorkspace, operation.RestoreWorkspace, operation.UpdateWorkspace}

// namesOf finds in the log which workspaces were given a key, the last one last.
func namesOf(ctx context.Context, client *carrel.Client, key string) ([]string, error) {
	h := holders{key: key, open: map[int64]string{}}
	err := receiveOf(ctx, client, records.Show, &carrelv1.ShowRequest{}, func(m *carrelv1.ShowResponse) error {
		for _, line := range m.GetLines() {
			h.read(line)
		}
		return nil
	})
	return h.names, err
}

// holders collects the workspaces that were given a key, from the lines of the log in their order.
type holders struct {
	key   string
	open  map[int64]string // intents to give it whose outcome is not read yet
	names []string         // the last one last
}

func (h *holders) read(line []byte) {
	if !bytes.Contains(line, []byte(`"key":`)) && len(h.open) == 0 {
		return
	}
	var r struct {
		Seq       int64  `json:"seq"`
		Type      string `json:"type"`
		Workspace string `json:"workspace"`
		Intent    int64  `json:"intent"`
		Status    string `json:"status"`
		Action    struct {
			Kind operation.Name `json:"kind"`
			Key  string         `json:"key"`
		} `json:"action"`
	}
	if json.Unmarshal(line, &r) != nil {
		return // verify is what finds fault with it
	}
	switch {
	case r.Type == "outcome":
		// A name that the host has already is tried, and then another.
		if name := h.open[r.Intent]; name != "" && r.Status == "ok" {
			h.names = append(slices.DeleteFunc(h.names, func(n string) bool { return n == name }), name)
		}
		delete(h.open, r.Intent)
	case r.Type == "intent" && r.Action.Key == h.key && slices.Contains(giveKeys, r.Action.Kind):
		h.open[r.Seq] = r.Workspace
	}
}
