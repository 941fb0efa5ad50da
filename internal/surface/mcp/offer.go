package mcp

import (
	"cmp"
	"context"
	"encoding/json"
	"net"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// Offered is a tool of another kind than those of workspaces: whoever offers it carries it out.
type Offered struct {
	Name, Title, Description string
	// Schema is the JSON schema of its arguments. They are not held against it here.
	Schema json.RawMessage
	// Changes: it may change something.
	Changes bool
	// Call carries out a call, and returns its text; an error is told as a text too. ctx ends with the connection.
	Call func(ctx context.Context, arguments []byte) (text string, well bool, err error)
}

// Offer serves offered tools to programs in a workspace, and nothing else. It knows no daemon.
type Offer struct{ mcp *sdk.Server }

// NewOffer returns an offer. version is the release that clients are told, and instructions how the tools are used.
func NewOffer(version, instructions string, tools []Offered) *Offer {
	s := sdk.NewServer(&sdk.Implementation{Name: "carrel", Title: "carrel", Version: cmp.Or(version, "unknown")}, &sdk.ServerOptions{
		Instructions: instructions, Capabilities: &sdk.ServerCapabilities{},
	})
	no := false
	for _, t := range tools {
		s.AddTool(&sdk.Tool{
			Name: t.Name, Title: t.Title, Description: t.Description, InputSchema: t.Schema,
			Annotations: &sdk.ToolAnnotations{Title: t.Title, ReadOnlyHint: !t.Changes, DestructiveHint: &t.Changes, OpenWorldHint: &no},
		}, func(ctx context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			text, well, err := t.Call(ctx, r.Params.Arguments)
			if err != nil {
				text, well = err.Error(), false
			}
			return &sdk.CallToolResult{IsError: !well, Content: []sdk.Content{&sdk.TextContent{Text: text}}}, nil
		})
	}
	return &Offer{s}
}

// Accept serves one client, with the bounds of Server.Accept. How many calls of it run at once is bounded by its requests alone.
func (o *Offer) Accept(ctx context.Context, c net.Conn) error {
	return accept(ctx, o.mcp, c, func(*sdk.ServerSession) {})
}
