package cli

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/workspace"
)

// workspaceView is the JSON of a workspace. It is an interface: fields are added,
// never renamed or removed. docs/cli.md lists them.
type workspaceView struct {
	Name        string        `json:"name"`
	Key         string        `json:"key"`
	Owner       string        `json:"owner"`
	User        string        `json:"user"`
	UID         uint32        `json:"uid"`
	ExecutorUID uint32        `json:"executor_uid"`
	AgentUID    uint32        `json:"agent_uid"`
	Home        string        `json:"home"`
	InsideHome  string        `json:"inside_home"`
	State       string        `json:"state"`
	Root        string        `json:"root"`
	Boundary    string        `json:"boundary"`
	Limits      limitsView    `json:"limits"`
	Mounts      []mountView   `json:"mounts"`
	Allow       []string      `json:"allow"`
	Controls    []controlView `json:"controls"`
	ExecutorPID int64         `json:"executor_pid"`
	CreatedAt   time.Time     `json:"created_at"`
	Profile     string        `json:"profile"`
	// ExpiresAt is null for never.
	ExpiresAt *time.Time `json:"expires_at"`
	// IdleTimeoutMS is -1 for never.
	IdleTimeoutMS int64 `json:"idle_timeout_ms"`
}

type limitsView struct {
	MemoryBytes int64 `json:"memory_bytes"`
	SwapBytes   int64 `json:"swap_bytes"`
	Pids        int64 `json:"pids"`
	CPUWeight   int64 `json:"cpu_weight"`
	OpenFiles   int64 `json:"open_files"`
	// DiskBytes is 0 without a limit.
	DiskBytes int64 `json:"disk_bytes"`
}

type mountView struct {
	Source      string `json:"source"`
	Destination string `json:"destination"`
	ReadOnly    bool   `json:"read_only"`
	OwnerUID    uint32 `json:"owner_uid"`
}

type controlView struct {
	ID        string `json:"id"`
	Requested bool   `json:"requested"`
	Required  bool   `json:"required"`
	State     string `json:"state"`
	Evidence  string `json:"evidence"`
	Remedy    string `json:"remedy"`
	// Opened is what it is off for, if that was asked for.
	Opened string `json:"opened,omitempty"`
}

func viewOf(w *carrelv1.Workspace) workspaceView {
	controls := make([]controlView, 0, len(w.GetControls()))
	for _, c := range w.GetControls() {
		controls = append(controls, controlView{c.GetId(), c.GetRequested(), c.GetRequired(), c.GetState(), c.GetEvidence(), c.GetRemedy(), c.GetOpened()})
	}
	var expires *time.Time
	if ms := w.GetExpiresUnixMs(); ms != 0 {
		t := time.UnixMilli(ms).UTC()
		expires = &t
	}
	mounts := make([]mountView, 0, len(w.GetMounts()))
	for _, m := range w.GetMounts() {
		mounts = append(mounts, mountView{m.GetSource(), m.GetDestination(), m.GetReadOnly(), m.GetOwnerUid()})
	}
	return workspaceView{
		Name: w.GetName(), Key: w.GetKey(), Owner: w.GetOwner(), User: w.GetUser(),
		UID: w.GetUid(), ExecutorUID: w.GetExecutorUid(), AgentUID: w.GetAgentUid(),
		Home: w.GetHome(), InsideHome: w.GetInsideHome(),
		State: w.GetState(), Root: w.GetRoot(), Boundary: w.GetBoundary(),
		Limits: limitsOf(w.GetLimits()),
		Mounts: mounts, Allow: append([]string{}, w.GetAllow()...), Controls: controls, ExecutorPID: w.GetExecutorPid(),
		CreatedAt: time.UnixMilli(w.GetCreatedUnixMs()).UTC(),
		Profile:   w.GetProfile(), ExpiresAt: expires, IdleTimeoutMS: w.GetIdleTimeoutMs(),
	}
}

// disk is "" without a limit.
func (l limitsView) disk() string {
	if l.DiskBytes == 0 {
		return ""
	}
	return bytesText(l.DiskBytes)
}

func limitsOf(l *carrelv1.Limits) limitsView {
	return limitsView{l.GetMemoryBytes(), l.GetSwapBytes(), l.GetPids(), l.GetCpuWeight(), l.GetOpenFiles(), l.GetDiskBytes()}
}

