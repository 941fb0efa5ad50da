package compose_test

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/spec/permit"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

// runtimeDouble is a test double of a runtime: it keeps workspaces in memory, counts
// what is asked of it, and fails where a hook says so.
type runtimeDouble struct {
	mu   sync.Mutex
	all  map[id.Workspace]workspace.Real
	keys map[id.Workspace]string
	// destroyed are those that were, which a repeated destroy says.
	destroyed map[id.Workspace]workspace.Real
	alive     map[id.Workspace]bool // an executor answers
	calls     map[string]int
	kept      map[id.Workspace]bool // something is in the home
	pids      int64                 // that Stats tells
	list      []execapi.Command
	// detached is what was asked for last.
	detached execapi.ExecParams
	procs    []*processDouble
	agents   []*agentDouble
	// programs are the words of the archivers that ran.
	programs [][]string
	// verdict is what the archiver says of an archive that it verifies, "" for that it is well.
	verdict string
	// answers, if set, is the program that works on files.
	answers func(in, out *os.File)
	// direct, if set, is that program where it has the socket of a client too.
	direct func(in, out, socket *os.File)
	// agent, if set, is the program of tasks.
	agent func(a *agentDouble) (code int)
	// more is what homes have beside the usual, for those that are packed from now on, until it is closed.
	more <-chan []byte
	// start and mended are what Mended tells.
	start  string
	mended []workspace.Mended
	// silent is since when executors answer nothing.
	silent map[id.Workspace]time.Time
	// proof is what the next starts report; see report.
	proof *workspace.Report
	// lastEnv are the variables of the last command that was run.
	lastEnv []string
	// gone is closed when the executors go.
	gone chan struct{}
	// hook is called before each operation, without the lock.
	hook func(op string, name id.Workspace) error
	// deaf, if set, is what a change ends with that was carried out, and of which nobody hears.
	deaf error
}

var _ runtime.Runtime = (*runtimeDouble)(nil)

func newDouble() *runtimeDouble {
	return &runtimeDouble{
		all: map[id.Workspace]workspace.Real{}, keys: map[id.Workspace]string{},
		destroyed: map[id.Workspace]workspace.Real{},
		alive:     map[id.Workspace]bool{}, calls: map[string]int{}, list: []execapi.Command{{ID: "c-0"}},
	}
}

func (d *runtimeDouble) begin(op string, name id.Workspace) error {
	d.mu.Lock()
	d.calls[op]++
	hook := d.hook
	d.mu.Unlock()
	if hook != nil {
		return hook(op, name)
	}
	return nil
}

// Silent implements runtime.Runtime.
func (d *runtimeDouble) Silent(name id.Workspace) time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.silent[name]
}

func (d *runtimeDouble) count(op string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.calls[op]
}

func (d *runtimeDouble) setHook(f func(op string, name id.Workspace) error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.hook = f
}

func (d *runtimeDouble) setDeaf(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.deaf = err
}

// heard is the end of a change.
func (d *runtimeDouble) heard(err *error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if *err == nil {
		*err = d.deaf
	}
}

// lists sets what Commands returns.
func (d *runtimeDouble) lists(all ...execapi.Command) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.list = all
}

// kill is the death of an executor.
func (d *runtimeDouble) kill(name id.Workspace) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.alive[name] = false
}

func (d *runtimeDouble) set(name id.Workspace, state workspace.State) (workspace.Real, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	w, ok := d.all[name]
	if !ok {
		return w, fmt.Errorf("cannot find %s: %w", name, errdefs.ErrNotFound)
	}
	w.State, w.ExecutorPID = state, 0
	live := state == workspace.StateRunning || state == workspace.StatePaused
	if live {
		w.ExecutorPID = 4711
	}
	d.all[name], d.alive[name] = w, live
	return w, nil
}

