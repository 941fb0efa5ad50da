package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	carrel "github.com/carrel-dev/carrel/sdk/go"
)

func (a *app) psCommand() *cobra.Command {
	return a.prints(&cobra.Command{
		Use:   "ps [flags] WORKSPACE",
		Short: help(operation.ListCommands),
		Long: `List the commands that run in a workspace, and the detached ones that have ended
and whose output is still kept. Secrets in their arguments are masked, for their
owner too.`,
		Example:           "  carrel ps demo",
		Args:              exactly("WORKSPACE"),
		ValidArgsFunction: onlyFirst(a.completeWorkspaces()),
	}, func(c *cobra.Command, args []string) (any, printer, error) {
		m, err := ask(c.Context(), a, commands.ListCommands, &carrelv1.ListCommandsRequest{Workspace: args[0]})
		if err != nil {
			return nil, nil, err
		}
		all := m.GetCommands()
		slices.SortFunc(all, func(x, y *carrelv1.CommandInfo) int { return cmp.Compare(x.GetStartedUnixNs(), y.GetStartedUnixNs()) })
		t := newTable(2, "COMMAND", "PID", "STATE", "AGE", "PROCS", "KIND", "ARGV").wideOnly("PROCS").freeText()
		for _, x := range all {
			state, kind := "running", "attached"
			if s := x.GetStatus(); s != nil {
				state = "exit " + strconv.Itoa(int(s.GetCode()))
			}
			if x.GetDetached() {
				kind = "detached"
			}
			t.add(x.GetCommandId(), strconv.FormatInt(x.GetPid(), 10), state, age(time.Unix(0, x.GetStartedUnixNs())),
				strconv.Itoa(int(x.GetProcesses())), kind, shellQuote(x.GetArgv()))
		}
		return objectsOf(all), t, nil
	})
}

// completeCommand completes WORKSPACE COMMAND.
func (a *app) completeCommand() cobra.CompletionFunc {
	command := a.completion(func(ctx context.Context, client *carrel.Client, args []string) (out []string, err error) {
		m, err := askOf(ctx, client, commands.ListCommands, &carrelv1.ListCommandsRequest{Workspace: args[0]})
		for _, x := range m.GetCommands() {
			out = append(out, cobra.CompletionWithDesc(x.GetCommandId(), cut(shellQuote(x.GetArgv()), 40)))
		}
		return out, err
	})
	return func(c *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		switch len(args) {
		case 0:
			return a.completeWorkspaces()(c, args, prefix)
		case 1:
			return command(c, args, prefix)
		}
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
}

func (a *app) attachCommand() *cobra.Command {
	var verbose bool
	c := &cobra.Command{
		Use:   "attach [flags] WORKSPACE [COMMAND]",
		Short: help(operation.AttachCommand),
		Long: `Print the output of a detached command, from what is kept to its end. Without COMMAND
it is the newest one of the workspace, whether it has ended or not. If it runs on a
terminal, that is connected to this one; Ctrl-P Ctrl-Q detaches from it. Without a
terminal, Ctrl-C does. The command lives on in both cases. The exit code is the
command's own if it ended.`,
		Example:           "  carrel attach demo\n  carrel attach demo c-0123456789abcdef",
		Args:              between([]string{"WORKSPACE"}, "COMMAND"),
		ValidArgsFunction: a.completeCommand(),
	}
	verboseFlag(c, &verbose)
	c.RunE = func(c *cobra.Command, args []string) error {
		client, command, err := a.commandOr(c.Context(), args, verbose)
		if err != nil {
			return err
		}
		return a.attach(c.Context(), client, args[0], command)
	}
	return c
}

func (a *app) attach(ctx context.Context, client *carrel.Client, workspace, command string) error {
	att, err := client.Attach(ctx, workspace, command, true)
	if err != nil {
		return err
	}
	defer att.Close()
	a.tellLost(att.Lost)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() { att.File.Close() })() // ends the copy below

	signals := make(chan os.Signal, 16)
	defer signal.Stop(signals)
	if att.Terminal {
		signal.Notify(signals, syscall.SIGWINCH, syscall.SIGTERM, syscall.SIGHUP)
		restore, err := rawMode(a.In)
		if err != nil {
			return err
		}
		defer restore()
		_ = att.Resize(ctx, a.windowSize()) // a wrong size is not worth failing for
		go func() {
			_, _ = io.Copy(att.File, &detachKeys{r: a.In, detach: cancel})
		}()
	} else {
		signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	}
	go func() {
		for s := range signals {
			if s != syscall.SIGWINCH {
				cancel()
				return
			}
			_ = att.Resize(ctx, a.windowSize())
		}
	}()
	// A terminal ends with EIO.
	if _, err := io.Copy(a.Out, att.File); err != nil && ctx.Err() == nil && !errors.Is(err, syscall.EIO) {
		return fmt.Errorf("cannot copy the output of %s: %w", command, err)
	}
	if ctx.Err() != nil {
		a.progress("\r\nDetached; the command goes on. End it with: carrel kill %s %s\r", workspace, command)
		return nil
	}
	if err := att.Err(); err != nil {
		return err
	}
	return a.exitLike(context.WithoutCancel(ctx), client, workspace, command)
}

