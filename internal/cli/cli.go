// Package cli is the carrel command. It turns flags and arguments into calls of the public SDK,
// and the answers into tables, JSON and exit codes. Only up, down and doctor use the host
// directly, and policy judges without a daemon.
//
// It must not reach the daemon except through the SDK, and it must not decide what a caller may
// do.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/carrel-dev/carrel/internal/agent/messages"
	"github.com/carrel-dev/carrel/internal/base/build"
	"github.com/carrel-dev/carrel/internal/base/errtext"
	"github.com/carrel-dev/carrel/internal/cli/attach"
	"github.com/carrel-dev/carrel/internal/cli/habits"
	"github.com/carrel-dev/carrel/internal/rootless/paths"
	carrel "github.com/carrel-dev/carrel/sdk/go"
)

// Streams are the files that a run of the command reads and writes.
type Streams struct{ In, Out, Err *os.File }

// exitFailure is the exit code for failures. exec passes the code of its command on, so its own failures have the codes of
// package attach.
const exitFailure = 1

// app is one run.
type app struct {
	Streams
	host, context string
	// tokenFile, fingerprint and caFile are for a daemon that requires a token or runs elsewhere.
	tokenFile, fingerprint, caFile string
	// rootless: use the caller's own carrel, even if the system has one.
	rootless bool
	// lang is what the agent's person reads. It is English everywhere else.
	lang messages.Language
	// connected is the client that the calls of this run share, once there is one.
	connected *carrel.Client
	// stored are the secrets that this command has made of variables.
	stored []string
	// using keeps the caller's own carrel from ending while this command runs.
	using paths.Lock
	// code is the exit code if the command succeeds.
	code int
	// quit gets SIGQUIT while nothing else is attached for it; nil in a process that is not carrel's own.
	quit chan os.Signal
}

// commandTable lists every command in the order of the help, with its section there.
var commandTable = []struct {
	name, group string
	build       func(*app) *cobra.Command
}{
	{"create", "workspaces", (*app).createCommand},
	{"ls", "workspaces", (*app).lsCommand},
	{"inspect", "workspaces", (*app).inspectCommand},
	{"start", "workspaces", (*app).startCommand},
	{"stop", "workspaces", (*app).stopCommand},
	{"restart", "workspaces", (*app).restartCommand},
	{"revive", "workspaces", (*app).reviveCommand},
	{"pause", "workspaces", (*app).pauseCommand},
	{"resume", "workspaces", (*app).resumeCommand},
	{"update", "workspaces", (*app).updateCommand},
	{"egress", "workspaces", (*app).egressCommand},
	{"secret", "workspaces", (*app).secretCommand},
	{"model", "workspaces", (*app).modelCommand},
	{"destroy", "workspaces", (*app).destroyCommand},
	{"archive", "workspaces", (*app).archiveCommand},
	{"restore", "workspaces", (*app).restoreCommand},
	{"cp", "workspaces", (*app).copyCommand},
	{"files", "workspaces", (*app).filesCommand},
	{"top", "workspaces", (*app).topCommand},
	{"events", "workspaces", (*app).eventsCommand},
	{"run", "commands", (*app).runCommand},
	{"exec", "commands", (*app).execCommand},
	{"shell", "commands", (*app).shellCommand},
	{"port", "commands", (*app).portCommand},
	{"ps", "commands", (*app).psCommand},
	{"logs", "commands", (*app).logsCommand},
	{"attach", "commands", (*app).attachCommand},
	{"kill", "commands", (*app).killCommand},
	{"wait", "commands", (*app).waitCommand},
	{"task", "commands", (*app).taskCommand},
	{"ask", "commands", (*app).askCommand},
	{"chat", "commands", (*app).chatCommand},
	{"acp", "commands", (*app).acpCommand},
	{"job", "commands", (*app).jobCommand},
	{"undo", "commands", (*app).undoCommand},
	{"changes", "commands", (*app).changesCommand},
	{"diff", "commands", (*app).diffCommand},
	{"apply", "commands", (*app).applyCommand},
	{"discard", "commands", (*app).discardCommand},
	{"checkpoint", "commands", (*app).checkpointCommand},
	{"agent", "commands", (*app).agentCommand},
	{"runbook", "commands", (*app).runbookCommand},
	{"approvals", "commands", (*app).approvalsCommand},
	{"mcp", "commands", (*app).mcpCommand},
	{"up", "host", (*app).upCommand},
	{"down", "host", (*app).downCommand},
	{"doctor", "host", (*app).doctorCommand},
	{"setup", "host", (*app).setupCommand},
	{"audit", "host", (*app).auditCommand},
	{"policy", "host", (*app).policyCommand},
	{"token", "access", (*app).tokenCommand},
	{"whoami", "access", (*app).whoamiCommand},
	{"context", "access", (*app).contextCommand},
	{"version", "host", (*app).versionCommand},
}

