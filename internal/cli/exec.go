package cli

import (
	"context"
	"fmt"
	"os"
	"path"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"golang.org/x/term"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/cli/attach"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	carrel "github.com/carrel-dev/carrel/sdk/go"
)

// commandFlags are what exec and run have in common.
type commandFlags struct {
	stdin, tty  bool
	env         []string
	dir, source string
}

func (x *commandFlags) add(c *cobra.Command, home string) {
	f := c.Flags()
	f.SetInterspersed(false) // the flags of the command are its own
	f.BoolVarP(&x.stdin, "interactive", "i", false, "pass stdin to the command")
	f.BoolVarP(&x.tty, "tty", "t", false, "run it on a terminal")
	f.StringArrayVarP(&x.env, "env", "e", nil, "set NAME=VALUE, or pass NAME on from here")
	f.StringVarP(&x.dir, "cwd", "w", "", "directory inside to run in; a relative one and ~ start at the home (default "+home+")")
	f.StringVar(&x.source, "source", carrel.SourceUser, "who wrote the command: user or llm; what a model wrote, somebody else approves")
	completeFrom(c, "source", carrel.SourceUser, carrel.SourceLLM)
}

func (x *commandFlags) check(a *app, c *cobra.Command) error {
	switch {
	case x.source != carrel.SourceUser && x.source != carrel.SourceLLM:
		return usage(c, "cannot use --source %q: it is user or llm", x.source)
	case x.tty && x.stdin && !isTerminal(a.In):
		return usage(c, "cannot use -t: stdin is not a terminal; leave -t out to pass stdin on as it is")
	}
	return nil
}

// spec is the command that the flags describe.
func (x *commandFlags) spec(argv []string) carrel.Spec {
	s := carrel.Spec{Argv: argv, Env: environment(x.env), Dir: x.dir, Stdin: x.stdin, Source: x.source}
	if x.tty {
		s.Env = withTerm(s.Env)
	}
	return s
}

type execFlags struct {
	commandFlags
	detach, create       bool
	profile, thread      string
	timeout, grace, wait time.Duration
	output               *format
}

func (a *app) execCommand() *cobra.Command {
	var x execFlags
	c := &cobra.Command{
		Use:   "exec [flags] WORKSPACE [--] COMMAND [ARG...]",
		Short: help(operation.ExecCommand),
		Long: `Run a command in a workspace, which is started first if it is stopped. The command's
stdin is /dev/null unless -i is given; INT, TERM, HUP, QUIT, USR1 and USR2 are passed on.

If the policy asks for a person's approval first, you are asked on a terminal; without one it
fails at once with the question's id and the command that answers it, or waits with --wait.

The exit code is the command's own: 128 + N if signal N ended it, which is 143 or
137 after --timeout. carrel's own codes are 125 if it failed itself, 126 if the
command may not be executed and 127 if there is no such command.`,
		Example: `  carrel exec demo -- make test
  tar c src | carrel exec -i demo tar x
  carrel exec -it demo bash
  carrel exec --timeout 30s --env CI=1 --env TOKEN demo ./build.sh
  carrel exec -d -w site demo -- python3 -m http.server
  carrel exec --create --profile chat telegram:-100123 -- ./answer`,
		Args: atLeast("WORKSPACE", "COMMAND"),
		ValidArgsFunction: func(c *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveDefault // the shell completes the command
			}
			return a.completeWorkspaces()(c, args, prefix)
		},
	}
	x.add(c, "the home")
	f := c.Flags()
	f.BoolVarP(&x.detach, "detach", "d", false, "print the command's id and leave it running")
	f.DurationVar(&x.timeout, "timeout", 0, "end the command after this time, as in 30s or 5m")
	f.DurationVar(&x.grace, "grace", 0, "time between TERM and KILL at the timeout (default 2s)")
	f.BoolVar(&x.create, "create", false, "make the workspace first if there is none for this key")
	f.StringVar(&x.profile, "profile", "", "with --create, the profile that it is made with")
	completeFrom(c, "profile", "chat")
	f.StringVar(&x.thread, "thread", "", "the conversation that it belongs to; answers can be remembered for it")
	waitFlag(c, &x.wait)
	x.output = outputFlag(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		argv, err := flagsBehind(c, args[1:])
		if err != nil {
			return err
		}
		if len(argv) == 0 {
			return usage(c, "cannot exec: the argument COMMAND is missing")
		}
		return a.exec(c, args[0], argv, &x)
	}
	return c
}

