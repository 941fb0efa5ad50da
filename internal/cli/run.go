package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/base/errtext"
	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/cli/attach"
	"github.com/carrel-dev/carrel/internal/linux/memrelease"
	"github.com/carrel-dev/carrel/internal/linux/relay"
	"github.com/carrel-dev/carrel/internal/linux/treefile"
	"github.com/carrel-dev/carrel/internal/rootless"
	"github.com/carrel-dev/carrel/internal/rootless/copies"
	"github.com/carrel-dev/carrel/internal/spec/approval"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	carrel "github.com/carrel-dev/carrel/sdk/go"
)

type runFlags struct {
	commandFlags
	here            string
	goesOn          string
	keep            bool
	apply, sync     bool
	volumes, accept []string
	allow, deny     []string
	ask             []string
	secrets         []string
	secretFiles     secretFileFlags
	models          modelFlags
	report, ids     string
	changes         string
	ports           runPorts
	memory          size
	limits          carrelv1.Limits
	timeout         time.Duration
}

// addLimits adds the flags of what the command may use.
func (x *runFlags) addLimits(f *pflag.FlagSet) {
	f.VarP(&x.memory, "memory", "m", "ceiling on memory, as in 512MiB, without root of each process "+
		"(default half of this host's, as root 1GiB)")
	f.Int64Var(&x.limits.Pids, "pids", 0, "most processes and threads at once (default 4096, as root 512)")
	f.Int64Var(&x.limits.OpenFiles, "open-files", 0, "most open files of a process (default 4096)")
	f.DurationVar(&x.timeout, "timeout", 0, "end the command after this time, as in 30s or 5m; the exit code is 143 then, or 137 "+
		"if it had to be killed")
}

