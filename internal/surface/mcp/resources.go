package mcp

import (
	"context"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/carrel-dev/carrel/internal/base/errtext"
)

// The resources:
//
//	carrel://WORKSPACE/commands/COMMAND/output?stream=stdout&offset=0&length=32768
//	carrel://approvals/APPROVAL
//
// The parts of a path are percent-encoded. A read of an output returns at most maxPart bytes.

// approvalReadWait is how long a read of an approval that waits is held open for an answer.
const approvalReadWait = 20 * time.Second

// addResources adds the templates. More than one of them matches an address, so all are handled by the address itself.
func (s *Server) addResources() {
	for _, t := range []sdk.ResourceTemplate{
		{
			URITemplate: "carrel://{workspace}/commands/{command}/output{?stream,offset,length}", Name: "output", Title: "Output of a command",
			Description: "Output of a command from an offset on, at most 32 KiB at once.", MIMEType: "text/plain",
		},
		{
			URITemplate: "carrel://approvals/{approval}", Name: "approval", Title: "An approval",
			Description: "What waits for a person, as JSON. Reading it waits up to 20 seconds for an answer.", MIMEType: "application/json",
		},
	} {
		s.mcp.AddResourceTemplate(&t, s.readResource)
	}
}

func (s *Server) readResource(ctx context.Context, r *sdk.ReadResourceRequest) (*sdk.ReadResourceResult, error) {
	c := &call{Server: s, session: s.session(r.Session)}
	ctx, done := s.lifetime(ctx, c.session, r.Extra)
	defer done()
	leave, err := s.enter(ctx, c.session)
	if err != nil {
		return nil, wire(err, r.Params.URI)
	}
	defer leave()
	text, err := c.resource(ctx, r.Params.URI)
	if err != nil {
		return nil, wire(err, r.Params.URI)
	}
	kind := "text/plain"
	if strings.HasPrefix(r.Params.URI, "carrel://approvals/") {
		kind = "application/json"
	}
	return &sdk.ReadResourceResult{Contents: []*sdk.ResourceContents{{URI: r.Params.URI, MIMEType: kind, Text: text}}}, nil
}

// wire is an error of a resource as the protocol has it.
func wire(err error, address string) error {
	if errdefs.IsNotFound(err) {
		if rpc, ok := sdk.ResourceNotFoundError(address).(*jsonrpc.Error); ok { //nolint:errorlint // it is made here
			rpc.Message = errtext.Text(err)
			return rpc
		}
	}
	return &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: cut(errtext.Text(err), 4<<10)}
}

// resource is the text of the resource at an address.
func (c *call) resource(ctx context.Context, address string) (string, error) {
	none := fmt.Errorf("cannot find the resource %s: there is none; resources/templates/list has their forms: %w", cut(clean(address), 200),
		errdefs.ErrNotFound)
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "carrel" || u.Fragment != "" || u.User != nil || !strings.HasPrefix(address, "carrel://") {
		return "", none
	}
	path, _, _ := strings.Cut(strings.TrimPrefix(address, "carrel://"), "?")
	parts := strings.Split(path, "/")
	for i := range parts {
		if parts[i], err = url.PathUnescape(parts[i]); err != nil || parts[i] == "" {
			return "", none
		}
	}
	switch {
	case len(parts) == 2 && parts[0] == "approvals":
		return c.approvalText(ctx, parts[1])
	case len(parts) == 4 && parts[1] == "commands" && parts[3] == "output":
		if c.bound != "" && parts[0] != c.bound && parts[0] != c.key {
			return "", none
		}
		if c.workspace = parts[0]; c.bound != "" {
			c.workspace = c.bound
		}
		return c.outputText(ctx, parts[2], u.Query())
	}
	return "", none
}

func (c *call) outputText(ctx context.Context, command string, query url.Values) (string, error) {
	offset, err := number(query, "offset", 0)
	if err != nil {
		return "", err
	}
	length, err := number(query, "length", maxPart)
	if err != nil {
		return "", err
	}
	p, err := c.part(ctx, command, query.Get("stream"), offset, int(min(max(length, 1), maxPart)), 0)
	if err != nil {
		return "", err
	}
	text := p.text
	if p.from > offset {
		text = fmt.Sprintf("[bytes %d to %d are no longer kept]\n%s", offset, p.from, text)
	}
	if p.more {
		text += fmt.Sprintf("\n[there is more: read on with offset=%d]", p.next)
	}
	return text, nil
}

func number(query url.Values, name string, otherwise int64) (int64, error) {
	text := query.Get(name)
	if text == "" {
		return otherwise, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("cannot use %s=%s: it is a number of bytes from 0 on: %w", name, cut(clean(text), 40), errdefs.ErrInvalidArgument)
	}
	return n, nil
}

// approvalText waits a while for an answer.
func (c *call) approvalText(ctx context.Context, id string) (string, error) {
	m, err := c.approval(ctx, id)
	if err != nil {
		return "", err
	}
	if m.GetState() == "pending" {
		timed, cancel := within(ctx, approvalReadWait)
		_ = c.untilSettled(timed, m.GetId()) // what it is now is told in any case
		cancel()
		if m, err = c.approval(ctx, id); err != nil {
			return "", err
		}
	}
	a, err := message(m)
	if err != nil {
		return "", err
	}
	return a.texts[0], nil
}

// outputURI is the address of the output of a command.
func (c *call) outputURI(command, stream string, offset int64) string {
	address := uri(c.workspace, "commands", command, "output")
	sep := "?"
	if stream != "" {
		address += sep + "stream=" + stream
		sep = "&"
	}
	if offset > 0 {
		address += fmt.Sprintf("%soffset=%d", sep, offset)
	}
	return address
}

func (c *call) outputLink(command, stream string) *sdk.ResourceLink {
	name := command
	if stream != "" {
		name += " " + stream
	}
	return &sdk.ResourceLink{
		URI: c.outputURI(command, stream, 0), Name: name, Title: "The output of " + name, MIMEType: "text/plain",
		Description: "Read it in parts with offset and length.",
	}
}
