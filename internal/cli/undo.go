package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/agent/hosts/steps"
	"github.com/carrel-dev/carrel/internal/agent/messages"
	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/base/termtext"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	carrel "github.com/carrel-dev/carrel/sdk/go"
)

// changesAt names the place whose changes to files are meant: a workspace, a remote host, or this machine if both are empty.
type changesAt struct {
	// lang is that of the states.
	lang              messages.Language
	workspace, remote string
	// inventory is the file that names remote hosts, "" for the user's own.
	inventory string
	client    func() (*carrel.Client, error)
}

// change is a change to files that is kept.
type change struct {
	id, state string
	files     []string
}

func (a *app) undoCommand() *cobra.Command {
	at := changesAt{lang: messages.English, client: a.client}
	c := &cobra.Command{
		Use:   "undo [flags] [ID]",
		Short: help(operation.UndoPatch),
		Long: `Bring back the files that a change of "carrel ask" or "carrel chat" replaced: all of them, or
none if one has changed since. Without an ID the changes are listed. An undoing is a change
itself, and its own ID undoes it. With the name of a run, such as run-1a2b3c4d, it takes back what
"carrel apply" made of its staged copy. The changes are those of this machine, those of a workspace
with --on, or those of a remote host with --remote.`,
		Example: "  carrel undo\n  carrel undo p-0123456789abcdef\n  carrel undo run-1a2b3c4d\n  carrel undo --on demo p-0123456789abcdef\n" +
			"  carrel undo --remote web-1",
		Args: between(nil, "ID"),
	}
	f := c.Flags()
	f.StringVar(&at.workspace, "on", "", "the workspace whose changes are meant")
	f.StringVar(&at.remote, "remote", "", "the remote host whose changes are meant")
	f.StringVar(&at.inventory, "hosts", "", "the file that names remote hosts (default hosts.yaml in carrel's configuration directory)")
	_ = c.RegisterFlagCompletionFunc("on", a.completeWorkspaces()) // the flags are there
	_ = c.RegisterFlagCompletionFunc("remote", func(c *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		return remoteNames(at.inventory), cobra.ShellCompDirectiveNoFileComp
	})
	_ = c.MarkFlagFilename("hosts", "yaml")
	c.MarkFlagsMutuallyExclusive("on", "remote")
	return a.prints(c, func(c *cobra.Command, args []string) (any, printer, error) {
		for _, name := range []string{"on", "remote"} {
			if c.Flags().Changed(name) && c.Flag(name).Value.String() == "" {
				return nil, nil, fmt.Errorf("cannot undo anything: --%s is empty; name one, or leave it out for this machine: %w", name,
					errdefs.ErrInvalidArgument)
			}
		}
		if len(args) == 1 && at.workspace == "" && at.remote == "" && id.IsWorkspace(args[0]) {
			return a.undoStaged(c.Context(), args[0])
		}
		if len(args) == 1 {
			was, err := at.undo(c.Context(), args[0])
			if err != nil {
				return nil, nil, err
			}
			return object{{"id", was}}, text(fmt.Sprintf("undone; \"carrel undo %s%s\" does it again\n", at.flags(), printable(was))), nil
		}
		all, err := at.list(c.Context())
		if err != nil {
			return nil, nil, err
		}
		t := newTable(-1, "CHANGE", "STATE", "FILES").freeText()
		list := []object{}
		for _, r := range all {
			t.add(printable(r.id), r.state, printable(strings.Join(r.files, " ")))
			list = append(list, object{{"id", r.id}, {"state", r.state}, {"files", r.files}})
		}
		return list, t, nil
	})
}

// flags are those that name the place.
func (at *changesAt) flags() string {
	switch {
	case at.workspace != "":
		return "--on " + keyText(at.workspace) + " "
	case at.remote != "":
		return "--remote " + keyText(at.remote) + " "
	}
	return ""
}

// remotes opens the remote hosts. The caller must close them.
func (at *changesAt) remotes() (*steps.Remotes, error) {
	file, err := inventoryFile(at.inventory)
	if err != nil {
		return nil, fmt.Errorf("cannot find the file of remote hosts: %w; name it with --hosts", err)
	}
	return steps.OpenRemotes(file)
}

// undo undoes a change. The id that it returns undoes the undoing.
func (at *changesAt) undo(ctx context.Context, id string) (undoing string, err error) {
	switch {
	case at.remote != "":
		r, err := at.remotes()
		if err != nil {
			return "", err
		}
		defer r.Close()
		return r.Undo(ctx, at.remote, id)
	case at.workspace != "":
		client, err := at.client()
		if err != nil {
			return "", err
		}
		m, err := askOf(ctx, client, files.UndoPatch, &carrelv1.UndoPatchRequest{Workspace: at.workspace, Id: id})
		return m.GetId(), err
	}
	dir, err := patchesDir()
	if err != nil {
		return "", err
	}
	return steps.Undo(ctx, dir, id)
}