// flagsBehind reads flags that stand behind the name of a workspace, as kubectl has them, and returns the command: no program's name
// begins with a dash.
func flagsBehind(c *cobra.Command, args []string) (argv []string, err error) {
	if len(args) == 0 || !strings.HasPrefix(args[0], "-") || args[0] == "-" {
		return args, nil
	}
	f := c.Flags()
	f.SetInterspersed(false)
	if err := f.Parse(args); err != nil {
		return nil, flagError(c, err)
	}
	return f.Args(), nil
}

func (a *app) exec(c *cobra.Command, workspace string, argv []string, x *execFlags) error {
	if x.timeout < 0 || x.grace < 0 {
		return usage(c, "cannot use a negative --timeout or --grace: give a time such as 30s, or leave it out")
	}
	if err := checkWait(c, x.wait); err != nil {
		return err
	}
	if x.detach && x.stdin {
		return usage(c, "cannot use -i with --detach: nobody would be there to feed stdin; leave one of them out")
	}
	if x.profile != "" && !x.create {
		return usage(c, "cannot use --profile without --create: a workspace keeps the one that it was made with")
	}
	if err := x.check(a, c); err != nil {
		return err
	}
	client, err := a.client()
	if err != nil {
		return err
	}
	if x.create {
		if _, err := askOf(c.Context(), client, workspaces.Create, &carrelv1.CreateRequest{Key: workspace, Profile: x.profile}); err != nil {
			return err
		}
	}
	spec := x.spec(argv)
	if spec.Dir, err = insideDir(c.Context(), client, workspace, x.dir); err != nil {
		return err
	}
	spec.Timeout, spec.Grace, spec.Thread, spec.ApprovalWait = x.timeout, x.grace, x.thread, x.wait
	if x.detach {
		return a.detach(c.Context(), client, workspace, spec, x)
	}
	if x.tty {
		size := a.windowSize()
		spec.Terminal = &size
	}
	signals := attach.Signals(x.tty)
	a.leaveQuit()
	cmd, err := a.start(c.Context(), client, workspace, spec, signals)
	if err != nil {
		return err
	}
	return a.attend(c.Context(), workspace, cmd, signals, &x.commandFlags, x.timeout)
}

// atHome is a directory inside with "~/" before a relative one; "" is the home.
func atHome(dir string) string {
	rest, _ := strings.CutPrefix(dir, "~/")
	switch {
	case dir == "~" || rest == "":
		return ""
	case path.IsAbs(dir):
		return dir
	}
	return "~/" + strings.TrimLeft(rest, "/")
}

// insideDir is the absolute path of a directory inside a workspace. Only a relative one makes it ask where the home is.
func insideDir(ctx context.Context, client *carrel.Client, workspace, dir string) (string, error) {
	below, relative := strings.CutPrefix(atHome(dir), "~/")
	if !relative {
		return below, nil
	}
	m, err := askOf(ctx, client, workspaces.Get, &carrelv1.GetRequest{Workspace: workspace})
	if err != nil {
		return "", err
	}
	return path.Join(m.GetWorkspace().GetInsideHome(), below), nil
}

// start starts a command, after a person has answered if that is needed.
func (a *app) start(
	ctx context.Context, client *carrel.Client, workspace string, spec carrel.Spec, signals <-chan os.Signal,
) (cmd *carrel.Command, err error) {
	err = a.asking(ctx, client, &spec, signals, func(ctx context.Context) error {
		cmd, err = client.Start(ctx, workspace, spec)
		return err
	})
	if err != nil && cmd != nil { // a signal came just then
		cmd.Close()
		return nil, err
	}
	return cmd, err
}

// attended is a command that this process is attached to.
type attended interface {
	Run(ctx context.Context, s carrel.Streams) (carrel.Status, error)
	Signal(ctx context.Context, signal int) error
	Resize(ctx context.Context, size carrel.WindowSize) error
	Close() error
}

