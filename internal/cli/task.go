package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/linux/treefile"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	carrel "github.com/carrel-dev/carrel/sdk/go"
)

// maxPrompt is how long a prompt may be, in bytes.
const maxPrompt = 128 << 10

// minFD and maxFD bound the descriptor on which a task's program may speak.
const minFD, maxFD = 3, 63

func (a *app) taskCommand() *cobra.Command {
	return group(&cobra.Command{
		Use:   "task",
		Short: "Give prompts to agents in workspaces, and follow what they report",
		Long: `A task is a program in a workspace that is given a prompt, reports messages and asks for
permissions, on its stdin and stdout or a descriptor that it is given: by carrel's own protocol, or by ACP with --acp. What it
asks for is shown by "carrel approvals" and waits there for a person. The answer is told to
the program, and gives it nothing else.`,
		Example: `  carrel task run --acp -p "Fix the tests" demo -- opencode acp
  carrel task ls demo
  carrel task follow demo c-0123456789abcdef
  carrel task stop demo c-0123456789abcdef`,
	}, a.taskRunCommand(), a.taskLsCommand(), a.taskShowCommand(), a.taskStopCommand(), a.taskFollowCommand())
}

type taskFlags struct {
	commandFlags
	acp, detach   bool
	prompt, file  string
	thread        string
	fd            int32
	timeout, wait time.Duration
	output        *format
}

func (a *app) taskRunCommand() *cobra.Command {
	var x taskFlags
	c := &cobra.Command{
		Use:   "run [flags] WORKSPACE [--] COMMAND [ARG...]",
		Short: help(operation.RunTask),
		Long: `Start a program in a workspace, give it a prompt, and print its messages until the task ends.
The prompt is that of --prompt, or of a file, or is read from stdin. The command is judged as
that of "carrel exec". With -d the task's id is printed, and it goes on by itself.

The exit code is 0 if the task was completed, and 1 if it failed or was stopped. INT and TERM
end this command, and the task goes on: "carrel task stop" ends it.`,
		Example: `  carrel task run -p "Say hello" demo -- ./agent
  carrel task run --acp --timeout 20m -p "Fix the tests" demo -- opencode acp
  carrel task run --fd 3 -p "Say hello" demo -- ./agent
  carrel task run -d --file prompt.txt demo -- ./agent`,
		Args:              atLeast("WORKSPACE", "COMMAND"),
		ValidArgsFunction: onlyFirst(a.completeWorkspaces()),
	}
	f := c.Flags()
	f.SetInterspersed(false) // the flags of the command are its own
	f.BoolVar(&x.acp, "acp", false, "the program is an agent that speaks ACP, the Agent Client Protocol")
	f.Int32Var(&x.fd, "fd", 0, "the program speaks on this descriptor, 3 to 63 (CARREL_TASK_FD); \"carrel logs\" shows its output")
	f.StringVarP(&x.prompt, "prompt", "p", "", "what the task is to do (default stdin)")
	f.StringVar(&x.file, "file", "", "read the prompt from this file")
	_ = c.MarkFlagFilename("file") // the flag is there
	f.BoolVarP(&x.detach, "detach", "d", false, "print the task's id and leave it running")
	f.StringArrayVarP(&x.env, "env", "e", nil, "set NAME=VALUE, or pass NAME on from here")
	f.StringVarP(&x.dir, "cwd", "w", "", "directory inside to run in; a relative one and ~ start at the home (default the home)")
	f.StringVar(&x.source, "source", carrel.SourceUser, "who wrote the command: user or llm; what a model wrote, somebody else approves")
	completeFrom(c, "source", carrel.SourceUser, carrel.SourceLLM)
	f.StringVar(&x.thread, "thread", "", "the conversation that it belongs to; answers can be remembered for it")
	f.DurationVar(&x.timeout, "timeout", 0, "end the task after this time, as in 20m (default 1h)")
	f.DurationVar(&x.wait, "wait", 0, "how long a person may take to answer what it asks, as in 5m (default 10m)")
	x.output = outputFlag(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		argv := args[1:]
		if argv[0] == "--" {
			argv = argv[1:]
		}
		if len(argv) == 0 {
			return usage(c, "cannot run a task: the argument COMMAND is missing")
		}
		return a.runTask(c, args[0], argv, &x)
	}
	return c
}

