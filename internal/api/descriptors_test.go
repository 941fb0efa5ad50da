package api_test

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/api"
	"github.com/carrel-dev/carrel/internal/api/apitest"
	"github.com/carrel-dev/carrel/internal/execapi"
	"github.com/carrel-dev/carrel/internal/fdapi"
	"github.com/carrel-dev/carrel/internal/grant"
	"github.com/carrel-dev/carrel/internal/jsonrpc"
	"github.com/carrel-dev/carrel/internal/workspace"
)

const upgrade = "POST " + fdapi.Path + " HTTP/1.1\r\nHost: carrel\r\nConnection: Upgrade\r\nUpgrade: " + fdapi.Protocol + "\r\n\r\n"

// handOver upgrades a new connection. What the daemon notifies of arrives at exited.
func handOver(t *testing.T, socket string) (c *jsonrpc.Conn, exited chan fdapi.Exited) {
	t.Helper()
	conn, answer := send(t, socket, upgrade)
	if answer != http.StatusSwitchingProtocols {
		t.Fatalf("status %d", answer)
	}
	exited = make(chan fdapi.Exited, fdapi.MaxCommands)
	c = jsonrpc.New(conn, jsonrpc.Config{MaxFDs: fdapi.MaxFDs, Handler: func(_ context.Context, _ *jsonrpc.Conn, r *jsonrpc.Request) (any, []*os.File, error) {
		var e fdapi.Exited
		if err := r.Decode(&e); err != nil {
			t.Error(err)
		}
		exited <- e
		return nil, nil, nil
	}})
	t.Cleanup(func() { c.Close() })
	return c, exited
}

// send writes a request as it is and returns the status of the answer.
func send(t *testing.T, socket, request string) (*net.UnixConn, int) {
	t.Helper()
	conn, err := new(net.Dialer).DialContext(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if _, err := io.WriteString(conn, request); err != nil {
		t.Fatal(err)
	}
	// Nothing follows an answer unasked, so a buffer loses nothing.
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	if res.StatusCode != http.StatusSwitchingProtocols {
		res.Body.Close()
	}
	return conn.(*net.UnixConn), res.StatusCode
}

func call(t *testing.T, c *jsonrpc.Conn, method string, params, result any) []*os.File {
	t.Helper()
	fds, err := c.Call(t.Context(), method, params, result)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, f := range fds {
			f.Close()
		}
	})
	return fds
}

func await(t *testing.T, exited chan fdapi.Exited) fdapi.Exited {
	t.Helper()
	select {
	case e := <-exited:
		return e
	case <-time.After(10 * time.Second):
		t.Fatal("the command did not end")
		panic("unreachable")
	}
}

