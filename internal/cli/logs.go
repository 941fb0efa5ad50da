package cli

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	carrel "github.com/carrel-dev/carrel/sdk/go"
)

// tailLines is a flag value: how many lines, or "all".
type tailLines struct {
	n       int
	limited bool
}

func (l *tailLines) String() string {
	if !l.limited {
		return "all"
	}
	return strconv.Itoa(l.n)
}

func (l *tailLines) Type() string { return "LINES" }

func (l *tailLines) Set(s string) error {
	if s == "all" {
		*l = tailLines{}
		return nil
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 0 {
		return errors.New("it is not a number of lines; give 0 or more, as in 20, or all")
	}
	*l = tailLines{n, true}
	return nil
}

// of is the last lines of b. What follows the last newline is a line too.
func (l *tailLines) of(b []byte) []byte {
	if !l.limited {
		return b
	}
	if l.n == 0 {
		return nil
	}
	at := len(bytes.TrimSuffix(b, []byte("\n")))
	for range l.n {
		if at = bytes.LastIndexByte(b[:at], '\n'); at < 0 {
			return b
		}
	}
	return b[at+1:]
}

func (a *app) logsCommand() *cobra.Command {
	var follow, verbose bool
	var last tailLines
	c := &cobra.Command{
		Use:   "logs [flags] WORKSPACE [COMMAND]",
		Short: help(operation.ReadOutput),
		Long: `Print what is kept of the output of a detached command. Without COMMAND it is the
newest one of the workspace, whether it has ended or not.`,
		Example: `  carrel logs demo
  carrel logs -f --tail 20 demo
  carrel logs demo c-0123456789abcdef`,
		Args:              between([]string{"WORKSPACE"}, "COMMAND"),
		ValidArgsFunction: a.completeCommand(),
	}
	c.Flags().BoolVarP(&follow, "follow", "f", false, "keep printing new output until the command ends")
	c.Flags().VarP(&last, "tail", "n", "print only this many of the last lines that are kept; 0 is none of them")
	verboseFlag(c, &verbose)
	c.RunE = func(c *cobra.Command, args []string) error {
		client, command, err := a.commandOr(c.Context(), args, verbose)
		if err != nil {
			return err
		}
		return a.logs(c.Context(), client, args[0], command, last, follow)
	}
	return c
}

// logs prints output from its place on: the bytes of a command's output are counted from its first.
func (a *app) logs(ctx context.Context, client *carrel.Client, ws, command string, last tailLines, follow bool) error {
	var from int64
	if last.limited {
		kept, lost, err := keptOutput(ctx, client, ws, command)
		if err != nil {
			return err
		}
		lines := last.of(kept)
		if len(lines) == len(kept) && last.n > 0 {
			a.tellLost(lost) // more lines were asked for than are kept
		}
		if _, err := a.Out.Write(lines); err != nil || !follow {
			return err
		}
		from = lost + int64(len(kept))
	}
	at, first := int64(0), true
	req := &carrelv1.LogsRequest{Workspace: ws, CommandId: command, Follow: follow}
	return receiveOf(ctx, client, commands.Logs, req, func(m *carrelv1.LogsResponse) error {
		if first {
			first, at = false, m.GetLost()
			a.tellLost(at - from)
		}
		data := m.GetData()
		skip := min(max(from-at, 0), int64(len(data)))
		at += int64(len(data))
		_, err := a.Out.Write(data[skip:])
		return err
	})
}

// keptOutput reads what is kept, which is bounded, and how much before it is not.
func keptOutput(ctx context.Context, client *carrel.Client, ws, command string) (kept []byte, lost int64, err error) {
	req := &carrelv1.LogsRequest{Workspace: ws, CommandId: command}
	err = receiveOf(ctx, client, commands.Logs, req, func(m *carrelv1.LogsResponse) error {
		lost += m.GetLost() // it is on the first
		kept = append(kept, m.GetData()...)
		return nil
	})
	return kept, lost, err
}

// tellLost says how much of a command's output is no longer kept.
func (a *app) tellLost(bytes int64) {
	if bytes > 0 {
		_ = say(a.Err, "carrel: no longer kept: the oldest %s\n", counted(bytes, "byte"))
	}
}

func verboseFlag(c *cobra.Command, verbose *bool) {
	c.Flags().BoolVarP(verbose, "verbose", "v", false, "say on stderr which command was taken, without a terminal too")
}

// commandOr is the command of WORKSPACE [COMMAND]: without one, the newest that is detached.
func (a *app) commandOr(ctx context.Context, args []string, verbose bool) (client *carrel.Client, command string, err error) {
	if client, err = a.client(); err != nil || len(args) > 1 {
		return client, args[len(args)-1], err
	}
	m, err := askOf(ctx, client, commands.ListCommands, &carrelv1.ListCommandsRequest{Workspace: args[0]})
	if err != nil {
		return nil, "", err
	}
	all := slices.DeleteFunc(m.GetCommands(), func(x *carrelv1.CommandInfo) bool { return !x.GetDetached() })
	if len(all) == 0 {
		ws := shellQuote(args[:1])
		return nil, "", fmt.Errorf("cannot find a command: %s has no detached one whose output is kept; "+
			"start one with \"carrel exec -d %s -- COMMAND\": %w", ws, ws, errdefs.ErrNotFound)
	}
	x := slices.MaxFunc(all, func(x, y *carrelv1.CommandInfo) int { return cmp.Compare(x.GetStartedUnixNs(), y.GetStartedUnixNs()) })
	if verbose || isTerminal(a.Err) {
		_ = say(a.Err, "carrel: this is %s: %s\n", x.GetCommandId(), cut(shellQuote(x.GetArgv()), 60))
	}
	return client, x.GetCommandId(), nil
}