func (d *runtimeDouble) Create(_ context.Context, permitted permit.Permit, p runtime.Plan) (
	w workspace.Real, rep workspace.Report, err error,
) {
	name, err := permitted.Workspace()
	if err != nil {
		return workspace.Real{}, workspace.Report{}, err
	}
	defer d.heard(&err)
	if err := d.begin("create", name); err != nil {
		return workspace.Real{}, workspace.Report{}, err
	}
	w, fresh, err := d.add(name, p)
	if err != nil || !fresh || !p.Start || d.begin("start", name) != nil {
		return w, workspace.Report{}, err
	}
	d.wayOut(name, p.Way)
	w, err = d.set(name, workspace.StateRunning)
	return w, d.proved(), err
}

func (d *runtimeDouble) setReport(r workspace.Report) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.proof = &r
}

func (d *runtimeDouble) proved() workspace.Report {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.proof != nil {
		return *d.proof
	}
	return report()
}

func (d *runtimeDouble) add(name id.Workspace, p runtime.Plan) (w workspace.Real, fresh bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if k, ok := d.keys[name]; ok && k != p.KeyDigest {
		return w, false, fmt.Errorf("cannot create %s: it has another key: %w", name, errdefs.ErrAlreadyExists)
	}
	if w, ok := d.all[name]; ok {
		return w, false, nil
	}
	w = workspace.Real{
		User: string(name), IDs: workspace.IDsFrom(uint32(1000 + 3*len(d.all))), Home: "/homes/" + string(name),
		State: workspace.StateStopped, InForce: p.Limits, Allow: p.Allow,
	}
	if p.Mounts != nil {
		for _, m := range p.Mounts.List {
			w.Mounts = append(w.Mounts, m.AtHome())
		}
	}
	d.all[name], d.keys[name] = w, p.KeyDigest
	return w, true, nil
}

func (d *runtimeDouble) mounts(name id.Workspace, mounts []workspace.Mount) {
	d.mu.Lock()
	defer d.mu.Unlock()
	w := d.all[name]
	w.Mounts = mounts
	d.all[name] = w
}

// wayOut has a workspace be one that was made with a way out, or not.
func (d *runtimeDouble) wayOut(name id.Workspace, out runtime.Way) {
	d.mu.Lock()
	defer d.mu.Unlock()
	w := d.all[name]
	w.Egress, w.Trust = out.Open, workspace.Digest(out.Trust)
	d.all[name] = w
}

func (d *runtimeDouble) Start(_ context.Context, permitted permit.Permit, out runtime.Way) (
	w workspace.Real, rep workspace.Report, err error,
) {
	name, err := permitted.Workspace()
	if err != nil {
		return workspace.Real{}, workspace.Report{}, err
	}
	defer d.heard(&err)
	if err := d.begin("start", name); err != nil {
		return workspace.Real{}, workspace.Report{}, err
	}
	d.wayOut(name, out)
	if w, err = d.set(name, workspace.StateRunning); err != nil {
		return w, workspace.Report{}, err
	}
	return w, d.proved(), d.begin("link", name)
}

func report() workspace.Report {
	return workspace.Report{
		Boundary: workspace.BoundaryNamespace, Root: workspace.RootSystem,
		Controls: []workspace.Control{{ID: "a", Required: true, State: workspace.Verified}},
	}
}

func (d *runtimeDouble) Stop(_ context.Context, permitted permit.Permit) (w workspace.Real, err error) {
	name, err := permitted.Workspace()
	if err != nil {
		return workspace.Real{}, err
	}
	defer d.heard(&err)
	if err := d.begin("stop", name); err != nil {
		return workspace.Real{}, err
	}
	return d.set(name, workspace.StateStopped)
}

func (d *runtimeDouble) Pause(_ context.Context, permitted permit.Permit) (workspace.Real, error) {
	name, err := permitted.Workspace()
	if err != nil {
		return workspace.Real{}, err
	}
	if err := d.reach("pause", name); err != nil {
		return workspace.Real{}, err
	}
	return d.set(name, workspace.StatePaused)
}

func (d *runtimeDouble) Resume(_ context.Context, permitted permit.Permit) (workspace.Real, error) {
	name, err := permitted.Workspace()
	if err != nil {
		return workspace.Real{}, err
	}
	if err := d.reach("resume", name); err != nil {
		return workspace.Real{}, err
	}
	return d.set(name, workspace.StateRunning)
}