func (a *app) runCommand() *cobra.Command {
	var x runFlags
	c := &cobra.Command{
		Use:   "run [flags] [--] COMMAND [ARG...]",
		Short: help(operation.RunOnce),
		Long: `Run a command in a new workspace that ends with it. An ordinary user needs nothing
installed or configured for that: no daemon, no root. As root it goes through the daemon.

The command sees the host's programs read-only, an empty home (/home/work), no network but what
--allow names, no other process, and none of your files except those mounted with --here or -v. What the host would
run from a mount is read-only inside. In a git repository the command has a .git of its own,
and what it commits is fetched when it has ended. The isolation is proved before the command
starts; --report writes the proof. Intent and outcome are recorded below
$XDG_STATE_HOME/carrel (~/.local/state/carrel).

If this host lacks something that the isolation needs, nothing is run, and the error says
what is missing and how to allow it. --accept CONTROL runs without that control.

--allow HOST lets the command reach a host: example.org (ports 80 and 443),
example.org:22, *.example.org, 192.0.2.0/24:5432, or a set as @github. The sets @npm, @pip, @go,
@apt and @cargo are the mirrors that this host's package clients are configured with. Names that
resolve to private addresses are refused unless a rule names the network. 'GET example.org/v1/*'
allows some requests, tls://example.org one protocol: see "carrel egress --help".
~/.config/carrel/egress.yaml has rules for every such run without root.

--ask HOST, as root, has a person asked when the command connects there: "carrel approvals" shows and
answers that. Without root nobody can be asked so far, and the connection is refused.

--secret NAME takes a variable of yours: the command has a placeholder instead, which becomes the
secret on its way to the hosts it is for. As root it takes the secret of that name that the
daemon keeps, and has it keep your variable if there is none. --secret-file NAME=PATH has the
placeholder in a file below the home too, for programs that read one. With --secret-template
NAME=FILE that file has what FILE has here, with the placeholder in the place of {{NAME}}.

--model NAME serves the API of a model inside, with the key put in outside:
ANTHROPIC_BASE_URL or OPENAI_BASE_URL say where. --model-requests and --model-tokens bound its
use, and at the end carrel says what was used. Without root the key is a variable of yours, as
root one that the daemon keeps: see "carrel model --help".

-p 8080:80 carries connections of yours to 127.0.0.1:8080 here to port 80 of the command, which may
listen on 127.0.0.1, ::1 or every address, while it runs.

--allow userns, mounts or io_uring lets the command use what is
closed otherwise, which is reported: see "carrel create --help".

Stdin is /dev/null unless -i is given. The exit code is the command's own, as of exec;
carrel's own are 125, 126 and 127.`,
		Example: `  carrel run -- uname -a
  carrel run --here -- make test
  carrel run --here --allow @github -- git fetch
  carrel run --here -it --allow @llm --secret ANTHROPIC_API_KEY -- claude
  carrel run --allow a.example --secret KEY@a.example --secret-file KEY=.netrc \
    --secret-template KEY=netrc -- curl -n https://a.example
  carrel run --here -it --model anthropic --model-tokens 2000000 -- claude
  carrel run --here -it -- some-agent
  carrel run -v ~/data:/mnt/data:ro --env CI=1 -- ./report.py
  carrel run --here -p 5173 -- npm run dev
  carrel run --report proof.json -- true`,
		Args: atLeast("COMMAND"),
	}
	x.add(c, "the home, or what --here mounts")
	f := c.Flags()
	f.StringVar(&x.here, "here", "", "mount the current directory, at its own path, and run the command there: direct, or staged, a copy "+
		"whose changes carrel apply makes; the default is staged for known agents and with --source llm, else direct")
	f.Lookup("here").NoOptDefVal = hereDefault
	completeFrom(c, "here", hereDirect, hereStaged)
	f.BoolVar(&x.apply, "apply", false, "at the end make the changes of a staged copy in the directory: source, and what was committed")
	f.StringVar(&x.goesOn, "continue", "", "go on with the staged copy of an earlier `RUN`, of the directory that it is of, without root")
	_ = c.RegisterFlagCompletionFunc("continue", completeRuns) // the flag is there
	f.BoolVar(&x.sync, "sync", false, "make changes of source in the directory while the command runs, for who watches it; implies --apply")
	volumeFlag(c, &x.volumes)
	f.BoolVar(&x.keep, "keep", false, "keep the home, on disk, and say where; as root keep the workspace")
	f.StringVar(&x.report, "report", "", "write the proof of the isolation to `FILE`, as JSON; - is stderr")
	f.StringVar(&x.changes, "changes", "", "write what was changed in writable mounts to `FILE`, as JSON, without root; - is stderr")
	f.StringVar(&x.ids, "ids", "one", "which ids the workspace has without root: one, your own; range, with one of /etc/subuid for what "+
		"starts the command; or auto, range if there is one")
	completeFrom(c, "ids", string(rootless.OneID), string(rootless.RangeID), string(rootless.AutoID))
	f.StringArrayVar(&x.accept, "accept", nil, "run without `CONTROL` if this host lacks it; may be repeated")
	f.StringArrayVar(&x.allow, "allow", nil, "let the command reach `HOST`, or use userns, mounts or io_uring; may be repeated")
	completeFrom(c, "allow", append(rootless.SetNames(), workspace.OpeningNames(workspace.Openings)...)...)
	askFlag(c, &x.ask)
	f.StringArrayVar(&x.deny, "deny", nil, "keep the command from `HOST`, whatever else allows it; may be repeated")
	f.StringArrayVar(&x.secrets, "secret", nil, "give the hosts that the variable `NAME` is for its value, and the command a placeholder; "+
		"NAME@HOST for other hosts; may be repeated")
	completeFrom(c, "secret", rootless.SecretNames()...)
	x.secretFiles.add(c)
	f.StringArrayVar(&x.models.names, "model", nil, "let the command use the model `NAME` with your key, which it does not see: anthropic, "+
		"openai or one of egress.yaml; may be repeated")
	completeFrom(c, "model", rootless.ModelNames()...)
	x.models.addBudget(c)
	x.ports.add(c)
	x.addLimits(f)
	asElsewhere(f)
	c.RunE = func(c *cobra.Command, args []string) error { return a.run(c, args, &x) }
	return c
}

// asElsewhere adds flags of other programs that ask for what is so anyway: a command's workspace goes with it, and has no network.
func asElsewhere(f *pflag.FlagSet) {
	f.Bool("rm", true, "its workspace ends with the command in any case")
	for _, name := range []string{"network", "net"} {
		f.Var(&noNetwork{}, name, "none: no network but what --allow names, as in any case")
	}
	for _, name := range []string{"rm", "network", "net"} {
		_ = f.MarkHidden(name) // it is there
	}
}

