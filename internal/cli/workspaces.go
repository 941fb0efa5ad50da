package cli

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/rootless"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	carrel "github.com/carrel-dev/carrel/sdk/go"
)

func (a *app) createCommand() *cobra.Command {
	var l limitFlags
	var profile string
	var noStart bool
	var volumes, allow, uses []string
	var files secretFileFlags
	var reach workspace.Reach
	var m modelFlags
	var wait time.Duration
	c := &cobra.Command{
		Use:   "create [flags] KEY",
		Short: help(operation.CreateWorkspace),
		Long: `Make the workspace for a key and start it. The key is any text of up to 512 bytes:
a project, a chat id. If the key has a workspace already, it is shown instead.

With -v a directory of this host is mounted: SRC must be one that you may open, DST is
/workspace or a place below it, /mnt, /srv or the home (~/NAME). Files keep their owner on
the host. What the host would run from there, above all .git, is read-only inside. With
SRC:DST:staged commands work on a copy: "carrel diff" shows what they changed, and "carrel apply"
makes the changes in SRC.

--allow lets commands use what is closed to them otherwise. It makes the boundary weaker,
which is said wherever its proof is shown: userns (user namespaces, for Chromium's
sandbox), mounts (with userns: mounts in those, for bubblewrap and nix), io_uring.

--allow HOST, --ask HOST and --deny HOST say what commands may reach of the network: see "carrel
egress --help". Without a rule they reach nothing.

--secret NAME gives commands a placeholder in the variable NAME, which becomes your secret on
its way to the hosts that this is for: see "carrel secret --help". If you keep no secret of
that name, your variable NAME is kept as one first. --secret-file NAME=PATH keeps the
placeholder in a file below the home too, of mode 0600, and removes it with the secret. With
--secret-template NAME=FILE that file has what FILE has here, with the placeholder in the place
of {{NAME}}.

--model NAME serves the API of a model inside, with the host's key or yours: see "carrel model
--help".`,
		Example: `  carrel create demo
  carrel create --allow @github --allow example.org demo
  carrel create --allow @llm --secret ANTHROPIC_API_KEY agent
  carrel create --allow @npm --secret-file NPM_TOKEN=.config/npm/token build
  carrel create --secret-file KEY=.npmrc --secret-template KEY=npmrc build
  carrel create --model anthropic --model-requests 200 assistant
  carrel create --allow userns browser
  carrel create -v .:/workspace -v ~/data:/mnt/data:ro demo
  carrel create --memory 256MiB --pids 200 build
  carrel create --profile chat --ttl 30d "telegram:-100123"`,
		Args: exactly("KEY"),
	}
	f := c.Flags()
	l.add(f, true)
	f.StringVar(&profile, "profile", "", "take the defaults of this profile: chat (256MiB, 200 processes, names as chat-…)")
	completeFrom(c, "profile", "chat")
	volumeFlag(c, &volumes)
	f.BoolVar(&noStart, "no-start", false, "leave it stopped; the first command starts it")
	allowFlag(c, &allow)
	askFlag(c, &reach.Ask)
	denyFlag(c, &reach.Deny)
	a.secretFlag(c, &uses)
	files.add(c)
	a.addModels(c, &m)
	waitFlag(c, &wait)
	return a.prints(c, func(c *cobra.Command, args []string) (any, printer, error) {
		mounts, err := parseVolumes(volumes)
		if err == nil {
			err = checkWait(c, wait)
		}
		if err != nil {
			return nil, nil, err
		}
		openings, hosts, err := openingsAndHosts(allow)
		if err != nil {
			return nil, nil, err
		}
		reach.Allow = hosts
		if err := newReach(c.Context(), &reach, mounts); err != nil {
			return nil, nil, err
		}
		use, err := m.uses()
		if err != nil {
			return nil, nil, err
		}
		names, err := a.useSecretFiles(c.Context(), uses, &files)
		if err != nil {
			a.unstore(c.Context(), err)
			return nil, nil, err
		}
		client, err := a.client()
		if err != nil {
			return nil, nil, err
		}
		req := &carrelv1.CreateRequest{
			Key: args[0], Limits: l.asked(), NoStart: noStart, Profile: profile, TtlMs: int64(l.ttl), IdleTimeoutMs: int64(l.idle),
			RequestId: l.request, Allow: workspace.OpeningNames(openings), Secrets: names,
			SecretFiles: files.files, SecretTemplates: files.texts,
			ReachAllow: reach.Allow, ReachAsk: reach.Ask, ReachDeny: reach.Deny,
			Models: use, ModelBudget: m.budget(),
		}
		kept, err := a.stage(c.Context(), a.copyName(args[0]), mounts)
		if err != nil {
			a.unstore(c.Context(), err)
			return nil, nil, err
		}
		around, err := a.lookBefore(a.copyName(args[0]), mounts)
		if err != nil {
			a.unstore(c.Context(), err)
			return nil, nil, err
		}
		defer around.Leave()
		w, created, err := create(c.Context(), client, req, mounts, kept)
		if name, asks := carrel.ApprovalOf(err); asks && wait > 0 {
			a.tellWaiting(name)
			req.ApprovalWaitMs = wait.Milliseconds()
			w, created, err = create(c.Context(), client, req, mounts, kept)
		}
		if err != nil {
			a.unstore(c.Context(), err)
			return nil, nil, err
		}
		if !created {
			a.tellKept(c.Flags(), req, w)
		} else if err := around.Watch(id.Workspace(w.GetName())); err != nil {
			return nil, nil, err
		}
		a.tellWeaker(w.GetControls())
		a.tellRoots(w)
		return objectOf(w), text(w.GetName() + "\n"), nil
	})
}