// attend copies streams and passes signals on until cmd has ended.
func (a *app) attend(
	ctx context.Context, workspace string, cmd attended, signals <-chan os.Signal, x *commandFlags, timeout time.Duration,
) error {
	streams := carrel.Streams{Stdout: a.Out, Stderr: a.Err}
	if x.stdin {
		streams.Stdin = a.In
	}
	if x.stdin && x.tty {
		restore, err := rawMode(a.In)
		if err != nil {
			cmd.Close()
			return err
		}
		defer restore()
	}
	ctx, giveUp := context.WithCancelCause(ctx)
	defer giveUp(nil)
	go attach.PassOn(ctx, signals, cmd.Signal, func(ctx context.Context) {
		_ = cmd.Resize(ctx, a.windowSize()) // the next one corrects it
	}, giveUp)
	status, err := cmd.Run(ctx, streams)
	if err != nil {
		return err
	}
	a.code = status.Code
	end := attach.End{Code: status.Code, TimedOut: status.TimedOut, OOM: status.OOM, Stuck: status.Stuck}
	if said := end.Said(workspace, timeout); said != "" {
		_ = say(a.Err, "%s", said)
	}
	return nil
}

func (a *app) detach(ctx context.Context, client *carrel.Client, workspace string, s carrel.Spec, x *execFlags) error {
	req := &carrelv1.DetachRequest{Workspace: workspace, Command: &carrelv1.Command{
		Argv: s.Argv, Env: map[string]string{}, Cwd: s.Dir,
		TimeoutMs: s.Timeout.Milliseconds(), GraceMs: s.Grace.Milliseconds(),
		Source: s.Source, Thread: s.Thread,
	}}
	for _, e := range s.Env {
		k, v, _ := strings.Cut(e, "=")
		req.Command.Env[k] = v
	}
	if x.tty {
		req.Terminal = &carrelv1.WindowSize{Rows: 24, Cols: 80} // attach resizes it
	}
	var m *carrelv1.DetachResponse
	err := a.asking(ctx, client, &s, nil, func(ctx context.Context) (err error) {
		req.Command.ApprovalWaitMs = max(s.ApprovalWait.Milliseconds(), -1)
		m, err = askOf(ctx, client, commands.Detach, req)
		return err
	})
	if err != nil {
		return err
	}
	if *x.output == asJSON {
		return a.printJSON(objectOf(m))
	}
	_, err = fmt.Fprintln(a.Out, m.GetCommandId())
	return err
}

// environment fills in the values of variables that are named without one from this process.
// One that is unset here stays unset there.
func environment(flags []string) []string {
	var out []string
	for _, e := range flags {
		if strings.Contains(e, "=") {
			out = append(out, e)
		} else if v, ok := os.LookupEnv(e); ok {
			out = append(out, e+"="+v)
		}
	}
	return out
}

// withTerm passes TERM on to a command on a terminal, unless it is set already.
func withTerm(env []string) []string {
	for _, e := range env {
		if strings.HasPrefix(e, "TERM=") {
			return env
		}
	}
	if t := os.Getenv("TERM"); t != "" {
		env = append(env, "TERM="+t)
	}
	return env
}

// windowSize is the size of the terminal here, or 24 by 80 if there is none.
func (a *app) windowSize() carrel.WindowSize {
	for _, f := range []*os.File{a.Out, a.In, a.Err} {
		var w *unix.Winsize
		err := withFD(f, func(fd int) (err error) {
			w, err = unix.IoctlGetWinsize(fd, unix.TIOCGWINSZ)
			return err
		})
		if err == nil {
			return carrel.WindowSize{Rows: w.Row, Cols: w.Col}
		}
	}
	return carrel.WindowSize{Rows: 24, Cols: 80}
}

// rawMode passes every key on as it is. The function that it returns undoes that, and must
// run however the process ends.
func rawMode(f *os.File) (restore func(), err error) {
	if !isTerminal(f) {
		return func() {}, nil
	}
	var old *term.State
	err = withFD(f, func(fd int) (err error) {
		old, err = term.MakeRaw(fd)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("cannot set the terminal to raw mode: %w", err)
	}
	// There is nothing left to try if it fails.
	return func() { _ = withFD(f, func(fd int) error { return term.Restore(fd, old) }) }, nil
}
