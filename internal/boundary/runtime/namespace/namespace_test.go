package namespace_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/spec/permit"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/wire/brokerapi"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
	"github.com/carrel-dev/carrel/internal/wire/jsonrpc"
	"github.com/carrel-dev/carrel/test/leaks"
)

// may is the permit to change a workspace, as the gate would issue it.
func may(name id.Workspace) permit.Permit {
	p, _ := permit.Issue(name)
	return p
}

func TestMain(m *testing.M) { leaks.Main(m) }

const name = id.Workspace("ws-2a97516c")

// An executor that agrees on a version which this daemon does not speak is not spoken to.
func TestUnknownVersion(t *testing.T) {
	for _, version := range []int{0, execapi.MinVersion - 1, execapi.Version + 1} {
		f := setUp(t, table{
			execapi.MethodHello: func(*jsonrpc.Conn, *jsonrpc.Request) (any, []*os.File, error) {
				return execapi.HelloResult{Version: version, Workspace: name}, nil, nil
			},
		})
		_, err := f.Run(t.Context(), may(name), command())
		if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "stop and start the workspace") {
			t.Errorf("version %d: %v", version, err)
		}
	}
}

func TestRun(t *testing.T) {
	f := setUp(t, table{
		execapi.MethodExec: func(_ *jsonrpc.Conn, r *jsonrpc.Request) (any, []*os.File, error) {
			p := decode[execapi.ExecParams](t, r)
			if !p.Wait || p.Detach {
				t.Errorf("run asked for %+v", p)
			}
			if p.Argv[0] == "missing" {
				return nil, nil, fmt.Errorf(`cannot run "missing": not found: %w`, errdefs.ErrNotFound)
			}
			return execapi.ExecResult{PID: 7, Status: &execapi.Status{Code: 3}, Stdout: []byte("out")}, nil, nil
		},
	})
	for range 3 {
		res, err := f.Run(t.Context(), may(name), command())
		if err != nil || res.Status.Code != 3 || string(res.Stdout) != "out" {
			t.Fatalf("%+v, %v", res, err)
		}
	}
	if n := f.executor.connections(); n != 2 { // one to start commands through, one for the rest
		t.Errorf("%d connections for three commands", n)
	}
	p := command()
	p.Argv[0] = "missing"
	if _, err := f.Run(t.Context(), may(name), p); !errdefs.IsNotFound(err) || err.Error() != `cannot run "missing": not found` {
		t.Errorf("error of the executor: %v", err)
	}
	if _, err := f.Run(t.Context(), may("ws-00000000"), command()); !errors.Is(err, runtime.ErrNotRunning) ||
		!errdefs.IsFailedPrecondition(err) {
		t.Errorf("workspace without executor: %v", err)
	}
}

