package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/spf13/cobra"

	"github.com/carrel-dev/carrel/internal/steps"
)

func (a *app) undoCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "undo [flags] [ID]",
		Short: "Undo a change to files that an agent made, or list them",
		Long: `Bring back the files that a change of "carrel ask" or "carrel chat" replaced: all of them, or
none if one has changed since. Without an ID the changes are listed. An undoing is a change
itself, and its own ID undoes it.`,
		Example: "  carrel undo\n  carrel undo 0123456789abcdef",
		Args:    between(nil, "ID"),
	}
	return a.prints(c, func(c *cobra.Command, args []string) (any, printer, error) {
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
			state := changeState(r.Conflict, r.Undone)
			t.add(r.ID, state, strings.Join(r.Places, " "))
			list = append(list, object{{"id", r.ID}, {"state", state}, {"files", r.Places}})
		}
		return list, t, nil
	})
}