// list lists the changes, those that were undone included.
func (at *changesAt) list(ctx context.Context) (all []change, err error) {
	if at.workspace != "" {
		client, err := at.client()
		if err != nil {
			return nil, err
		}
		m, err := askOf(ctx, client, files.ListPatches, &carrelv1.ListPatchesRequest{Workspace: at.workspace})
		for _, r := range m.GetPatches() {
			all = append(all, change{r.GetId(), changeState(at.lang, r.GetConflict(), r.GetUndone()), r.GetFiles()})
		}
		return all, err
	}
	find := func(context.Context) ([]steps.Record, error) {
		dir, err := patchesDir()
		if err != nil {
			return nil, err
		}
		return steps.Changes(dir)
	}
	if at.remote != "" {
		r, err := at.remotes()
		if err != nil {
			return nil, err
		}
		defer r.Close()
		find = func(ctx context.Context) ([]steps.Record, error) { return r.Changes(ctx, at.remote) }
	}
	records, err := find(ctx)
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // the first change makes the directory
		return nil, err
	}
	for _, r := range records {
		all = append(all, change{r.ID, changeState(at.lang, r.Conflict, r.Undone), r.Places})
	}
	return all, nil
}

// changeState is the state of a change to files, in words.
func changeState(lang messages.Language, conflict, undone bool) string {
	switch {
	case conflict:
		return lang.Say(messages.ChangeConflict)
	case undone:
		return lang.Say(messages.ChangeUndone)
	}
	return lang.Say(messages.ChangeMade)
}

// remoteNames are the names of remote hosts, as far as a file of them can be read.
func remoteNames(inventory string) []string {
	at := changesAt{inventory: inventory}
	r, err := at.remotes()
	if err != nil {
		return nil
	}
	defer r.Close()
	return r.Names()
}

// The words by which a line of a chat names a place.
const (
	inWorkspace = "workspace"
	atRemote    = "remote"
)

// undoText carries out the line /undo of a chat: it undoes a change to files, or lists them.
func (k *asker) undoText(ctx context.Context, arg string) (string, error) {
	at := changesAt{lang: k.lang, inventory: k.inventory, client: func() (*carrel.Client, error) { return k.client, nil }}
	word, name, _ := strings.Cut(arg, " ")
	id := arg
	if word == inWorkspace || word == atRemote || word == "--on" {
		// A name may have spaces, and what undoes a change is its last word.
		name = strings.TrimSpace(name)
		if id = name[strings.LastIndexByte(name, ' ')+1:]; !steps.IsChange(id) {
			id = ""
		}
		if name = strings.TrimSpace(strings.TrimSuffix(name, id)); name == "" {
			return "", fmt.Errorf("cannot undo anything: write /undo [ID], /undo workspace NAME [ID] or /undo remote NAME [ID]: %w",
				errdefs.ErrInvalidArgument)
		}
		if word == atRemote {
			at.remote = name
		} else {
			at.workspace = name
		}
	}
	place := ""
	switch {
	case at.workspace != "":
		place = inWorkspace + " " + at.workspace + " "
	case at.remote != "":
		place = atRemote + " " + at.remote + " "
	}
	if id != "" {
		id, err := at.undo(ctx, id)
		if err != nil {
			return "", err
		}
		return k.lang.Say(messages.Undone, place+id), nil
	}
	all, err := at.list(ctx)
	if err != nil {
		return "", err
	}
	if len(all) == 0 {
		return k.lang.Say(messages.NoChanges), nil
	}
	var b strings.Builder
	for _, r := range all {
		fmt.Fprintf(&b, "%s  %s%s\n", r.id, termtext.Cell(r.state, 12), strings.Join(r.files, " "))
	}
	return b.String(), nil
}

// completeUndo returns what a line /undo of a chat may become.
func completeUndo(line string, workspaces, remotes []string) (out []string) {
	for _, place := range []struct {
		word  string
		names []string
	}{{inWorkspace, workspaces}, {atRemote, remotes}} {
		whole := "/undo " + place.word
		if strings.HasPrefix(whole, line) {
			out = append(out, whole)
		}
		for _, n := range place.names {
			if w := whole + " " + n; strings.HasPrefix(line, whole+" ") && strings.HasPrefix(w, line) && len(out) < maxChoices {
				out = append(out, w)
			}
		}
	}
	return out
}