var groups = []*cobra.Group{
	{ID: "workspaces", Title: "Workspaces:"},
	{ID: "commands", Title: "Commands in a workspace:"},
	{ID: "access", Title: "Who may do what:"},
	{ID: "host", Title: "The host:"},
}

// Run runs one command line and returns the exit code.
func Run(args []string, s Streams) int { return (&app{Streams: s}).line(args) }

// line is Run.
func (a *app) line(args []string) int {
	s := a.Streams
	root := a.rootCommand(args)
	root.SetArgs(args)
	root.SetIn(s.In)
	root.SetOut(s.Out)
	root.SetErr(s.Err)
	root.InitDefaultCompletionCmd() // which keeps where it prints
	for _, c := range root.Commands() {
		if c.Name() == "completion" {
			c.Args = nil
			group(c)
		}
	}
	cmd, err := root.ExecuteContextC(context.Background())
	if err == nil {
		return a.code
	}
	if strings.HasPrefix(err.Error(), "unknown command ") {
		err = noCommand(root, err)
	}
	if w, ok := errors.AsType[*fs.PathError](err); ok && w.Op == "write" && w.Path == os.Stdout.Name() {
		err = fmt.Errorf("cannot write the output: %w; what was asked for may be done: look before you ask again", w.Err)
	}
	text := errorText(err) // it may quote what an attacker wrote
	fmt.Fprintln(s.Err, "carrel:", text+a.hint(text))
	if u, ok := errors.AsType[*usageError](err); ok {
		fmt.Fprintf(s.Err, "Run \"%s --help\" for how to use it.\n", u.path)
	}
	return failureCode(cmd, err)
}

// Command is the tree of all commands, for generators of documentation. It must not be run.
func Command() *cobra.Command { return (&app{}).rootCommand(nil) }

// failureCode is the exit code for an error of carrel itself.
func failureCode(cmd *cobra.Command, err error) int {
	if cmd == nil || cmd.Name() != "exec" && cmd.Name() != "run" {
		return exitFailure
	}
	return attach.Failure(err, carrel.IsCommandError(err))
}

// Once, not with each tree: a program may run several commands at a time.
func init() { cobra.EnableCommandSorting = false } // the table has an order