// noNetwork is a flag value that can only be none.
type noNetwork struct{}

func (*noNetwork) String() string { return "none" }
func (*noNetwork) Type() string   { return "NETWORK" }

func (*noNetwork) Set(text string) error {
	if text == "none" {
		return nil
	}
	return errors.New("give none, or leave it out: a command reaches what --allow HOST names, and nothing else")
}

func (a *app) run(c *cobra.Command, argv []string, x *runFlags) error {
	if err := x.check(a, c); err != nil {
		return err
	}
	switch {
	case os.Geteuid() == 0 && x.changes != "":
		return usage(c, "cannot use --changes as root: make a workspace, and use carrel changes NAME -o json")
	case os.Geteuid() == 0 && c.Flags().Changed("ids"):
		return usage(c, "cannot use --ids as root: the workspace has ids of its own then; leave it out")
	}
	mounts, err := parseVolumes(x.volumes)
	if err != nil {
		return err
	}
	x.apply = x.apply || x.sync
	if x.goesOn != "" {
		m, err := x.goOn(c)
		if err != nil {
			return err
		}
		mounts = append(mounts, m)
		if x.dir == "" {
			x.dir = m.Destination
		}
	} else if x.here != "" {
		m, err := here(".")
		if err != nil {
			return err
		}
		if m.staged, err = x.staged(c, argv); err != nil {
			return err
		}
		mounts = append(mounts, m)
		if x.dir == "" {
			x.dir = m.Destination
		}
	}
	if x.timeout < 0 {
		return usage(c, "cannot use a negative --timeout: give a time such as 30s, or leave it out")
	}
	x.dir = atHome(x.dir)
	x.limits.MemoryBytes = int64(x.memory)
	if err := x.ports.listen(c.Context(), a, c); err != nil {
		return err
	}
	defer closeAllOf(x.ports.listeners)
	spec := x.spec(argv)
	spec.Timeout = x.timeout
	signals := attach.Signals(x.tty)
	a.leaveQuit()
	if os.Geteuid() == 0 {
		return a.runRoot(c.Context(), spec, mounts, signals, x)
	}
	return a.runRootless(c.Context(), spec, mounts, signals, x)
}

// askOwn asks the person who runs carrel here: nobody else can answer.
func (a *app) askOwn() func(context.Context, approval.Question) (approval.Kind, string, error) {
	return func(ctx context.Context, q approval.Question) (approval.Kind, string, error) {
		d := q.Decision
		m := &carrelv1.Approval{
			Id: "carrel run", State: string(approval.Pending), Requester: "you", Kind: string(q.Kind), Argv: q.Argv, Cwd: q.Cwd, Env: q.Env,
			User: q.User, Source: string(q.Source), RiskScore: int32(d.RiskScore), Capabilities: d.Capabilities, Reasons: d.Reasons,
			Profile: string(d.Profile), Isolation: q.Isolation, OnceOnly: d.NeverWhitelist,
			UntilUnixMs: time.Now().Add(approval.DefaultWait).UnixMilli(),
		}
		for _, s := range d.Segments {
			m.Segments = append(m.Segments, &carrelv1.Segment{
				Text: s.Text, Program: s.Program, Via: s.Via, Level: s.Level.String(), RiskScore: int32(s.RiskScore), Capabilities: s.Capabilities,
			})
		}
		r := a.prompt(ctx, m, false, false)
		return r.kind, r.reason, r.err
	}
}

// How --here mounts the directory.
const (
	hereDefault = "default"
	hereDirect  = "direct"
	hereStaged  = "staged"
)

// staged reports whether --here mounts a copy.
func (x *runFlags) staged(c *cobra.Command, argv []string) (bool, error) {
	switch x.here {
	case hereDirect:
		return false, nil
	case hereStaged:
		return true, nil
	case hereDefault:
		return x.source == carrel.SourceLLM || isCodingAgent(argv), nil
	}
	return false, usage(c, "cannot use --here=%s: say --here, --here=direct or --here=staged", x.here)
}