func TestConcurrentCallersShareOneConnection(t *testing.T) {
	f := setUp(t, table{execapi.MethodPing: func(*jsonrpc.Conn, *jsonrpc.Request) (any, []*os.File, error) { return struct{}{}, nil, nil }})
	var wg sync.WaitGroup
	for range 32 {
		wg.Go(func() {
			if err := f.Ping(t.Context(), name); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := f.executor.connections(); n != 2 { // one to start commands through, one for the rest
		t.Errorf("%d connections", n)
	}
}

// When the caller goes, its command is ended, even if the order to end it
// overtakes the order to start it.
func TestRunEndsWithItsCaller(t *testing.T) {
	var asked atomic.Int32
	started, ended := make(chan struct{}), make(chan struct{})
	f := setUp(t, table{
		execapi.MethodExec: func(*jsonrpc.Conn, *jsonrpc.Request) (any, []*os.File, error) {
			close(started)
			<-ended
			return execapi.ExecResult{Status: &execapi.Status{Code: 129, Signal: 1}}, nil, nil
		},
		execapi.MethodStopTask: func(_ *jsonrpc.Conn, r *jsonrpc.Request) (any, []*os.File, error) {
			if !decode[execapi.StopTaskParams](t, r).Hangup {
				t.Error("not a hang-up")
			}
			if asked.Add(1) < 3 {
				return nil, nil, fmt.Errorf("cannot find command: %w", errdefs.ErrNotFound)
			}
			close(ended)
			return struct{}{}, nil, nil
		},
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-started; cancel() }()
	res, err := f.Run(ctx, may(name), command())
	if !errors.Is(err, context.Canceled) || res.Status == nil || res.Status.Signal != 1 {
		t.Errorf("%+v, %v", res.Status, err)
	}
}

func TestSpawn(t *testing.T) {
	f := setUp(t, table{
		execapi.MethodExec: func(c *jsonrpc.Conn, r *jsonrpc.Request) (any, []*os.File, error) {
			p := decode[execapi.ExecParams](t, r)
			if p.Wait || p.Detach {
				t.Errorf("spawn asked for %+v", p)
			}
			rd, wr, err := os.Pipe()
			if err != nil {
				t.Error(err)
			}
			io.WriteString(wr, "hello")
			wr.Close()
			// The end is told before the start.
			if err := c.Notify(t.Context(), execapi.MethodExited, execapi.Exited{ID: p.ID, Status: execapi.Status{Code: 5}}); err != nil {
				t.Error(err)
			}
			return execapi.ExecResult{PID: 42}, []*os.File{rd}, nil
		},
	})
	p, err := f.Spawn(t.Context(), may(name), command(), false)
	if err != nil {
		t.Fatal(err)
	}
	if out, err := io.ReadAll(p.Files()[0]); string(out) != "hello" || err != nil {
		t.Errorf("%q, %v", out, err)
	}
	p.Files()[0].Close()
	if s, err := p.Wait(t.Context()); s.Code != 5 || err != nil || p.PID() != 42 {
		t.Errorf("%+v, %v", s, err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

func TestSpawnHangsUp(t *testing.T) {
	f := setUp(t, table{
		execapi.MethodSpawnTerminal: func(*jsonrpc.Conn, *jsonrpc.Request) (any, []*os.File, error) {
			return execapi.ExecResult{PID: 1}, nil, nil
		},
		execapi.MethodStopTask: func(c *jsonrpc.Conn, r *jsonrpc.Request) (any, []*os.File, error) {
			s := decode[execapi.StopTaskParams](t, r)
			if !s.Hangup {
				t.Error("not a hang-up")
			}
			return struct{}{}, nil, c.Notify(t.Context(), execapi.MethodExited, execapi.Exited{ID: s.ID, Status: execapi.Status{Code: 129}})
		},
	})
	p, err := f.Spawn(t.Context(), may(name), command(), true)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.Wait(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("wait with an ended context: %v", err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	if s, err := p.Wait(t.Context()); s.Code != 129 || err != nil {
		t.Errorf("%+v, %v", s, err)
	}
}

func TestExecutorDies(t *testing.T) {
	running := make(chan struct{})
	f := setUp(t, table{
		execapi.MethodExec: func(_ *jsonrpc.Conn, r *jsonrpc.Request) (any, []*os.File, error) {
			p := decode[execapi.ExecParams](t, r)
			if !p.Wait {
				return execapi.ExecResult{PID: 1}, nil, nil
			}
			close(running)
			<-t.Context().Done() // the end of the test
			return nil, nil, nil
		},
	})
	p, err := f.Spawn(t.Context(), may(name), command(), false)
	if err != nil {
		t.Fatal(err)
	}
	go func() { <-running; f.executor.stop() }()
	_, err = f.Run(t.Context(), may(name), command())
	if !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), "went away") {
		t.Errorf("command of a dead executor: %v", err)
	}
	if _, err := p.Wait(t.Context()); !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), "went away") {
		t.Errorf("attached command of a dead executor: %v", err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	if n := <-f.lost; n != name {
		t.Errorf("lost %s", n)
	}
	if _, err := f.Run(t.Context(), may(name), command()); !errors.Is(err, runtime.ErrNotRunning) {
		t.Errorf("next command: %v", err)
	}
	// Another executor takes its place.
	f.executor.start()
	if _, err := f.Spawn(t.Context(), may(name), command(), false); err != nil {
		t.Error(err)
	}
}

func TestImpostorIsRefused(t *testing.T) {
	f := setUp(t, table{
		execapi.MethodHello: func(*jsonrpc.Conn, *jsonrpc.Request) (any, []*os.File, error) {
			return execapi.HelloResult{Version: execapi.Version, Workspace: "ws-ffffffff"}, nil, nil
		},
	})
	if err := f.Ping(t.Context(), name); err == nil || !strings.Contains(err.Error(), "ws-ffffffff") {
		t.Errorf("executor of another workspace: %v", err)
	}
	// A listener with another uid than the broker gave out.
	brokerDouble(t, f, brokerapi.Workspace{Name: name, IDs: workspace.IDsFrom(4_000_000_000)})
	if _, err := f.List(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := f.Ping(t.Context(), name); !errdefs.IsPermissionDenied(err) || !strings.Contains(err.Error(), "cannot trust") {
		t.Errorf("listener with a foreign uid: %v", err)
	}
}

// Every id of the broker's range is one of carrel's own, also those that no workspace has here.
func TestHasID(t *testing.T) {
	f := setUp(t, nil)
	brokerDouble(t, f, brokerapi.Workspace{Name: name, State: workspace.StateStopped, IDs: workspace.IDsFrom(700_003)})
	if f.HasID(700_050) {
		t.Error("the range is known before the broker was asked")
	}
	if _, err := f.List(t.Context()); err != nil {
		t.Fatal(err)
	}
	for uid, want := range map[uint32]bool{0: false, 699_999: false, 700_000: true, 700_004: true, 700_099: true, 700_100: false} {
		if f.HasID(uid) != want {
			t.Errorf("%d is one of them: %t", uid, !want)
		}
	}
}

// brokerDouble serves a broker that knows one workspace, and is restarted by the
// test through the value it returns.
func brokerDouble(t testing.TB, f *fixture, w brokerapi.Workspace) *peerDouble {
	t.Helper()
	answer := func(*jsonrpc.Conn, *jsonrpc.Request) (any, []*os.File, error) { return w, nil, nil }
	d := &peerDouble{t: t, path: filepath.Join(f.dir, "broker.sock"), handler: table{
		brokerapi.MethodHello: func(*jsonrpc.Conn, *jsonrpc.Request) (any, []*os.File, error) {
			return brokerapi.HelloResult{Version: brokerapi.Version, UIDFirst: 700_000, UIDCount: 100}, nil, nil
		},
		brokerapi.MethodCreate: func(*jsonrpc.Conn, *jsonrpc.Request) (any, []*os.File, error) {
			return brokerapi.StartResult{Workspace: w}, nil, nil
		},
		brokerapi.MethodStop: answer, brokerapi.MethodDestroy: answer,
		brokerapi.MethodStart: func(*jsonrpc.Conn, *jsonrpc.Request) (any, []*os.File, error) {
			running := w
			running.State, running.Executor = workspace.StateRunning, &brokerapi.Executor{PID: 99}
			return brokerapi.StartResult{Workspace: running, Report: workspace.Report{
				Controls: []workspace.Control{{ID: "c", Required: true, State: workspace.Verified}},
			}}, nil, nil
		},
		// Two messages: w, and another one behind it.
		brokerapi.MethodList: func(_ *jsonrpc.Conn, r *jsonrpc.Request) (any, []*os.File, error) {
			if decode[brokerapi.ListParams](t, r).After == w.Name {
				return brokerapi.ListResult{Workspaces: []brokerapi.Workspace{{Name: "ws-ffffffff"}}}, nil, nil
			}
			return brokerapi.ListResult{Workspaces: []brokerapi.Workspace{w}, More: true}, nil, nil
		},
		brokerapi.MethodReport: func(*jsonrpc.Conn, *jsonrpc.Request) (any, []*os.File, error) {
			return nil, nil, fmt.Errorf("cannot report: %w", errdefs.ErrFailedPrecondition)
		},
	}.handle}
	d.start()
	return d
}

func TestBroker(t *testing.T) {
	var shut atomic.Int32
	f := setUp(t, table{execapi.MethodShutdown: func(*jsonrpc.Conn, *jsonrpc.Request) (any, []*os.File, error) {
		shut.Add(1)
		return struct{}{}, nil, nil
	}})
	if _, err := f.List(t.Context()); !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), "carrel-broker") {
		t.Errorf("no broker: %v", err)
	}
	uid := uint32(os.Getuid())
	d := brokerDouble(t, f, brokerapi.Workspace{Name: name, User: "u", Home: "/h", IDs: workspace.IDs{
		Executor: uid,
	}, State: workspace.StateStopped, Retained: "/kept"})
	if w, _, err := f.Create(t.Context(), may(name), runtime.Plan{KeyDigest: "00", Limits: workspace.DefaultLimits}); err != nil ||
		w.Home != "/h" {
		t.Fatalf("%+v, %v", w, err)
	}
	if all, err := f.List(t.Context()); err != nil || len(all) != 2 || all[name].Home != "/h" ||
		!slices.Contains(slices.Collect(maps.Keys(all)), "ws-ffffffff") {
		t.Errorf("%+v, %v", all, err)
	}
	if w, rep, err := f.Start(t.Context(), may(name), runtime.Way{}); err != nil || w.ExecutorPID != 99 || len(rep.Controls) != 1 {
		t.Fatalf("%+v, %+v, %v", w, rep, err)
	}
	// The broker is restarted: the next call finds the new one.
	d.stop()
	d.start()
	if _, err := f.Report(t.Context(), name); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("error of the broker: %v", err)
	}
	if _, err := f.Stop(t.Context(), may(name)); err != nil || shut.Load() != 1 {
		t.Errorf("stop: %v, %d shutdowns", err, shut.Load())
	}
	if w, err := f.Destroy(t.Context(), may(name), false); err != nil || w.Retained != "/kept" {
		t.Errorf("%+v, %v", w, err)
	}
	select {
	case n := <-f.lost:
		t.Errorf("a stop counted as the loss of %s", n)
	default:
	}
	if n := d.connections(); n != 2 {
		t.Errorf("%d connections to two brokers", n)
	}
}

func TestClose(t *testing.T) {
	f := setUp(t, table{
		execapi.MethodExec: func(*jsonrpc.Conn, *jsonrpc.Request) (any, []*os.File, error) {
			return execapi.ExecResult{PID: 1}, nil, nil
		},
	})
	p, err := f.Spawn(t.Context(), may(name), command(), false)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	if _, err := p.Wait(t.Context()); !errdefs.IsUnavailable(err) {
		t.Error(err)
	}
	if _, err := f.Run(t.Context(), may(name), command()); !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), "stopping") {
		t.Error(err)
	}
	select {
	case <-f.lost:
		t.Error("closing counted as a loss")
	case <-time.After(0):
	}
}

func BenchmarkRun(b *testing.B) {
	f := setUp(b, table{
		execapi.MethodExec: func(*jsonrpc.Conn, *jsonrpc.Request) (any, []*os.File, error) {
			return execapi.ExecResult{PID: 7, Status: &execapi.Status{}}, nil, nil
		},
	})
	p := command()
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := f.Run(ctx, may(name), p); err != nil {
			b.Fatal(err)
		}
	}
}
