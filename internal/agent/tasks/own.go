package tasks

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/wire/linerpc"
)

// own is carrel's protocol, which docs/protocols/tasks.md specifies:
//
//	carrel → program   execute_prompt {task, prompt}     request 1
//	carrel → program   stop_task {task}                  notification
//	program → carrel   report_message {…}                notification or request
//	program → carrel   request_permission {title, command}   request
//	program → carrel   get_api_key {name}                request
//	program → carrel   report_completion {status, reason}    notification or request; or the answer to request 1
type own struct{ c *conversation }

func (o *own) begin(prompt string) error {
	return o.c.call(1, "execute_prompt", map[string]string{"task": string(o.c.task.ID), "prompt": prompt})
}

func (o *own) stop() { _ = o.c.call(0, "stop_task", map[string]string{"task": string(o.c.task.ID)}) }

// words are a command as a text or as a list of words.
type words []string

func (w *words) UnmarshalJSON(b []byte) error {
	var one string
	if json.Unmarshal(b, &one) == nil {
		*w = words{one}
		return nil
	}
	return json.Unmarshal(b, (*[]string)(w))
}

func (o *own) take(m linerpc.Message) error {
	c := o.c
	if m.Response() {
		return o.answered(m)
	}
	var p struct {
		Task    *string `json:"task"`
		Title   string  `json:"title"`
		Command words   `json:"command"`
		Name    string  `json:"name"`
		Status  string  `json:"status"`
		Reason  string  `json:"reason"`
	}
	body := m.Params
	if body == nil {
		body = json.RawMessage("{}")
	}
	switch m.Method {
	case "report_message": // its params are the program's own
		var of struct {
			Task any `json:"task"`
		}
		if json.Unmarshal(body, &of) == nil && of.Task != nil && of.Task != string(c.task.ID) {
			return fmt.Errorf("it spoke of another task, %.64q", of.Task)
		}
		n, err := c.numbered("message", body)
		if err != nil {
			return err
		}
		return c.answer(m, map[string]int64{"number": n})
	case "report_completion", "request_permission", "get_api_key":
		if err := json.Unmarshal(body, &p); err != nil {
			return fmt.Errorf("the params of %s are of another form: %w", m.Method, err)
		}
		if p.Task != nil && *p.Task != string(c.task.ID) {
			return fmt.Errorf("it spoke of another task, %.64q", *p.Task)
		}
	default:
		return c.refuse(m, linerpc.MethodNotFound, "cannot do %.64q: carrel takes report_message, request_permission, get_api_key and "+
			"report_completion", m.Method)
	}
	switch {
	case m.Method == "report_completion":
		return o.complete(m, p.Status, p.Reason, body)
	case !m.Request():
		return fmt.Errorf("it sent %s without an id, so that nothing can be answered", m.Method)
	case m.Method == "request_permission":
		return c.ask(m, p.Title, p.Command, func(allowed bool, why string) any {
			return map[string]any{"allowed": allowed, "reason": why}
		})
	}
	return o.key(m, p.Name)
}

func (o *own) complete(m linerpc.Message, status, reason string, body json.RawMessage) error {
	state := workspace.TaskCompleted
	switch status {
	case "", "completed":
	case "failed":
		state = workspace.TaskFailed
		if reason == "" {
			reason = "its program said that it failed, and not why"
		}
	default:
		return fmt.Errorf("it reported a completion with the status %.64q; there are completed and failed", status)
	}
	if err := o.c.message("completion", body); err != nil {
		return err
	}
	if err := o.c.answer(m, map[string]any{}); err != nil && !errors.Is(err, errPipe) {
		return err
	}
	o.c.finish(state, reason)
	return nil
}

// answered takes the answer to execute_prompt, which completes the task.
func (o *own) answered(m linerpc.Message) error {
	if string(m.ID) != "1" {
		return fmt.Errorf("it answered a request that was not made, %s", m.ID)
	}
	if m.Error != nil {
		o.c.finish(workspace.TaskFailed, "its program refused the prompt: "+m.Error.Message)
		return nil
	}
	if err := o.c.message("completion", m.Result); err != nil {
		return err
	}
	o.c.finish(workspace.TaskCompleted, "")
	return nil
}

// key gives a placeholder, once for each name.
func (o *own) key(m linerpc.Message, name string) error {
	c := o.c
	if len(c.keys) >= maxAsking || len(name) > 128 {
		return fmt.Errorf("it asked for more than %d keys, or by a name of more than 128 bytes", maxAsking)
	}
	if c.keys[name] {
		return c.refuse(m, linerpc.Refused, "cannot give %.128q a second time: each is given once in a task", name)
	}
	c.keys[name] = true
	placeholder, err := c.tasks.key(c.task.Workspace, c.task.ID, name)
	if merr := c.message("key", map[string]any{"name": name, "given": err == nil}); merr != nil {
		return merr
	}
	if err != nil {
		return c.refuse(m, linerpc.Refused, "%s", c.tasks.cfg.Redact.Text(err.Error()))
	}
	return c.answer(m, map[string]string{"name": name, "placeholder": placeholder})
}
