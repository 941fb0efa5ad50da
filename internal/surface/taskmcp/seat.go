package taskmcp

import (
	"context"
	"fmt"
	"unicode/utf8"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/agent/seat"
	"github.com/carrel-dev/carrel/internal/agent/tasks"
	"github.com/carrel-dev/carrel/internal/surface/mcp"
)

// seatTools are the tools of an agent in the place of carrel's own.
func seatTools(to tasks.Seat, version string) *mcp.Offer {
	var all []mcp.Offered
	for _, t := range seat.Tools() {
		all = append(all, mcp.Offered{
			Name: t.Name, Title: t.Title, Description: t.Description, Schema: t.Schema, Changes: t.Kind == seat.Plans,
			Call: func(ctx context.Context, arguments []byte) (string, bool, error) {
				told, err := propose(ctx, to, &t, arguments)
				return string(told.Reply), told.Well, err
			},
		})
	}
	return mcp.NewOffer(version, seat.Instructions(), all)
}

// propose passes a call on.
func propose(ctx context.Context, to tasks.Seat, t *seat.Tool, arguments []byte) (told tasks.Told, err error) {
	if t.Kind == seat.Waits {
		return to.Wait(ctx)
	}
	if !utf8.Valid(arguments) {
		return told, fmt.Errorf("cannot use the arguments of %s: they are no UTF-8: %w", t.Name, errdefs.ErrInvalidArgument)
	}
	if t.Kind == seat.Notes {
		note, err := seat.Note(arguments)
		if err != nil {
			return told, err
		}
		return to.Remember(ctx, note)
	}
	text, err := t.Answer(arguments)
	if err != nil {
		return told, err
	}
	if t.Kind == seat.Plans {
		return to.Plan(ctx, text)
	}
	return to.Read(ctx, text)
}
