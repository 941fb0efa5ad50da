package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/crashpoint"
	"github.com/carrel-dev/carrel/internal/id"
	"github.com/carrel-dev/carrel/internal/sandbox/probe"
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
	// Mended is what the broker repaired at its start.
	Mended []object `json:"mended"`
	mended []*carrelv1.Mended
}

func (a *app) upCommand() *cobra.Command {
	var detach bool
	c := &cobra.Command{
		Use:   "up [flags]",
		Short: "Start carrel on this host (root)",
		Long: `Start the broker, which is the one part with root, and the daemon, which runs as the
user carrel without capabilities. What is missing is made first: that user and
its group, whose members administer carrel, and the directories.

Without --detach it stays, shows the logs, and Ctrl-C is "carrel down".`,
		Example: `  sudo carrel up
  sudo carrel up --detach
  sudo carrel up --detach --data /srv/carrel --runtime-dir /run/carrel-test --prefix t`,
		Args: exactly(),
	}
	i := instanceFlags(c)
	c.Flags().BoolVar(&detach, "detach", false, "return when carrel is ready")
	c.Flags().StringVar(
		&i.config, "config", "", "the daemon's configuration file (default that of the last up, or /etc/carrel/carreld.yaml if it is there)",
	)
	c.Flags().StringVar(
		&i.prefix, "prefix", "", "what derived workspace names begin with (default that of the last up, or "+id.DefaultPrefix+")",
	)
	_ = c.MarkFlagFilename("config", "yaml", "yml") // the flag is there
	out := outputFlag(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		// First of all, so that an interrupt at any time is handled.
		ctx, stop := signal.NotifyContext(c.Context(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
		defer stop()
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
	if v.Already {
		word = "is up already"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "carrel %s at %s\n  data  %s\n", word, v.Host, v.DataDir)
	if detach || v.Already {
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
	b.WriteString("Next:\n")
	if !i.isDefault() {
		fmt.Fprintf(&b, "  export %s=%s\n", carrel.HostEnv, shellQuote([]string{v.Host}))
	}
	fmt.Fprintf(&b, "  carrel create demo\n  carrel exec demo -- id\n  carrel down%s\n", i.flags())
	_, err := a.Out.WriteString(b.String())
	return err
}

// startTries is how often up starts a part that has ended.
const startTries = 3

// up starts the parts of an instance that do not run.
func (a *app) up(ctx context.Context, i *instance, detach bool) (upView, []*exec.Cmd, error) {
	if os.Geteuid() != 0 {
		return upView{}, nil, needRoot("up" + i.flags())
	}
	if i.prefix != "" {
		prefix, err := id.ParsePrefix(i.prefix)
		if err != nil {
			return upView{}, nil, err
		}
		i.prefix = prefix
	}
	if err := i.absolute(); err != nil {
		return upView{}, nil, err
	}
	view := upView{Mended: []object{}, Host: i.host(), DataDir: i.data, RuntimeDir: i.runtime}
	if v, ok := i.isUp(ctx, view); ok {
		dropAccountsLock()
		return v, nil, nil
	}
	programs, err := findPrograms()
	if err != nil {
		return view, nil, err
	}
	if err := hostCan(ctx, i); err != nil {
		return view, nil, err
	}
	unix.Umask(0o022) // the caller's must not decide the modes of files
	// Until the daemon runs, nothing shows other instances that the user is needed.
	accounts, err := lockAccounts(ctx)
	if err != nil {
		return view, nil, err
	}
	defer accounts.unlock()
	crashpoint.Here("cli.up.locked")
	who, unlock, err := i.prepare(ctx, accounts)
	if unlock != nil {
		defer unlock()
	}
	if err == nil {
		err = i.writeSettings(i.brokerSettings(who, programs["carrel-executor"]))
	}
	if err != nil {
		return view, nil, err
	}
	crashpoint.Here("cli.up.settings-written")
	var children []*exec.Cmd
	// A part that was just killed can still answer until the kernel has removed it. A part that
	// has ended is started again.
	tries := 1 // without --detach, up ends with the first part that ends
	if detach {
		tries = startTries
	}
	for range tries {
		started, err := i.startBoth(ctx, programs, who, detach, a.Err)
		if err != nil {
			return view, nil, err
		}
		children = append(children, started...)
		if v, ok := i.isUp(ctx, view); ok {
			v.Already, v.mended = false, mended(ctx, i.host())
			v.Mended = objectsOf(v.mended)
			crashpoint.Here("cli.up.answers")
			return v, children, i.remember()
		}
	}
	i.stopBoth()
	return view, nil, fmt.Errorf("cannot reach the daemon at %s though it said that it is ready; look at its log in %s: %w",
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
		p, fd, ok := i.running(name)
		if !ok {
			return v, false
		}
		unix.Close(fd)
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
	v.Address, v.Fingerprint, v.Already = m.GetAddress(), m.GetFingerprint(), true
	return v, true
}

func findPrograms() (map[string]string, error) {
	out := map[string]string{}
	for _, name := range []string{"carrel-broker", "carreld", "carrel-executor", "carrel-archive"} {
		p, err := findProgram(name)
		if err != nil {
			return nil, err
		}
		out[name] = p
	}
	return out, nil
}

// hostCan refuses a host that cannot start a workspace, before anything is made on it.
func hostCan(ctx context.Context, i *instance) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	unmet := probe.Unmet(probe.Run(ctx, i.probeConfig()))
	if len(unmet) == 0 {
		return nil
	}
	var b strings.Builder
	for _, r := range unmet {
		fmt.Fprintf(&b, "\n  %s: %s; remedy: %s", r.ID, r.Found, r.Remedy)
	}
	return fmt.Errorf("cannot hold workspaces on this host:%s\n\"carrel doctor\" shows the rest: %w",
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

// prepare makes the user, the group and the directories that are missing. It records what it
// made even if it fails, so that down finds it.
func (i *instance) prepare(ctx context.Context, lock *accounts) (who account, unlock func(), err error) {
	dirs, err := makeDirs(i.data)
	if err == nil {
		err = checkDir(i.data)
	}
	if err == nil {
		unlock, err = i.lock()
	}
	if err != nil {
		for _, d := range slices.Backward(dirs) {
			_ = os.Remove(d) // it is new, so it is empty
		}
		return who, nil, err
	}
	m, err := i.readMade()
	if err != nil {
		return who, unlock, err
	}
	if err := errors.Join(sweep(i.data), sweep(i.runtime)); err != nil {
		return who, unlock, err
	}
	crashpoint.Here("cli.up.data-made")
	if err := i.noteDirs(&m, dirs, i.data, 0o711); err != nil {
		return who, unlock, err
	}
	i.recall(m)
	who, err = i.make(ctx, &m, lock)
	return who, unlock, err
}

// noteDirs records the directories that were made, for down to remove, and then opens them.
func (i *instance) noteDirs(m *made, dirs []string, path string, mode fs.FileMode) error {
	for _, d := range dirs {
		if !slices.Contains(m.Dirs, d) {
			m.Dirs = append(m.Dirs, d)
		}
	}
	if err := i.writeMade(*m); err != nil {
		return err
	}
	crashpoint.Here("cli.up.noted")
	return openDirs(dirs, path, mode)
}

// make is the part of prepare that runs under the lock.
func (i *instance) make(ctx context.Context, m *made, lock *accounts) (who account, err error) {
	// A directory that somebody made for this, with mktemp -d for example, is closed.
	if st, err := os.Stat(i.data); err != nil || st.Mode()&0o011 != 0o011 {
		if err = errors.Join(err, os.Chmod(i.data, 0o711)); err != nil { //nolint:gosec // the daemon must pass through it
			return who, fmt.Errorf("cannot let the daemon into %s: %w", i.data, err)
		}
	}
	// Checked before the user is made: a new user can enter what everybody can enter.
	if who, err = findAccount(daemonUser); err != nil {
		who = account{noID, noID}
	}
	for _, p := range []string{i.daemonDir(), i.config} {
		if p == "" {
			continue
		}
		if err := enterable(p, who.uid, who.gid); err != nil {
			return who, err
		}
	}
	if who, err = ensureAccount(ctx, lock); err != nil {
		return who, err
	}
	crashpoint.Here("cli.up.account-made")
	dirs, err := makeDirs(i.runtime)
	if err == nil {
		err = i.noteDirs(m, dirs, i.runtime, 0o755)
	}
	if err == nil {
		err = i.takeRuntime(who)
	}
	if err == nil {
		err = errors.Join(checkDir(i.runtime), enterable(i.socket(), who.uid, who.gid))
	}
	if err != nil {
		return who, err
	}
	for _, d := range []string{i.logDir(), i.daemonDir()} {
		if err := makePrivate(d); err != nil {
			return who, err
		}
	}
	return who, give(i.daemonDir(), who)
}

// takeRuntime gives the runtime directory back to root, in case an up was killed while its
// daemon owned it.
func (i *instance) takeRuntime(who account) error {
	var st unix.Stat_t
	if err := unix.Lstat(i.runtime, &st); err != nil || st.Uid != who.uid {
		return err
	}
	return os.Lchown(i.runtime, 0, 0)
}

// startBoth starts the parts that do not run: the broker first, because the daemon finds its
// executors through it.
func (i *instance) startBoth(ctx context.Context, programs map[string]string, who account, detach bool, relay *os.File) (
	[]*exec.Cmd, error,
) {
	daemonArgs := []string{"--data-dir", i.data, "--runtime-dir", i.runtime}
	if i.config != "" {
		daemonArgs = append(daemonArgs, "--config", i.config)
	}
	if i.prefix != "" {
		daemonArgs = append(daemonArgs, "--name-prefix", i.prefix)
	}
	var children []*exec.Cmd
	for _, p := range []program{
		{name: "broker", path: programs["carrel-broker"], args: []string{"--settings", i.settings()}},
		{name: "daemon", path: programs["carreld"], args: daemonArgs, as: &who, archiver: programs["carrel-archive"]},
	} {
		if i.answers(ctx, p.name) {
			continue
		}
		c, err := i.startOne(ctx, p, who, detach, relay)
		if err != nil {
			i.stopBoth()
			return nil, err
		}
		children = append(children, c)
	}
	return children, nil
}

// answers reports whether a part runs and serves. One that a killed up has just started may not
// serve yet: answers waits until it serves or ends.
func (i *instance) answers(ctx context.Context, name string) bool {
	_, fd, ok := i.running(name)
	if !ok {
		return false
	}
	defer unix.Close(fd)
	socket := i.socket()
	if name == "broker" {
		socket = filepath.Join(i.runtime, "broker.sock")
	}
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	for ctx.Err() == nil {
		c, err := new(net.Dialer).DialContext(ctx, "unix", socket)
		if err == nil {
			c.Close()
			return true
		}
		if ended(fd, 20*time.Millisecond) {
			return false
		}
	}
	_, _ = i.stop(name) // it hangs; errors of the next one are reported
	return false
}

func (i *instance) startOne(ctx context.Context, p program, who account, detach bool, relay *os.File) (*exec.Cmd, error) {
	p.session, p.log = detach, relay
	if detach {
		log, err := i.openLog(p.name)
		if err != nil {
			return nil, err
		}
		defer log.Close()
		p.log = log
	}
	if p.as != nil {
		// The daemon makes its socket in the runtime directory. It may write there only until
		// it is ready, because the broker's sockets are there too.
		if err := os.Remove(i.socket()); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("cannot remove the socket of a daemon that has ended: %w", err)
		}
		if err := os.Chown(i.runtime, int(who.uid), 0); err != nil {
			return nil, fmt.Errorf("cannot let the daemon make its socket: %w", err)
		}
		crashpoint.Here("cli.up.runtime-lent")
		c, err := i.start(ctx, p)
		crashpoint.Here("cli.up.daemon-started")
		if e := os.Chown(i.runtime, 0, 0); e != nil {
			return nil, errors.Join(err, fmt.Errorf("cannot close the runtime directory to the daemon: %w", e))
		}
		return c, err
	}
	return i.start(ctx, p)
}

// stopBoth ends the daemon and then the broker, which the daemon needs. It is called after an
// error, which is reported instead of its own.
func (i *instance) stopBoth() {
	for _, name := range []string{"daemon", "broker"} {
		if _, err := i.stop(name); err == nil {
			_ = os.Remove(i.pidFile(name))
		}
	}
}

// stay waits until a signal ends ctx or a part ends, and then takes the instance down.
func (a *app) stay(ctx context.Context, stop func(), i *instance, children []*exec.Cmd) error {
	died := make(chan string, len(children))
	for _, c := range children {
		go func() {
			err := c.Wait()
			died <- fmt.Sprintf("%s ended: %v", c.Args[0], err)
		}()
	}
	var unexpected error
	select {
	case <-ctx.Done():
		fmt.Fprintln(a.Err)
	case what := <-died:
		unexpected = fmt.Errorf("cannot go on: %s; what it said last is above: %w", what, errdefs.ErrUnavailable)
	}
	// A second Ctrl-C ends the wait.
	stop()
	ctx, stop = signal.NotifyContext(context.Background(), syscall.SIGINT)
	defer stop()
	return errors.Join(unexpected, a.down(ctx, i, false))
}

// list returns the workspaces of an instance.
func (i *instance) list(ctx context.Context) ([]*carrelv1.Workspace, *carrel.Client, error) {
	client, err := carrel.New(carrel.Options{Host: i.host()})
	if err != nil {
		return nil, nil, err
	}
	m, err := askOf(ctx, client, workspaces.List, &carrelv1.ListRequest{})
	return m.GetWorkspaces(), client, err
}