// create creates a workspace.
func create(
	ctx context.Context, client *carrel.Client, req *carrelv1.CreateRequest, mounts []mount, kept []*keptCopy,
) (w *carrelv1.Workspace, created bool, err error) {
	err = bounded(ctx, req, func(ctx context.Context) error {
		w, created, err = client.Create(ctx, req, staged(mounts, kept)...)
		return err
	})
	for _, k := range kept {
		if err != nil {
			_ = k.undo(ctx) // the other error says why
		} else if serr := k.Serve(w.GetName()); serr != nil {
			return w, created, serr
		}
	}
	return w, created, err
}

// allowFlag adds --allow.
func allowFlag(c *cobra.Command, allow *[]string) {
	c.Flags().StringArrayVar(allow, "allow", nil,
		"let commands reach `HOST`, or open userns, mounts or io_uring to them: a weaker boundary; may be repeated")
	completeFrom(c, "allow", append(workspace.OpeningNames(workspace.Openings), rootless.SetNames()...)...)
}

// tellRoots says where commands write files of root.
func (a *app) tellRoots(w *carrelv1.Workspace) {
	for _, m := range w.GetMounts() {
		if m.GetAsRoot() {
			_ = say(a.Err, "carrel: commands in it write files of root in %s\n", printable(m.GetSource()))
		}
	}
}

// tellWeaker says which controls are off because --allow asked for that, and which do not hold although
// they need not.
func (a *app) tellWeaker(controls []*carrelv1.Control) {
	for _, c := range controls {
		switch {
		case c.GetOpened() != "":
			_ = say(a.Err, "carrel: %s is off, as --allow %s asked for\n", c.GetId(), c.GetOpened())
		case c.GetState() == string(workspace.Failed):
			_ = say(a.Err, "carrel: %s does not hold: %s; %s\n", c.GetId(), c.GetEvidence(), c.GetRemedy())
		}
	}
}

func (a *app) lsCommand() *cobra.Command {
	var quiet, retained bool
	c := &cobra.Command{
		Use:     "ls [flags]",
		Aliases: []string{"list"},
		Short:   help(operation.ListWorkspaces),
		Long: `List the workspaces that you may reach, or with --retained the homes that were kept
of destroyed ones, and when each is removed.`,
		Example: `  carrel ls
  carrel ls --retained
  carrel ls -o json`,
		Args: exactly(),
	}
	c.Flags().BoolVarP(&quiet, "quiet", "q", false, "print names only")
	c.Flags().BoolVar(&retained, "retained", false, "list the kept homes of destroyed workspaces instead")
	return a.prints(c, func(c *cobra.Command, _ []string) (any, printer, error) {
		m, err := ask(c.Context(), a, workspaces.List, &carrelv1.ListRequest{Retained: retained})
		if err != nil {
			return nil, nil, err
		}
		var names []string
		var t *table
		var data any
		if retained {
			t = newTable(2, "NAME", "KEY", "OWNER", "DESTROYED", "REMOVED", "HOME").wideOnly("OWNER", "HOME")
			for _, r := range m.GetRetained() {
				removed := "never"
				if ms := r.GetExpiresUnixMs(); ms != 0 {
					removed = at(ms).Format(moment)
				}
				names = append(names, r.GetWorkspace())
				t.add(r.GetWorkspace(), keyText(r.GetKey()), r.GetOwner(), at(r.GetDestroyedUnixMs()).Format(moment), removed, r.GetHome())
			}
			data = objectsOf(m.GetRetained())
		} else {
			all := m.GetWorkspaces()
			slices.SortFunc(all, func(x, y *carrelv1.Workspace) int { return strings.Compare(x.GetKey(), y.GetKey()) })
			t = newTable(2, "NAME", "KEY", "STATE", "OWNER", "MEMORY", "PIDS", "AGE")
			for _, w := range all {
				names = append(names, w.GetName())
				t.add(w.GetName(), keyText(w.GetKey()), stateText(w), w.GetOwner(), bytesText(w.GetLimits().GetMemoryBytes()),
					strconv.FormatInt(w.GetLimits().GetPids(), 10), age(at(w.GetCreatedUnixMs())))
			}
			data = objectsOf(all)
		}
		if quiet {
			return data, lines(names), nil
		}
		return data, t, nil
	})
}