func TestDescriptors(t *testing.T) {
	g := &apitest.Gate{}
	socket, _ := apitest.Serve(t, g, &alice, api.Options{})
	create(t, socket, "demo")
	c, exited := handOver(t, socket)

	t.Run("pipes", func(t *testing.T) {
		var res fdapi.ExecResult
		fds := call(t, c, fdapi.MethodExec, fdapi.ExecParams{Workspace: "demo", Command: fdapi.Command{Argv: []string{"sh", "-c", "cat; echo $X >&2; exit 7"}, Env: []string{"X=1"}}, Stdin: true}, &res)
		if len(fds) != 3 || res.PID == 0 {
			t.Fatalf("%d descriptors, %+v", len(fds), res)
		}
		if _, err := fds[0].WriteString("in"); err != nil {
			t.Fatal(err)
		}
		fds[0].Close()
		out, err := io.ReadAll(fds[1])
		errs, err2 := io.ReadAll(fds[2])
		if string(out) != "in" || string(errs) != "1\n" || err != nil || err2 != nil {
			t.Errorf("%q %v, %q %v", out, err, errs, err2)
		}
		e := await(t, exited)
		if e.CommandID != res.CommandID || e.Status == nil || e.Status.Code != 7 {
			t.Errorf("exited %+v", e)
		}
	})
	t.Run("no stdin", func(t *testing.T) {
		var res fdapi.ExecResult
		if fds := call(t, c, fdapi.MethodExec, fdapi.ExecParams{Workspace: "demo", Command: fdapi.Command{Argv: []string{"cat"}}}, &res); len(fds) != 2 {
			t.Errorf("%d descriptors", len(fds))
		}
		if e := await(t, exited); e.Status == nil || e.Status.Code != 0 {
			t.Errorf("exited %+v", e)
		}
	})
	t.Run("signal", func(t *testing.T) {
		var res fdapi.ExecResult
		call(t, c, fdapi.MethodExec, fdapi.ExecParams{Workspace: "demo", Command: fdapi.Command{Argv: []string{"sleep", "60"}}}, &res)
		call(t, c, fdapi.MethodSignal, fdapi.SignalParams{Workspace: "demo", CommandID: res.CommandID, Signal: 2}, nil)
		if e := await(t, exited); e.Status == nil || e.Status.Code != 130 {
			t.Errorf("exited %+v", e)
		}
	})
	t.Run("terminal", func(t *testing.T) {
		var res fdapi.ExecResult
		fds := call(t, c, fdapi.MethodExec, fdapi.ExecParams{Workspace: "demo", Command: fdapi.Command{Argv: []string{"sh", "-c", "read x; stty size"}}, Terminal: &fdapi.WindowSize{Rows: 10, Cols: 20}}, &res)
		if len(fds) != 1 {
			t.Fatalf("%d descriptors", len(fds))
		}
		call(t, c, fdapi.MethodResize, fdapi.ResizeParams{Workspace: "demo", CommandID: res.CommandID, WindowSize: fdapi.WindowSize{Rows: 33, Cols: 44}}, nil)
		if _, err := fds[0].WriteString("go\n"); err != nil {
			t.Fatal(err)
		}
		out, _ := io.ReadAll(fds[0]) // ends with EIO, as terminals do
		if !strings.Contains(string(out), "33 44") {
			t.Errorf("output %q", out)
		}
		await(t, exited)
	})
	t.Run("run", func(t *testing.T) {
		var res fdapi.RunResult
		call(t, c, fdapi.MethodRun, fdapi.RunParams{Workspace: "demo", Command: fdapi.Command{Argv: []string{"sh", "-c", "cat; echo e >&2; exit 5"}}, Stdin: []byte("in")}, &res)
		if string(res.Stdout) != "in" || string(res.Stderr) != "e\n" || res.Status == nil || res.Status.Code != 5 {
			t.Errorf("result %+v", res)
		}
		call(t, c, fdapi.MethodRun, fdapi.RunParams{Workspace: "demo", Command: fdapi.Command{Argv: []string{"true"}}, DiscardOutput: true}, &res)
		if g.Last().Stdout != execapi.Null {
			t.Errorf("parameters %+v", g.Last())
		}
	})
	t.Run("attach", func(t *testing.T) {
		d, err := commandsOn(t, socket).Detach(t.Context(), request(detachRequest("demo", "echo", "kept")))
		if err != nil {
			t.Fatal(err)
		}
		var res fdapi.AttachResult
		fds := call(t, c, fdapi.MethodAttach, map[string]any{"workspace": "demo", "command_id": d.Msg.GetCommandId(), "follow": true}, &res)
		if len(fds) != 1 {
			t.Fatalf("%d descriptors", len(fds))
		}
		if out, err := io.ReadAll(fds[0]); string(out) != "kept\n" || err != nil {
			t.Errorf("%q, %v", out, err)
		}
	})
	t.Run("errors", func(t *testing.T) {
		for _, x := range []struct {
			method string
			params any
			is     func(error) bool
		}{
			{fdapi.MethodExec, fdapi.ExecParams{Workspace: "demo"}, errdefs.IsInvalidArgument},
			{fdapi.MethodExec, fdapi.ExecParams{Workspace: "nope", Command: fdapi.Command{Argv: []string{"id"}}}, errdefs.IsNotFound},
			{fdapi.MethodExec, fdapi.ExecParams{Workspace: "demo", Command: fdapi.Command{Argv: []string{"no-such-program"}}}, errdefs.IsNotFound},
			{fdapi.MethodExec, map[string]any{"workspace": "demo", "principal": "uid:0"}, errdefs.IsInvalidArgument},
			{fdapi.MethodExec, fdapi.ExecParams{Workspace: "demo", Command: fdapi.Command{Argv: []string{"id"}, Env: []string{"X"}}}, errdefs.IsInvalidArgument},
			{fdapi.MethodAttach, fdapi.AttachParams{Workspace: "demo", CommandID: "c-0000000000000000"}, errdefs.IsNotFound},
			{fdapi.MethodAttach, fdapi.AttachParams{Workspace: "demo", CommandID: "x"}, errdefs.IsInvalidArgument},
			{fdapi.MethodResize, fdapi.ResizeParams{Workspace: "demo", CommandID: "x"}, errdefs.IsInvalidArgument},
			{fdapi.MethodSignal, fdapi.SignalParams{Workspace: "demo", CommandID: "c-0000000000000000", Signal: -1}, errdefs.IsInvalidArgument},
			{"shutdown", nil, errdefs.IsNotImplemented},
		} {
			if _, err := c.Call(t.Context(), x.method, x.params, nil); !x.is(err) {
				t.Errorf("%s %+v: %v", x.method, x.params, err)
			}
		}
	})
}

