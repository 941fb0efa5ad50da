// Package ways keeps the ways out of all workspaces of a daemon: one carrel-egress for each, which serves by the rules
// of the host and those of its workspace, and the records of its connections.
//
// It must not decide what may be reached, or keep rules: who opens a way says by which it serves.
package ways

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/egress/conf"
	"github.com/carrel-dev/carrel/internal/egress/intercept"
	"github.com/carrel-dev/carrel/internal/egress/keeper"
	"github.com/carrel-dev/carrel/internal/egress/ways/recent"
	"github.com/carrel-dev/carrel/internal/egress/ways/recorder"
	"github.com/carrel-dev/carrel/internal/spec/netrule"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/wire/egressapi"
)

// Config holds the dependencies of New. What is not optional is required.
type Config struct {
	// Open returns the control socket of a new carrel-egress of a running workspace, and ends an earlier one. It must
	// return by the end of its context. It is called again, for one name never twice at once, when a process ended.
	Open func(ctx context.Context, name id.Workspace) (*os.File, error)
	// Conf is what holds for the host; nil is conf.Default. It must not change.
	Conf *conf.Config
	// Records is where the records of connections go: record.Writer.
	Records recorder.Log
	// Ask has a person asked about a connection of a workspace: see keeper.Config. Optional.
	Ask func(ctx context.Context, name id.Workspace, q keeper.Question) keeper.Answer
	// Reserve is asked before each request to a model: see keeper.Config. Optional.
	Reserve func(ctx context.Context, name id.Workspace, endpoint, model string) (done func(egressapi.Usage), err error)
	// Owner is the owner of a workspace, "" if it is not known. All connections of one have a pace together. Optional.
	Owner func(name id.Workspace) string
	// Seen is told of each connection as well, also of those that get no record. It must not block. Optional.
	Seen func(egressapi.Connection)
	// Log is told what happens without a caller. Optional.
	Log *slog.Logger
	// Within bounds each operation; 0 is 15 s. A process that does not answer is ended after 10 s.
	Within time.Duration
}

const (
	within = 15 * time.Second
	// closeWithin bounds Close. What is left then is ended in the background.
	closeWithin = 3 * time.Second
)

// Ways are the ways out of a daemon's workspaces. It is safe for concurrent use: operations on one name are done one
// after the other, those on different names do not wait for each other.
type Ways struct {
	cfg Config

	mu   sync.Mutex // of what follows
	conf *conf.Config
	ways map[id.Workspace]*way
	shut bool
	// paced has when the workspaces of an owner may make as many connections as they like again: see ofOwner.
	paced map[string]time.Time

	recent recent.Recent
}

// way is that of one workspace. It is forgotten when it is closed and nobody uses it.
type way struct {
	name id.Workspace
	turn chan struct{} // held during an operation

	// Under Ways.mu. Operations that began before a Close end with open.
	users int
	open  context.Context
	close context.CancelFunc

	// Whoever has the turn may use what follows.
	reach   workspace.Reach
	keeper  *keeper.Keeper // nil: it is closed
	records *recorder.Recorder
}

