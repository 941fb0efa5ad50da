package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"
	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/approval"
	"github.com/carrel-dev/carrel/internal/attend"
	"github.com/carrel-dev/carrel/internal/operation"
	"github.com/carrel-dev/carrel/internal/steps"
	"github.com/carrel-dev/carrel/internal/workspace"
	carrel "github.com/carrel-dev/carrel/sdk/go"
)

// The targets that --on offers beside workspaces.
const (
	onHost   = string(operation.Host)
	onRemote = string(operation.Remote)
	onNone   = "none"
)

// agentEnv names the model of the agent where --llm does not.
const agentEnv = "CARREL_LLM"

// askFlags are the flags of "carrel ask".
type askFlags struct {
	agent, model, llm, provider string
	on                          []string
	inventory                   string
	asRoot, yesSafe             bool
	after                       string
	resume                      bool
	timeout, wait               time.Duration
	requests, tokens            int64
	output                      *format
}

func (a *app) askCommand() *cobra.Command {
	var x askFlags
	c := &cobra.Command{
		Use:   "ask [flags] QUESTION...",
		Short: "Ask a model that proposes commands, which carrel judges and runs",
		Long: `Ask a model about this machine, remote hosts or workspaces. It proposes plans of commands;
carrel finds their targets, judges every command, shows the plan, asks you where the policy
says so, runs it and records all of it. The answer is printed on stdout, and what happens
on stderr.

The agent runs in a workspace of its own and holds no key: --model names one of "carrel model
ls". Commands on this machine and on remote hosts run as you, by this process; those that say
that they only read run without the right to change anything. Without a terminal a plan that
needs an answer is refused, unless --wait says how long to wait for one.

The exit code is 0 if there is an answer, and 1 if there is none.`,
		Example: `  carrel ask "why is the disk full?"
  carrel ask --on remote --hosts hosts.yaml "which of the hosts run an old kernel?"
  carrel ask --on none "run the tests in workspace demo and say what fails"
  carrel ask --resume "and now remove them"`,
		Args: atLeast("QUESTION"),
	}
	f := c.Flags()
	f.StringVar(&x.agent, "agent", "agent", "the workspace that the agent runs in; it is made if there is none")
	f.StringVar(&x.model, "model", "", "the `NAME` of the model's endpoint for a new agent, see \"carrel model ls\" (default the only one)")
	_ = c.RegisterFlagCompletionFunc("model", a.completeModel()) // the flag is there
	f.StringVar(&x.llm, "llm", "", "the model's own name, as its provider has it (default $"+agentEnv+")")
	f.StringVar(&x.provider, "provider", "", "the provider, for the form of its API (default by the endpoint)")
	f.StringSliceVar(&x.on, "on", []string{onHost, onRemote}, "where commands may run beside workspaces: host, remote, none")
	completeFrom(c, "on", onHost, onRemote, onNone)
	f.StringVar(&x.inventory, "hosts", "", "the file that names remote hosts (default hosts.yaml in carrel's configuration directory)")
	_ = c.MarkFlagFilename("hosts", "yaml") // the flag is there
	f.BoolVar(&x.yesSafe, "yes-safe", false, "at a terminal: approve plans of which you would be asked only because a model wrote them")
	f.BoolVar(&x.asRoot, "as-root", false, "as root: let commands on this machine run as root")
	f.StringVar(&x.after, "after", "", "go on from this task of the agent, which it is told")
	f.BoolVar(&x.resume, "resume", false, "go on from the agent's newest task")
	f.DurationVar(&x.timeout, "timeout", 0, "end it after this time, as in 20m (default 1h)")
	f.DurationVar(&x.wait, "wait", 0, "how long a person may take to answer, as in 5m (default 10m at a terminal)")
	f.Int64Var(&x.requests, "max-requests", 0, "ask the model at most `N` times (default 32)")
	f.Int64Var(&x.tokens, "max-tokens", 0, "ask the model no further once `N` tokens are used")
	x.output = outputFlag(c)
	c.RunE = func(c *cobra.Command, args []string) error { return a.ask(c, strings.Join(args, " "), &x) }
	return c
}

// check says what is wrong with the flags.
func (x *askFlags) check(c *cobra.Command) error {
	for _, on := range x.on {
		if !slices.Contains([]string{onHost, onRemote, onNone}, on) {
			return usage(c, "cannot use --on %q: there are host, remote and none", on)
		}
	}
	switch {
	case slices.Contains(x.on, onNone) && len(x.on) > 1:
		return usage(c, "cannot use --on none with others: leave one of them out")
	case x.resume && x.after != "":
		return usage(c, "cannot use --resume with --after: leave one of them out")
	case x.timeout < 0:
		return usage(c, "cannot use a negative --timeout: give a time such as 20m, or leave it out")
	case x.requests < 0 || x.tokens < 0:
		return usage(c, "cannot use a negative bound: give a number, or leave it out")
	}
	return checkWait(c, x.wait)
}

func (a *app) ask(c *cobra.Command, question string, x *askFlags) error {
	if err := x.check(c); err != nil {
		return err
	}
	if x.llm == "" {
		x.llm = os.Getenv(agentEnv)
	}
	if x.llm == "" {
		return usage(c, "cannot ask a model without its name: give --llm NAME, or set $%s", agentEnv)
	}
	client, err := a.client()
	if err != nil {
		return err
	}
	served, closeHosts, err := a.servedHosts(x)
	if err != nil {
		return err
	}
	defer closeHosts()
	return attend.Interruptible(c.Context(), attend.Signals(false), func(ctx context.Context) error {
		return a.turn(ctx, client, question, x, served)
	})
}