func (a *app) runTask(c *cobra.Command, ws string, argv []string, x *taskFlags) error {
	if x.timeout < 0 {
		return usage(c, "cannot use a negative --timeout: give a time such as 20m, or leave it out")
	}
	if c.Flags().Changed("fd") && (x.fd < minFD || x.fd > maxFD) {
		return usage(c, "cannot use --fd %d: give %d to %d, or leave it out for stdin and stdout", x.fd, minFD, maxFD)
	}
	if err := cmp.Or(checkWait(c, x.wait), x.check(a, c)); err != nil {
		return err
	}
	prompt, err := a.promptOf(c, x)
	if err != nil {
		return err
	}
	client, err := a.client()
	if err != nil {
		return err
	}
	spec := x.spec(argv)
	if spec.Dir, err = insideDir(c.Context(), client, ws, x.dir); err != nil {
		return err
	}
	req := &carrelv1.RunTaskRequest{Workspace: ws, Prompt: prompt, Fd: x.fd, Command: &carrelv1.Command{
		Argv: spec.Argv, Env: map[string]string{}, Cwd: spec.Dir, TimeoutMs: x.timeout.Milliseconds(), Source: spec.Source, Thread: x.thread,
	}}
	for _, e := range spec.Env {
		k, v, _ := strings.Cut(e, "=")
		req.Command.Env[k] = v
	}
	if x.acp {
		req.Protocol = "acp"
	}
	spec.Thread, spec.ApprovalWait = x.thread, x.wait
	var m *carrelv1.RunTaskResponse
	if err := a.asking(c.Context(), client, &spec, nil, func(ctx context.Context) (err error) {
		req.Command.ApprovalWaitMs = max(spec.ApprovalWait.Milliseconds(), -1)
		m, err = askOf(ctx, client, tasks.RunTask, req)
		return err
	}); err != nil {
		return err
	}
	switch {
	case x.detach && *x.output == asJSON:
		return a.printJSON(objectOf(m.GetTask()))
	case x.detach:
		_, err = fmt.Fprintln(a.Out, m.GetTask().GetId())
		return err
	}
	_ = say(a.Err, "carrel: this is task %s\n", m.GetTask().GetId())
	return a.followTask(c.Context(), client, &carrelv1.FollowTaskRequest{Workspace: ws, TaskId: m.GetTask().GetId()}, *x.output)
}

// promptOf reads the prompt of a task.
func (a *app) promptOf(c *cobra.Command, x *taskFlags) (string, error) {
	if x.prompt != "" && x.file != "" {
		return "", usage(c, "cannot use --prompt with --file: leave one of them out")
	}
	text := []byte(x.prompt)
	if x.prompt == "" {
		from := a.In
		if x.file != "" {
			f, err := treefile.Open(x.file)
			if err != nil {
				return "", fmt.Errorf("cannot read the prompt: %w", err)
			}
			defer f.Close()
			from = f
		}
		var err error
		if text, err = io.ReadAll(io.LimitReader(from, maxPrompt+1)); err != nil {
			return "", fmt.Errorf("cannot read the prompt: %w", err)
		}
	}
	switch {
	case len(text) == 0:
		return "", fmt.Errorf("cannot use an empty prompt: nothing was read; write it to stdin, or give --prompt: %w",
			errdefs.ErrInvalidArgument)
	case len(text) > maxPrompt:
		return "", fmt.Errorf("cannot use the prompt: it has more than %d bytes; put more into a file of the workspace: %w", maxPrompt,
			errdefs.ErrInvalidArgument)
	case !utf8.Valid(text):
		return "", fmt.Errorf("cannot use the prompt: it is not UTF-8; put it into a file of the workspace: %w", errdefs.ErrInvalidArgument)
	}
	return string(text), nil
}