// goOn is the mount of the directory that an earlier run has a staged copy of.
func (x *runFlags) goOn(c *cobra.Command) (m mount, err error) {
	if os.Geteuid() == 0 {
		return m, usage(c, "cannot use --continue as root: use a workspace with a staged mount, and carrel exec")
	}
	if x.here != "" && x.here != hereStaged {
		return m, usage(c, "cannot use --continue with --here: it is of the directory that the run was given")
	}
	list, err := rootless.StagedCopies(id.Workspace(x.goesOn))
	if err != nil {
		return m, err
	}
	m, err = here(list[0].Source)
	m.staged = true
	return m, err
}

// here is the mount of a directory, "." for the current one: at its own path, so that what is installed in it and has that path
// works, and at /workspace where the workspace has something of its own there.
func here(at string) (mount, error) {
	dir, err := rootless.Source(at)
	if err != nil {
		return mount{}, err
	}
	m := mount{Mount: carrel.Mount{Source: dir, Destination: dir}}
	if workspace.CheckDestination(dir) != nil {
		m.Destination = "/workspace"
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return m, nil
	}
	if real, err := filepath.EvalSymlinks(home); err == nil {
		home = real
	}
	if workspace.Within(dir, home) {
		return m, fmt.Errorf("cannot use --here in %s: it would show the command your whole home; change to a project's directory: %w",
			dir, errdefs.ErrInvalidArgument)
	}
	return m, nil
}

// notHere says what takes the place of --here where the daemon asks for a word behind the mount, in a directory of root's.
func (x *runFlags) notHere(err error) error {
	if x.here == "" || !strings.Contains(err.Error(), ":root") {
		return err
	}
	return fmt.Errorf("%s; --here takes no such word: use -v \"$PWD:$PWD:root\" --cwd \"$PWD\" in its place: %w",
		errtext.Text(err), errdefs.ErrPermissionDenied)
}

// settling is how long a command runs before the memory that its start needed is given back.
const settling = 500 * time.Millisecond

// ownRun is a command in a workspace without root.
type ownRun struct{ of *rootless.Run }

// Run implements attended.
func (r ownRun) Run(ctx context.Context, s carrel.Streams) (status carrel.Status, err error) {
	far, err := r.of.Far()
	if err != nil {
		return status, err
	}
	defer far.Close()
	err = relay.Run(far, relay.Near(s), func() error {
		end, err := r.of.Wait(ctx)
		status = carrel.Status{Code: end.Code, Signal: end.Signal, TimedOut: end.TimedOut, OOM: end.OOM, Killed: end.Killed, Stuck: end.Stuck}
		return err
	})
	return status, err
}

// Resize implements attended.
func (r ownRun) Resize(ctx context.Context, size carrel.WindowSize) error {
	return r.of.Resize(ctx, size.Rows, size.Cols)
}

// Signal implements attended.
func (r ownRun) Signal(ctx context.Context, signal int) error { return r.of.Signal(ctx, signal) }

// Close implements attended. It only hangs the command up.
func (r ownRun) Close() error { return r.of.Hangup() }