// rootCommand builds the tree. If the first argument names a command, only that command is built,
// because building all of them would take most of the time of an exec.
func (a *app) rootCommand(args []string) *cobra.Command {
	root := &cobra.Command{
		Use:   "carrel",
		Short: "Isolated workspaces for AI agents, chats and users",
		Long: `carrel gives every AI agent, chat and user its own workspace on this host: its own
Unix user, files, processes, network and limits, with the isolation proved and
every action recorded.

A workspace is named by its key, any text that you choose, or by the name that
was derived from it, such as ws-2a97516c.`,
		Example: `  sudo carrel up --detach
  carrel create demo
  carrel exec demo -- uname -a
  carrel inspect demo
  sudo carrel audit verify`,
		SilenceErrors:      true,
		DisableSuggestions: true, // noCommand has them
		SilenceUsage:       true,
		CompletionOptions:  cobra.CompletionOptions{HiddenDefaultCmd: false},
	}
	f := root.PersistentFlags()
	f.StringVar(&a.host, "host", "",
		"the daemon, as unix:///PATH or https://HOST:PORT (default $"+carrel.HostEnv+", then "+carrel.DefaultHost+", then your own)")
	f.StringVar(&a.context, "context", "",
		"the context that names the daemon, see \"carrel context\" (default $"+contextEnv+", then the one in use)")
	_ = root.RegisterFlagCompletionFunc("context", completeContexts) // the flag is there
	f.BoolVar(&a.rootless, "rootless", false, "use your own carrel, which needs no root and starts by itself (default $"+rootlessEnv+")")
	f.StringVar(&a.tokenFile, "token-file", "",
		"a file with the token to use, closed to others (default the token in $"+carrel.TokenEnv+", or the file $"+carrel.TokenFileEnv+")")
	f.StringVar(&a.fingerprint, "fingerprint", "",
		"the fingerprint of the daemon's key, for https://, as \"carrel token create\" prints it (default $"+carrel.FingerprintEnv+")")
	f.StringVar(&a.caFile, "ca-file", "",
		"a file with the certificate authorities that may have signed the daemon's certificate, for https:// without a fingerprint (default $"+
			carrel.CAFileEnv+", then the system's)")
	root.Version = build.Version()
	root.Flags().Bool("version", false, "print the version of this program; \"carrel version\" prints the daemon's too")
	root.ValidArgsFunction = completeAliases
	// Help fits a terminal of lineWidth columns.
	plain := root.HelpFunc()
	root.SetHelpFunc(func(c *cobra.Command, args []string) {
		c.Long = reflowed(c.Long)
		to := c.OutOrStdout()
		var b strings.Builder
		c.SetOut(&b)
		plain(c, args)
		c.SetOut(to)
		_, _ = io.WriteString(to, flagLines(b.String())) // as cobra, which ignores errors here
	})
	root.SetFlagErrorFunc(flagError)
	only := ""
	if len(args) > 0 && slices.ContainsFunc(commandNames(), func(n string) bool { return n == args[0] }) {
		only = args[0]
	}
	root.AddGroup(groups...)
	for _, c := range commandTable {
		if only == "" || only == c.name {
			cmd := c.build(a)
			cmd.GroupID = c.group
			cmd.DisableFlagsInUseLine = true
			root.AddCommand(cmd)
		}
	}
	if only != "" {
		root.CompletionOptions.DisableDefaultCmd = true
	}
	return root
}