func (a *app) taskLsCommand() *cobra.Command {
	c := &cobra.Command{
		Use:               "ls [flags] WORKSPACE",
		Short:             help(operation.ListTasks),
		Example:           "  carrel task ls demo\n  carrel task ls -o json demo",
		Args:              exactly("WORKSPACE"),
		ValidArgsFunction: onlyFirst(a.completeWorkspaces()),
	}
	return a.prints(c, func(c *cobra.Command, args []string) (any, printer, error) {
		m, err := ask(c.Context(), a, tasks.ListTasks, &carrelv1.ListTasksRequest{Workspace: args[0]})
		if err != nil {
			return nil, nil, err
		}
		t := newTable(-1, "TASK", "STATE", "BEGAN", "MESSAGES", "COMMAND").wideOnly("MESSAGES").freeText()
		for _, x := range m.GetTasks() {
			t.add(x.GetId(), x.GetState(), clock(x.GetBeganUnixMs()), fmt.Sprint(x.GetLast()), shellQuote(x.GetArgv()))
		}
		return objectsOf(m.GetTasks()), t, nil
	})
}

func (a *app) taskShowCommand() *cobra.Command {
	c := &cobra.Command{
		Use:               "show [flags] WORKSPACE TASK",
		Short:             help(operation.ShowTask),
		Example:           "  carrel task show demo c-0123456789abcdef",
		Args:              exactly("WORKSPACE", "TASK"),
		ValidArgsFunction: a.completeTask(),
	}
	return a.prints(c, func(c *cobra.Command, args []string) (any, printer, error) {
		m, err := ask(c.Context(), a, tasks.GetTask, &carrelv1.GetTaskRequest{Workspace: args[0], TaskId: args[1]})
		return ofTask(m.GetTask(), err)
	})
}

func (a *app) taskStopCommand() *cobra.Command {
	c := &cobra.Command{
		Use:               "stop [flags] WORKSPACE TASK",
		Short:             help(operation.StopTask),
		Long:              "Ask a task to stop. If it has not after ten seconds, its program is ended: HUP, TERM, KILL.",
		Example:           "  carrel task stop demo c-0123456789abcdef",
		Args:              exactly("WORKSPACE", "TASK"),
		ValidArgsFunction: a.completeTask(),
	}
	return a.prints(c, func(c *cobra.Command, args []string) (any, printer, error) {
		m, err := ask(c.Context(), a, tasks.StopTask, &carrelv1.StopTaskRequest{Workspace: args[0], TaskId: args[1]})
		return ofTask(m.GetTask(), err)
	})
}

// ofTask is a task as it is printed.
func ofTask(x *carrelv1.Task, err error) (any, printer, error) {
	if err != nil {
		return nil, nil, err
	}
	end := ""
	if ms := x.GetEndedUnixMs(); ms != 0 {
		end = clock(ms)
	}
	return objectOf(x), pairs([][2]string{
		{"task", x.GetId()},
		{"workspace", x.GetWorkspace()},
		{"state", x.GetState()},
		{"reason", x.GetReason()},
		{"protocol", x.GetProtocol()},
		{"command", shellQuote(x.GetArgv())},
		{"by", x.GetPrincipal()},
		{"began", clock(x.GetBeganUnixMs())},
		{"ended", end},
		{"messages", fmt.Sprint(x.GetLast())},
	}...), nil
}

func (a *app) taskFollowCommand() *cobra.Command {
	var after int64
	var now bool
	c := &cobra.Command{
		Use:   "follow [flags] WORKSPACE TASK",
		Short: help(operation.FollowTask),
		Long: `Print the messages of a task, each with its number, and new ones until the task ends. What
was read up to a number is left out with --after. The exit code is that of "carrel task run".`,
		Example: `  carrel task follow demo c-0123456789abcdef
  carrel task follow --after 40 --now -o json demo c-0123456789abcdef`,
		Args:              exactly("WORKSPACE", "TASK"),
		ValidArgsFunction: a.completeTask(),
	}
	c.Flags().Int64Var(&after, "after", 0, "print messages with numbers greater than this")
	c.Flags().BoolVar(&now, "now", false, "print what there is, and do not wait for more")
	out := outputFlag(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		if after < 0 {
			return usage(c, "cannot use a negative --after: give the number of the last message that you have")
		}
		client, err := a.client()
		if err != nil {
			return err
		}
		return a.followTask(c.Context(), client, &carrelv1.FollowTaskRequest{Workspace: args[0], TaskId: args[1], After: after, Now: now}, *out)
	}
	return c
}

