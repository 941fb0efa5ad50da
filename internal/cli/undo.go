package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/spf13/cobra"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/operation"
	"github.com/carrel-dev/carrel/internal/steps"
	"github.com/carrel-dev/carrel/internal/words"
)

func (a *app) undoCommand() *cobra.Command {
	var on string
	c := &cobra.Command{
		Use:   "undo [flags] [ID]",
		Short: help(operation.UndoPatch),
		Long: `Bring back the files that a change of "carrel ask" or "carrel chat" replaced: all of them, or
none if one has changed since. Without an ID the changes are listed. An undoing is a change
itself, and its own ID undoes it. The changes are those of this machine, or those of a
workspace with --on.`,
		Example: "  carrel undo\n  carrel undo p-0123456789abcdef\n  carrel undo --on demo p-0123456789abcdef",
		Args:    between(nil, "ID"),
	}
	c.Flags().StringVar(&on, "on", "", "the workspace whose changes are meant")
	_ = c.RegisterFlagCompletionFunc("on", a.completeWorkspaces()) // the flag is there
	return a.prints(c, func(c *cobra.Command, args []string) (any, printer, error) {
		if c.Flags().Changed("on") {
			return a.undoOn(c.Context(), on, args)
		}
		dir, err := patchesDir()
		if err != nil {
			return nil, nil, err
		}
		if len(args) == 1 {
			id, err := steps.Undo(c.Context(), dir, args[0])
			if err != nil {
				return nil, nil, err
			}
			return object{{"id", id}}, text(fmt.Sprintf("undone; \"carrel undo %s\" does it again\n", id)), nil
		}
		all, err := steps.Changes(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // the first change makes it
			return nil, nil, err
		}
		t := newTable(-1, "CHANGE", "STATE", "FILES").freeText()
		list := []object{}
		for _, r := range all {
			state := changeState(words.English, r.Conflict, r.Undone)
			t.add(r.ID, state, strings.Join(r.Places, " "))
			list = append(list, object{{"id", r.ID}, {"state", state}, {"files", r.Places}})
		}
		return list, t, nil
	})
}

// undoOn undoes a change to files of a workspace, or lists them.
func (a *app) undoOn(ctx context.Context, workspace string, args []string) (any, printer, error) {
	if len(args) == 1 {
		m, err := ask(ctx, a, files.UndoPatch, &carrelv1.UndoPatchRequest{Workspace: workspace, Id: args[0]})
		if err != nil {
			return nil, nil, err
		}
		id := printable(m.GetId())
		return object{{"id", id}}, text(fmt.Sprintf("undone; \"carrel undo --on %s %s\" does it again\n", keyText(workspace), id)), nil
	}
	m, err := ask(ctx, a, files.ListPatches, &carrelv1.ListPatchesRequest{Workspace: workspace})
	if err != nil {
		return nil, nil, err
	}
	t := newTable(-1, "CHANGE", "STATE", "FILES").freeText()
	list := []object{}
	for _, r := range m.GetPatches() {
		state := changeState(words.English, r.GetConflict(), r.GetUndone())
		t.add(printable(r.GetId()), state, printable(strings.Join(r.GetFiles(), " ")))
		list = append(list, object{{"id", r.GetId()}, {"state", state}, {"files", r.GetFiles()}})
	}
	return list, t, nil
}