func (a *app) runRootless(
	ctx context.Context, spec carrel.Spec, mounts []mount, signals <-chan os.Signal, x *runFlags,
) (err error) {
	executor, err := findProgram("carrel-executor")
	if err != nil {
		return err
	}
	o := rootless.Options{
		Executor: executor, Argv: spec.Argv, Env: spec.Env, Dir: spec.Dir, Stdin: spec.Stdin, Source: spec.Source,
		Accept: x.accept, Keep: x.keep, IDs: rootless.IDs(x.ids),
		Continue: id.Workspace(x.goesOn),
		Memory:   x.limits.GetMemoryBytes(), Pids: x.limits.GetPids(), OpenFiles: x.limits.GetOpenFiles(), Timeout: x.timeout,
		Note: func(text string) { _ = say(a.Err, "carrel: %s\n", text) },
	}
	var hosts []string
	if o.Allow, hosts, err = openingsAndHosts(x.allow); err != nil {
		return err
	}
	if isTerminal(a.In) && isTerminal(a.Err) {
		o.Ask = a.askOwn()
	}
	for _, m := range mounts {
		source, err := rootless.Source(m.Source)
		if err != nil {
			return err
		}
		o.Mounts = append(o.Mounts, workspace.Mount{
			Source: source, Destination: m.Destination, ReadOnly: m.ReadOnly, AsRoot: m.AsRoot, Staged: m.staged,
		})
	}
	if x.tty {
		size := a.windowSize()
		o.Terminal = &[2]uint16{size.Rows, size.Cols}
	}
	if len(x.secretFiles.files) > 0 {
		if o.Archive, err = findProgram("carrel-archive"); err != nil {
			return err
		}
	}
	// A signal ends the start, and nothing of it is left.
	var r *rootless.Run
	err = attach.Interruptible(ctx, signals, func(ctx context.Context) (err error) {
		if o.Egress, err = a.egress(ctx, x, hosts, o.Mounts); err != nil {
			return err
		}
		r, err = rootless.Start(ctx, o)
		return err
	})
	by, interrupted := errors.AsType[*attach.Interrupt](err)
	if r == nil && interrupted {
		a.code = 128 + by.Signal()
		return say(a.Err, "carrel: nothing was run: %v came before the command had started\n", by)
	}
	if r == nil {
		return err
	}
	defer func() {
		retained, notes, cerr := r.Close()
		err = errors.Join(err, cerr)
		for _, n := range notes {
			_ = say(a.Err, "carrel: %s\n", n)
		}
		err = errors.Join(err, a.writeChanges(x.changes, r.Changes()))
		err = errors.Join(err, a.settle(context.WithoutCancel(ctx), r.Copies(), x.apply))
		if x.keep && retained != "" {
			fmt.Fprintln(a.Err, "carrel: the home is kept in", retained)
		}
	}()
	if err := a.writeReport(x.report, string(r.Name), r.Report.Controls); err != nil {
		return err
	}
	for _, c := range r.Weaker() {
		if !slices.Contains(x.accept, c.ID) {
			a.tellWeaker([]*carrelv1.Control{{
				Id: c.ID, Opened: string(c.Opened), State: string(c.State), Evidence: c.Evidence, Remedy: c.Remedy,
			}})
			continue
		}
		_ = say(a.Err, "carrel: running without %s: %s\n", c.ID, c.Evidence)
	}
	if interrupted { // just when the command had started
		_ = r.Signal(ctx, by.Signal()) // it may just have ended
	}
	if now := a.windowSize(); x.tty && *o.Terminal != [2]uint16{now.Rows, now.Cols} {
		_ = r.Resize(ctx, now.Rows, now.Cols) // the next one corrects it
	}
	// Most commands that last are waited for, and a wait does not need what the start needed.
	waits := time.AfterFunc(settling, memrelease.GiveBack)
	defer waits.Stop()
	if x.sync {
		stop := a.sync(ctx, r.Sync)
		defer stop()
	}
	stop, err := x.ports.serve(ctx, a, ofRun(r))
	if err != nil {
		return err
	}
	defer stop()
	return a.attend(ctx, string(r.Name), ownRun{r}, signals, &x.commandFlags, x.timeout)
}

// writeChanges writes --changes.
func (a *app) writeChanges(path string, all []rootless.Changes) error {
	if path == "" {
		return nil
	}
	list, _ := changesOf(all)
	return a.writeJSON(path, "what was changed", list)
}

// writeReport writes --report.
func (a *app) writeReport(path, name string, controls any) error {
	if path == "" {
		return nil
	}
	return a.writeJSON(path, "the report", object{{"workspace", name}, {"controls", controls}})
}

// writeJSON writes a file of the caller's, or stderr for "-".
func (a *app) writeJSON(path, what string, data any) error {
	b, err := json.MarshalIndent(data, "", "  ")
	if err != nil {
		return err
	}
	b = append(b, '\n')
	if path == "-" {
		_, err = a.Err.Write(b)
	} else {
		err = treefile.Put(path, b)
	}
	if err != nil {
		return fmt.Errorf("cannot write %s: %w", what, err)
	}
	return nil
}

// noDaemon is the error of a run as root that no daemon serves.
func noDaemon(err error) error {
	return fmt.Errorf("cannot run as root without the daemon: %s; start it with \"carrel up --detach\", "+
		"or run this as an ordinary user, who needs none: %w", errtext.Text(err), errdefs.ErrUnavailable)
}