// reconnects is how often in a row a follower whose connection is lost tries again, and reconnectAfter how long it waits first. One who
// shows a turn tries for longer: a daemon that is started again takes it up.
const (
	reconnects       = 5
	reconnectsOfTurn = 60
	reconnectAfter   = time.Second
)

// receiveTask calls show with the messages of a task until it ends, and returns it then. A connection that is lost is made
// again, from the last message on.
func (a *app) receiveTask(ctx context.Context, client *carrel.Client, req *carrelv1.FollowTaskRequest, tries int,
	show func(*carrelv1.TaskMessage) error,
) (end *carrelv1.Task, err error) {
	for tried := 0; ; tried++ {
		err := receiveOf(ctx, client, tasks.FollowTask, req, func(m *carrelv1.FollowTaskResponse) error {
			tried = 0
			if m.GetTask() != nil {
				end = m.GetTask()
				return nil
			}
			req.After = m.GetMessage().GetNumber()
			if m.GetLost() > 0 {
				_ = say(a.Err, "carrel: no longer kept: %s\n", counted(m.GetLost(), "message"))
			}
			return show(m.GetMessage())
		})
		if err == nil {
			return end, nil
		}
		if !errdefs.IsUnavailable(err) || tried >= tries || ctx.Err() != nil {
			return nil, err
		}
		if tried == 1 { // one that is back at once is not worth a word
			_ = say(a.Err, "carrel: the daemon does not answer; it is waited for\n")
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(reconnectAfter):
		}
	}
}

// followTask prints messages until the task ends.
func (a *app) followTask(ctx context.Context, client *carrel.Client, req *carrelv1.FollowTaskRequest, out format) error {
	end, err := a.receiveTask(ctx, client, req, reconnects, func(m *carrelv1.TaskMessage) error { return a.printMessage(m, out) })
	if err != nil {
		return err
	}
	switch workspace.TaskState(end.GetState()) {
	case workspace.TaskRunning, workspace.TaskCompleted:
		return nil
	case workspace.TaskFailed, workspace.TaskStopped:
	}
	a.code = 1
	return say(a.Err, "carrel: the task has %s: %s\n", map[string]string{"failed": "failed", "stopped": "been stopped"}[end.GetState()],
		end.GetReason())
}

func (a *app) printMessage(m *carrelv1.TaskMessage, out format) error {
	if out == asJSON {
		return a.printJSON(object{
			{"number", m.GetNumber()}, {"unix_ms", m.GetUnixMs()}, {"kind", m.GetKind()}, {"body", string(m.GetBody())},
		})
	}
	return say(a.Out, "%d %s %s\n", m.GetNumber(), m.GetKind(), m.GetBody())
}

// completeTask completes WORKSPACE and TASK.
func (a *app) completeTask() cobra.CompletionFunc {
	find := a.completion(func(ctx context.Context, client *carrel.Client, args []string) (out []string, err error) {
		m, err := askOf(ctx, client, tasks.ListTasks, &carrelv1.ListTasksRequest{Workspace: args[0]})
		for _, x := range m.GetTasks() {
			out = append(out, cobra.CompletionWithDesc(x.GetId(), x.GetState()+" "+cut(shellQuote(x.GetArgv()), 40)))
		}
		return out, err
	})
	return func(c *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		switch len(args) {
		case 0:
			return a.completeWorkspaces()(c, args, prefix)
		case 1:
			return find(c, args, prefix)
		}
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
}