// New returns Ways without any way.
func New(c Config) *Ways {
	if c.Conf == nil {
		c.Conf = conf.Default()
	}
	if c.Seen == nil {
		c.Seen = func(egressapi.Connection) {}
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Within == 0 {
		c.Within = within
	}
	return &Ways{cfg: c, conf: c.Conf, ways: map[id.Workspace]*way{}, paced: map[string]time.Time{}}
}

// Check refuses rules of a workspace that cannot be used with those of the host: invalid_argument, or not_found for an
// unknown set. Without inner, permission_denied for a rule that names an address which is not public, or the host's own:
// what listens there may trust whoever can connect. Sets may name such addresses: who wrote them may do more.
func (w *Ways) Check(r workspace.Reach, inner bool) error {
	host := w.config()
	if _, err := setup(host, "", r); err != nil || inner {
		return err
	}
	for _, text := range slices.Concat(r.Allow, r.Ask, r.Approved) {
		if strings.HasPrefix(text, "@") {
			continue
		}
		r, err := netrule.ParseRule(netrule.Allow, text)
		if err != nil {
			return err
		}
		if what := r.Inner(netrule.Options{Public: host.Public, Own: own(r.Net)}); what != "" {
			return fmt.Errorf("cannot allow %s: it is %s, and only an administrator may let a workspace reach those; ask one, or have the network "+
				"named in the daemon's egress.yaml (treat_as_public or sets): %w", r.Text, what, errdefs.ErrPermissionDenied)
		}
	}
	return nil
}

// InsideTLS returns a rule, of these or of the host's, that is about requests inside TLS: a workspace with it has an
// authority. "" if there is none.
func (w *Ways) InsideTLS(r workspace.Reach) (rule string) {
	host := w.config()
	own, err := host.Read(conf.Texts{Allow: r.Allow, Ask: r.Ask, Approved: r.Approved, Deny: r.Deny})
	if err != nil {
		return "" // they are refused where they are used
	}
	for _, x := range slices.Concat(own, host.Rules) {
		if x.InsideTLS() {
			return x.Text
		}
	}
	return ""
}

// NoProfile stands for workspaces without a profile in the file of the host.
const NoProfile = "default"

// Initial returns the rules that workspaces of a profile have from the start; "" is that of one without a profile.
func (w *Ways) Initial(profile string) workspace.Reach {
	t := w.config().Profiles[cmp.Or(profile, NoProfile)]
	return workspace.Reach{Allow: t.Allow, Ask: t.Ask, Deny: t.Deny}
}

// own returns the address that a network consists of if it is one of this host's: packets to those come from them. The
// daemon may not ask the kernel for its interfaces.
func own(n netip.Prefix) []netip.Addr {
	if !n.IsSingleIP() {
		return nil
	}
	c, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(n.Addr(), 9))) // sends nothing
	if err != nil {
		return nil // no packet gets there
	}
	defer c.Close()
	if from := c.LocalAddr().(*net.UDPAddr).AddrPort().Addr(); from.Unmap() != n.Addr() {
		return nil
	}
	return []netip.Addr{n.Addr()}
}

// CheckSecrets refuses secrets of a workspace with these rules: invalid_argument for those that cannot be used, and for
// one that no host would get.
func (w *Ways) CheckSecrets(r workspace.Reach, secrets []egressapi.Secret) error {
	if err := intercept.Check(intercept.Of(secrets)); err != nil {
		return err
	}
	s, err := setup(w.config(), "", r)
	if err != nil {
		return err
	}
	judge, err := netrule.New(s.Rules, netrule.Options{Public: s.Public})
	if err != nil {
		return err
	}
	for _, x := range secrets {
		if !slices.ContainsFunc(x.Hosts, judge.ReachesSome) {
			return fmt.Errorf("cannot use the secret %s: no rule lets the workspace reach %s; allow that host first, with --allow or "+
				"\"carrel egress allow\": %w", x.Name, x.Hosts[0].Text, errdefs.ErrInvalidArgument)
		}
	}
	s.Secrets = secrets
	return keeper.Check(s)
}

// Open opens the way of a running workspace, instead of an earlier one, and returns when it serves by these rules and
// those of the host, and with these secrets. After an error there is none, unless the rules were refused: then nothing has changed.
func (w *Ways) Open(ctx context.Context, name id.Workspace, r workspace.Reach, secrets egressapi.Secrets) error {
	return w.do(ctx, name, "open", func(ctx context.Context, x *way) error {
		return w.start(ctx, x, r, secrets)
	})
}

// Change changes the rules and the secrets of a workspace, and returns when nothing passes any more that they do not allow. If there
// is no way, it is Open. Rules that are refused change nothing. After another error the new rules are those of the next
// process, which is started in the background.
func (w *Ways) Change(ctx context.Context, name id.Workspace, r workspace.Reach, secrets egressapi.Secrets) error {
	return w.do(ctx, name, "change", func(ctx context.Context, x *way) error {
		if x.keeper == nil {
			return w.start(ctx, x, r, secrets)
		}
		s, err := setup(w.config(), name, r)
		if err != nil {
			return err
		}
		x.reach = r
		return x.change(ctx, s, &secrets)
	})
}

// Close ends the way of a workspace, if there is one, and what opens or changes it. It returns within three seconds:
// what has not ended by then is ended in the background, before the name is opened again.
func (w *Ways) Close(name id.Workspace) {
	w.mu.Lock()
	x := w.ways[name]
	if x == nil {
		w.mu.Unlock()
		return
	}
	x.close()
	x.open, x.close = context.WithCancel(context.Background())
	x.users++
	w.mu.Unlock()
	done := make(chan struct{})
	go func() {
		defer close(done)
		x.turn <- struct{}{}
		written := x.end()
		<-x.turn
		w.release(x)
		<-written
	}()
	timer := time.NewTimer(closeWithin)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
		w.cfg.Log.Warn("the way out of a workspace takes long to end", "workspace", string(name))
	}
}

