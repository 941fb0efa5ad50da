package mcp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/containerd/errdefs"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	carrel "github.com/carrel-dev/carrel/sdk/go"
)

// A call that a person has to approve is kept until they have answered. No answer but a denial goes through the
// protocol: an elicitation tells the person at the client what waits and where it is answered, and accepting it means to
// wait. Clients answer elicitations by settings and programs too, so that an acceptance is no proof of a person, and the
// client runs as the user whose model asked.
//
//	tool ──► daemon: approval ap-… ──► elicitation, if the client has it ──► accept: wait here │ decline: deny
//	                  │                                                     └► cancel: as without
//	                  └──► the id ──► wait_approval ──► approved: the same call once more, which takes the answer up
//
// docs/decisions/0026-mcp.md says why.

// maxAnswerWait bounds one wait_approval.
const maxAnswerWait = 10 * time.Minute

// pending is a call that waits for an answer.
type pending struct {
	tool, workspace string
	run             action
	until           time.Time // when the question expires
}

// ask is what becomes of a call that a person has to approve.
func (c *call) ask(ctx context.Context, id, name string, run action) (*answer, error) {
	m, err := c.approval(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("cannot run it: a person has to approve it, and approval %s could not be looked up: %w; call again: %w", id, err,
			errdefs.ErrUnavailable)
	}
	p := &pending{tool: name, workspace: c.workspace, run: run, until: time.UnixMilli(m.GetUntilUnixMs())}
	if !c.session.wait(id, p) {
		return nil, fmt.Errorf("cannot keep the call: %d wait for a person already; have approval %s answered and call again: %w", maxPending, id,
			errdefs.ErrResourceExhausted)
	}
	switch {
	case !c.elicits():
		return c.notRun(id, m), nil
	case c.newer():
		return &answer{input: elicitation(m), state: id}, nil
	}
	return c.elicit(ctx, m)
}

// wait keeps a call. It is false if there are too many, of which none has expired.
func (x *session) wait(id string, p *pending) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.pending) >= maxPending {
		maps.DeleteFunc(x.pending, func(_ string, p *pending) bool { return time.Since(p.until) > maxAnswerWait })
	}
	if x.pending[id] == nil && len(x.pending) >= maxPending {
		return false
	}
	x.pending[id] = p
	return true
}

// elicits reports whether the client can be asked something.
func (c *call) elicits() bool {
	p := c.request.Session.InitializeParams()
	return p != nil && p.Capabilities != nil && p.Capabilities.Elicitation != nil
}

// newer reports whether the client speaks the protocol of 2026-07-28 or a later one, in which a server asks by the result
// of a call: the client makes the call again, with what the person has said.
func (c *call) newer() bool {
	return c.request.Session.InitializeParams().ProtocolVersion >= "2026-07-28"
}

// elicitation is what the person at the client is shown.
func elicitation(m *carrelv1.Approval) *sdk.ElicitParams {
	return &sdk.ElicitParams{Mode: "form", Message: question(m), RequestedSchema: json.RawMessage(`{"type":"object","properties":{}}`)}
}

// told is the name of the question in a result that asks.
const told = "approval"

// resumed is what becomes of a call that is made again after the person was told. ok is false if it is no such call: one
// of which this session knows nothing is made as any other, and asks again.
func (c *call) resumed(ctx context.Context) (a *answer, ok bool, err error) {
	id, reply := c.request.Params.RequestState, c.request.Params.InputResponses[told]
	r, is := reply.(*sdk.ElicitResult)
	c.session.mu.Lock()
	waits := c.session.pending[id] != nil
	c.session.mu.Unlock()
	if !is || !waits {
		return nil, false, nil
	}
	m, err := c.approval(ctx, id)
	switch {
	case err != nil:
		return nil, true, err
	case r.Action == "cancel":
		return c.notRun(id, m), true, nil
	case r.Action != "accept":
		a, err = c.deny(ctx, id)
		return a, true, err
	}
	if m.GetState() == "pending" {
		stop := c.progress(ctx, "waits for approval "+id, nil)
		timed, cancel := within(ctx, time.Until(time.UnixMilli(m.GetUntilUnixMs()).Add(time.Minute)))
		err = c.untilSettled(timed, id)
		cancel()
		stop()
		if err != nil {
			return nil, true, err
		}
	}
	a, err = c.settle(ctx, id)
	return a, true, err
}

