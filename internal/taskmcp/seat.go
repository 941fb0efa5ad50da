package taskmcp

import (
	"cmp"
	"context"
	"fmt"
	"unicode/utf8"

	"github.com/containerd/errdefs"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/carrel-dev/carrel/internal/seat"
	"github.com/carrel-dev/carrel/internal/tasks"
)

// seatServer serves the tools of an agent in the place of carrel's own, until task ends.
func seatServer(task context.Context, to tasks.Seat, version string) *sdk.Server {
	s := sdk.NewServer(&sdk.Implementation{Name: "carrel", Title: "carrel", Version: cmp.Or(version, "unknown")}, &sdk.ServerOptions{
		Instructions: seat.Instructions(), Capabilities: &sdk.ServerCapabilities{},
	})
	for _, t := range seat.Tools() {
		no := false
		changes := t.Kind == seat.Plans
		s.AddTool(&sdk.Tool{
			Name: t.Name, Title: t.Title, Description: t.Description, InputSchema: t.Schema,
			Annotations: &sdk.ToolAnnotations{Title: t.Title, ReadOnlyHint: !changes, DestructiveHint: &changes, OpenWorldHint: &no},
		}, func(ctx context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			ctx, cancel := context.WithCancelCause(ctx)
			defer cancel(nil)
			defer context.AfterFunc(task, func() { cancel(context.Cause(task)) })()
			told, err := propose(ctx, to, &t, r.Params.Arguments)
			if err != nil {
				return &sdk.CallToolResult{IsError: true, Content: []sdk.Content{&sdk.TextContent{Text: err.Error()}}}, nil
			}
			return &sdk.CallToolResult{IsError: !told.Well, Content: []sdk.Content{&sdk.TextContent{Text: string(told.Reply)}}}, nil
		})
	}
	return s
}

// propose passes a call on.
func propose(ctx context.Context, to tasks.Seat, t *seat.Tool, arguments []byte) (told tasks.Told, err error) {
	if t.Kind == seat.Waits {
		return to.Wait(ctx)
	}
	if !utf8.Valid(arguments) {
		return told, fmt.Errorf("cannot use the arguments of %s: they are no UTF-8: %w", t.Name, errdefs.ErrInvalidArgument)
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