func (a *app) createCommand() *cobra.Command {
	var l limitFlags
	var profile string
	var noStart bool
	var volumes, allow []string
	c := &cobra.Command{
		Use:   "create [flags] KEY",
		Short: "Make a workspace, or show the one there is for a key",
		Long: `Make the workspace for a key and start it. The key is any text of up to 512 bytes:
a project, a chat id. If the key has a workspace already, it is shown instead.

With -v a directory of this host is mounted: SRC must be one that you may open, DST is
/workspace or a place below it, /mnt, /srv or the home (~/NAME). Files keep their owner on
the host. What the host would run from there, above all .git, is read-only inside.

--allow opens what is closed to commands otherwise, makes the boundary weaker, and is said
wherever its proof is shown: userns (user namespaces, for Chromium's sandbox), mounts
(with userns: mounts in those, for bubblewrap and nix), io_uring.`,
		Example: `  carrel create demo
  carrel create --allow userns browser
  carrel create -v .:/workspace -v ~/data:/mnt/data:ro demo
  carrel create --memory 256MiB --pids 200 build
  carrel create --profile chat --ttl 30d "telegram:-100123"`,
		Args: exactly("KEY"),
	}
	f := c.Flags()
	l.add(f, true)
	f.StringVar(&profile, "profile", "", "take the defaults of this profile: chat (256MiB, 200 processes, names as chat-…)")
	f.StringArrayVarP(&volumes, "volume", "v", nil, "mount a directory, as `SRC:DST[:ro]`; may be repeated")
	_ = c.RegisterFlagCompletionFunc("volume", completeVolume) // it fails for flags that are not there
	f.BoolVar(&noStart, "no-start", false, "leave it stopped; the first command starts it")
	allowFlag(c, &allow)
	out := outputFlag(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		mounts, err := parseVolumes(volumes)
		if err != nil {
			return err
		}
		openings, err := workspace.ParseOpenings(allow)
		if err != nil {
			return err
		}
		client, err := a.client()
		if err != nil {
			return err
		}
		w, created, err := client.Create(c.Context(), &carrelv1.CreateRequest{
			Key: args[0], Limits: l.asked(), NoStart: noStart, Profile: profile, TtlMs: int64(l.ttl), IdleTimeoutMs: int64(l.idle), RequestId: l.request,
			Allow: workspace.OpeningNames(openings),
		}, mounts...)
		if err != nil {
			return err
		}
		if *out == asJSON {
			return a.printJSON(viewOf(w))
		}
		if !created {
			a.progress("The workspace was there already.")
		}
		a.tellOpened(viewOf(w).Controls)
		_, err = fmt.Fprintln(a.Out, w.GetName())
		return err
	}
	return c
}

// allowFlag adds --allow.
func allowFlag(c *cobra.Command, allow *[]string) {
	c.Flags().StringArrayVar(allow, "allow", nil, "open userns, mounts or io_uring to commands: a weaker boundary; may be repeated")
	_ = c.RegisterFlagCompletionFunc("allow", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return workspace.OpeningNames(workspace.Openings), cobra.ShellCompDirectiveNoFileComp
	}) // it fails for flags that are not there
}

// tellOpened says which controls are off because that was asked for.
func (a *app) tellOpened(controls []controlView) {
	for _, c := range controls {
		if c.Opened != "" {
			fmt.Fprintf(a.Err, "carrel: %s is off, as --allow %s asked for\n", c.ID, c.Opened)
		}
	}
}

func (a *app) lsCommand() *cobra.Command {
	var quiet, retained bool
	c := &cobra.Command{
		Use:     "ls [flags]",
		Aliases: []string{"list"},
		Short:   "List the workspaces that you may reach",
		Long: `List the workspaces that you may reach, or with --retained the homes that were kept
of destroyed ones, and when each is removed.`,
		Example: `  carrel ls
  carrel ls --retained
  carrel ls -o json`,
		Args: exactly(),
	}
	c.Flags().BoolVarP(&quiet, "quiet", "q", false, "print names only")
	c.Flags().BoolVar(&retained, "retained", false, "list the kept homes of destroyed workspaces instead")
	out := outputFlag(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		client, err := a.client()
		if err != nil {
			return err
		}
		res, err := client.Workspaces().List(c.Context(), connect.NewRequest(&carrelv1.ListRequest{Retained: retained}))
		if err != nil {
			return err
		}
		if retained {
			return a.printRetained(res.Msg.GetRetained(), *out == asJSON, quiet)
		}
		ws := res.Msg.GetWorkspaces()
		slices.SortFunc(ws, func(x, y *carrelv1.Workspace) int { return strings.Compare(x.GetKey(), y.GetKey()) })
		if *out == asJSON {
			views := make([]workspaceView, 0, len(ws))
			for _, w := range ws {
				views = append(views, viewOf(w))
			}
			return a.printJSON(views)
		}
		t := newTable(2, "NAME", "KEY", "STATE", "OWNER", "MEMORY", "PIDS", "AGE")
		for _, w := range ws {
			if quiet {
				if _, err := fmt.Fprintln(a.Out, w.GetName()); err != nil {
					return err
				}
				continue
			}
			t.add(w.GetName(), cut(printable(w.GetKey()), 40), w.GetState(), w.GetOwner(), bytesText(w.GetLimits().GetMemoryBytes()),
				strconv.FormatInt(w.GetLimits().GetPids(), 10), age(time.UnixMilli(w.GetCreatedUnixMs())))
		}
		if quiet {
			return nil
		}
		return t.print(a.Out)
	}
	return c
}

