package namespace_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/runtime/namespace"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
	"github.com/carrel-dev/carrel/internal/wire/jsonrpc"
)

// peerDouble is a test double of a process that serves JSON-RPC on a Unix socket.
type peerDouble struct {
	t       testing.TB
	path    string
	handler jsonrpc.Handler

	mu    sync.Mutex
	l     *net.UnixListener
	conns []*jsonrpc.Conn
	made  int
	wg    sync.WaitGroup
}

func (d *peerDouble) start() {
	d.t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: d.path, Net: "unix"})
	if err != nil {
		d.t.Fatal(err)
	}
	d.mu.Lock()
	d.l = l
	d.mu.Unlock()
	d.wg.Go(func() {
		for {
			c, err := l.AcceptUnix()
			if err != nil {
				return
			}
			d.mu.Lock()
			d.made++
			d.conns = append(d.conns, jsonrpc.New(c, jsonrpc.Config{Handler: d.handler, MaxFDs: 3}))
			d.mu.Unlock()
		}
	})
	d.t.Cleanup(d.stop)
}

// stop is the death of the process: no listener, no connection.
func (d *peerDouble) stop() {
	d.mu.Lock()
	l := d.l
	d.mu.Unlock()
	l.Close()
	d.wg.Wait()
	d.hangup()
}

// hangup ends the connections alone.
func (d *peerDouble) hangup() {
	d.mu.Lock()
	conns := d.conns
	d.conns = nil
	d.mu.Unlock()
	for _, c := range conns {
		c.Close()
	}
}

func (d *peerDouble) connections() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.made
}

func decode[T any](t testing.TB, r *jsonrpc.Request) T {
	var v T
	if err := r.Decode(&v); err != nil {
		t.Error(err)
	}
	return v
}

type table map[string]func(c *jsonrpc.Conn, r *jsonrpc.Request) (any, []*os.File, error)

func (m table) handle(_ context.Context, c *jsonrpc.Conn, r *jsonrpc.Request) (any, []*os.File, error) {
	f, ok := m[r.Method]
	if !ok {
		return nil, nil, jsonrpc.MethodNotFound(r.Method)
	}
	return f(c, r)
}

type fixture struct {
	*namespace.Runtime
	dir      string
	executor *peerDouble
	lost     chan id.Workspace
}

// setUp makes a backend with an executor double that serves methods, and hello.
func setUp(t testing.TB, methods table) *fixture {
	t.Helper()
	dir, err := os.MkdirTemp("", "ns")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Mkdir(filepath.Join(dir, "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	f := &fixture{dir: dir, lost: make(chan id.Workspace, 8)}
	if methods == nil {
		methods = table{}
	}
	if methods[execapi.MethodHello] == nil {
		methods[execapi.MethodHello] = func(*jsonrpc.Conn, *jsonrpc.Request) (any, []*os.File, error) {
			return execapi.HelloResult{Version: execapi.Version, Workspace: name}, nil, nil
		}
	}
	f.executor = &peerDouble{t: t, path: filepath.Join(dir, "x", string(name)+".sock"), handler: methods.handle}
	f.executor.start()
	f.Runtime = namespace.New(namespace.Config{RuntimeDir: dir, OnLost: func(n id.Workspace) { f.lost <- n }})
	t.Cleanup(func() { f.Close() })
	return f
}

func command() execapi.ExecParams {
	return execapi.ExecParams{ID: id.NewCommand(), Argv: []string{"true"}}
}