// exitLike takes over the exit code of a command that has ended.
func (a *app) exitLike(ctx context.Context, client *carrel.Client, workspace, command string) error {
	m, err := askOf(ctx, client, commands.ListCommands, &carrelv1.ListCommandsRequest{Workspace: workspace})
	for _, x := range m.GetCommands() {
		if x.GetCommandId() == command && x.GetStatus() != nil {
			a.code = int(x.GetStatus().GetCode())
		}
	}
	return err
}

// detachKeys passes keys on until Ctrl-P is followed by Ctrl-Q.
type detachKeys struct {
	r       io.Reader
	detach  func()
	pending bool // a Ctrl-P is held back
}

const ctrlP, ctrlQ = 0x10, 0x11

func (d *detachKeys) Read(p []byte) (int, error) {
	if len(p) < 2 {
		return 0, io.ErrShortBuffer
	}
	buf := make([]byte, len(p)/2) // each byte may release one that was held back
	n, err := d.r.Read(buf)
	out := p[:0]
	for _, b := range buf[:n] {
		switch {
		case d.pending && b == ctrlQ:
			d.detach()
			return len(out), io.EOF
		case d.pending:
			out, d.pending = append(out, ctrlP), false
			if b == ctrlP {
				d.pending = true
				continue
			}
			out = append(out, b)
		case b == ctrlP:
			d.pending = true
		default:
			out = append(out, b)
		}
	}
	return len(out), err
}

func (a *app) killCommand() *cobra.Command {
	var sig string
	var grace time.Duration
	c := &cobra.Command{
		Use:   "kill [flags] WORKSPACE COMMAND",
		Short: help(operation.SignalCommand),
		Long: `End a command and everything it left behind: TERM, a grace period, KILL. With --signal only
that signal is sent, to the command's process group.`,
		Example: `  carrel kill demo c-0123456789abcdef
  carrel kill --signal HUP demo c-0123456789abcdef`,
		Args:              exactly("WORKSPACE", "COMMAND"),
		ValidArgsFunction: a.completeCommand(),
	}
	c.Flags().StringVarP(&sig, "signal", "s", "", "send this signal, by name or number")
	completeFrom(c, "signal", "TERM", "INT", "HUP", "KILL", "QUIT", "USR1", "USR2", "STOP", "CONT", "WINCH")
	c.Flags().DurationVar(&grace, "grace", 0, "time between TERM and KILL (default 2s)")
	c.RunE = func(c *cobra.Command, args []string) error {
		n, err := signalNumber(sig)
		if err != nil {
			return usage(c, "%w", err)
		}
		_, err = ask(c.Context(), a, commands.Signal, &carrelv1.SignalRequest{
			Workspace: args[0], CommandId: args[1], Signal: int32(n), GraceMs: grace.Milliseconds(),
		})
		return err
	}
	return c
}

// signalNumber reads "TERM", "SIGTERM" or "15"; "" is 0.
func signalNumber(s string) (int, error) {
	if s == "" {
		return 0, nil
	}
	if n, err := strconv.Atoi(s); err == nil && n >= 1 && n <= 64 {
		return n, nil
	}
	name := strings.ToUpper(s)
	if !strings.HasPrefix(name, "SIG") {
		name = "SIG" + name
	}
	if n := unix.SignalNum(name); n != 0 {
		return int(n), nil
	}
	return 0, fmt.Errorf("cannot use %q as a signal: give a name such as TERM or a number from 1 to 64", s)
}