// retainedView is the JSON of a kept home.
type retainedView struct {
	Workspace   string    `json:"workspace"`
	Key         string    `json:"key"`
	Owner       string    `json:"owner"`
	Home        string    `json:"home"`
	DestroyedAt time.Time `json:"destroyed_at"`
	// ExpiresAt is null for never.
	ExpiresAt *time.Time `json:"expires_at"`
}

func (a *app) printRetained(list []*carrelv1.RetainedHome, inJSON, quiet bool) error {
	views := make([]retainedView, 0, len(list))
	t := newTable(2, "NAME", "KEY", "OWNER", "DESTROYED", "REMOVED", "HOME")
	for _, r := range list {
		v := retainedView{r.GetWorkspace(), r.GetKey(), r.GetOwner(), r.GetHome(), time.UnixMilli(r.GetDestroyedUnixMs()).UTC(), nil}
		removed := "never"
		if ms := r.GetExpiresUnixMs(); ms != 0 {
			at := time.UnixMilli(ms).UTC()
			v.ExpiresAt, removed = &at, at.Format(time.DateTime)
		}
		views = append(views, v)
		t.add(v.Workspace, cut(printable(v.Key), 40), v.Owner, v.DestroyedAt.Format(time.DateTime), removed, v.Home)
	}
	if inJSON {
		return a.printJSON(views)
	}
	if quiet {
		for _, v := range views {
			if _, err := fmt.Fprintln(a.Out, v.Workspace); err != nil {
				return err
			}
		}
		return nil
	}
	return t.print(a.Out)
}

func (a *app) inspectCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "inspect [flags] WORKSPACE",
		Short: "Show a workspace, its limits and the proof of its isolation",
		Long: `Show a workspace. While it runs, every isolation control is listed with how it was
proved: "verified" was tried and held, "applied" was set up and not tried,
"unavailable" is more than this host can do.`,
		Example: `  carrel inspect demo
  carrel inspect demo -o json | jq '.controls[] | select(.state != "verified")'`,
		Args:              exactly("WORKSPACE"),
		ValidArgsFunction: a.completeWorkspace,
	}
	out := outputFlag(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		client, err := a.client()
		if err != nil {
			return err
		}
		res, err := client.Workspaces().Get(c.Context(), connect.NewRequest(&carrelv1.GetRequest{Workspace: args[0]}))
		if err != nil {
			return err
		}
		v := viewOf(res.Msg.GetWorkspace())
		if *out == asJSON {
			return a.printJSON(v)
		}
		return a.printWorkspace(v)
	}
	return c
}

func (a *app) printWorkspace(v workspaceView) error {
	t := newTable(-1)
	t.rows = nil
	for _, r := range [][2]string{
		{"name", v.Name},
		{"key", printable(v.Key)},
		{"owner", v.Owner},
		{"state", v.State},
		{"boundary", v.Boundary + ", root " + v.Root},
		{"user", fmt.Sprintf("%s (uid %d; executor %d, agent %d)", v.User, v.UID, v.ExecutorUID, v.AgentUID)},
		{"home", v.Home + ", inside " + v.InsideHome},
		{"memory", bytesText(v.Limits.MemoryBytes) + ", swap " + bytesText(v.Limits.SwapBytes)},
		{"pids", strconv.FormatInt(v.Limits.Pids, 10)},
		{"cpu weight", strconv.FormatInt(v.Limits.CPUWeight, 10)},
		{"open files", strconv.FormatInt(v.Limits.OpenFiles, 10)},
		{"disk", v.Limits.disk()},
		{"created", v.CreatedAt.Format(time.RFC3339)},
		{"profile", v.Profile},
		{"expires", v.expiry()},
		{"idle time-out", v.idle()},
		{"allows", strings.Join(v.Allow, ", ")},
	} {
		if r[1] != "" {
			t.add(r[0], r[1])
		}
	}
	for _, m := range v.Mounts {
		mode := "read-write"
		if m.ReadOnly {
			mode = "read-only"
		}
		t.add("mount", fmt.Sprintf("%s at %s, %s, files of uid %d", printable(m.Source), printable(m.Destination), mode, m.OwnerUID))
	}
	if v.ExecutorPID != 0 {
		t.add("executor", fmt.Sprintf("pid %d", v.ExecutorPID))
	}
	if err := t.print(a.Out); err != nil {
		return err
	}
	if len(v.Controls) == 0 {
		_, err := fmt.Fprintln(a.Out, "\nThe controls are shown while it runs; start it with: carrel start "+v.Name)
		return err
	}
	fmt.Fprintln(a.Out)
	t = newTable(1, "CONTROL", "STATE", "EVIDENCE")
	for _, c := range v.Controls {
		evidence := printable(c.Evidence)
		if c.Remedy != "" {
			evidence += "; remedy: " + printable(c.Remedy)
		}
		t.add(c.ID, c.State, evidence)
	}
	return t.print(a.Out)
}