// elicit tells the person at the client, and waits for the answer while they look on.
func (c *call) elicit(ctx context.Context, m *carrelv1.Approval) (*answer, error) {
	stopTelling := c.progress(ctx, "waits for approval "+m.GetId(), nil)
	defer stopTelling()
	timed, stop := context.WithDeadlineCause(ctx, time.UnixMilli(m.GetUntilUnixMs()).Add(time.Minute), errLate)
	defer stop()
	shown, hide := context.WithCancel(timed)
	defer hide()
	type reply struct {
		r   *sdk.ElicitResult
		err error
	}
	replies, settled := make(chan reply, 1), make(chan error, 1)
	go func() {
		r, err := c.request.Session.Elicit(shown, elicitation(m))
		replies <- reply{r, err}
	}()
	watching, enough := context.WithCancel(timed)
	defer enough()
	go func() { settled <- c.untilSettled(watching, m.GetId()) }()
	for {
		select {
		case r := <-replies:
			replies = nil
			switch {
			case timed.Err() != nil:
				return nil, context.Cause(timed)
			case r.err != nil, r.r.Action == "cancel":
				return c.notRun(m.GetId(), m), nil
			case r.r.Action != "accept":
				return c.deny(ctx, m.GetId())
			}
		case err := <-settled:
			hide()
			if err != nil {
				return nil, err
			}
			stopTelling() // the command tells of itself from here on
			return c.settle(ctx, m.GetId())
		}
	}
}

var errLate = errors.New("cannot wait any longer: the approval has expired; call the tool again to ask anew")

// question is what the person at the client is told.
func question(m *carrelv1.Approval) string {
	var b strings.Builder
	fmt.Fprintf(&b, "A model asks to run a command that a person has to approve. This form approves nothing.\n\n")
	fmt.Fprintf(&b, "command: %s\n", cut(asked(m), 4000))
	where := clean(m.GetKey())
	if m.GetCwd() != "" {
		where += ", in " + clean(m.GetCwd())
	}
	fmt.Fprintf(&b, "workspace: %s\n", where)
	if len(m.GetReasons()) > 0 {
		fmt.Fprintf(&b, "because: %s\n", cut(clean(strings.Join(m.GetReasons(), "; ")), 1000))
	}
	fmt.Fprintf(&b, "\nTo answer, who may approve it runs at a terminal:\n  carrel approvals show %[1]s\n  carrel approvals approve %[1]s\n\n"+
		"Accept waits for that answer, until %[2]s. Decline denies it.", m.GetId(),
		time.UnixMilli(m.GetUntilUnixMs()).Local().Format(time.DateTime))
	return b.String()
}

// asked is what is to be done, as a person reads it.
func asked(m *carrelv1.Approval) string {
	if len(m.GetArgv()) > 0 {
		return quoted(m.GetArgv())
	}
	return clean(m.GetKind())
}

// notRun says that a call was not carried out, and what to do.
func (c *call) notRun(id string, m *carrelv1.Approval) *answer {
	text := fmt.Sprintf("not run: a person has to approve it (approval %s). ", id)
	if len(m.GetReasons()) > 0 {
		text += "Because: " + cut(clean(strings.Join(m.GetReasons(), "; ")), 1000) + ". "
	}
	text += fmt.Sprintf("Tell the user that somebody who may approve it can run \"carrel approvals show %[1]s\" and then \"carrel approvals "+
		"approve %[1]s\" at a terminal. Then call wait_approval with the id %[1]s: it waits for the answer and runs exactly this, once.", id)
	return &answer{texts: []string{text}, wrong: true, links: []*sdk.ResourceLink{{
		URI: approvalURI(id), Name: id, Title: "The approval " + id, MIMEType: "application/json",
		Description: "Reading it waits up to 20 seconds for an answer.",
	}}}
}

func approvalURI(id string) string { return "carrel://approvals/" + escaped(id) }

// deny withdraws a question, which who asked may always do. It is the only answer that this package gives.
func (c *call) deny(ctx context.Context, id string) (*answer, error) {
	c.session.take(id)
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	_, err := c.cfg.Client.Approvals().AnswerApproval(ctx, connect.NewRequest(&carrelv1.AnswerApprovalRequest{
		Id: id, Kind: "deny", Reason: "declined at the MCP client",
	}))
	if err != nil {
		return nil, fmt.Errorf("cannot deny approval %s, which was declined at the client; nothing was run: %w", id, err)
	}
	return nil, fmt.Errorf("cannot run it: the user declined, and approval %s is denied; nothing was run: %w", id, errdefs.ErrPermissionDenied)
}

// take removes a call that waits, so that nobody else carries it out.
func (x *session) take(id string) *pending {
	x.mu.Lock()
	defer x.mu.Unlock()
	p := x.pending[id]
	delete(x.pending, id)
	return p
}