// completeAliases completes the other names of commands, which cobra leaves out.
func completeAliases(root *cobra.Command, args []string, prefix string) (out []string, _ cobra.ShellCompDirective) {
	for _, c := range root.Commands() {
		if c.Hidden { // as what completes by itself
			continue
		}
		for _, name := range c.Aliases {
			if len(args) == 0 && strings.HasPrefix(name, prefix) {
				out = append(out, cobra.CompletionWithDesc(name, c.Short))
			}
		}
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}

func commandNames() []string {
	names := make([]string, len(commandTable))
	for i, c := range commandTable {
		names[i] = c.name
	}
	return names
}

// usageError is an error in the command line.
type usageError struct {
	error
	path string
}

func (e *usageError) Unwrap() error { return e.error }

func usage(c *cobra.Command, format string, args ...any) error {
	return &usageError{fmt.Errorf(format, args...), c.CommandPath()}
}

// forms say what a flag of a type takes. Types that are not here are carrel's own, and their errors say it.
var forms = map[string]string{
	"bool":     "give true or false, or the flag alone",
	"int":      "give a whole number, as in 20",
	"int32":    "give a whole number, as in 20",
	"int64":    "give a whole number, as in 20",
	"duration": "give a time with its unit, as in 500ms, 30s, 5m or 12h",
}

// flagError is an error in the flags as a person reads it, with the accepted forms.
func flagError(c *cobra.Command, err error) error {
	given := func(name, letters string) string { // as it was written
		if letters != "" {
			return "-" + name
		}
		return "--" + name
	}
	if none, ok := errors.AsType[*pflag.NotExistError](err); ok {
		return noFlag(c, none.GetSpecifiedName(), given(none.GetSpecifiedName(), none.GetSpecifiedShortnames()))
	}
	if bare, ok := errors.AsType[*pflag.ValueRequiredError](err); ok {
		return usage(c, "cannot use %s: its value is missing", given(bare.GetSpecifiedName(), bare.GetSpecifiedShortnames()))
	}
	bad, ok := errors.AsType[*pflag.InvalidValueError](err)
	if !ok {
		return usage(c, "%w", err)
	}
	form, ok := forms[bad.GetFlag().Value.Type()]
	if !ok {
		form = errtext.Text(bad.Unwrap())
	}
	return usage(c, "cannot use --%s %q: %s", bad.GetFlag().Name, bad.GetValue(), form)
}

// noFlag is the error for a flag that a command does not have. It says what people of other programs mean by it, or which flag is like it.
func noFlag(c *cobra.Command, name, given string) error {
	if a := habits.Flag(c.Name(), name); a != "" {
		return usage(c, "cannot use %s: %s", given, a)
	}
	var names []string
	c.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			names = append(names, f.Name)
		}
	})
	if near := habits.Near(name, names); near != "" {
		return usage(c, "cannot use %s: %s has no such flag; did you mean --%s?", given, c.CommandPath(), near)
	}
	return usage(c, "cannot use %s: %s has no such flag", given, c.CommandPath())
}

// noCommand is the error for a first word that names no command, from that of cobra.
func noCommand(root *cobra.Command, err error) error {
	quoted, qerr := strconv.QuotedPrefix(strings.TrimPrefix(err.Error(), "unknown command "))
	word, uerr := strconv.Unquote(quoted)
	if qerr != nil || uerr != nil {
		return err
	}
	if a := habits.Command(word); a != "" {
		return usage(root, "there is no command %q: %s", word, a)
	}
	if near := habits.NearCommand(word, commandNames()); near != "" {
		return usage(root, "there is no command %q; did you mean \"carrel %s\"?", word, near)
	}
	return usage(root, "there is no command %q", word)
}

// exactly and atLeast are argument checks whose errors name what is missing.
func exactly(names ...string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) > len(names) {
			return usage(c, "cannot use the argument %q: %s takes %s", args[len(names)], c.CommandPath(), list(names))
		}
		return atLeast(names...)(c, args)
	}
}

// between checks for the names that must be there and one more that may be.
func between(names []string, optional string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) <= len(names) {
			return atLeast(names...)(c, args)
		}
		return exactly(append(slices.Clone(names), optional)...)(c, args)
	}
}

func atLeast(names ...string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) < len(names) {
			return usage(c, "cannot %s: the argument %s is missing", c.Name(), names[len(args)])
		}
		return nil
	}
}

func list(names []string) string {
	if len(names) == 0 {
		return "no arguments"
	}
	return strings.Join(names, " ") + " and nothing more"
}

// isTerminal reports whether f is a terminal.
func isTerminal(f *os.File) bool {
	return withFD(f, func(fd int) error {
		if !term.IsTerminal(fd) {
			return unix.ENOTTY
		}
		return nil
	}) == nil
}

// withFD calls a function with the descriptor of f, without changing f to blocking mode.
func withFD(f *os.File, call func(fd int) error) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	if err := raw.Control(func(fd uintptr) { inner = call(int(fd)) }); err != nil {
		return err
	}
	return inner
}

// progress prints a message if stderr is a terminal.
func (a *app) progress(format string, args ...any) {
	if isTerminal(a.Err) {
		_ = say(a.Err, format+"\n", args...)
	}
}