// keyText is a key as a table shows it.
func keyText(key string) string { return cut(printable(key), 40) }

func (a *app) inspectCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "inspect [flags] WORKSPACE",
		Short: help(operation.InspectWorkspace),
		Long: `Show a workspace. While it runs, the isolation controls are counted by how they were
proved: "verified" was tried and held, "applied" was set up and not tried,
"unavailable" is more than this host can do. Those that do not hold are listed, and
with -v all of them with the evidence.`,
		Example: `  carrel inspect demo
  carrel inspect -v demo
  carrel inspect demo -o json | jq '.controls[] | select(.state != "verified")'`,
		Args:              exactly("WORKSPACE"),
		ValidArgsFunction: onlyFirst(a.completeWorkspaces()),
	}
	var all bool
	c.Flags().BoolVarP(&all, "verbose", "v", false, "list every control with its evidence")
	return a.prints(c, func(c *cobra.Command, args []string) (any, printer, error) {
		m, err := ask(c.Context(), a, workspaces.Get, &carrelv1.GetRequest{Workspace: args[0]})
		if err != nil {
			return nil, nil, err
		}
		return objectOf(m.GetWorkspace()), workspaceText(m.GetWorkspace(), all), nil
	})
}

// stateText is the state, and whether the workspace answers.
func stateText(w *carrelv1.Workspace) string {
	if w.GetSilentUnixMs() == 0 {
		return w.GetState()
	}
	return w.GetState() + ", unresponsive"
}

// workspaceText is what inspect prints for people.
func workspaceText(w *carrelv1.Workspace, all bool) printer {
	orNever := func(set bool, text string) string {
		if !set {
			return "never"
		}
		return text
	}
	l := w.GetLimits()
	disk := ""
	if l.GetDiskBytes() != 0 {
		disk = bytesText(l.GetDiskBytes())
	}
	t := pairs([][2]string{
		{"name", w.GetName()},
		{"key", printable(w.GetKey())},
		{"owner", w.GetOwner()},
		{"state", stateText(w)},
		{"boundary", w.GetBoundary() + ", root " + w.GetRoot()},
		{"user", fmt.Sprintf("%s (uid %d; executor %d, agent %d)", w.GetUser(), w.GetUid(), w.GetExecutorUid(), w.GetAgentUid())},
		{"home", w.GetHome() + ", inside " + w.GetInsideHome()},
		{"memory", bytesText(l.GetMemoryBytes()) + ", swap " + bytesText(l.GetSwapBytes())},
		{"pids", strconv.FormatInt(l.GetPids(), 10)},
		{"cpu weight", strconv.FormatInt(l.GetCpuWeight(), 10)},
		{"open files", strconv.FormatInt(l.GetOpenFiles(), 10)},
		{"disk", disk},
		{"created", at(w.GetCreatedUnixMs()).Format(time.RFC3339)},
		{"profile", w.GetProfile()},
		{"expires", orNever(w.GetExpiresUnixMs() != 0, at(w.GetExpiresUnixMs()).Format(time.RFC3339))},
		{"idle time-out", orNever(w.GetIdleTimeoutMs() > 0, (time.Duration(w.GetIdleTimeoutMs()) * time.Millisecond).String())},
		{"allows", strings.Join(w.GetAllow(), ", ")},
		{"reaches", reachText(w)},
		{"secrets", strings.Join(w.GetSecrets(), ", ")},
		{"secret files", strings.Join(w.GetSecretFiles(), ", ")},
		{"models", modelsText(w.GetModels())},
		{"model budget", budgetText(w.GetModelBudget())},
	}...)
	for _, m := range w.GetMounts() {
		mode := "read-write"
		if m.GetReadOnly() {
			mode = "read-only"
		}
		if m.GetStaged() {
			mode = "a staged copy"
		}
		t.add(
			"mount", fmt.Sprintf("%s at %s, %s, files of uid %d", printable(m.GetSource()), printable(m.GetDestination()), mode, m.GetOwnerUid()),
		)
	}
	if w.GetExecutorPid() != 0 {
		t.add("executor", fmt.Sprintf("pid %d", w.GetExecutorPid()))
	}
	if ms := w.GetSilentUnixMs(); ms != 0 {
		t.add("answers", "nothing since "+at(ms).Format(time.RFC3339)+"; wait, or end it with: carrel stop "+w.GetName())
	}
	if len(w.GetControls()) == 0 {
		return both{t, text("\nThe controls are shown while it runs; start it with: carrel start " + w.GetName() + "\n")}
	}
	counts, listed := controlsText(w.GetControls(), all)
	t.add("controls", counts)
	return both{t, text(listed)}
}