func (v *workspaceView) expiry() string {
	if v.ExpiresAt == nil {
		return "never"
	}
	return v.ExpiresAt.Format(time.RFC3339)
}

func (v *workspaceView) idle() string {
	if v.IdleTimeoutMS <= 0 {
		return "never"
	}
	return (time.Duration(v.IdleTimeoutMS) * time.Millisecond).String()
}

func (a *app) startCommand() *cobra.Command {
	return a.changeCommand("start", "Start a stopped workspace and prove its isolation", "started",
		func(c *cobra.Command, ref string) (*carrelv1.Workspace, error) {
			client, err := a.client()
			if err != nil {
				return nil, err
			}
			res, err := client.Workspaces().Start(c.Context(), connect.NewRequest(&carrelv1.StartRequest{Workspace: ref}))
			if err != nil {
				return nil, err
			}
			return res.Msg.GetWorkspace(), nil
		})
}

func (a *app) stopCommand() *cobra.Command {
	return a.changeCommand("stop", "End everything that runs in a workspace and keep its home", "stopped",
		func(c *cobra.Command, ref string) (*carrelv1.Workspace, error) {
			client, err := a.client()
			if err != nil {
				return nil, err
			}
			res, err := client.Workspaces().Stop(c.Context(), connect.NewRequest(&carrelv1.StopRequest{Workspace: ref}))
			if err != nil {
				return nil, err
			}
			return res.Msg.GetWorkspace(), nil
		})
}

// changeCommand is a command that does one thing to each workspace named.
func (a *app) changeCommand(name, short, done string, do func(*cobra.Command, string) (*carrelv1.Workspace, error)) *cobra.Command {
	c := &cobra.Command{
		Use:               name + " [flags] WORKSPACE...",
		Short:             short,
		Example:           "  carrel " + name + " demo",
		Args:              atLeast("WORKSPACE"),
		ValidArgsFunction: a.completeWorkspaces,
	}
	out := outputFlag(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		views := make([]workspaceView, 0, len(args))
		for _, ref := range args {
			w, err := do(c, ref)
			if err != nil {
				return err
			}
			views = append(views, viewOf(w))
			if *out == asTable {
				a.progress("%s is %s.", w.GetName(), done)
			}
		}
		if *out == asJSON {
			return a.printJSON(views)
		}
		return nil
	}
	return c
}

func (a *app) destroyCommand() *cobra.Command {
	var purge bool
	var request string
	c := &cobra.Command{
		Use:   "destroy [flags] WORKSPACE...",
		Short: "End a workspace's life; its home is kept aside unless --purge",
		Long: `End everything that runs in a workspace and remove its user, processes and limits.
Its ids are never used again. The home is kept aside, owned by root, and its
place is printed; it goes after the daemon's home_retention, 30 days unless set
otherwise: "carrel ls --retained" says when. With --purge it is removed at once.`,
		Example: `  carrel destroy demo
  carrel destroy --purge demo`,
		Args:              atLeast("WORKSPACE"),
		ValidArgsFunction: a.completeWorkspaces,
	}
	c.Flags().BoolVar(&purge, "purge", false, "remove the home too")
	c.Flags().StringVar(&request, "request-id", "", "an id of your own, for one workspace: asked again with the same id, it gets the same answer")
	out := outputFlag(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		if request != "" && len(args) > 1 {
			return usage(c, "cannot use one request id for %d workspaces: destroy them one by one", len(args))
		}
		client, err := a.client()
		if err != nil {
			return err
		}
		type view struct {
			Workspace    string `json:"workspace"`
			RetainedHome string `json:"retained_home"`
		}
		views := make([]view, 0, len(args))
		for _, ref := range args {
			res, err := client.Workspaces().Destroy(c.Context(), connect.NewRequest(&carrelv1.DestroyRequest{Workspace: ref, Purge: purge, RequestId: request}))
			if err != nil {
				return err
			}
			home := res.Msg.GetRetainedHome()
			views = append(views, view{ref, home})
			if *out == asTable && home != "" {
				if _, err := fmt.Fprintln(a.Out, home); err != nil {
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
