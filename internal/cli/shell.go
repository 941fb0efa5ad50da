package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	carrel "github.com/carrel-dev/carrel/sdk/go"
)

// What a terminal here is sent before a session is drawn on it, and after: the session has the alternate screen, so that what
// stood there before comes back, whatever the session had turned on.
const (
	enterScreen = "\x1b[?1049h"
	leaveScreen = "\x1b[r\x1b[?9;1000;1002;1003;1004;1005;1006;1015;2004;1l\x1b>\x1b[0 q\x1b[m\x1b[?25h\x1b[?1049l"
)

type shellFlags struct {
	session, dir, source              string
	env                               []string
	readOnly, isNew, list, kill, tmux bool
	record                            bool
	wait                              time.Duration
	output                            *format
}

func (a *app) shellCommand() *cobra.Command {
	var x shellFlags
	c := &cobra.Command{
		Use:   "shell [flags] WORKSPACE [-- COMMAND [ARG...]]",
		Short: "Open or join a terminal that lives on when you leave it",
		Long: `Open a session in a workspace, or join the one that is open: a terminal with a name
that goes on when you leave it, and that several people can be on at once. It runs a
login shell in the home, or COMMAND. What it shows is kept, and drawn for everybody who
joins; its size is that of the smallest window. Ctrl-P Ctrl-Q leaves it; it ends with
its command, with --kill, or with the workspace.

--read-only looks on: nothing is typed, and the window's size does not count. --tmux
runs the workspace's own tmux in the session, where it has one.`,
		Example: `  carrel shell demo
  carrel shell --session build demo -- make watch
  carrel shell --read-only demo
  carrel shell --ls demo
  carrel shell --kill demo`,
		Args: func(c *cobra.Command, args []string) error {
			switch at := c.ArgsLenAtDash(); {
			case at >= 0:
				return exactly("WORKSPACE")(c, args[:at])
			case len(args) > 1:
				return usage(c, "cannot use the argument %q: put -- before the command", args[1])
			}
			return exactly("WORKSPACE")(c, args)
		},
		ValidArgsFunction: func(c *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveDefault
			}
			return a.completeWorkspaces()(c, args, prefix)
		},
	}
	f := c.Flags()
	f.StringVar(&x.session, "session", carrel.DefaultSession, "the name of the session")
	_ = c.RegisterFlagCompletionFunc("session", a.completion(completeSessions)) // the flag is there
	f.BoolVar(&x.readOnly, "read-only", false, "look on, without typing")
	f.BoolVar(&x.isNew, "new", false, "open it, and fail if it is open already")
	f.BoolVar(&x.list, "ls", false, "list the sessions of the workspace")
	f.BoolVar(&x.kill, "kill", false, "end the session and everything in it")
	f.BoolVar(&x.tmux, "tmux", false, "run the workspace's tmux in the session, which it must have")
	f.BoolVar(&x.record, "record", false, "when it is opened, record it to ~/.carrel/recordings in the workspace, for asciinema")
	f.StringArrayVarP(&x.env, "env", "e", nil, "when it is opened, set NAME=VALUE, or pass NAME on from here")
	f.StringVarP(&x.dir, "cwd", "w", "", "when it is opened, the directory inside to run in (default the home)")
	f.StringVar(&x.source, "source", carrel.SourceUser, "who wrote the command: user or llm; what a model wrote, somebody else approves")
	completeFrom(c, "source", carrel.SourceUser, carrel.SourceLLM)
	waitFlag(c, &x.wait)
	x.output = outputFlag(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		return a.shell(c, args[0], args[1:], &x)
	}
	return c
}

func (x *shellFlags) check(c *cobra.Command, argv []string) error {
	alone := 0
	for _, is := range []bool{x.list, x.kill, x.readOnly, x.isNew} {
		if is {
			alone++
		}
	}
	switch {
	case alone > 1:
		return usage(c, "cannot use more than one of --ls, --kill, --read-only and --new: give one")
	case (x.list || x.kill || x.readOnly) && (len(argv) > 0 || x.record || x.tmux || len(x.env) > 0 || x.dir != ""):
		return usage(c, "cannot open a session with --ls, --kill or --read-only: leave out the command and what is for opening")
	case x.tmux && len(argv) > 0:
		return usage(c, "cannot use --tmux with a command: run it in tmux, or leave --tmux out")
	case x.source != carrel.SourceUser && x.source != carrel.SourceLLM:
		return usage(c, "cannot use --source %q: it is user or llm", x.source)
	}
	return checkWait(c, x.wait)
}

func (a *app) shell(c *cobra.Command, workspace string, argv []string, x *shellFlags) error {
	if err := x.check(c, argv); err != nil {
		return err
	}
	ctx := c.Context()
	client, err := a.client()
	if err != nil {
		return err
	}
	switch {
	case x.list:
		return a.listSessions(ctx, client, workspace, *x.output)
	case x.kill:
		return a.killSession(ctx, client, workspace, x.session)
	case !x.readOnly && !isTerminal(a.In):
		return usage(c, "cannot open a shell: stdin is not a terminal; use \"carrel exec\" for a command without one")
	}
	o := carrel.TerminalOptions{
		Session: x.session, Size: a.windowSize(), New: x.isNew, ReadOnly: x.readOnly, Record: x.record,
		Command: carrel.Spec{Argv: argv, Env: environment(x.env), Source: x.source, ApprovalWait: x.wait},
	}
	switch {
	case x.tmux:
		o.Command.Argv = []string{"tmux", "new-session", "-A", "-s", x.session}
	case len(argv) == 0 && !x.readOnly:
		o.Command.Argv = []string{"bash", "-l"}
	}
	plain := len(argv) == 0 && !x.tmux
	if o.Command.Dir, err = insideDir(ctx, client, workspace, x.dir); err != nil {
		return err
	}
	var t *carrel.Terminal
	open := func(ctx context.Context) error {
		t, err = client.OpenTerminal(ctx, workspace, o)
		return err
	}
	err = a.asking(ctx, client, &o.Command, nil, open)
	if plain && errdefs.IsNotFound(err) && carrel.IsCommandError(err) { // a small system has no bash
		o.Command.Argv = []string{"sh", "-l"}
		err = a.asking(ctx, client, &o.Command, nil, open)
	}
	if x.tmux && errdefs.IsNotFound(err) && carrel.IsCommandError(err) {
		return fmt.Errorf("cannot use --tmux: workspace %s has no tmux: install it where the workspace finds programs, or leave --tmux out: %w",
			workspace, errdefs.ErrNotFound)
	}
	if err != nil {
		return err
	}
	return a.onTerminal(ctx, client, workspace, t, x.readOnly)
}