// runRoot makes a workspace through the daemon, and destroys it when the command has ended.
func (a *app) runRoot(
	ctx context.Context, spec carrel.Spec, mounts []mount, signals <-chan os.Signal, x *runFlags,
) (err error) {
	if len(x.accept) > 0 {
		return fmt.Errorf("cannot accept %s: root can have every required control; run it as an ordinary user, or leave --accept out: %w",
			strings.Join(x.accept, ", "), errdefs.ErrInvalidArgument)
	}
	allow, hosts, err := openingsAndHosts(x.allow)
	if err != nil {
		return err
	}
	if len(x.models.names) == 0 && x.models.budget() != nil {
		return noModels()
	}
	use, err := x.models.uses()
	if err != nil {
		return err
	}
	reach := workspace.Reach{Allow: hosts, Ask: x.ask, Deny: x.deny}
	if err := newReach(ctx, &reach, mounts); err != nil {
		return err
	}
	client, err := a.client()
	if err != nil {
		return err
	}
	names, err := a.useSecretFiles(ctx, x.secrets, &x.secretFiles)
	if errdefs.IsUnavailable(err) {
		return noDaemon(err)
	}
	if err != nil {
		return err
	}
	key := "run:" + string(id.NewTrace())
	kept, err := a.stage(ctx, id.Derive("run", id.Key(key), 0), mounts)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.settleKept(context.WithoutCancel(ctx), kept, x.apply)) }()
	around, err := a.lookBefore(id.Derive("run", id.Key(key), 0), mounts)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.lookAfter(around)) }()
	w, _, err := create(ctx, client, &carrelv1.CreateRequest{
		Key: key, Allow: workspace.OpeningNames(allow), Secrets: names,
		SecretFiles: x.secretFiles.files, SecretTemplates: x.secretFiles.texts,
		Limits:     &x.limits,
		ReachAllow: reach.Allow, ReachAsk: reach.Ask, ReachDeny: reach.Deny, Models: use, ModelBudget: x.models.budget(),
		OneUse: !x.keep, // this process may be killed
	}, mounts, kept)
	if errdefs.IsUnavailable(err) {
		return noDaemon(err)
	}
	if err != nil {
		a.unstore(ctx, err)
		return x.notHere(err)
	}
	name := w.GetName()
	a.tellRoots(w)
	defer func() {
		if len(use) > 0 {
			a.tellModels(ctx, client, name)
		}
		if x.keep {
			_ = say(a.Err, "carrel: the workspace is kept: %s\n", name)
			return
		}
		_, derr := askOf(ctx, client, workspaces.Destroy, &carrelv1.DestroyRequest{Workspace: name, Purge: true})
		err = errors.Join(err, derr)
	}()
	if x.report != "" || len(allow)+len(mounts) > 0 {
		m, err := askOf(ctx, client, workspaces.Get, &carrelv1.GetRequest{Workspace: name})
		if err != nil {
			return err
		}
		controls := m.GetWorkspace().GetControls()
		if err := a.writeReport(x.report, name, objectsOf(controls)); err != nil {
			return err
		}
		a.tellWeaker(controls)
	}
	spec.Dir = workspace.Mount{Destination: x.dir}.AtHome().Destination
	if x.tty {
		size := a.windowSize()
		spec.Terminal = &size
	}
	stop, err := x.ports.serve(ctx, a, ofWorkspace(client, name))
	if err != nil {
		return err
	}
	defer stop()
	cmd, err := a.start(ctx, client, name, spec, signals)
	if err != nil {
		return err
	}
	if x.sync {
		stop := a.sync(ctx, func(ctx context.Context, tell func(*copies.Copy, copies.Result, error)) {
			var all sync.WaitGroup
			for _, k := range kept {
				all.Go(func() {
					k.Sync(ctx, rootless.HostReads(k.Source), func(r copies.Result, err error) { tell(k.Copy, r, err) })
				})
			}
			all.Wait()
		})
		defer stop()
	}
	return a.attend(ctx, name, cmd, signals, &x.commandFlags, x.timeout)
}
