package tasks

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/carrel-dev/carrel/internal/base/build"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/wire/linerpc"
)

// acp is the client of an agent that speaks the Agent Client Protocol (https://agentclientprotocol.com). The agent has its
// own files and programs in its workspace, carrel's tools for that workspace, and none of the client's.
//
//	carrel → agent   initialize        request 1
//	carrel → agent   session/new       request 2
//	carrel → agent   session/prompt    request 3, whose answer completes the task
//	agent → carrel   session/update    notifications, each a message
//	agent → carrel   session/request_permission   requests
//	carrel → agent   session/cancel    notification
type acp struct {
	c      *conversation
	prompt string
	meta   func() any // what session/new says beside, nil for nothing
	// preface is a text that stands before the prompt, nil for none. say takes an update, nil to keep it as it is.
	preface func() string
	say     func(update json.RawMessage) error
	step    atomic.Int32 // the number of the request that is open
	session atomic.Pointer[string]
}

// promptStep is the number of session/prompt.
const promptStep = 3

// acpVersions are the versions of the protocol that carrel speaks, the newest first.
var acpVersions = []int{1}

func (a *acp) begin(prompt string) error {
	a.prompt = prompt
	return a.request("initialize", map[string]any{
		"protocolVersion": acpVersions[0],
		"clientCapabilities": map[string]any{
			"fs":       map[string]bool{"readTextFile": false, "writeTextFile": false},
			"terminal": false,
		},
		"clientInfo": map[string]string{"name": "carrel", "title": "Carrel", "version": build.Version()},
	})
}

// request sends the next request. Until the prompt each has to be answered soon.
func (a *acp) request(method string, params any) error {
	n := a.step.Add(1)
	if a.c.timer != nil {
		a.c.timer.Stop()
	}
	if method != "session/prompt" {
		a.c.timer = time.AfterFunc(a.c.limit.Handshake, func() {
			a.c.fail("cannot go on with the task: the agent has not answered %s for %v", method, a.c.limit.Handshake)
		})
	}
	return a.c.call(int(n), method, params)
}

func (a *acp) stop() {
	if s := a.session.Load(); s != nil {
		_ = a.c.call(0, "session/cancel", map[string]string{"sessionId": *s})
	}
}

func (a *acp) take(m linerpc.Message) error {
	if m.Response() {
		return a.answered(m)
	}
	switch m.Method {
	case "session/update":
		return a.update(m)
	case "session/request_permission":
		return a.permission(m)
	}
	return a.c.refuse(m, linerpc.MethodNotFound, "cannot do %.64q: carrel has no files and no terminal for agents; use those of the workspace",
		m.Method)
}

// answered takes the answer to the one request that is open.
func (a *acp) answered(m linerpc.Message) error {
	step := a.step.Load()
	if string(m.ID) != fmt.Sprint(step) {
		return fmt.Errorf("it answered a request that was not made or was answered before, %s", m.ID)
	}
	names := []string{"initialize", "session/new", "session/prompt"}
	if m.Error != nil && a.meta != nil { // carrel's own agent says all of it in its message
		a.c.finish(workspace.TaskFailed, m.Error.Message)
		return nil
	}
	if m.Error != nil {
		a.c.finish(workspace.TaskFailed, fmt.Sprintf("the agent refused %s: %s (%d) %s", names[step-1], m.Error.Message, m.Error.Code,
			m.Error.Data))
		return nil
	}
	var r struct {
		ProtocolVersion int    `json:"protocolVersion"`
		SessionID       string `json:"sessionId"`
		StopReason      string `json:"stopReason"`
	}
	if err := json.Unmarshal(m.Result, &r); err != nil {
		return fmt.Errorf("its answer to %s is of another form: %w", names[step-1], err)
	}
	switch step {
	case 1:
		if !slices.Contains(acpVersions, r.ProtocolVersion) {
			return fmt.Errorf("it speaks version %d of ACP, and carrel speaks %v", r.ProtocolVersion, acpVersions)
		}
		params := map[string]any{"cwd": workspace.Home, "mcpServers": a.servers()}
		if a.meta != nil {
			params["_meta"] = a.meta()
		}
		return a.request("session/new", params)
	case 2:
		if r.SessionID == "" || len(r.SessionID) > 256 {
			return fmt.Errorf("its session has an id of %d bytes; 1 to 256 are allowed", len(r.SessionID))
		}
		a.session.Store(&r.SessionID)
		prompt := []map[string]string{{"type": "text", "text": a.prompt}}
		if a.preface != nil {
			prompt = append([]map[string]string{{"type": "text", "text": a.preface()}}, prompt...)
		}
		return a.request("session/prompt", map[string]any{"sessionId": r.SessionID, "prompt": prompt})
	}
	if err := a.c.message("completion", m.Result); err != nil {
		return err
	}
	by, stopped := a.c.stoppedBy()
	switch {
	case r.StopReason == "end_turn":
		a.c.finish(workspace.TaskCompleted, r.StopReason)
	case r.StopReason == "cancelled" && stopped:
		a.c.finish(workspace.TaskStopped, "stopped by "+by)
	case r.StopReason == "":
		return fmt.Errorf("its answer to session/prompt has no stopReason")
	default:
		a.c.finish(workspace.TaskFailed, fmt.Sprintf("the agent ended its turn before it was done: %.64q", r.StopReason))
	}
	return nil
}