// onTerminal connects the terminal here to a session, until it is left or ends.
func (a *app) onTerminal(ctx context.Context, client *carrel.Client, workspace string, t *carrel.Terminal, readOnly bool) error {
	defer t.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() { t.File.Close() })() // ends the copy below
	signals := make(chan os.Signal, 16)
	defer signal.Stop(signals)
	signal.Notify(signals, syscall.SIGWINCH, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	restore, err := rawMode(a.In)
	if err != nil {
		return err
	}
	defer restore()
	go func() {
		keys := &detachKeys{r: a.In, detach: cancel}
		if readOnly { // what a person types to leave is still read
			_, _ = io.Copy(io.Discard, &leaveKeys{r: keys, leave: cancel})
			return
		}
		_, _ = io.Copy(t.File, keys)
	}()
	go func() {
		for s := range signals {
			if s != syscall.SIGWINCH {
				cancel()
				return
			}
			if !readOnly {
				_ = t.Resize(ctx, a.windowSize()) // the next one corrects it
			}
		}
	}()
	drawn := isTerminal(a.Out)
	if drawn {
		_, _ = io.WriteString(a.Out, enterScreen)
	}
	_, err = io.Copy(a.Out, t.File)
	if drawn {
		_, _ = io.WriteString(a.Out, leaveScreen)
	}
	restore()
	switch {
	case ctx.Err() != nil:
		a.progress("Left session %s; it goes on. Join it again with: carrel shell --session %s %s", t.Session, t.Session,
			shellQuote([]string{workspace}))
		return nil
	case err != nil && !errors.Is(err, syscall.EIO):
		return fmt.Errorf("cannot show session %s: %w", t.Session, err)
	}
	if err := t.Err(); err != nil {
		return err
	}
	return a.exitLike(context.WithoutCancel(ctx), client, workspace, t.ID)
}

// leaveKeys leaves a session that one only looks on at Ctrl-C and q too.
type leaveKeys struct {
	r     io.Reader
	leave func()
}

func (l *leaveKeys) Read(p []byte) (int, error) {
	n, err := l.r.Read(p)
	if slices.ContainsFunc(p[:n], func(b byte) bool { return b == 'q' || b == 3 }) {
		l.leave()
		return n, io.EOF
	}
	return n, err
}

func completeSessions(ctx context.Context, client *carrel.Client, args []string) (out []string, err error) {
	if len(args) == 0 {
		return nil, nil
	}
	all, err := sessionsOf(ctx, client, args[0])
	for _, s := range all {
		out = append(out, cobra.CompletionWithDesc(s.GetSession(), cut(shellQuote(s.GetArgv()), 40)))
	}
	return out, err
}

// sessionsOf are the open sessions of a workspace.
func sessionsOf(ctx context.Context, client *carrel.Client, workspace string) ([]*carrelv1.CommandInfo, error) {
	m, err := askOf(ctx, client, commands.ListCommands, &carrelv1.ListCommandsRequest{Workspace: workspace})
	return slices.DeleteFunc(m.GetCommands(), func(x *carrelv1.CommandInfo) bool {
		return x.GetSession() == "" || x.GetStatus() != nil
	}), err
}

func (a *app) listSessions(ctx context.Context, client *carrel.Client, workspace string, f format) error {
	all, err := sessionsOf(ctx, client, workspace)
	if err != nil {
		return err
	}
	if f == asJSON {
		return a.printJSON(objectsOf(all))
	}
	t := newTable(2, "SESSION", "COMMAND", "AGE", "CLIENTS", "SIZE", "RECORDED", "ARGV").freeText()
	for _, x := range all {
		recorded := "no"
		if x.GetRecorded() {
			recorded = "yes"
		}
		t.add(x.GetSession(), x.GetCommandId(), age(time.Unix(0, x.GetStartedUnixNs())), strconv.Itoa(int(x.GetClients())),
			fmt.Sprintf("%dx%d", x.GetSize().GetCols(), x.GetSize().GetRows()), recorded, shellQuote(x.GetArgv()))
	}
	return f.print(t, a.Out)
}

func (a *app) killSession(ctx context.Context, client *carrel.Client, workspace, session string) error {
	all, err := sessionsOf(ctx, client, workspace)
	if err != nil {
		return err
	}
	for _, x := range all {
		if x.GetSession() == session {
			_, err := askOf(ctx, client, commands.Signal, &carrelv1.SignalRequest{Workspace: workspace, CommandId: x.GetCommandId()})
			return err
		}
	}
	return fmt.Errorf("cannot end session %s: workspace %s has no such session; \"carrel shell --ls %s\" lists those that it has: %w",
		session, workspace, shellQuote([]string{workspace}), errdefs.ErrNotFound)
}