func TestTheEndOfAConnectionHangsItsCommandsUp(t *testing.T) {
	g := &apitest.Gate{}
	socket, _ := apitest.Serve(t, g, &alice, api.Options{})
	create(t, socket, "demo")
	c, _ := handOver(t, socket)
	for range 3 {
		var res fdapi.ExecResult
		call(t, c, fdapi.MethodExec, fdapi.ExecParams{Workspace: "demo", Command: fdapi.Command{Argv: []string{"sleep", "60"}}}, &res)
	}
	running := make(chan struct{})
	go func() {
		defer close(running)
		_, _ = c.Call(t.Context(), fdapi.MethodRun, fdapi.RunParams{Workspace: "demo", Command: fdapi.Command{Argv: []string{"sleep", "61"}}}, nil)
	}()
	if err := g.Await(t.Context(), func(e execapi.ExecParams, _ execapi.ResizeParams) bool { return slices.Contains(e.Argv, "61") }); err != nil {
		t.Fatal(err)
	}
	c.Close()
	<-running
	idle(t, g)
}

func TestDrainWaitsForAttachedCommands(t *testing.T) {
	g := &apitest.Gate{}
	socket, server := apitest.Serve(t, g, &alice, api.Options{})
	create(t, socket, "demo")
	c, exited := handOver(t, socket)
	var res fdapi.ExecResult
	fds := call(t, c, fdapi.MethodExec, fdapi.ExecParams{Workspace: "demo", Command: fdapi.Command{Argv: []string{"cat"}}, Stdin: true}, &res)
	drained := make(chan struct{})
	go func() { defer close(drained); server.Drain(t.Context()) }()
	select {
	case <-drained:
		t.Fatal("drained while a command is attached")
	case <-time.After(20 * time.Millisecond):
	}
	fds[0].Close()
	if e := await(t, exited); e.Status == nil || e.Status.Code != 0 {
		t.Errorf("exited %+v", e)
	}
	<-drained
	<-c.Done()

	// With no time to wait it hangs up what is left.
	socket, server = apitest.Serve(t, g, &alice, api.Options{})
	c, _ = handOver(t, socket)
	call(t, c, fdapi.MethodExec, fdapi.ExecParams{Workspace: "demo", Command: fdapi.Command{Argv: []string{"sleep", "60"}}}, &res)
	now, cancel := context.WithCancel(t.Context())
	cancel()
	server.Drain(now)
	idle(t, g)
}

func TestAConnectionHasAMostOfCommands(t *testing.T) {
	g := &apitest.Gate{}
	socket, _ := apitest.Serve(t, g, &alice, api.Options{})
	create(t, socket, "demo")
	c, _ := handOver(t, socket)
	params := fdapi.ExecParams{Workspace: "demo", Command: fdapi.Command{Argv: []string{"sleep", "60"}}}
	for range fdapi.MaxCommands {
		call(t, c, fdapi.MethodExec, params, nil)
	}
	if _, err := c.Call(t.Context(), fdapi.MethodExec, params, nil); !errdefs.IsResourceExhausted(err) {
		t.Errorf("one too many: %v", err)
	}
}

// Mallory upgrades her own connection; what it may reach is hers.
func TestDescriptorsOfAnotherUserAreRefused(t *testing.T) {
	g := &apitest.Gate{}
	hers, _ := apitest.Serve(t, g, &alice, api.Options{})
	create(t, hers, "demo")
	d, err := commandsOn(t, hers).Detach(t.Context(), request(detachRequest("demo", "sleep", "60")))
	if err != nil {
		t.Fatal(err)
	}
	socket, _ := apitest.Serve(t, g, &mallory, api.Options{})
	c, _ := handOver(t, socket)
	for method, params := range map[string]string{
		fdapi.MethodExec:   `{"workspace":"demo","command":{"argv":["id"]}}`,
		fdapi.MethodRun:    `{"workspace":"demo","command":{"argv":["id"]}}`,
		fdapi.MethodAttach: `{"workspace":"demo","command_id":"` + d.Msg.GetCommandId() + `"}`,
		fdapi.MethodSignal: `{"workspace":"demo","command_id":"` + d.Msg.GetCommandId() + `","signal":9}`,
		fdapi.MethodResize: `{"workspace":"demo","command_id":"` + d.Msg.GetCommandId() + `","rows":1,"cols":1}`,
	} {
		fds, err := c.Call(t.Context(), method, json.RawMessage(params), nil)
		if !errdefs.IsPermissionDenied(err) || len(fds) != 0 {
			t.Errorf("%s: %v, %d descriptors", method, err, len(fds))
		}
	}
	if !g.Audited("denied command.exec") {
		t.Error("the gate was not asked")
	}
	g.Close()
}