// servers are the servers of tools that the agent is to start. All agents start those on stdio.
func (a *acp) servers() []any {
	if len(a.c.tools) == 0 {
		return []any{}
	}
	return []any{map[string]any{"name": "carrel", "command": a.c.tools[0], "args": a.c.tools[1:], "env": []any{}}}
}

// ours is an error unless a message is about the session.
func (a *acp) ours(session string) error {
	if s := a.session.Load(); s == nil || *s != session {
		return fmt.Errorf("it spoke of a session that it does not have, %.64q", session)
	}
	return nil
}

func (a *acp) update(m linerpc.Message) error {
	var p struct {
		SessionID string          `json:"sessionId"`
		Update    json.RawMessage `json:"update"`
	}
	if err := json.Unmarshal(m.Params, &p); err != nil || len(p.Update) == 0 {
		return fmt.Errorf("its session/update is of another form")
	}
	// Some agents tell of a session before they answer session/new.
	if a.session.Load() != nil || a.step.Load() != 2 {
		if err := a.ours(p.SessionID); err != nil {
			return err
		}
	}
	if a.say != nil {
		return a.say(p.Update)
	}
	return a.c.message("message", p.Update)
}

// option is one of the answers that an agent takes.
type option struct {
	ID   string `json:"optionId"`
	Kind string `json:"kind"`
}

func (a *acp) permission(m linerpc.Message) error {
	var p struct {
		SessionID string          `json:"sessionId"`
		ToolCall  json.RawMessage `json:"toolCall"`
		Options   []option        `json:"options"`
	}
	if !m.Request() {
		return fmt.Errorf("it sent session/request_permission without an id, so that nothing can be answered")
	}
	if err := json.Unmarshal(m.Params, &p); err != nil || len(p.ToolCall) == 0 {
		return fmt.Errorf("its session/request_permission is of another form")
	}
	if err := a.ours(p.SessionID); err != nil {
		return err
	}
	title, words, err := shown(p.ToolCall)
	if err != nil {
		return err
	}
	return a.c.ask(m, title, words, func(allowed bool, _ string) any { return outcome(p.Options, allowed) })
}

// outcome maps a person's answer to an option. It is for one time: an option that lets more pass is never taken.
func outcome(options []option, allowed bool) any {
	kind := "reject_once"
	if allowed {
		kind = "allow_once"
	}
	for _, o := range options {
		if o.Kind == kind {
			return map[string]any{"outcome": map[string]string{"outcome": "selected", "optionId": o.ID}}
		}
	}
	return map[string]any{"outcome": map[string]string{"outcome": "cancelled"}}
}

// shown is what a person is shown of a tool call: the words of its command, or all of it, and nothing is left out.
func shown(call json.RawMessage) (title string, asked []string, err error) {
	var p struct {
		Title    string                     `json:"title"`
		RawInput map[string]json.RawMessage `json:"rawInput"`
	}
	if err := json.Unmarshal(call, &p); err != nil {
		return "", nil, fmt.Errorf("its session/request_permission has a tool call of another form")
	}
	var w words
	if b, ok := p.RawInput["command"]; !ok || w.UnmarshalJSON(b) != nil || len(w) == 0 {
		var all bytes.Buffer
		if err := json.Compact(&all, call); err != nil {
			return "", nil, err
		}
		return p.Title, []string{all.String()}, nil
	}
	delete(p.RawInput, "command")
	rest, err := json.Marshal(p.RawInput)
	if err != nil {
		return "", nil, err
	}
	if len(p.RawInput) > 0 {
		p.Title = strings.TrimSpace(p.Title + " " + string(rest))
	}
	return p.Title, w, nil
}
