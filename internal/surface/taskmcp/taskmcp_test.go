package taskmcp_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/agent/tasks"
	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/spec/permit"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/surface/api"
	"github.com/carrel-dev/carrel/internal/surface/api/apitest"
	"github.com/carrel-dev/carrel/internal/surface/taskmcp"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
	"github.com/carrel-dev/carrel/internal/wire/fileapi"
	"github.com/carrel-dev/carrel/test/leaks"
)

func TestMain(m *testing.M) { leaks.Main(m) }

var alice = principal.Principal{Kind: principal.User, UID: 1000, GID: 1000}

// listens is a runtime that opens the socket of a task in this process.
type listens struct{ runtime.Runtime }

func (listens) Listen(ctx context.Context, _ permit.Permit, task id.Command) (*net.UnixListener, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "unix", execapi.Listening(task))
	if err != nil {
		return nil, err
	}
	return l.(*net.UnixListener), nil
}

// home is the files of a workspace.
type home struct {
	mu    sync.Mutex
	files map[string]string
	calls []string
}

func (h *home) OnFiles(_ context.Context, _ principal.Principal, _ string, r fileapi.Request, s fileapi.Streams) (
	res fileapi.Result, err error,
) {
	h.mu.Lock()
	defer h.mu.Unlock()
	path := string(r.Path)
	h.calls = append(h.calls, string(r.Op))
	switch r.Op {
	case fileapi.Stat:
		text, ok := h.files[path]
		if !ok {
			return res, fmt.Errorf("no file: %w", errdefs.ErrNotFound)
		}
		res.File = &fileapi.Entry{Type: "file", Size: int64(len(text))}
	case fileapi.Write:
		b, err := io.ReadAll(s.In)
		if err != nil || r.Mode == nil || *r.Mode != 0o755 {
			return res, errors.Join(err, fmt.Errorf("mode %v", r.Mode))
		}
		h.files[path] = string(b)
	case fileapi.Move:
		h.files[string(r.To)] = h.files[path]
		delete(h.files, path)
	default:
		return res, errdefs.ErrNotImplemented
	}
	return res, nil
}

type fixture struct {
	*taskmcp.Tools
	gate *apitest.Gate
	home *home
	name id.Workspace
}

func setUp(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{gate: &apitest.Gate{}, home: &home{files: map[string]string{}}}
	w, _, err := f.gate.Create(t.Context(), alice, workspace.Wanted{Key: "demo"})
	if err != nil {
		t.Fatal(err)
	}
	f.name = w.Name
	program := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(program, []byte("the bridge"), 0o600); err != nil {
		t.Fatal(err)
	}
	f.Tools = taskmcp.New(taskmcp.Config{
		Program: func() (*os.File, error) { return os.Open(program) }, Version: "v1", Log: slog.New(slog.DiscardHandler),
	})
	if _, _, err := f.Open(t.Context(), tasks.Opening{}); !errdefs.IsUnavailable(err) {
		t.Errorf("before it is bound: %v", err)
	}
	_, surface := apitest.Serve(t, f.gate, &alice, api.Options{})
	f.Bind(f.home, surface)
	return f
}

