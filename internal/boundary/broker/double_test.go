package broker_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"os"
	"slices"
	"sync"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/broker"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/wire/brokerapi"
	"github.com/carrel-dev/carrel/internal/wire/jsonrpc"
)

// hostDouble stands for the host: it notes what is done to it and does nothing. fail
// names steps that fail.
type hostDouble struct {
	// taken is how many users are still refused because somebody else has their ids.
	taken int

	mu      sync.Mutex
	calls   []string
	fail    map[string]error
	users   map[id.Workspace]workspace.IDs
	homes   map[id.Workspace]workspace.IDs
	groups  map[id.Workspace]bool
	filled  map[id.Workspace]bool // homes with something in them
	used    map[uint32]bool       // ids of the host's own users
	exits   map[id.Workspace]chan struct{}
	entered chan string // when set, each Start announces itself and waits for release
	release chan struct{}
	pid     int
}

func newHost() *hostDouble {
	return &hostDouble{
		fail: map[string]error{}, users: map[id.Workspace]workspace.IDs{}, homes: map[id.Workspace]workspace.IDs{},
		groups: map[id.Workspace]bool{}, used: map[uint32]bool{}, exits: map[id.Workspace]chan struct{}{}, pid: 100,
	}
}

func (h *hostDouble) step(name string, w id.Workspace) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls = append(h.calls, name+" "+string(w))
	return h.fail[name]
}

// use gives an id to a user of the host.
func (h *hostDouble) use(id uint32) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.used[id] = true
}

// hold makes each Start announce itself and wait.
func (h *hostDouble) hold() (entered chan string, release chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.entered, h.release = make(chan string), make(chan struct{})
	return h.entered, h.release
}

// reset forgets what was done and returns it.
func (h *hostDouble) reset() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := h.calls
	h.calls = nil
	return c
}

func (h *hostDouble) set(step string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.fail[step] = err
}

func (h *hostDouble) IDsFree(ids workspace.IDs) (bool, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return !h.used[ids.Executor] && !h.used[ids.Work] && !h.used[ids.Agent], h.fail["IDsFree"]
}

func (h *hostDouble) InForce(ids workspace.IDs) workspace.IDs { return ids }

func (h *hostDouble) TakeMounts(_ context.Context, p brokerapi.CreateParams, _ *os.File) ([]broker.Mount, error) {
	if err := h.step("TakeMounts", p.Name); err != nil {
		return nil, err
	}
	var mounts []broker.Mount
	for _, m := range p.Mounts {
		mounts = append(mounts, broker.Mount{Mount: m})
	}
	return mounts, nil
}

func (h *hostDouble) Mended() []workspace.Mended { return nil }

func (h *hostDouble) Whole(broker.Entry) bool { return false }

func (h *hostDouble) Found() ([]broker.Entry, uint32, error) { return nil, 0, nil }

func (h *hostDouble) ForgetHome(_ context.Context, name id.Workspace, ids workspace.IDs) error {
	return h.step(fmt.Sprint("ForgetHome ", ids.Executor), name)
}

func (h *hostDouble) TakeHome(name id.Workspace, ids workspace.IDs) error {
	return h.step(fmt.Sprint("TakeHome ", ids.Executor), name)
}

func (h *hostDouble) HeldUp(workspace.IDs) string { return "" }

func (h *hostDouble) NameFree(name id.Workspace) error { return h.step("NameFree", name) }

func (h *hostDouble) Home(name id.Workspace) string { return "/homes/" + string(name) }

func (h *hostDouble) AddUser(_ context.Context, name id.Workspace, ids workspace.IDs) error {
	if err := h.step("AddUser", name); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.taken > 0 {
		h.taken--
		return broker.ErrTaken
	}
	h.users[name] = ids
	return nil
}

func (h *hostDouble) RemoveUser(_ context.Context, name id.Workspace, _ workspace.IDs) error {
	if err := h.step("RemoveUser", name); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.users, name)
	return nil
}

func (h *hostDouble) MakeDirs(name id.Workspace, ids workspace.IDs) error {
	if err := h.step("MakeDirs", name); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.homes[name] = ids
	return nil
}

func (h *hostDouble) removeHome(step string, name id.Workspace) error {
	if err := h.step(step, name); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.homes, name)
	return nil
}

func (h *hostDouble) UnmakeDirs(_ context.Context, name id.Workspace, _ workspace.IDs) error {
	return h.removeHome("UnmakeDirs", name)
}

func (h *hostDouble) KeepHome(name id.Workspace, ids workspace.IDs) (string, error) {
	return fmt.Sprintf("/retained/%s.%d", name, ids.Executor), h.removeHome("KeepHome", name)
}