// settle carries out the call of an approval that was given, once, or says why not.
func (c *call) settle(ctx context.Context, id string) (*answer, error) {
	m, err := c.approval(ctx, id)
	if err != nil {
		return nil, err
	}
	p := c.session.take(id)
	switch state := m.GetState(); {
	case state == "denied":
		return nil, fmt.Errorf("cannot run it: %s denied approval %s%s; nothing was run: %w", clean(m.GetAnswer().GetBy()), id,
			because(m.GetAnswer().GetReason()), errdefs.ErrPermissionDenied)
	case state == "spent":
		return nil, fmt.Errorf("cannot run it: approval %s was used already, by an equal call; call the tool again if it is to run once more: %w",
			id, errdefs.ErrFailedPrecondition)
	case state != "approved":
		return nil, fmt.Errorf("cannot run it: approval %s is %s; nothing was run; call the tool again to ask anew: %w", id, clean(state),
			errdefs.ErrFailedPrecondition)
	case p == nil:
		return nil, fmt.Errorf("cannot run what approval %s is about: this session has no call of it that waits; make the same call again, "+
			"which takes the answer up: %w", id, errdefs.ErrFailedPrecondition)
	}
	c.workspace = p.workspace
	a, err := p.run(ctx, c)
	if again, ok := carrel.ApprovalOf(err); ok { // an equal call has used the answer up just now
		return c.ask(ctx, again, p.tool, p.run)
	}
	return a, err
}

func because(reason string) string {
	if reason == "" {
		return ""
	}
	return ": " + cut(clean(reason), 1024)
}

// approval returns a question that this server may show: one about the workspace that it is bound to.
func (c *call) approval(ctx context.Context, id string) (*carrelv1.Approval, error) {
	return c.approvalOf(ctx, id)
}

func (s *Server) approvalOf(ctx context.Context, id string) (*carrelv1.Approval, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	m, err := s.cfg.Client.Approvals().GetApproval(ctx, connect.NewRequest(&carrelv1.GetApprovalRequest{Id: id}))
	if err == nil && s.bound != "" && m.Msg.GetApproval().GetWorkspace() != s.bound {
		err = errdefs.ErrNotFound
	}
	if errdefs.IsNotFound(err) {
		return nil, fmt.Errorf("cannot find approval %s: there is none here: %w", cut(clean(id), 64), errdefs.ErrNotFound)
	}
	if err != nil {
		return nil, err
	}
	return m.Msg.GetApproval(), nil
}

// untilSettled returns nil once a question does not wait for an answer any more.
func (s *Server) untilSettled(ctx context.Context, id string) error {
	w, err := s.cfg.Client.Approvals().WatchApprovals(ctx, connect.NewRequest(&carrelv1.WatchApprovalsRequest{}))
	if err != nil {
		return err
	}
	defer w.Close()
	for w.Receive() {
		m := w.Msg().GetApproval()
		if m.GetId() == id && m.GetState() != "pending" {
			return nil
		}
		if !w.Msg().GetCaughtUp() {
			continue
		}
		// It may have been answered before the watch began.
		if m, err := s.approvalOf(ctx, id); err != nil || m.GetState() != "pending" {
			return err
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return fmt.Errorf("cannot go on waiting for approval %s: the daemon ended the watch; wait again: %w", id, errdefs.ErrUnavailable)
}

type waitArgs struct {
	Approval string  `json:"approval" jsonschema:"the id, as ap-0123456789abcdef"`
	WaitS    float64 `json:"wait_s,omitempty" jsonschema:"wait at most so many seconds; 50 unless given, at most 600"`
}

// waitApproval waits for an answer and carries the call out.
func waitApproval(ctx context.Context, c *call, in waitArgs) (*answer, error) {
	wait := time.Duration(in.WaitS * float64(time.Second))
	if in.WaitS == 0 {
		wait = 50 * time.Second
	}
	if wait < 0 || wait > maxAnswerWait {
		return nil, fmt.Errorf("cannot use wait_s %v: it is from 0 to %v: %w", in.WaitS, maxAnswerWait.Seconds(), errdefs.ErrInvalidArgument)
	}
	m, err := c.approval(ctx, in.Approval)
	if err != nil {
		return nil, err
	}
	if m.GetState() == "pending" {
		stop := c.progress(ctx, "waits for approval "+m.GetId(), nil)
		timed, cancel := within(ctx, wait)
		err = c.untilSettled(timed, m.GetId())
		late := timed.Err() != nil && ctx.Err() == nil
		cancel()
		stop()
		if late {
			return said("approval %s still waits for a person; call wait_approval again, or go on with something else", m.GetId()), nil
		}
		if err != nil {
			return nil, err
		}
	}
	return c.settle(ctx, m.GetId())
}