// Reload replaces the rules of the host, and returns when they are in force in every workspace. A workspace whose own
// rules cannot be used with them, because they name a set that is gone, reaches nothing until its rules are changed; the
// error names it, and those whose process did not take the rules in time, which is replaced. nil is conf.Default.
func (w *Ways) Reload(host *conf.Config) error {
	if host == nil {
		host = conf.Default()
	}
	w.mu.Lock()
	w.conf = host
	var all []*way
	for _, x := range w.ways {
		x.users++
		all = append(all, x)
	}
	w.mu.Unlock()
	errs := make([]error, len(all))
	var changing sync.WaitGroup
	for i, x := range all {
		changing.Go(func() { errs[i] = w.reload(x) })
	}
	changing.Wait()
	return errors.Join(errs...)
}

// reload has a way serve by the rules of the host that hold now.
func (w *Ways) reload(x *way) error {
	// An operation that has the turn has begun with the earlier rules, and must not outlast this one.
	ctx, cancel := context.WithTimeout(context.Background(), 2*w.cfg.Within)
	defer cancel()
	err := w.with(ctx, x, "reload", func(ctx context.Context, x *way) error {
		if x.keeper == nil {
			return nil
		}
		s, err := setup(w.config(), x.name, x.reach)
		if err == nil {
			return x.change(ctx, s, nil)
		}
		s.Rules = nil
		return errors.Join(fmt.Errorf("the workspace reaches nothing until its rules are changed: %w", err), x.change(ctx, s, nil))
	})
	if errors.Is(err, errClosed) {
		return nil // it reaches nothing, and is opened with the rules that hold then
	}
	return err
}

// Shutdown ends all ways, in the time of one Close. No other is opened.
func (w *Ways) Shutdown() {
	w.mu.Lock()
	w.shut = true
	var names []id.Workspace
	for name := range w.ways {
		names = append(names, name)
	}
	w.mu.Unlock()
	var closing sync.WaitGroup
	for _, name := range names {
		closing.Go(func() { w.Close(name) })
	}
	closing.Wait()
}

// Conf is what holds for the host now. It must not be changed.
func (w *Ways) Conf() *conf.Config { return w.config() }

func (w *Ways) config() *conf.Config {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.conf
}

// do does an operation on a name in its turn.
func (w *Ways) do(ctx context.Context, name id.Workspace, what string, f func(context.Context, *way) error) error {
	w.mu.Lock()
	if w.shut {
		w.mu.Unlock()
		return fmt.Errorf("cannot %s the way out of %s: the daemon is ending: %w", what, name, errdefs.ErrUnavailable)
	}
	x := w.ways[name]
	if x == nil {
		x = &way{name: name, turn: make(chan struct{}, 1)}
		x.open, x.close = context.WithCancel(context.Background())
		w.ways[name] = x
	}
	x.users++
	w.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, w.cfg.Within)
	defer cancel()
	return w.with(ctx, x, what, f)
}

// with does an operation in the turn of a way. The caller has counted itself as a user.
func (w *Ways) with(ctx context.Context, x *way, what string, f func(context.Context, *way) error) error {
	defer w.release(x)
	w.mu.Lock()
	open := x.open
	w.mu.Unlock()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(open, func() { cancel(errClosed) })
	defer stop()
	select {
	case x.turn <- struct{}{}:
		defer func() { <-x.turn }()
	case <-ctx.Done():
	}
	err := context.Cause(ctx)
	if err == nil {
		err = f(ctx, x)
	}
	if err != nil && open.Err() != nil && !errors.Is(err, errClosed) {
		err = fmt.Errorf("%w: %w", errClosed, err)
	}
	if err != nil {
		return fmt.Errorf("cannot %s the way out of %s: %w", what, x.name, err)
	}
	return nil
}

// errClosed ends what a Close interrupts.
var errClosed = fmt.Errorf("it is being closed: %w", errdefs.ErrUnavailable)

// release says that one user is done. The last one forgets a closed way.
func (w *Ways) release(x *way) {
	w.mu.Lock()
	defer w.mu.Unlock()
	x.users--
	if x.users == 0 && x.keeper == nil { // without users nobody has the turn
		x.close()
		delete(w.ways, x.name)
	}
}