func (h *hostDouble) HomeEmpty(name id.Workspace, _ workspace.IDs) (bool, error) {
	err := h.step("empty?", name)
	h.mu.Lock()
	defer h.mu.Unlock()
	return !h.filled[name], err
}

func (h *hostDouble) PurgeHome(_ context.Context, name id.Workspace, _ workspace.IDs) error {
	return h.removeHome("PurgeHome", name)
}

func (h *hostDouble) RemoveTemporary(_ context.Context, name id.Workspace) error {
	return h.step("RemoveTemporary", name)
}

func (h *hostDouble) EndProcesses(context.Context, workspace.IDs) error {
	return h.step("EndProcesses", "")
}

func (h *hostDouble) Start(_ context.Context, e broker.Entry, _ string) (broker.Running, workspace.Report, error) {
	h.mu.Lock()
	entered, release := h.entered, h.release
	h.mu.Unlock()
	if entered != nil {
		entered <- string(e.Name)
		<-release
	}
	if err := h.step("Start", e.Name); err != nil {
		return broker.Running{}, workspace.Report{}, err
	}
	h.mu.Lock()
	h.pid++
	x := brokerapi.Executor{PID: h.pid, StartTime: 1, BootID: "boot", Socket: "/x/" + string(e.Name)}
	h.groups[e.Name] = true
	h.mu.Unlock()
	return h.live(e.Name, x), proved, nil
}

var proved = workspace.Report{Controls: []workspace.Control{{ID: "c", Required: true, State: workspace.Verified}}}

// live makes a Running that lives until it is killed.
func (h *hostDouble) live(name id.Workspace, x brokerapi.Executor) broker.Running {
	exited := make(chan struct{})
	h.mu.Lock()
	h.exits[name] = exited
	h.mu.Unlock()
	return broker.Running{Executor: x, Exited: exited, Kill: func() error {
		if err := h.step("Kill", name); err != nil {
			return err
		}
		h.end(name, exited)
		return nil
	}}
}

func (h *hostDouble) end(name id.Workspace, exited chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	select {
	case <-exited:
	default:
		close(exited)
	}
	_ = name
}

// left says what the host still has.
func (h *hostDouble) left() (users, homes, groups []id.Workspace) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Sorted(maps.Keys(h.users)), slices.Sorted(maps.Keys(h.homes)), slices.Sorted(maps.Keys(h.groups))
}

// crash ends the executor of name by itself.
func (h *hostDouble) crash(name id.Workspace) {
	h.mu.Lock()
	c := h.exits[name]
	h.mu.Unlock()
	h.end(name, c)
}

func (h *hostDouble) Adopt(e broker.Entry) (broker.Running, error) {
	if err := h.step("Adopt", e.Name); err != nil {
		return broker.Running{}, err
	}
	return h.live(e.Name, *e.Executor), nil
}

func (h *hostDouble) Freeze(_ context.Context, name id.Workspace, frozen bool) error {
	if frozen {
		return h.step("Freeze", name)
	}
	return h.step("Thaw", name)
}

func (h *hostDouble) Limit(e broker.Entry, limits workspace.Limits) error {
	return h.step(fmt.Sprintf("Limit %d", limits.Pids), e.Name)
}

func (h *hostDouble) HoldsDisk() error { return h.step("HoldsDisk", "") }

func (h *hostDouble) GrowsDisk() error { return h.step("GrowsDisk", "") }

func (h *hostDouble) MakeImage(_ context.Context, name id.Workspace, _ workspace.IDs, _ int64) error {
	return h.step("MakeImage", name)
}

func (h *hostDouble) Stats(e broker.Entry) (workspace.Stats, error) {
	name := e.Name
	return workspace.Stats{Pids: 3}, h.step("Stats", name)
}

func (h *hostDouble) Reclaim(context.Context, id.Workspace) {}

func (h *hostDouble) CleanUp(_ context.Context, name id.Workspace) error {
	if err := h.step("CleanUp", name); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.groups, name)
	return nil
}

func (h *hostDouble) Report(name id.Workspace) (workspace.Report, error) {
	return proved, h.step("Report", name)
}

func (h *hostDouble) Leftovers() ([]id.Workspace, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var all []id.Workspace
	for n := range h.groups {
		all = append(all, n)
	}
	return all, nil
}

func (h *hostDouble) Egress(_ context.Context, e broker.Entry) (*os.File, error) {
	return nil, fmt.Errorf("no way out of %s: %w", e.Name, errdefs.ErrNotImplemented)
}

func (h *hostDouble) Close() error { return nil }

