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

	"connectrpc.com/connect"
	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/gen/carrel/v1/carrelv1connect"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/surface/api"
	"github.com/carrel-dev/carrel/internal/surface/api/apitest"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
	"github.com/carrel-dev/carrel/internal/wire/fdapi"
	"github.com/carrel-dev/carrel/internal/wire/jsonrpc"
	"github.com/carrel-dev/carrel/internal/wire/mountgrant"
)

const upgrade = "POST " + fdapi.Path + " HTTP/1.1\r\nHost: carrel\r\nConnection: Upgrade\r\nUpgrade: " + fdapi.Protocol + "\r\n\r\n"

// handOver upgrades a new connection. What the daemon notifies of arrives at exited.
func handOver(t *testing.T, socket string) (c *jsonrpc.Conn, exited chan *carrelv1.Exited) {
	t.Helper()
	conn, answer := send(t, socket, upgrade)
	if answer != http.StatusSwitchingProtocols {
		t.Fatalf("status %d", answer)
	}
	exited = make(chan *carrelv1.Exited, fdapi.MaxCommands)
	c = jsonrpc.New(conn, jsonrpc.Config{MaxFDs: fdapi.MaxFDs, Handler: func(_ context.Context, _ *jsonrpc.Conn,
		r *jsonrpc.Request,
	) (any, []*os.File, error) {
		e := new(carrelv1.Exited)
		if err := protojson.Unmarshal(r.Params, e); err != nil {
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

// ask makes a call with descriptors; res may be nil.
func ask(t *testing.T, c *jsonrpc.Conn, method string, req, res proto.Message, with ...*os.File) ([]*os.File, error) {
	t.Helper()
	params, err := protojson.Marshal(req)
	if err != nil {
		t.Fatal(err)
	}
	var answer json.RawMessage
	fds, err := c.Call(t.Context(), method, json.RawMessage(params), &answer, with...)
	if err == nil && res != nil {
		err = protojson.Unmarshal(answer, res)
	}
	t.Cleanup(func() {
		for _, f := range fds {
			f.Close()
		}
	})
	return fds, err
}

func call(t *testing.T, c *jsonrpc.Conn, method string, req, res proto.Message) []*os.File {
	t.Helper()
	fds, err := ask(t, c, method, req, res)
	if err != nil {
		t.Fatal(err)
	}
	return fds
}

// spawn asks for an attached command.
func spawn(workspace string, argv ...string) *carrelv1.SpawnRequest {
	return &carrelv1.SpawnRequest{Start: &carrelv1.StreamStart{Workspace: workspace, Command: command(argv...)}}
}

func await(t *testing.T, exited chan *carrelv1.Exited) *carrelv1.Exited {
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
		var res carrelv1.SpawnResponse
		ask := spawn("demo", "sh", "-c", "cat; echo $X >&2; exit 7")
		ask.Start.Command.Env, ask.Start.Stdin = map[string]string{"X": "1"}, true
		fds := call(t, c, fdapi.Spawn, ask, &res)
		if len(fds) != 3 || res.GetPid() == 0 {
			t.Fatalf("%d descriptors, %+v", len(fds), &res)
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
		if e.GetCommandId() != res.GetCommandId() || e.GetStatus() == nil || e.GetStatus().GetCode() != 7 {
			t.Errorf("exited %+v", e)
		}
	})
	t.Run("no stdin", func(t *testing.T) {
		var res carrelv1.SpawnResponse
		if fds := call(t, c, fdapi.Spawn, spawn("demo", "cat"), &res); len(fds) != 2 {
			t.Errorf("%d descriptors", len(fds))
		}
		if e := await(t, exited); e.GetStatus() == nil || e.GetStatus().GetCode() != 0 {
			t.Errorf("exited %+v", e)
		}
	})
	t.Run("signal", func(t *testing.T) {
		var res carrelv1.SpawnResponse
		call(t, c, fdapi.Spawn, spawn("demo", "sleep", "60"), &res)
		call(t, c, fdapi.Signal, &carrelv1.SignalRequest{Workspace: "demo", CommandId: res.GetCommandId(), Signal: 2}, nil)
		if e := await(t, exited); e.GetStatus() == nil || e.GetStatus().GetCode() != 130 {
			t.Errorf("exited %+v", e)
		}
	})
	t.Run("terminal", func(t *testing.T) {
		var res carrelv1.SpawnResponse
		ask := spawn("demo", "sh", "-c", "read x; stty size")
		ask.Start.Terminal = &carrelv1.WindowSize{Rows: 10, Cols: 20}
		fds := call(t, c, fdapi.Spawn, ask, &res)
		if len(fds) != 1 {
			t.Fatalf("%d descriptors", len(fds))
		}
		call(t, c, fdapi.Resize, &carrelv1.ResizeRequest{
			Workspace: "demo", CommandId: res.GetCommandId(),
			Size: &carrelv1.WindowSize{Rows: 33, Cols: 44},
		}, nil)
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
		var res carrelv1.ExecResponse
		call(t, c, fdapi.Exec, &carrelv1.ExecRequest{
			Workspace: "demo", Command: command("sh", "-c", "cat; echo e >&2; exit 5"),
			Stdin: []byte("in"),
		}, &res)
		if string(res.GetStdout()) != "in" || string(res.GetStderr()) != "e\n" || res.GetStatus().GetCode() != 5 {
			t.Errorf("result %+v", &res)
		}
		call(t, c, fdapi.Exec, &carrelv1.ExecRequest{Workspace: "demo", Command: command("true"), DiscardOutput: true}, &res)
		if g.Last().Stdout != execapi.Null {
			t.Errorf("parameters %+v", g.Last())
		}
	})
	t.Run("attach", func(t *testing.T) {
		d, err := commandsOn(t, socket).Detach(t.Context(), request(detachRequest("demo", "echo", "kept")))
		if err != nil {
			t.Fatal(err)
		}
		fds := call(t, c, fdapi.Attach, &carrelv1.AttachRequest{Workspace: "demo", CommandId: d.Msg.GetCommandId(), Follow: true}, nil)
		if len(fds) != 1 {
			t.Fatalf("%d descriptors", len(fds))
		}
		if out, err := io.ReadAll(fds[0]); string(out) != "kept\n" || err != nil {
			t.Errorf("%q, %v", out, err)
		}
	})
	t.Run("errors", func(t *testing.T) {
		for _, x := range []struct {
			method, params string
			is             func(error) bool
		}{
			{fdapi.Spawn, `{"start":{"workspace":"demo"}}`, errdefs.IsInvalidArgument},
			{fdapi.Spawn, `{}`, errdefs.IsInvalidArgument},
			{fdapi.Spawn, `{"start":{"workspace":"nope","command":{"argv":["id"]}}}`, errdefs.IsNotFound},
			{fdapi.Spawn, `{"start":{"workspace":"demo","command":{"argv":["no-such-program"]}}}`, errdefs.IsNotFound},
			{fdapi.Spawn, `{"start":{"workspace":"demo"},"principal":"uid:0"}`, errdefs.IsInvalidArgument},
			{fdapi.Spawn, `{"start":{"workspace":"demo","command":{"argv":["id"],"env":{"":"x"}}}}`, errdefs.IsInvalidArgument},
			{fdapi.Attach, `{"workspace":"demo","commandId":"c-0000000000000000"}`, errdefs.IsNotFound},
			{fdapi.Attach, `{"workspace":"demo","commandId":"x"}`, errdefs.IsInvalidArgument},
			{fdapi.Resize, `{"workspace":"demo","commandId":"x"}`, errdefs.IsInvalidArgument},
			{fdapi.Resize, `{"workspace":"demo","commandId":"c-0000000000000000"}`, errdefs.IsInvalidArgument},
			{fdapi.Signal, `{"workspace":"demo","commandId":"c-0000000000000000","signal":-1}`, errdefs.IsInvalidArgument},
			{fdapi.Signal, `{"workspace":"demo","commandId":"` + strings.Repeat("x", 20<<10) + `"}`, errdefs.IsResourceExhausted},
			{"WorkspaceService/Destroy", `{"workspace":"demo"}`, errdefs.IsNotImplemented},
			{"shutdown", `{}`, errdefs.IsNotImplemented},
		} {
			if _, err := c.Call(t.Context(), x.method, json.RawMessage(x.params), nil); !x.is(err) {
				t.Errorf("%s %.200s: %v", x.method, x.params, err)
			}
		}
	})
	t.Run("over HTTP", func(t *testing.T) {
		_, err := commandsOn(t, socket).Spawn(t.Context(), request(spawn("demo", "true")))
		_, err2 := commandsOn(t, socket).Attach(t.Context(), request(&carrelv1.AttachRequest{Workspace: "demo", CommandId: "c-0000000000000000"}))
		for _, err := range []error{err, err2} {
			if connect.CodeOf(err) != connect.CodeFailedPrecondition || !strings.Contains(err.Error(), "descriptors") {
				t.Error(err)
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
		var res carrelv1.SpawnResponse
		call(t, c, fdapi.Spawn, spawn("demo", "sleep", "60"), &res)
	}
	running := make(chan struct{})
	go func() {
		defer close(running)
		_, _ = ask(t, c, fdapi.Exec, &carrelv1.ExecRequest{Workspace: "demo", Command: command("sleep", "61")}, nil)
	}()
	if err := g.Await(t.Context(), func(e execapi.ExecParams, _ execapi.ResizeParams) bool {
		return slices.Contains(e.Argv,
			"61")
	}); err != nil {
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
	var res carrelv1.SpawnResponse
	cat := spawn("demo", "cat")
	cat.Start.Stdin = true
	fds := call(t, c, fdapi.Spawn, cat, &res)
	drained := make(chan struct{})
	go func() { defer close(drained); server.Drain(t.Context()) }()
	select {
	case <-drained:
		t.Fatal("drained while a command is attached")
	case <-time.After(20 * time.Millisecond):
	}
	fds[0].Close()
	if e := await(t, exited); e.GetStatus() == nil || e.GetStatus().GetCode() != 0 {
		t.Errorf("exited %+v", e)
	}
	<-drained
	<-c.Done()

	// With no time to wait it hangs up what is left.
	socket, server = apitest.Serve(t, g, &alice, api.Options{})
	c, _ = handOver(t, socket)
	call(t, c, fdapi.Spawn, spawn("demo", "sleep", "60"), &res)
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
	for range fdapi.MaxCommands {
		call(t, c, fdapi.Spawn, spawn("demo", "sleep", "60"), nil)
	}
	if _, err := ask(t, c, fdapi.Spawn, spawn("demo", "sleep", "60"), nil); !errdefs.IsResourceExhausted(err) {
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
		fdapi.Spawn:  `{"start":{"workspace":"demo","command":{"argv":["id"]}}}`,
		fdapi.Exec:   `{"workspace":"demo","command":{"argv":["id"]}}`,
		fdapi.Attach: `{"workspace":"demo","command_id":"` + d.Msg.GetCommandId() + `"}`,
		fdapi.Signal: `{"workspace":"demo","command_id":"` + d.Msg.GetCommandId() + `","signal":9}`,
		fdapi.Resize: `{"workspace":"demo","command_id":"` + d.Msg.GetCommandId() + `","size":{"rows":1,"cols":1}}`,
		fdapi.Read:   `{"workspace":"demo","path":"a"}`,
		fdapi.Write:  `{"workspace":"demo","path":"a"}`,
	} {
		var with []*os.File
		if method == fdapi.Read || method == fdapi.Write {
			ours, theirs := sockets(t)
			defer ours.Close()
			with = []*os.File{theirs}
		}
		fds, err := c.Call(t.Context(), method, json.RawMessage(params), nil, with...)
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
		"GET":            {strings.Replace(upgrade, "POST", "GET", 1), http.StatusUpgradeRequired},
		"other version":  {strings.Replace(upgrade, "fds/2", "fds/1", 1), http.StatusUpgradeRequired},
		"no upgrade":     {strings.Replace(upgrade, "Connection: Upgrade\r\n", "", 1), http.StatusUpgradeRequired},
		"with an origin": {strings.Replace(upgrade, "Host:", "Origin: http://x\r\nHost:", 1), http.StatusForbidden},
		"other host":     {strings.Replace(upgrade, "Host: carrel", "Host: evil.example", 1), http.StatusForbidden},
		"with a body":    {strings.Replace(upgrade, "\r\n\r\n", "\r\nContent-Length: 2\r\n\r\n{}", 1), http.StatusUpgradeRequired},
		"does not wait":  {upgrade + `{"jsonrpc":"2.0","id":1,"method":"exec"}` + "\n", http.StatusBadRequest},
		"chunked nonsense": {
			strings.Replace(upgrade, "\r\n\r\n", "\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 1),
			http.StatusUpgradeRequired,
		},
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
	far, near, err := mountgrant.Offer(mountgrant.Message{Mounts: mounts}, []*os.File{dir})
	if err != nil {
		t.Fatal(err)
	}
	defer far.Close()
	defer near.Close()
	good := func() *carrelv1.CreateRequest {
		return &carrelv1.CreateRequest{Key: "demo", Mounts: []*carrelv1.Mount{{Source: "/a", Destination: "/workspace"}}}
	}
	with := func(f func(*carrelv1.CreateRequest)) *carrelv1.CreateRequest {
		m := good()
		f(m)
		return m
	}
	c, _ := handOver(t, socket)
	for what, bad := range map[string]struct {
		m   *carrelv1.CreateRequest
		fds []*os.File
	}{
		"no mounts":             {with(func(m *carrelv1.CreateRequest) { m.Mounts = nil }), []*os.File{far}},
		"no grant":              {good(), nil},
		"a directory for one":   {good(), []*os.File{dir}},
		"a place of the system": {with(func(m *carrelv1.CreateRequest) { m.Mounts[0].Destination = "/usr" }), []*os.File{far}},
		"a bad key":             {with(func(m *carrelv1.CreateRequest) { m.Key = "a\nb" }), []*os.File{far}},
		"an unknown opening":    {with(func(m *carrelv1.CreateRequest) { m.Allow = []string{"root"} }), []*os.File{far}},
		"bad limits":            {with(func(m *carrelv1.CreateRequest) { m.Limits = &carrelv1.Limits{Pids: 1} }), []*os.File{far}},
	} {
		if _, err := ask(t, c, fdapi.Create, bad.m, nil, bad.fds...); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: %v", what, err)
		}
	}
	var res carrelv1.CreateResponse
	if _, err := ask(t, c, fdapi.Create, good(), &res, far); err != nil || !res.GetCreated() || res.GetWorkspace().GetName() != "ws-2a97516c" {
		t.Errorf("%+v %v", &res, err)
	}
	// Over HTTP no grant can come.
	_, err = carrelv1connect.NewWorkspaceServiceClient(unix(t, socket, false), "http://carrel").Create(t.Context(), request(good()))
	if connect.CodeOf(err) != connect.CodeFailedPrecondition {
		t.Error(err)
	}
	// What the daemon did not read is still there.
	if m, _, dirs, err := mountgrant.Take(far); err != nil || len(m.Mounts) != 1 {
		t.Errorf("%+v %v", m, err)
	} else {
		dirs[0].Close()
	}
	if _, err := ask(t, c, fdapi.Signal, &carrelv1.SignalRequest{Workspace: "demo", CommandId: "c-x"}, nil,
		dir); !errdefs.IsInvalidArgument(err) {
		t.Errorf("a signal with a descriptor: %v", err)
	}
	<-c.Done()
}
