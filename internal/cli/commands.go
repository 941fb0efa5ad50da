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
	"strings"
	"syscall"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	carrel "github.com/carrel-dev/carrel/sdk/go"
)

// commandView is the JSON of a command.
type commandView struct {
	CommandID string      `json:"command_id"`
	PID       int64       `json:"pid"`
	Argv      []string    `json:"argv"`
	Detached  bool        `json:"detached"`
	Terminal  bool        `json:"terminal"`
	StartedAt time.Time   `json:"started_at"`
	Processes int32       `json:"processes"`
	Status    *statusView `json:"status"`
}

type statusView struct {
	Code      int32     `json:"code"`
	Signal    int32     `json:"signal"`
	TimedOut  bool      `json:"timed_out"`
	OOM       bool      `json:"oom"`
	Killed    int32     `json:"killed"`
	Stuck     int32     `json:"stuck"`
	EndedAt   time.Time `json:"ended_at"`
	UserUS    int64     `json:"user_us"`
	SystemUS  int64     `json:"system_us"`
	MaxRSSKiB int64     `json:"max_rss_kib"`
}

func statusViewOf(s *carrelv1.Status) *statusView {
	if s == nil {
		return nil
	}
	return &statusView{
		s.GetCode(), s.GetSignal(), s.GetTimedOut(), s.GetOom(), s.GetKilled(), s.GetStuck(),
		time.Unix(0, s.GetEndedUnixNs()).UTC(), s.GetUserUs(), s.GetSystemUs(), s.GetMaxRssKib(),
	}
}

func (a *app) psCommand() *cobra.Command {
	c := &cobra.Command{
		Use:               "ps [flags] WORKSPACE",
		Short:             "List the commands of a workspace",
		Long:              "List the commands that run in a workspace, and the detached ones that have ended\nand whose output is still kept. Secrets among their words are masked, for their\nowner too.",
		Example:           "  carrel ps demo",
		Args:              exactly("WORKSPACE"),
		ValidArgsFunction: a.completeWorkspace,
	}
	out := outputFlag(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		client, err := a.client()
		if err != nil {
			return err
		}
		res, err := client.Commands().ListCommands(c.Context(), connect.NewRequest(&carrelv1.ListCommandsRequest{Workspace: args[0]}))
		if err != nil {
			return err
		}
		cmds := res.Msg.GetCommands()
		slices.SortFunc(cmds, func(x, y *carrelv1.CommandInfo) int { return int(x.GetStartedUnixNs() - y.GetStartedUnixNs()) })
		views := make([]commandView, 0, len(cmds))
		t := newTable(2, "COMMAND", "PID", "STATE", "AGE", "PROCS", "KIND", "ARGV")
		for _, x := range cmds {
			started := time.Unix(0, x.GetStartedUnixNs())
			views = append(views, commandView{
				x.GetCommandId(), x.GetPid(), x.GetArgv(), x.GetDetached(), x.GetTerminal(),
				started.UTC(), x.GetProcesses(), statusViewOf(x.GetStatus()),
			})
			state, kind := "running", "attached"
			if s := x.GetStatus(); s != nil {
				state = "exit " + strconv.Itoa(int(s.GetCode()))
			}
			if x.GetDetached() {
				kind = "detached"
			}
			t.add(x.GetCommandId(), strconv.FormatInt(x.GetPid(), 10), state, age(started), strconv.Itoa(int(x.GetProcesses())), kind, cut(shellQuote(x.GetArgv()), 60))
		}
		if *out == asJSON {
			return a.printJSON(views)
		}
		return t.print(a.Out)
	}
	return c
}