var _ broker.Effects = (*hostDouble)(nil)

const first = 1_880_000_000

func testSettings() broker.Settings {
	s, err := broker.ParseSettings([]byte(`{"daemon_uid":65431,"daemon_gid":65431,"uid_first":1880000000,"uid_count":3000,
		"limits_max":{"memory_bytes":2147483648}}`))
	if err != nil {
		panic(err)
	}
	return s
}

// openDir opens a directory as a ledger wants it.
func openDir(t testing.TB, path string) *os.File {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// lifecycle makes one over a double and a real ledger in dir.
func lifecycle(t testing.TB, dir string, h *hostDouble) *broker.Lifecycle {
	t.Helper()
	return lifecycleOver(t, dir, h)
}

func lifecycleOver(t testing.TB, dir string, h broker.Effects) *broker.Lifecycle {
	t.Helper()
	return lifecycleWith(t, dir, h, testSettings())
}

func lifecycleWith(t testing.TB, dir string, h broker.Effects, s broker.Settings) *broker.Lifecycle {
	t.Helper()
	l, err := broker.OpenLedger(openDir(t, dir))
	if err != nil {
		t.Fatal(err)
	}
	return broker.NewLifecycle(s, l, h, slog.New(slog.DiscardHandler))
}

// rig is a server over a double, and one connection to it.
type rig struct {
	host   *hostDouble
	life   *broker.Lifecycle
	server *broker.Server
	conn   *jsonrpc.Conn
}

func newRig(t testing.TB, hello bool) *rig {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("skipped: the broker serves root and the daemon's user only")
	}
	h := newHost()
	r := &rig{host: h, life: lifecycle(t, t.TempDir(), h)}
	r.server = &broker.Server{Life: r.life, Settings: testSettings(), Build: "test", Log: slog.New(slog.DiscardHandler)}
	t.Cleanup(func() {
		if err := r.life.Close(); err != nil {
			t.Error(err)
		}
	})
	r.conn = r.connect(t, hello)
	return r
}

func socketPair(t testing.TB) (*net.UnixConn, *net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	var out [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "pair")
		c, err := net.FileConn(f)
		_ = f.Close()
		if err != nil {
			t.Fatal(err)
		}
		out[i] = c.(*net.UnixConn)
	}
	return out[0], out[1]
}

func (r *rig) connect(t testing.TB, hello bool) *jsonrpc.Conn {
	t.Helper()
	a, z := socketPair(t)
	served, err := r.server.Attach(z, nil)
	if err != nil {
		t.Fatal(err)
	}
	c := jsonrpc.New(a, jsonrpc.Config{})
	t.Cleanup(func() {
		_ = c.Close()
		<-served.Done()
	})
	if hello {
		var res brokerapi.HelloResult
		if _, err := c.Call(t.Context(), brokerapi.MethodHello, brokerapi.HelloParams{Version: brokerapi.Version}, &res); err != nil {
			t.Fatal(err)
		}
		if res.Version != brokerapi.Version || res.Build != "test" || res.ExecutorDir != broker.DefaultRuntimeDir+"/x" {
			t.Fatalf("hello: %+v", res)
		}
	}
	return c
}

const digest = "2a97516c354b68848cdbd8f54a226a0a55b21ed138e207ad6c5cbb9c00aa5aea"

func call[T any](t testing.TB, c *jsonrpc.Conn, method string, params any) (T, error) {
	t.Helper()
	var res T
	_, err := c.Call(t.Context(), method, params, &res)
	return res, err
}

// wanted asks for a workspace.
func wanted(name id.Workspace, limits workspace.Limits) brokerapi.CreateParams {
	return brokerapi.CreateParams{Name: name, KeyDigest: digest, Limits: limits}
}

func create(t testing.TB, c *jsonrpc.Conn, name id.Workspace) (brokerapi.Workspace, error) {
	t.Helper()
	res, err := call[brokerapi.StartResult](t, c, brokerapi.MethodCreate, brokerapi.CreateParams{Name: name, KeyDigest: digest})
	if len(res.Report.Controls) > 0 {
		t.Errorf("a create that is not to start anything proves %+v", res.Report)
	}
	return res.Workspace, err
}

func mustCreate(t testing.TB, c *jsonrpc.Conn, name id.Workspace) brokerapi.Workspace {
	t.Helper()
	w, err := create(t, c, name)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

var errPlanted = fmt.Errorf("planted: %w", errdefs.ErrInternal)

func listener(t testing.TB) *net.UnixListener {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: t.TempDir() + "/s"})
	if err != nil {
		t.Fatal(err)
	}
	return l
}
