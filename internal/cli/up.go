package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/base/crashpoint"
	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox/probe"
	carrel "github.com/carrel-dev/carrel/sdk/go"
)

// upView is the JSON of up.
type upView struct {
	Host       string `json:"host"`
	DataDir    string `json:"data_dir"`
	RuntimeDir string `json:"runtime_dir"`
	BrokerPID  int    `json:"broker_pid"`
	DaemonPID  int    `json:"daemon_pid"`
	// Address is the address of the API over TLS, and Fingerprint the fingerprint of its key;
	// both are empty if it is not served over TLS.
	Address     string `json:"address"`
	Fingerprint string `json:"fingerprint"`
	// Already: both processes ran before.
	Already bool `json:"already"`
	// Services are the units of systemd that run the parts, which up has not started then.
	Services []string `json:"services"`
	// Mended is what the broker repaired at its start.
	Mended []object `json:"mended"`
	mended []*carrelv1.Mended
	// Warning says what can go wrong on this host, and what to do; "" if nothing is known.
	Warning string `json:"warning"`
	limit   int64  // what workspaces have that ask for no disk limit
}

func (a *app) upCommand() *cobra.Command {
	var detach, prepare bool
	c := &cobra.Command{
		Use:   "up [flags]",
		Short: "Start carrel on this host (root)",
		Long: `Start the broker, the only part that runs as root, and the daemon, which runs as the
user carrel without capabilities. Missing parts are made first: the directories, and
that user and its group, whose members administer carrel.

Without --detach it stays and shows the logs, and Ctrl-C is "carrel down".

To have systemd run carrel from each boot on: systemctl enable --now carrel.target.
Then up starts nothing, and says so.`,
		Example: `  sudo carrel up
  sudo carrel up --detach
  sudo carrel up --detach --data /srv/carrel --runtime-dir /run/carrel-test`,
		Args: exactly(),
	}
	i := instanceFlags(c)
	c.Flags().BoolVar(&detach, "detach", false, "return when carrel is ready")
	c.Flags().BoolVar(&prepare, "prepare", false,
		"make what is missing and write the broker's settings, but start nothing: for the units of systemd")
	c.Flags().StringVar(
		&i.config, "config", "", "the daemon's configuration file (default that of the last up, or /etc/carrel/carreld.yaml if it is there)",
	)
	c.Flags().StringVar(
		&i.prefix, "prefix", "", "what derived workspace names begin with (default that of the last up, or "+id.DefaultPrefix+")",
	)
	_ = c.MarkFlagFilename("config", "yaml", "yml") // the flag is there
	c.MarkFlagsMutuallyExclusive("detach", "prepare")
	out := outputFlag(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		// First of all, so that an interrupt at any time is handled.
		ctx, stop := signal.NotifyContext(c.Context(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
		defer stop()
		if prepare {
			return a.prepareOnly(ctx, i)
		}
		v, children, err := a.up(ctx, i, detach)
		if err != nil {
			return err
		}
		if *out == asJSON {
			err = a.printJSON(v)
		} else {
			err = a.printUp(i, v, detach)
		}
		if err != nil || detach || v.Already {
			return err
		}
		return a.stay(ctx, stop, i, children)
	}
	return c
}

func (a *app) printUp(i *instance, v upView, detach bool) error {
	word := "is up"
	switch {
	case len(v.Services) > 0:
		word = "is up, run by systemd (" + strings.Join(v.Services, ", ") + "),"
	case v.Already:
		word = "is up already"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "carrel %s at %s\n  data  %s\n", word, v.Host, v.DataDir)
	switch {
	case len(v.Services) > 0:
		b.WriteString("  logs  journalctl -u carreld -u carrel-broker\n")
	case detach || v.Already:
		fmt.Fprintf(&b, "  logs  %s\n", i.logDir())
	}
	if v.Address != "" {
		fmt.Fprintf(&b, "  TLS   %s\n  key   %s\n", v.Address, v.Fingerprint)
	}
	if len(v.mended) > 0 {
		b.WriteString("Repaired at the start, as \"carrel events --since 1\" and the audit log show too:\n")
	}
	for _, m := range v.mended {
		fmt.Fprintf(&b, "  %-16s  %-13s  %s\n", printable(m.GetKind()), printable(m.GetWorkspace()), printable(m.GetDone()))
	}
	if v.Warning != "" {
		fmt.Fprintf(&b, "Note: %s\n", v.Warning)
	}
	b.WriteString("Next:\n")
	if !i.isDefault() {
		fmt.Fprintf(&b, "  export %s=%s\n", carrel.HostEnv, shellQuote([]string{v.Host}))
	}
	down := "carrel down" + i.flags()
	if len(v.Services) > 0 {
		down = stopServices
	}
	fmt.Fprintf(&b, "  carrel create demo\n  carrel exec demo -- id\n  %s\n", down)
	_, err := a.Out.WriteString(b.String())
	return err
}

// startTries is how often up starts a part that has ended.
const startTries = 3

// checkUp refuses what no instance can be brought up with.
func (i *instance) checkUp() error {
	if os.Geteuid() != 0 {
		return needRoot("up" + i.flags())
	}
	if i.prefix != "" {
		prefix, err := id.ParsePrefix(i.prefix)
		if err != nil {
			return err
		}
		i.prefix = prefix
	}
	return i.absolute()
}

// prepared is what is found and made before the parts of an instance start.
type prepared struct {
	programs map[string]string
	checks   []probe.Result
	who      account
	unlock   func()
}

// beforeStart makes what is missing, and writes the broker's settings. Until unlock is called no other up or down
// works on this instance or on the account.
func (a *app) beforeStart(ctx context.Context, i *instance) (p prepared, err error) {
	if p.programs, err = findPrograms(); err != nil {
		return p, err
	}
	if p.checks, err = hostCan(ctx, i); err != nil {
		return p, err
	}
	unix.Umask(0o022) // the caller's must not decide the modes of files
	// Until the daemon runs, nothing shows other instances that the user is needed.
	accounts, err := lockAccounts(ctx)
	if err != nil {
		return p, err
	}
	crashpoint.Here("cli.up.locked")
	who, unlock, err := i.prepare(ctx, accounts)
	p.who, p.unlock = who, func() {
		if unlock != nil {
			unlock()
		}
		accounts.unlock()
	}
	if err == nil {
		err = i.writeSettings(i.brokerSettings(who, p.programs["carrel-executor"], p.programs["carrel-egress"]))
	}
	if err != nil {
		p.unlock()
	}
	return p, err
}

// up starts the parts of an instance that do not run.
func (a *app) up(ctx context.Context, i *instance, detach bool) (upView, []*exec.Cmd, error) {
	if err := i.checkUp(); err != nil {
		return upView{}, nil, err
	}
	view := upView{Mended: []object{}, Host: i.host(), DataDir: i.data, RuntimeDir: i.runtime, Services: i.services(ctx)}
	if len(view.Services) > 0 {
		v, err := i.upAsServices(ctx, view)
		return v, nil, err
	}
	if v, ok := i.isUp(ctx, view); ok {
		dropAccountsLock()
		return v, nil, nil
	}
	defer sayHeld(a.Err)()
	p, err := a.beforeStart(ctx, i)
	if err != nil {
		return view, nil, err
	}
	defer p.unlock()
	crashpoint.Here("cli.up.settings-written")
	var children []*exec.Cmd
	before := i.parts()
	// A part that was just killed can still answer until the kernel has removed it. A part that
	// has ended is started again.
	tries := 1 // without --detach, up ends with the first part that ends
	if detach {
		tries = startTries
	}
	for range tries {
		started, err := i.startBoth(ctx, p.programs, p.who, detach, a.Err)
		if err != nil {
			i.stopStarted(before)
			return view, nil, err
		}
		children = append(children, started...)
		if v, ok := i.isUp(ctx, view); ok {
			v.Already, v.mended = false, mended(ctx, i.host())
			v.Mended = objectsOf(v.mended)
			if found, remedy := i.unlimited(v.limit, p.checks); found != "" {
				v.Warning = found + "; " + remedy
			}
			crashpoint.Here("cli.up.answers")
			return v, children, i.remember()
		}
	}
	i.stopStarted(before)
	if pid := before["daemon"]; pid != 0 && i.parts()["daemon"] == pid {
		return view, nil, fmt.Errorf("cannot reach the daemon at %s in time: it runs as pid %d and is left alone; wait and try again, or "+
			"end it with \"carrel down%s\"; its log is in %s: %w", i.host(), pid, i.flags(), i.logDir(), errdefs.ErrUnavailable)
	}
	return view, nil, fmt.Errorf("cannot reach the daemon at %s: it said that it is ready, and does not answer; look at its log in %s: %w",
		i.host(), i.logDir(), errdefs.ErrUnavailable)
}

// mended asks the daemon what the broker repaired. Without an answer up continues, because the
// audit log has it.
func mended(ctx context.Context, host string) []*carrelv1.Mended {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	client, err := carrel.New(carrel.Options{Host: host})
	if err != nil {
		return nil
	}
	defer client.Close()
	m, _ := askOf(ctx, client, system.Mended, &carrelv1.MendedRequest{})
	return m.GetMended()
}

func needRoot(command string) error {
	return fmt.Errorf("cannot run \"carrel %s\" as uid %d: it makes users and starts the broker, which takes root; try: sudo carrel %s: %w",
		command, os.Geteuid(), command, errdefs.ErrPermissionDenied)
}

// isUp reports whether broker and daemon run and answer.
func (i *instance) isUp(ctx context.Context, v upView) (upView, bool) {
	for name, pid := range map[string]*int{"broker": &v.BrokerPID, "daemon": &v.DaemonPID} {
		p, held, ok := i.running(name)
		if !ok {
			return v, false
		}
		held.Close()
		*pid = p.PID
	}
	// An up that was killed while its daemon started leaves the directory to the daemon.
	var st unix.Stat_t
	if unix.Lstat(i.runtime, &st) != nil || st.Uid != 0 {
		return v, false
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	broker, err := new(net.Dialer).DialContext(ctx, "unix", filepath.Join(i.runtime, "broker.sock"))
	if err != nil {
		return v, false
	}
	broker.Close()
	client, err := carrel.New(carrel.Options{Host: i.host()})
	if err != nil {
		return v, false
	}
	defer client.Close()
	m, err := askOf(ctx, client, system.Version, &carrelv1.VersionRequest{})
	if err != nil {
		return v, false
	}
	v.Address, v.Fingerprint, v.Already, v.limit = m.GetAddress(), m.GetFingerprint(), true, m.GetDiskLimit()
	return v, true
}

func findPrograms() (map[string]string, error) {
	out := map[string]string{}
	for _, name := range []string{"carrel-broker", "carreld", "carrel-executor", "carrel-archive", "carrel-egress"} {
		p, err := findProgram(name)
		if err != nil {
			return nil, err
		}
		out[name] = p
	}
	return out, nil
}

// hostTimeout bounds the checks of the host, which take milliseconds; a host that boots is busy.
const hostTimeout = 10 * time.Second

// hostCan refuses a host that cannot start a workspace, before anything is made on it.
func hostCan(ctx context.Context, i *instance) ([]probe.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, hostTimeout)
	defer cancel()
	results := probe.Run(ctx, i.probeConfig())
	unmet := probe.Unmet(results)
	if len(unmet) == 0 {
		return results, nil
	}
	var b strings.Builder
	for _, r := range unmet {
		fmt.Fprintf(&b, "\n  %s: %s; remedy: %s", r.ID, r.Found, r.Remedy)
	}
	return results, fmt.Errorf("cannot hold workspaces on this host:%s\n\"carrel doctor\" shows the rest: %w",
		b.String(), errdefs.ErrFailedPrecondition)
}

// probeConfig is the configuration of this instance's checks. The settings may have the range of
// ids.
func (i *instance) probeConfig() probe.Config {
	c := probe.Config{DataDir: i.data, FirstID: i.firstID(), IDs: probe.DefaultIDs}
	var s struct {
		UIDFirst uint32 `json:"uid_first"`
		UIDCount uint32 `json:"uid_count"`
	}
	if b, err := os.ReadFile(i.settings()); err == nil && json.Unmarshal(b, &s) == nil && s.UIDFirst != 0 && s.UIDCount != 0 {
		c.FirstID, c.IDs = s.UIDFirst, s.UIDCount
	}
	return c
}