func (a *app) logsCommand() *cobra.Command {
	var follow bool
	c := &cobra.Command{
		Use:   "logs [flags] WORKSPACE COMMAND",
		Short: "Print the output of a detached command",
		Example: `  carrel logs demo c-0123456789abcdef
  carrel logs -f demo c-0123456789abcdef`,
		Args:              exactly("WORKSPACE", "COMMAND"),
		ValidArgsFunction: a.completeCommand,
	}
	c.Flags().BoolVarP(&follow, "follow", "f", false, "go on with what comes until the command ends")
	c.RunE = func(c *cobra.Command, args []string) error {
		client, err := a.client()
		if err != nil {
			return err
		}
		s, err := client.Commands().Logs(c.Context(), connect.NewRequest(&carrelv1.LogsRequest{Workspace: args[0], CommandId: args[1], Follow: follow}))
		if err != nil {
			return err
		}
		defer s.Close()
		for s.Receive() {
			if n := s.Msg().GetLost(); n > 0 {
				fmt.Fprintf(a.Err, "carrel: the oldest %d bytes are no longer kept\n", n)
			}
			if _, err := a.Out.Write(s.Msg().GetData()); err != nil {
				return err
			}
		}
		return s.Err()
	}
	return c
}

func (a *app) attachCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "attach WORKSPACE COMMAND",
		Short: "Connect to a detached command until it ends",
		Long: `Print the output of a detached command, from what is kept to its end. If it runs on
a terminal, that is connected to this one; Ctrl-P Ctrl-Q lets go of it. Without a
terminal, Ctrl-C does. The command lives on in both cases. The exit code is the
command's own if it ended.`,
		Example:           "  carrel attach demo c-0123456789abcdef",
		Args:              exactly("WORKSPACE", "COMMAND"),
		ValidArgsFunction: a.completeCommand,
	}
	c.RunE = func(c *cobra.Command, args []string) error {
		client, err := a.client()
		if err != nil {
			return err
		}
		return a.attach(c.Context(), client, args[0], args[1])
	}
	return c
}

func (a *app) attach(ctx context.Context, client *carrel.Client, workspace, command string) error {
	att, err := client.Attach(ctx, workspace, command, true)
	if err != nil {
		return err
	}
	defer att.Close()
	if att.Lost > 0 {
		fmt.Fprintf(a.Err, "carrel: the oldest %d bytes are no longer kept\n", att.Lost)
	}
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
	return a.exitLike(context.WithoutCancel(ctx), client, workspace, command)
}

// exitLike makes the exit code that of a command that has ended.
func (a *app) exitLike(ctx context.Context, client *carrel.Client, workspace, command string) error {
	res, err := client.Commands().ListCommands(ctx, connect.NewRequest(&carrelv1.ListCommandsRequest{Workspace: workspace}))
	if err != nil {
		return err
	}
	for _, x := range res.Msg.GetCommands() {
		if x.GetCommandId() == command && x.GetStatus() != nil {
			a.code = int(x.GetStatus().GetCode())
		}
	}
	return nil
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
	buf := make([]byte, len(p)/2) // each byte may bring one that was held back
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
		Short: "End a command, or send it a signal",
		Long: `End a command and everything it left behind: TERM, a grace, KILL. With --signal only
that signal is sent, to the command's process group.`,
		Example: `  carrel kill demo c-0123456789abcdef
  carrel kill --signal HUP demo c-0123456789abcdef`,
		Args:              exactly("WORKSPACE", "COMMAND"),
		ValidArgsFunction: a.completeCommand,
	}
	c.Flags().StringVarP(&sig, "signal", "s", "", "send this signal, by name or number")
	c.Flags().DurationVar(&grace, "grace", 0, "time between TERM and KILL (default 2s)")
	c.RunE = func(c *cobra.Command, args []string) error {
		n, err := signalNumber(sig)
		if err != nil {
			return usage(c, "%v", err)
		}
		client, err := a.client()
		if err != nil {
			return err
		}
		_, err = client.Commands().Signal(c.Context(), connect.NewRequest(&carrelv1.SignalRequest{
			Workspace: args[0], CommandId: args[1], Signal: int32(n), GraceMs: grace.Milliseconds(),
		}))
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