func TestRefusedUpgrades(t *testing.T) {
	socket, _ := apitest.Serve(t, &apitest.Gate{}, &alice, api.Options{})
	for name, x := range map[string]struct {
		request string
		status  int
	}{
		"GET":              {strings.Replace(upgrade, "POST", "GET", 1), http.StatusUpgradeRequired},
		"other version":    {strings.Replace(upgrade, "fds/1", "fds/2", 1), http.StatusUpgradeRequired},
		"no upgrade":       {strings.Replace(upgrade, "Connection: Upgrade\r\n", "", 1), http.StatusUpgradeRequired},
		"with an origin":   {strings.Replace(upgrade, "Host:", "Origin: http://x\r\nHost:", 1), http.StatusForbidden},
		"other host":       {strings.Replace(upgrade, "Host: carrel", "Host: evil.example", 1), http.StatusForbidden},
		"with a body":      {strings.Replace(upgrade, "\r\n\r\n", "\r\nContent-Length: 2\r\n\r\n{}", 1), http.StatusUpgradeRequired},
		"does not wait":    {upgrade + `{"jsonrpc":"2.0","id":1,"method":"exec"}` + "\n", http.StatusBadRequest},
		"chunked nonsense": {strings.Replace(upgrade, "\r\n\r\n", "\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 1), http.StatusUpgradeRequired},
	} {
		t.Run(name, func(t *testing.T) {
			if _, status := send(t, socket, x.request); status != x.status {
				t.Errorf("status %d, want %d", status, x.status)
			}
		})
	}
	stranger := stranger
	socket, _ = apitest.Serve(t, &apitest.Gate{}, &stranger, api.Options{})
	if _, status := send(t, socket, upgrade); status != http.StatusUnauthorized {
		t.Errorf("without credentials: status %d", status)
	}
}

// A workspace with mounts comes with a descriptor, which is passed on unread; nothing
// else does.
func TestCreateWithMounts(t *testing.T) {
	g := &apitest.Gate{}
	socket, _ := apitest.Serve(t, g, &alice, api.Options{})
	dir, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	mounts := []workspace.Mount{{Source: "/a", Destination: "/workspace"}}
	far, near, err := grant.Offer(grant.Message{Mounts: mounts}, []*os.File{dir})
	if err != nil {
		t.Fatal(err)
	}
	defer far.Close()
	defer near.Close()
	good := fdapi.CreateParams{Key: "demo", Mounts: mounts}
	c, _ := handOver(t, socket)
	for what, bad := range map[string]struct {
		p   fdapi.CreateParams
		fds []*os.File
	}{
		"no mounts":             {fdapi.CreateParams{Key: "demo"}, []*os.File{far}},
		"no grant":              {good, nil},
		"a directory for one":   {good, []*os.File{dir}},
		"a place of the system": {fdapi.CreateParams{Key: "demo", Mounts: []workspace.Mount{{Source: "/a", Destination: "/usr"}}}, []*os.File{far}},
		"a bad key":             {fdapi.CreateParams{Key: "a\nb", Mounts: mounts}, []*os.File{far}},
		"an unknown opening":    {fdapi.CreateParams{Key: "demo", Mounts: mounts, Allow: []workspace.Opening{"root"}}, []*os.File{far}},
		"bad limits":            {fdapi.CreateParams{Key: "demo", Mounts: mounts, Limits: workspace.Limits{Pids: 1}}, []*os.File{far}},
	} {
		if _, err := c.Call(t.Context(), fdapi.MethodCreate, bad.p, nil, bad.fds...); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: %v", what, err)
		}
	}
	var res fdapi.CreateResult
	if _, err := c.Call(t.Context(), fdapi.MethodCreate, good, &res, far); err != nil || !res.Created || res.Workspace != "ws-2a97516c" {
		t.Errorf("%+v %v", res, err)
	}
	// What the daemon did not read is still there.
	if m, _, dirs, err := grant.Take(far); err != nil || len(m.Mounts) != 1 {
		t.Errorf("%+v %v", m, err)
	} else {
		dirs[0].Close()
	}
	if _, err := c.Call(t.Context(), fdapi.MethodSignal, fdapi.SignalParams{Workspace: "demo", CommandID: "c-x"}, nil, dir); !errdefs.IsInvalidArgument(err) {
		t.Errorf("a signal with a descriptor: %v", err)
	}
	<-c.Done()
}
