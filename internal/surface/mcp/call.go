package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/containerd/errdefs"
	"github.com/google/jsonschema-go/jsonschema"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/carrel-dev/carrel/internal/base/errtext"
	"github.com/carrel-dev/carrel/internal/base/strictjson"
	carrel "github.com/carrel-dev/carrel/sdk/go"
)

// call is one call of a tool.
type call struct {
	*Server
	session *session
	request *sdk.CallToolRequest
	// workspace is where it acts; "" for tools that act in none.
	workspace string
}

// answer is what a tool returns: texts, and links to resources with more.
type answer struct {
	texts []string
	links []*sdk.ResourceLink
	// input, if set, is what the person is to be shown before the call is made again, with the state.
	input *sdk.ElicitParams
	state string
	// wrong marks an answer that is no success, as one that says that nothing was done.
	wrong bool
}

func said(format string, v ...any) *answer {
	return &answer{texts: []string{fmt.Sprintf(format, v...)}}
}

// action is the part of a tool that does something, with its arguments inside.
type action func(ctx context.Context, c *call) (*answer, error)

// handler is a tool with the type of its arguments.
type handler struct {
	schema func() (*jsonschema.Schema, error)
	parse  func(arguments []byte) (action, error)
}

// of is the handler of a function with arguments of the type In.
func of[In any](run func(ctx context.Context, c *call, in In) (*answer, error)) handler {
	return handler{
		schema: func() (*jsonschema.Schema, error) { return jsonschema.For[In](nil) },
		parse: func(arguments []byte) (action, error) {
			var in In
			if err := strictjson.Unmarshal(arguments, &in); err != nil {
				return nil, fmt.Errorf("cannot use the arguments: %w; tools/list has the schema of the tool: %w", err, errdefs.ErrInvalidArgument)
			}
			return func(ctx context.Context, c *call) (*answer, error) { return run(ctx, c, in) }, nil
		},
	}
}

const aboutWorkspace = "the workspace: its key or its derived name, as list_workspaces has them"

// addTools adds the rows of the table. A server of one workspace takes no argument that names one, and has no tool that
// is about others.
func (s *Server) addTools() error {
	for _, t := range table() {
		if s.bound != "" && t.where == everywhere || s.cfg.Inside && t.outside {
			continue
		}
		schema, err := t.handler.schema()
		if err != nil {
			return fmt.Errorf("cannot describe the tool %s: %w", t.name, err)
		}
		if s.bound == "" && t.where == inWorkspace {
			if schema.Properties == nil {
				schema.Properties = map[string]*jsonschema.Schema{}
			}
			schema.Properties["workspace"] = &jsonschema.Schema{Type: "string", Description: aboutWorkspace}
			schema.PropertyOrder = append([]string{"workspace"}, schema.PropertyOrder...)
			schema.Required = append([]string{"workspace"}, schema.Required...)
		}
		no := false
		destroys := t.destroys
		s.mcp.AddTool(&sdk.Tool{
			Name: t.name, Title: t.title, Description: t.description, InputSchema: schema,
			Annotations: &sdk.ToolAnnotations{
				Title: t.title, ReadOnlyHint: t.reads, DestructiveHint: &destroys, IdempotentHint: t.again, OpenWorldHint: &no,
			},
		}, func(ctx context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
			return s.handle(ctx, t, r), nil
		})
	}
	return nil
}

// handle carries out one call. Whatever goes wrong is an answer of the tool, so that a model reads it.
func (s *Server) handle(ctx context.Context, t tool, r *sdk.CallToolRequest) *sdk.CallToolResult {
	c := &call{Server: s, session: s.session(r.Session), request: r}
	ctx, done := s.lifetime(ctx, c.session, r.Extra)
	defer done()
	leave, err := s.enter(ctx, c.session)
	if err != nil {
		return result(nil, err)
	}
	defer leave()
	run, err := c.prepare(t, r.Params.Arguments)
	if err != nil {
		return result(nil, err)
	}
	if a, ok, err := c.resumed(ctx); ok {
		return result(a, err)
	}
	a, err := run(ctx, c)
	if id, ok := carrel.ApprovalOf(err); ok {
		a, err = c.ask(ctx, id, t.name, run)
	}
	if ctx.Err() != nil && err != nil {
		err = fmt.Errorf("cannot go on: the call was cancelled, and what it had started was ended: %w: %w", err, errdefs.ErrAborted)
	}
	return result(a, err)
}

// prepare reads the arguments of a call.
func (c *call) prepare(t tool, arguments json.RawMessage) (action, error) {
	if len(arguments) == 0 || string(arguments) == "null" {
		arguments = json.RawMessage("{}")
	}
	if !utf8.Valid(arguments) {
		return nil, fmt.Errorf("cannot use the arguments: they are not valid UTF-8; pass other bytes as base64: %w", errdefs.ErrInvalidArgument)
	}
	if t.where != inWorkspace {
		return t.handler.parse(arguments)
	}
	if c.bound != "" {
		c.workspace = c.bound
		run, err := t.handler.parse(arguments)
		if err != nil && strings.Contains(err.Error(), `"workspace"`) {
			err = fmt.Errorf("cannot use the argument workspace: this server serves the workspace %s alone; leave it out: %w",
				clean(c.key), errdefs.ErrPermissionDenied)
		}
		return run, err
	}
	workspace, rest, err := takeWorkspace(arguments)
	if err != nil {
		return nil, err
	}
	if workspace == "" {
		return nil, fmt.Errorf("cannot tell where: the argument workspace is missing; list_workspaces has them: %w", errdefs.ErrInvalidArgument)
	}
	c.workspace = workspace
	return t.handler.parse(rest)
}

// takeWorkspace takes the member workspace out of an object. The other members stay as they were written, each once.
func takeWorkspace(object []byte) (workspace string, rest []byte, err error) {
	fail := func(why string) (string, []byte, error) {
		return "", nil, fmt.Errorf("cannot use the arguments: %s: %w", why, errdefs.ErrInvalidArgument)
	}
	var members map[string]json.RawMessage
	if err := strictjson.Unmarshal(object, &members); err != nil {
		return fail(err.Error())
	}
	if w, ok := members["workspace"]; ok {
		if json.Unmarshal(w, &workspace) != nil || string(w) == "null" {
			return fail("workspace is not a string")
		}
		delete(members, "workspace")
	}
	if rest, err = json.Marshal(members); err != nil {
		return fail(err.Error())
	}
	return workspace, bytes.TrimSpace(rest), nil
}

// result is an answer or an error as the protocol has them.
func result(a *answer, err error) *sdk.CallToolResult {
	r := &sdk.CallToolResult{Content: []sdk.Content{}}
	if err != nil {
		r.IsError = true
		r.Content = append(r.Content, &sdk.TextContent{Text: cut(strings.ToValidUTF8(errtext.Text(err), "\uFFFD"), maxPart)})
		return r
	}
	if a.input != nil {
		return &sdk.CallToolResult{InputRequests: sdk.InputRequestMap{told: a.input}, RequestState: a.state}
	}
	r.IsError = a.wrong
	for _, t := range a.texts {
		r.Content = append(r.Content, &sdk.TextContent{Text: t})
	}
	for _, l := range a.links {
		r.Content = append(r.Content, l)
	}
	return r
}
