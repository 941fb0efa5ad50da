package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/gen/carrel/v1/carrelv1connect"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	carrel "github.com/carrel-dev/carrel/sdk/go"
)

// The services of carrel.v1. Their methods are what ask and receive call: workspaces.Get.
type (
	workspaces = carrelv1connect.WorkspaceServiceClient
	commands   = carrelv1connect.CommandServiceClient
	archives   = carrelv1connect.ArchiveServiceClient
	approvals  = carrelv1connect.ApprovalServiceClient
	tokens     = carrelv1connect.TokenServiceClient
	secrets    = carrelv1connect.SecretServiceClient
	tasks      = carrelv1connect.TaskServiceClient
	models     = carrelv1connect.ModelServiceClient
	records    = carrelv1connect.AuditServiceClient
	system     = carrelv1connect.SystemServiceClient
	files      = carrelv1connect.FileServiceClient
)

// service returns the client of the service S.
func service[S any](c *carrel.Client) S {
	var s any
	switch any((*S)(nil)).(type) {
	case *workspaces:
		s = c.Workspaces()
	case *commands:
		s = c.Commands()
	case *archives:
		s = c.Archives()
	case *approvals:
		s = c.Approvals()
	case *tokens:
		s = c.Tokens()
	case *secrets:
		s = c.Secrets()
	case *tasks:
		s = c.Tasks()
	case *models:
		s = c.Models()
	case *records:
		s = c.Audit()
	case *files:
		s = c.Files()
	case *system:
		s = c.System()
	}
	return s.(S)
}

// unary is a method of a service with one answer, and streaming one with a stream of them.
type (
	unary[S, Q, R any]     = func(S, context.Context, *connect.Request[Q]) (*connect.Response[R], error)
	streaming[S, Q, R any] = func(S, context.Context, *connect.Request[Q]) (*connect.ServerStreamForClient[R], error)
)

// ask makes one call to the daemon that the flags name.
func ask[S, Q, R any](ctx context.Context, a *app, call unary[S, Q, R], req *Q) (*R, error) {
	client, err := a.client()
	if err != nil {
		return nil, err
	}
	if limitOf(req) == patience {
		defer a.tellSlow(client)()
	}
	return askOf(ctx, client, call, req)
}

// slowAfter is after how long a person is told that the daemon has not answered yet.
const slowAfter = 3 * time.Second

// tellSlow tells a person at a terminal whom this process waits for, if that takes long, until the returned function is called.
func (a *app) tellSlow(client *carrel.Client) (answered func()) {
	if !isTerminal(a.Err) {
		return func() {}
	}
	t := time.AfterFunc(slowAfter, func() {
		_ = say(a.Err, "carrel: waiting for the daemon at %s, which has not answered for %v\n", client.Host(), slowAfter)
	})
	return func() { t.Stop() }
}

// askOf is ask for a client that is connected already.
func askOf[S, Q, R any](ctx context.Context, client *carrel.Client, call unary[S, Q, R], req *Q) (*R, error) {
	var res *connect.Response[R]
	err := bounded(ctx, req, func(ctx context.Context) (err error) {
		res, err = call(service[S](client), ctx, connect.NewRequest(req))
		return err
	})
	if err != nil {
		return nil, err
	}
	return res.Msg, nil
}

// How long an answer is waited for. A daemon that answers nothing at all, because it was stopped or its disk
// hangs, must not hold up whoever asks it, while some work takes as long as its data is large.
const (
	patience     = 2 * time.Minute
	longPatience = 12 * time.Hour
)

// limitOf is how long the answer to a request is waited for.
func limitOf(req any) time.Duration {
	limit := patience
	switch r := req.(type) {
	case *carrelv1.DestroyRequest, *carrelv1.VerifyRequest, *carrelv1.RemoveFileRequest:
		return longPatience
	case *carrelv1.DetachRequest:
		limit += time.Duration(r.GetCommand().GetApprovalWaitMs()) * time.Millisecond
	case *carrelv1.RunTaskRequest:
		limit += time.Duration(max(r.GetCommand().GetApprovalWaitMs(), 0)) * time.Millisecond
	case *carrelv1.CreateRequest:
		limit += time.Duration(r.GetApprovalWaitMs()) * time.Millisecond
	}
	return limit
}

// bounded waits for the answer to a request for as long as that may take.
func bounded(ctx context.Context, req any, f func(context.Context) error) error {
	limit := limitOf(req)
	timed, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := f(timed)
	if err != nil && ctx.Err() == nil && errors.Is(timed.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("cannot get an answer from carrel: nothing came for %v, and it may still do what it was asked; see \"carrel doctor\" "+
			"and its log: %w", limit.Round(time.Second), errdefs.ErrUnavailable)
	}
	return err
}

// receive calls the daemon that the flags name, and f with each message of the answer.
func receive[S, Q, R any](ctx context.Context, a *app, call streaming[S, Q, R], req *Q, f func(*R) error) error {
	client, err := a.client()
	if err != nil {
		return err
	}
	return receiveOf(ctx, client, call, req, f)
}

// receiveOf is receive for a client that is connected already.
func receiveOf[S, Q, R any](ctx context.Context, client *carrel.Client, call streaming[S, Q, R], req *Q, f func(*R) error) error {
	s, err := call(service[S](client), ctx, connect.NewRequest(req))
	if err != nil {
		return err
	}
	defer s.Close()
	for s.Receive() {
		if err := f(s.Msg()); err != nil {
			return err
		}
	}
	return s.Err()
}

// help is the one-line help of the command that asks for an operation.
func help(n operation.Name) string { return operation.Of(n).Help }

// group is a command that only holds others.
func group(c *cobra.Command, children ...*cobra.Command) *cobra.Command {
	if c.Args == nil {
		c.Args = oneOf
	}
	c.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
	c.AddCommand(children...)
	return c
}

// oneOf refuses an argument that is none of a group's commands, and names those.
func oneOf(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	var names []string
	for _, child := range c.Commands() {
		if child.IsAvailableCommand() {
			names = append(names, child.Name())
		}
	}
	last := len(names) - 1
	return usage(c, "cannot use the argument %q: %s has %s and %s", args[0], c.CommandPath(), strings.Join(names[:last], ", "), names[last])
}

// prints completes a command that prints data, and adds -o to it. run returns the data for
// programs, and as it is printed for people; nil prints nothing.
func (a *app) prints(c *cobra.Command, run func(c *cobra.Command, args []string) (any, printer, error)) *cobra.Command {
	out := outputFlag(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		data, text, err := run(c, args)
		switch {
		case err != nil:
			return err
		case *out == asJSON:
			return a.printJSON(data)
		case text == nil:
			return nil
		}
		return out.print(text, a.Out)
	}
	return c
}

// completionTimeout bounds a completion: a shell waits for it.
const completionTimeout = 500 * time.Millisecond

// completion completes by what find returns. It starts no carrel, and errors complete nothing.
func (a *app) completion(find func(ctx context.Context, c *carrel.Client, args []string) ([]string, error)) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) (out []string, _ cobra.ShellCompDirective) {
		ctx, cancel := context.WithTimeout(context.Background(), completionTimeout)
		defer cancel()
		if client, err := a.clientIfUp(); err == nil {
			out, _ = find(ctx, client, args)
		}
		return out, cobra.ShellCompDirectiveNoFileComp
	}
}

// onlyFirst limits a completion to the first argument.
func onlyFirst(complete cobra.CompletionFunc) cobra.CompletionFunc {
	return func(c *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return complete(c, args, prefix)
	}
}
