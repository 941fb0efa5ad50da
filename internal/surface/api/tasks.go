package api

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"unicode"

	"connectrpc.com/connect"
	"github.com/containerd/errdefs"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/base/fanout"
	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/surface/authn"
	"github.com/carrel-dev/carrel/internal/wire/errcode"
)

type tasks struct{ *Server }

func (s tasks) RunTask(ctx context.Context, req *request[carrelv1.RunTaskRequest]) (*response[carrelv1.RunTaskResponse], error) {
	ref, e, err := execParams(req.Msg.GetWorkspace(), req.Msg.GetCommand())
	if err == nil && req.Msg.GetAfter() != "" {
		_, _, err = parseCommand(req.Msg.GetWorkspace(), req.Msg.GetAfter())
	}
	orders, wrong := ordersFrom(req.Msg)
	if err = cmp.Or(err, wrong, checkLines("over", req.Msg.GetOver(), maxOver, maxOverLine),
		checkMemory(req.Msg.GetMemory())); err != nil {
		return nil, errcode.ToWire(err)
	}
	t, err := s.gate.RunTask(ctx, authn.FromContext(ctx), ref, e, workspace.TaskSpec{
		Protocol: req.Msg.GetProtocol(), Prompt: req.Msg.GetPrompt(), Serve: req.Msg.GetServe(), After: id.Command(req.Msg.GetAfter()),
		PlanOnly: req.Msg.GetPlanOnly(), Orders: orders, FD: int(req.Msg.GetFd()),
		Over: req.Msg.GetOver(), Memory: req.Msg.GetMemory(), BringsData: req.Msg.GetBringsData(),
	})
	if why := ended(ctx); why != nil {
		err = why
	}
	if err != nil {
		return nil, errcode.ToWire(err)
	}
	return connect.NewResponse(&carrelv1.RunTaskResponse{Task: taskTo(t)}), nil
}

// Bounds of what an agent is told of a machine, in lines and bytes.
const (
	maxOver     = 16
	maxOverLine = 512
)

// checkLines says what is wrong with texts of one line each.
func checkLines(field string, lines []string, most, size int) error {
	if len(lines) > most {
		return invalid(field, fmt.Sprintf("there are %d", len(lines)), fmt.Sprintf("give at most %d", most))
	}
	for _, l := range lines {
		if l == "" || len(l) > size || strings.ContainsFunc(l, func(r rune) bool { return !unicode.IsPrint(r) }) {
			return invalid(field, fmt.Sprintf("%.80q is empty, long or not one plain line", l), fmt.Sprintf("give lines of at most %d bytes", size))
		}
	}
	return nil
}

// checkMemory says what is wrong with notes.
func checkMemory(notes []string) error {
	if len(notes) > workspace.MaxNotes {
		return invalid("memory", fmt.Sprintf("there are %d notes", len(notes)), fmt.Sprintf("give at most %d", workspace.MaxNotes))
	}
	for _, n := range notes {
		if err := workspace.CheckNote(n); err != nil {
			return err
		}
	}
	return nil
}

// ordersFrom reads how steps reach several hosts.
func ordersFrom(m *carrelv1.RunTaskRequest) (fanout.Orders, error) {
	o := fanout.Orders{All: orderFrom(m.GetFanOut())}
	for _, g := range m.GetGroupFanOuts() {
		if err := checkRemotes(g.GetHosts()); err != nil {
			return o, err
		}
		o.Groups = append(o.Groups, fanout.Group{Hosts: g.GetHosts(), Order: orderFrom(g.GetFanOut())})
	}
	return o, o.Check()
}

func orderFrom(m *carrelv1.FanOut) fanout.Order {
	return fanout.Order{Forks: int(m.GetForks()), Serial: m.GetSerial(), MaxFailures: m.GetMaxFailures(), NoCanary: m.GetNoCanary()}
}

func (s tasks) ListTasks(ctx context.Context, req *request[carrelv1.ListTasksRequest]) (*response[carrelv1.ListTasksResponse], error) {
	ref, err := parseRef(req.Msg.GetWorkspace())
	if err != nil {
		return nil, errcode.ToWire(err)
	}
	all, err := s.gate.ListTasks(ctx, authn.FromContext(ctx), ref)
	if err != nil {
		return nil, errcode.ToWire(err)
	}
	out := &carrelv1.ListTasksResponse{}
	for _, t := range all {
		out.Tasks = append(out.Tasks, taskTo(t))
	}
	return connect.NewResponse(out), nil
}

func (s tasks) GetTask(ctx context.Context, req *request[carrelv1.GetTaskRequest]) (*response[carrelv1.GetTaskResponse], error) {
	ref, task, err := parseCommand(req.Msg.GetWorkspace(), req.Msg.GetTaskId())
	var t workspace.Task
	if err == nil {
		t, err = s.gate.Task(ctx, authn.FromContext(ctx), ref, task)
	}
	if err != nil {
		return nil, errcode.ToWire(err)
	}
	return connect.NewResponse(&carrelv1.GetTaskResponse{Task: taskTo(t)}), nil
}

func (s tasks) StopTask(ctx context.Context, req *request[carrelv1.StopTaskRequest]) (*response[carrelv1.StopTaskResponse], error) {
	ref, task, err := parseCommand(req.Msg.GetWorkspace(), req.Msg.GetTaskId())
	var t workspace.Task
	if err == nil {
		t, err = s.gate.StopTask(ctx, authn.FromContext(ctx), ref, task)
	}
	if err != nil {
		return nil, errcode.ToWire(err)
	}
	return connect.NewResponse(&carrelv1.StopTaskResponse{Task: taskTo(t)}), nil
}

// FollowTask ends too when the server begins to drain.
func (s tasks) FollowTask(ctx context.Context, req *request[carrelv1.FollowTaskRequest],
	stream *connect.ServerStream[carrelv1.FollowTaskResponse],
) error {
	ref, task, err := parseCommand(req.Msg.GetWorkspace(), req.Msg.GetTaskId())
	if err == nil && req.Msg.GetAfter() < 0 {
		err = invalid("after", "it is negative", "give the number of the last message that you have, or 0")
	}
	if err != nil {
		return errcode.ToWire(err)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer s.untilClosing(ctx, func() {
		cancel(fmt.Errorf("cannot follow the task any longer: the daemon is stopping; ask again for what comes after the last message: %w",
			errdefs.ErrUnavailable))
	})()
	t, err := s.gate.FollowTask(ctx, authn.FromContext(ctx), ref, task, req.Msg.GetAfter(), req.Msg.GetNow(),
		func(m workspace.TaskMessage, lost int64) error {
			return send(ctx, stream, &carrelv1.FollowTaskResponse{Message: &carrelv1.TaskMessage{
				Number: m.Number, UnixMs: m.Time.UnixMilli(), Kind: m.Kind, Body: m.Body,
			}, Lost: lost})
		})
	if err != nil {
		return errcode.ToWire(err)
	}
	return errcode.ToWire(send(ctx, stream, &carrelv1.FollowTaskResponse{Task: taskTo(t)}))
}

func taskTo(t workspace.Task) *carrelv1.Task {
	out := &carrelv1.Task{
		Id: string(t.ID), Workspace: string(t.Workspace), Principal: t.Principal, Protocol: t.Protocol, Argv: t.Argv, State: string(t.State),
		Reason: t.Reason, BeganUnixMs: t.Began.UnixMilli(), Last: t.Last, Lost: t.Lost,
	}
	if !t.Ended.IsZero() {
		out.EndedUnixMs = t.Ended.UnixMilli()
	}
	return out
}