// turn runs one turn of the agent, from the question to the answer.
func (a *app) turn(ctx context.Context, client *carrel.Client, question string, x *askFlags, served steps.Config) error {
	ws, err := a.agentWorkspace(ctx, client, x)
	if err != nil {
		return err
	}
	argv, err := a.agentProgram(ctx, client, ws, x)
	if err != nil {
		return err
	}
	if x.resume {
		if x.after, err = newestTask(ctx, client, ws); err != nil {
			return err
		}
	}
	serves := served.Local != nil || served.Remote != nil
	wait := x.wait
	if wait == 0 && !(isTerminal(a.In) && isTerminal(a.Err)) {
		wait = carrel.DoNotWait
	}
	m, err := askOf(ctx, client, tasks.RunTask, &carrelv1.RunTaskRequest{
		Workspace: ws, Prompt: question, Protocol: "agent", Serve: serves, After: x.after, Command: &carrelv1.Command{
			Argv: argv, TimeoutMs: x.timeout.Milliseconds(), Source: carrel.SourceUser, ApprovalWaitMs: max(wait.Milliseconds(), -1),
		},
	})
	if err != nil {
		return err
	}
	t := &turnView{a: a, client: client, ws: ws, task: m.GetTask(), out: *x.output, yesSafe: x.yesSafe, plans: newPlans()}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer t.stop(context.WithoutCancel(ctx)) // one that has ended stays as it is
	var beside sync.WaitGroup
	defer beside.Wait()
	defer cancel(nil)
	if serves {
		stream := client.Agents().Serve(ctx)
		beside.Go(func() {
			err := steps.Serve(ctx, stream, ws, m.GetTask().GetId(), served, func() {})
			if err != nil && ctx.Err() == nil && connect.CodeOf(err) != connect.CodeFailedPrecondition {
				_ = say(a.Err, "carrel: %v\n", err)
			}
		})
	}
	if isTerminal(a.In) && isTerminal(a.Err) {
		beside.Go(func() {
			if err := t.answer(ctx); err != nil && ctx.Err() == nil {
				_ = say(a.Err, "carrel: %v\n", err)
			}
		})
	}
	return t.follow(ctx)
}

// newestTask is the newest task of the agent's workspace.
func newestTask(ctx context.Context, client *carrel.Client, ws string) (string, error) {
	m, err := askOf(ctx, client, tasks.ListTasks, &carrelv1.ListTasksRequest{Workspace: ws})
	if err != nil {
		return "", err
	}
	for _, t := range m.GetTasks() {
		if t.GetProtocol() == "agent" {
			return t.GetId(), nil
		}
	}
	return "", fmt.Errorf("cannot resume: the agent has no task that is kept; ask without --resume: %w", errdefs.ErrNotFound)
}

// turnView shows a turn to a person.
type turnView struct {
	a        *app
	client   *carrel.Client
	ws       string
	task     *carrelv1.Task
	out      format
	answered bool
	// yesSafe: plans that only a model's hand makes ask are approved. plans are those that were shown.
	yesSafe bool
	plans   *plans
}

// stop ends the turn if it has not ended.
func (t *turnView) stop(ctx context.Context) {
	if t.answered {
		return
	}
	_, _ = askOf(ctx, t.client, tasks.StopTask, &carrelv1.StopTaskRequest{Workspace: t.ws, TaskId: t.task.GetId()}) // it ends by its time too
}

// answer asks the person at the terminal about each plan that needs it, until ctx ends.
func (t *turnView) answer(ctx context.Context) error {
	err := (&approvalSource{t.client}).stream(ctx, func(m *carrelv1.Approval) error {
		if m == nil || !isPending(m) || m.GetKind() != string(operation.RunPlan) || m.GetThread() != t.task.GetId() {
			return nil
		}
		return t.decide(ctx, m)
	})
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// decide shows one plan and sends the answer.
func (t *turnView) decide(ctx context.Context, m *carrelv1.Approval) error {
	open, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	go func() {
		if t.a.untilAnswered(open, t.client, m.GetId()) == nil {
			stop(errSettled)
		}
	}()
	var r reply
	if p, err := t.plans.wait(open, m.GetActionDigest()); err == nil && t.yesSafe && p.onlyFirstRun() {
		_ = say(t.a.Err, "carrel: approved, as you said --yes-safe\n")
		r.kind = approval.Once
	} else {
		r = t.a.prompt(open, m, false)
	}
	switch {
	case errors.Is(r.err, errSettled):
		return say(t.a.Err, "\ncarrel: somebody else has answered, or its time is over\n")
	case ctx.Err() != nil:
		return nil
	case r.err != nil:
		r.kind, r.reason = approval.Deny, "no answer"
	}
	_, err := askOf(ctx, t.client, approvals.AnswerApproval,
		&carrelv1.AnswerApprovalRequest{Id: m.GetId(), Kind: string(r.kind), Reason: r.reason, Terminal: true})
	if connect.CodeOf(err) == connect.CodeFailedPrecondition { // somebody was faster
		return nil
	}
	return err
}

// follow shows what happens until the turn has ended.
func (t *turnView) follow(ctx context.Context) error {
	end, err := t.a.receiveTask(ctx, t.client, &carrelv1.FollowTaskRequest{Workspace: t.ws, TaskId: t.task.GetId()}, t.show)
	if err != nil {
		return err
	}
	t.answered = true
	switch workspace.TaskState(end.GetState()) {
	case workspace.TaskRunning, workspace.TaskCompleted:
		return nil
	case workspace.TaskFailed, workspace.TaskStopped:
	}
	t.a.code = 1
	return say(t.a.Err, "carrel: there is no answer: %s\n", end.GetReason())
}