// controlsText counts controls by their state, and lists those that do not hold, or all.
func controlsText(controls []*carrelv1.Control, all bool) (counts, listed string) {
	numbers, states := map[string]int{}, []string{}
	var b strings.Builder
	for _, c := range controls {
		state := c.GetState()
		if numbers[state]++; numbers[state] == 1 {
			states = append(states, state)
		}
		holds := state == string(workspace.Verified) || state == string(workspace.Off) && c.GetOpened() == ""
		if all || !holds {
			b.WriteString(finding(state, c.GetId(), c.GetEvidence(), c.GetRemedy()))
		}
	}
	slices.SortStableFunc(states, func(x, y string) int { return numbers[y] - numbers[x] })
	for i, state := range states {
		states[i] = fmt.Sprintf("%d %s", numbers[state], printable(state))
	}
	if counts = strings.Join(states, ", "); !all {
		counts += "; -v shows the evidence"
	}
	if b.Len() > 0 {
		listed = "\n" + b.String()
	}
	return counts, listed
}

// finding is what was found about one thing, in lines that fit a terminal, and what to do about it, in one line that
// can be pasted.
func finding(state, name, found, remedy string) string {
	s := fmt.Sprintf("%-8s  %s\n%s", printable(state), printable(name), wrapped(found))
	if remedy != "" {
		s += "        Do: " + message(remedy) + "\n"
	}
	return s
}

func (a *app) destroyCommand() *cobra.Command {
	var purge bool
	var request string
	c := &cobra.Command{
		Use:     "destroy [flags] WORKSPACE...",
		Aliases: []string{"rm"},
		Short:   help(operation.DestroyWorkspace),
		Long: `End everything that runs in a workspace and remove its user, processes and limits.
No other workspace gets its ids. The home is kept aside, owned by root, and its
path is printed. It is removed after the daemon's home_retention, 30 days unless set
otherwise: "carrel ls --retained" says when, and "carrel revive" brings the workspace back
until then. With --purge it is removed at once.`,
		Example: `  carrel destroy demo
  carrel rm --purge demo`,
		Args:              atLeast("WORKSPACE"),
		ValidArgsFunction: a.completeWorkspaces(),
	}
	c.Flags().BoolVar(&purge, "purge", false, "remove the home too")
	c.Flags().StringVar(&request, "request-id", "", "an id that you choose, for one workspace: the same id gets the same answer again")
	out := outputFlag(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		if request != "" && len(args) > 1 {
			return usage(c, "cannot use one request id for several workspaces: destroy them one by one")
		}
		views := []object{}
		for _, ref := range args {
			name := a.nameOf(c.Context(), ref)
			m, err := ask(c.Context(), a, workspaces.Destroy, &carrelv1.DestroyRequest{Workspace: ref, Purge: purge, RequestId: request})
			if err != nil {
				return err
			}
			a.tellChanges(c.Context(), name)
			rootless.Unwatch(name)
			views = append(views, object{{"workspace", ref}, {"retained_home", m.GetRetainedHome()}})
			if *out != asJSON && m.GetRetainedHome() != "" {
				if _, err := fmt.Fprintln(a.Out, m.GetRetainedHome()); err != nil {
					return err
				}
			}
		}
		if *out == asJSON {
			return a.printJSON(views)
		}
		return nil
	}
	return c
}

// completeWorkspaces completes workspaces that are not named yet, by key and by name.
func (a *app) completeWorkspaces() cobra.CompletionFunc {
	return a.completion(func(ctx context.Context, client *carrel.Client, args []string) (out []string, err error) {
		m, err := askOf(ctx, client, workspaces.List, &carrelv1.ListRequest{})
		for _, w := range m.GetWorkspaces() {
			if !slices.Contains(args, w.GetKey()) && !slices.Contains(args, w.GetName()) {
				out = append(out, cobra.CompletionWithDesc(w.GetKey(), w.GetState()), cobra.CompletionWithDesc(w.GetName(), w.GetKey()))
			}
		}
		return out, err
	})
}