// open opens the tools of a task, and returns where they are.
func (f *fixture) open(t *testing.T) (address string, end func()) {
	t.Helper()
	task := id.NewCommand()
	argv, end, err := f.Open(t.Context(), tasks.Opening{Runtime: listens{}, Task: task, On: f.name, By: alice, Trace: id.NewTrace()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(end)
	if len(argv) != 3 || argv[1] != "mcp" || argv[2] != execapi.Listening(task) {
		t.Errorf("the bridge is %q", argv)
	}
	if got := f.home.files[strings.TrimPrefix(argv[0], workspace.Home+"/")]; got != "the bridge" {
		t.Errorf("at %s there is %q", argv[0], got)
	}
	return argv[2], end
}

// client is one session.
type client struct {
	net.Conn
	r *bufio.Reader
}

func dial(t *testing.T, address string) *client {
	t.Helper()
	c, err := new(net.Dialer).DialContext(t.Context(), "unix", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	return &client{c, bufio.NewReader(c)}
}

// call makes a call, and returns the answer, or why there is none.
func (c *client) call(id int, method, params string) (string, error) {
	if _, err := fmt.Fprintf(c, `{"jsonrpc":"2.0","id":%d,"method":%q,"params":%s}`+"\n", id, method, params); err != nil {
		return "", err
	}
	line, err := c.r.ReadString('\n')
	if err == nil && !json.Valid([]byte(line)) {
		err = fmt.Errorf("no JSON: %q", line)
	}
	return line, err
}

func (c *client) hello() error {
	about := `{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"x","version":"1"}}`
	if _, err := c.call(0, "initialize", about); err != nil {
		return err
	}
	_, err := io.WriteString(c, `{"jsonrpc":"2.0","method":"notifications/initialized"}`+"\n")
	return err
}

// A task is served at its socket, and the bridge is put into the workspace once.
func TestOpen(t *testing.T) {
	f := setUp(t)
	address, end := f.open(t)
	c := dial(t, address)
	if err := c.hello(); err != nil {
		t.Fatal(err)
	}
	got, err := c.call(1, "tools/call", `{"name":"exec","arguments":{"argv":["true"]}}`)
	if err != nil || !strings.Contains(got, "exit code") {
		t.Errorf("%s, %v", got, err)
	}
	end()
	if _, err := c.r.ReadString('\n'); err == nil {
		t.Error("the session goes on")
	}
	if c, err := new(net.Dialer).DialContext(t.Context(), "unix", address); err == nil {
		c.Close()
		t.Error("the socket is there")
	}
	f.open(t)
	if got := strings.Join(f.home.calls, " "); got != "stat write move stat" {
		t.Errorf("the files were worked on by %s", got)
	}
}

// A task has so many sessions at once, and a place is given back.
func TestSessionsAreCounted(t *testing.T) {
	f := setUp(t)
	address, _ := f.open(t)
	var all []*client
	for range taskmcp.MaxOfTask {
		c := dial(t, address)
		if err := c.hello(); err != nil {
			t.Fatal(err)
		}
		all = append(all, c)
	}
	if err := dial(t, address).hello(); err == nil {
		t.Error("one too many is served")
	}
	all[0].Close()
	for end := time.Now().Add(20 * time.Second); dial(t, address).hello() != nil; {
		if time.Now().After(end) {
			t.Fatal("no place is given back")
		}
	}
}

// Calls that are under way end with the task, also one that waits for ever.
func TestCallsEndWithTheTask(t *testing.T) {
	f := setUp(t)
	address, end := f.open(t)
	c := dial(t, address)
	if err := c.hello(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(c, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"exec","arguments":{"argv":["hang"]}}}`+
		"\n"); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	ended := make(chan struct{})
	go func() { defer close(ended); end() }()
	select {
	case <-ended:
	case <-time.After(20 * time.Second):
		t.Fatal("the end does not come")
	}
	if d := time.Since(began); d > 10*time.Second {
		t.Errorf("it took %v", d)
	}
}

// A workspace that cannot take the bridge, or has no socket, has no task with tools.
func TestOpenFails(t *testing.T) {
	f := setUp(t)
	f.home.files = nil // a write panics on it: nothing may be written
	f.Bind(broken{}, nil)
	if _, _, err := f.Open(t.Context(), tasks.Opening{}); !errdefs.IsUnavailable(err) {
		t.Errorf("without a surface: %v", err)
	}
	_, surface := apitest.Serve(t, f.gate, &alice, api.Options{})
	f.Bind(broken{}, surface)
	_, _, err := f.Open(t.Context(), tasks.Opening{Runtime: listens{}, Task: id.NewCommand(), On: f.name, By: alice})
	if !errdefs.IsResourceExhausted(err) || !strings.Contains(err.Error(), "cannot put the bridge") {
		t.Errorf("on a full disk: %v", err)
	}
}

// broken is a workspace whose disk is full.
type broken struct{}

func (broken) OnFiles(context.Context, principal.Principal, string, fileapi.Request, fileapi.Streams) (fileapi.Result, error) {
	return fileapi.Result{}, fmt.Errorf("cannot write: the disk is full: %w", errdefs.ErrResourceExhausted)
}