func (d *runtimeDouble) Limit(_ context.Context, permitted permit.Permit, limits workspace.Limits) (w workspace.Real, err error) {
	name, err := permitted.Workspace()
	if err != nil {
		return workspace.Real{}, err
	}
	defer d.heard(&err)
	if err := d.begin("limit", name); err != nil {
		return workspace.Real{}, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	w = d.all[name]
	w.InForce = limits
	d.all[name] = w
	return w, nil
}

func (d *runtimeDouble) Egress(_ context.Context, name id.Workspace) (*os.File, error) {
	return nil, fmt.Errorf("no way out of %s: %w", name, errdefs.ErrNotImplemented)
}

func (d *runtimeDouble) Stats(_ context.Context, name id.Workspace) (workspace.Stats, error) {
	if err := d.begin("stats", name); err != nil {
		return workspace.UnknownStats, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return workspace.Stats{MemoryBytes: 1 << 20, Pids: d.pids}, nil
}

func (d *runtimeDouble) Destroy(_ context.Context, permitted permit.Permit, purge bool) (w workspace.Real, err error) {
	name, err := permitted.Workspace()
	if err != nil {
		return workspace.Real{}, err
	}
	defer d.heard(&err)
	if err := d.begin("destroy", name); err != nil {
		return workspace.Real{}, err
	}
	d.mu.Lock()
	was, over := d.destroyed[name]
	d.mu.Unlock()
	if over { // as the broker, which remembers every name
		return was, nil
	}
	w, err = d.set(name, workspace.StateDestroyed)
	if err != nil {
		return w, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.all, name)
	if !purge {
		w.Retained = "/retained/" + string(name)
	}
	d.destroyed[name] = w
	return w, nil
}

func (d *runtimeDouble) Discard(ctx context.Context, permitted permit.Permit) error {
	name, err := permitted.Workspace()
	if err != nil {
		return err
	}
	if err := d.begin("discard", name); err != nil {
		return err
	}
	d.mu.Lock()
	w := d.all[name]
	d.mu.Unlock()
	if w.State != workspace.StateStopped || d.kept[name] {
		return fmt.Errorf("cannot discard %s: there is something in it: %w", name, errdefs.ErrFailedPrecondition)
	}
	_, err = d.Destroy(ctx, permitted, true)
	return err
}

func (d *runtimeDouble) List(context.Context) (map[id.Workspace]workspace.Real, error) {
	if err := d.begin("list", ""); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return maps.Clone(d.all), nil
}

func (d *runtimeDouble) Report(_ context.Context, name id.Workspace) (workspace.Report, error) {
	return d.proved(), d.begin("report", name)
}

func (d *runtimeDouble) Forget(_ context.Context, permitted permit.Permit, retained string) error {
	name, err := permitted.Workspace()
	if err != nil {
		return err
	}
	return d.begin("forget "+retained, name)
}

func (d *runtimeDouble) Revive(_ context.Context, permitted permit.Permit, retained string) (workspace.Real, error) {
	name, err := permitted.Workspace()
	if err != nil {
		return workspace.Real{}, err
	}
	if err := d.begin("revive "+retained, name); err != nil {
		return workspace.Real{}, err
	}
	d.mu.Lock()
	w := d.destroyed[name]
	w.Retained = ""
	delete(d.destroyed, name)
	d.all[name] = w
	d.mu.Unlock()
	return d.set(name, workspace.StateStopped)
}

func (d *runtimeDouble) Mended(context.Context) (string, []workspace.Mended, error) {
	if err := d.begin("mended", ""); err != nil {
		return "", nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.start, d.mended, nil
}

func (d *runtimeDouble) Ping(_ context.Context, name id.Workspace) error {
	return d.reach("ping", name)
}

func (d *runtimeDouble) Close() error {
	d.lose()
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, a := range d.agents {
		a.gone(fmt.Errorf("cannot finish the command: the daemon is stopping: %w", errdefs.ErrUnavailable))
	}
	for _, p := range slices.Concat(d.procs) {
		select {
		case p.end <- fmt.Errorf("cannot finish the command: the daemon is stopping: %w", errdefs.ErrUnavailable):
		default:
		}
	}
	return nil
}
