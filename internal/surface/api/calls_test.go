package api_test

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"

	"connectrpc.com/connect"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/gen/carrel/v1/carrelv1connect"
	"github.com/carrel-dev/carrel/internal/surface/api"
	"github.com/carrel-dev/carrel/internal/surface/api/apitest"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

func request[T any](m *T) *connect.Request[T] { return connect.NewRequest(m) }

func workspacesOn(t *testing.T, socket string) carrelv1connect.WorkspaceServiceClient {
	return carrelv1connect.NewWorkspaceServiceClient(unix(t, socket, false), "http://carrel")
}

func commandsOn(t *testing.T, socket string) carrelv1connect.CommandServiceClient {
	return carrelv1connect.NewCommandServiceClient(unix(t, socket, true), "http://carrel")
}

func create(t *testing.T, socket, key string) *carrelv1.Workspace {
	t.Helper()
	res, err := workspacesOn(t, socket).Create(t.Context(), request(&carrelv1.CreateRequest{Key: key}))
	if err != nil {
		t.Fatal(err)
	}
	return res.Msg.GetWorkspace()
}

func command(argv ...string) *carrelv1.Command { return &carrelv1.Command{Argv: argv} }

func detachRequest(workspace string, argv ...string) *carrelv1.DetachRequest {
	return &carrelv1.DetachRequest{Workspace: workspace, Command: command(argv...)}
}

func TestWorkspaceLife(t *testing.T) {
	socket, _ := apitest.Serve(t, &apitest.Gate{}, &alice, api.Options{})
	c := workspacesOn(t, socket)
	w := create(t, socket, "demo")
	if w.GetName() != "ws-2a97516c" || w.GetOwner() != "uid:1000" || w.GetState() != "running" ||
		len(w.GetControls()) != 2 || w.GetInsideHome() != "/home/work" || w.GetLimits().GetPids() != 512 {
		t.Errorf("created %v", w)
	}
	again, err := c.Create(t.Context(), request(&carrelv1.CreateRequest{Key: "demo"}))
	if err != nil || again.Msg.GetCreated() || again.Msg.GetWorkspace().GetName() != w.GetName() {
		t.Errorf("created again: %v, %v", again, err)
	}
	stopped, err := c.Stop(t.Context(), request(&carrelv1.StopRequest{Workspace: "demo"}))
	if err != nil || stopped.Msg.GetWorkspace().GetState() != "stopped" {
		t.Errorf("stopped: %v, %v", stopped, err)
	}
	if _, err := c.Start(t.Context(), request(&carrelv1.StartRequest{Workspace: w.GetName()})); err != nil {
		t.Error(err)
	}
	list, err := c.List(t.Context(), request(&carrelv1.ListRequest{}))
	if err != nil || len(list.Msg.GetWorkspaces()) != 1 {
		t.Errorf("list: %v, %v", list, err)
	}
	destroyed, err := c.Destroy(t.Context(), request(&carrelv1.DestroyRequest{Workspace: "demo"}))
	if err != nil || destroyed.Msg.GetRetainedHome() == "" {
		t.Errorf("destroyed: %v, %v", destroyed, err)
	}
	if _, err := c.Get(t.Context(), request(&carrelv1.GetRequest{Workspace: "demo"})); connect.CodeOf(err) != connect.CodeNotFound {
		t.Errorf("get after destroy: %v", err)
	}
}

// Mallory is a local user with a socket to the daemon and no right to Alice's
// workspace. Every procedure that names it must refuse her, and the gate must
// have been the one to say so.
func TestAnotherUsersWorkspaceIsRefused(t *testing.T) {
	g := &apitest.Gate{}
	hers, _ := apitest.Serve(t, g, &alice, api.Options{})
	create(t, hers, "demo")
	socket, _ := apitest.Serve(t, g, &mallory, api.Options{})
	w, c := workspacesOn(t, socket), commandsOn(t, socket)
	const cmd = "c-0123456789abcdef"
	for name, call := range map[string]func(context.Context) error{
		"Get": func(ctx context.Context) error {
			_, err := w.Get(ctx, request(&carrelv1.GetRequest{Workspace: "demo"}))
			return err
		},
		"Start": func(ctx context.Context) error {
			_, err := w.Start(ctx, request(&carrelv1.StartRequest{Workspace: "demo"}))
			return err
		},
		"Stop": func(ctx context.Context) error {
			_, err := w.Stop(ctx, request(&carrelv1.StopRequest{Workspace: "demo"}))
			return err
		},
		"Destroy": func(ctx context.Context) error {
			_, err := w.Destroy(ctx, request(&carrelv1.DestroyRequest{Workspace: "demo"}))
			return err
		},
		"Create": func(ctx context.Context) error {
			_, err := w.Create(ctx, request(&carrelv1.CreateRequest{Key: "demo"}))
			return err
		},
		"Exec": func(ctx context.Context) error {
			_, err := c.Exec(ctx, request(&carrelv1.ExecRequest{Workspace: "demo", Command: command("id")}))
			return err
		},
		"Detach": func(ctx context.Context) error {
			_, err := c.Detach(ctx, request(&carrelv1.DetachRequest{Workspace: "demo", Command: command("id")}))
			return err
		},
		"ListCommands": func(ctx context.Context) error {
			_, err := c.ListCommands(ctx, request(&carrelv1.ListCommandsRequest{Workspace: "demo"}))
			return err
		},
		"Wait": func(ctx context.Context) error {
			_, err := c.Wait(ctx, request(&carrelv1.WaitRequest{Workspace: "demo", CommandId: cmd}))
			return err
		},
		"Signal": func(ctx context.Context) error {
			_, err := c.Signal(ctx, request(&carrelv1.SignalRequest{Workspace: "demo", CommandId: cmd}))
			return err
		},
		"Logs": func(ctx context.Context) error {
			s, err := c.Logs(ctx, request(&carrelv1.LogsRequest{Workspace: "demo", CommandId: cmd}))
			if err == nil {
				defer s.Close()
				s.Receive()
				err = s.Err()
			}
			return err
		},
		"Stream": func(ctx context.Context) error {
			s := c.Stream(ctx)
			defer s.CloseResponse()
			_ = s.Send(&carrelv1.StreamRequest{Message: &carrelv1.StreamRequest_Start{Start: &carrelv1.StreamStart{
				Workspace: "demo",
				Command:   command("id"),
			}}})
			_, err := s.Receive()
			return err
		},
	} {
		if err := call(t.Context()); connect.CodeOf(err) != connect.CodePermissionDenied {
			t.Errorf("%s: %v, want permission_denied", name, err)
		}
	}
	list, err := w.List(t.Context(), request(&carrelv1.ListRequest{}))
	if err != nil || len(list.Msg.GetWorkspaces()) != 0 {
		t.Errorf("list: %v, %v", list, err)
	}
}

func TestExec(t *testing.T) {
	g := &apitest.Gate{}
	socket, _ := apitest.Serve(t, g, &alice, api.Options{})
	create(t, socket, "demo")
	c := commandsOn(t, socket)
	res, err := c.Exec(t.Context(), request(&carrelv1.ExecRequest{
		Workspace: "demo",
		Command: &carrelv1.Command{
			Argv: []string{"sh", "-c", "cat; echo $B$A >&2; exit 3"}, Env: map[string]string{"B": "b", "A": "a=="},
			Cwd: "/",
		},
		Stdin: []byte("in"),
	}))
	if err != nil {
		t.Fatal(err)
	}
	m := res.Msg
	if string(m.GetStdout()) != "in" || string(m.GetStderr()) != "ba==\n" || m.GetStatus().GetCode() != 3 || m.GetCommandId() == "" {
		t.Errorf("result %v", m)
	}
	if e := g.Last(); fmt.Sprint(e.Env) != "[A=a== B=b]" || e.Cwd != "/" || e.OutputLimit != execapi.MaxCapture {
		t.Errorf("parameters %+v", e)
	}
	if _, err := c.Exec(t.Context(), request(&carrelv1.ExecRequest{
		Workspace: "demo", Command: command("true"),
		DiscardOutput: true,
	})); err != nil {
		t.Error(err)
	}
	if e := g.Last(); e.Stdin != execapi.Null || e.Stdout != execapi.Null || e.Stderr != execapi.Null {
		t.Errorf("streams of a discarding exec: %+v", e)
	}
	_, err = c.Exec(t.Context(), request(&carrelv1.ExecRequest{Workspace: "demo", Command: command("no-such-program")}))
	if connect.CodeOf(err) != connect.CodeNotFound || !strings.Contains(err.Error(), `cannot run "no-such-program": not found`) {
		t.Errorf("err = %v", err)
	}
}

func TestInvalidRequests(t *testing.T) {
	g := &apitest.Gate{}
	socket, _ := apitest.Serve(t, g, &alice, api.Options{})
	create(t, socket, "demo")
	w, c := workspacesOn(t, socket), commandsOn(t, socket)
	exec := func(m *carrelv1.ExecRequest) error {
		_, err := c.Exec(t.Context(), request(m))
		return err
	}
	detach := func(m *carrelv1.DetachRequest) error {
		_, err := c.Detach(t.Context(), request(m))
		return err
	}
	many := make([]string, execapi.MaxArgs+1)
	for i := range many {
		many[i] = "x"
	}
	for _, x := range []struct {
		name string
		err  error
		text string
	}{
		{"no workspace", exec(&carrelv1.ExecRequest{Command: command("id")}), `"workspace"`},
		{"no command", exec(&carrelv1.ExecRequest{Workspace: "demo"}), "argv names no program"},
		{"empty program", exec(&carrelv1.ExecRequest{Workspace: "demo", Command: command("", "x")}), "argv names no program"},
		{"NUL in argv", exec(&carrelv1.ExecRequest{Workspace: "demo", Command: command("echo", "a\x00b")}), "NUL"},
		{"too many", exec(&carrelv1.ExecRequest{Workspace: "demo", Command: command(many...)}), "4097"},
		{
			"too long", exec(&carrelv1.ExecRequest{Workspace: "demo", Command: command("echo", strings.Repeat("x", execapi.MaxArgBytes))}),
			"bytes together",
		},
		{"= in a name", exec(&carrelv1.ExecRequest{Workspace: "demo", Command: &carrelv1.Command{
			Argv: []string{"id"},
			Env:  map[string]string{"A=B": "c"},
		}}), "in env is not a variable"},
		{"no name", exec(&carrelv1.ExecRequest{Workspace: "demo", Command: &carrelv1.Command{
			Argv: []string{"id"},
			Env:  map[string]string{"": "c"},
		}}), "in env is not a variable"},
		{"relative cwd", exec(&carrelv1.ExecRequest{Workspace: "demo", Command: &carrelv1.Command{Argv: []string{"id"}, Cwd: "x"}}), "its cwd"},
		{"negative timeout", exec(&carrelv1.ExecRequest{Workspace: "demo", Command: &carrelv1.Command{
			Argv:      []string{"id"},
			TimeoutMs: -1,
		}}), "its timeout"},
		{
			"long grace", exec(&carrelv1.ExecRequest{Workspace: "demo", Command: &carrelv1.Command{Argv: []string{"id"}, GraceMs: 60_001}}),
			"its grace",
		},
		{
			"much stdin", exec(&carrelv1.ExecRequest{Workspace: "demo", Command: command("cat"), Stdin: make([]byte, execapi.MaxCapture+1)}),
			`"stdin"`,
		},
		{
			"much output", detach(&carrelv1.DetachRequest{Workspace: "demo", Command: command("cat"), OutputLimit: execapi.MaxOutput + 1}),
			"output_limit",
		},
		{"wide terminal", detach(&carrelv1.DetachRequest{
			Workspace: "demo", Command: command("cat"),
			Terminal: &carrelv1.WindowSize{Cols: 1 << 16},
		}), "terminal.cols"},
		{"signal 65", func() error {
			_, err := c.Signal(t.Context(), request(&carrelv1.SignalRequest{Workspace: "demo", CommandId: "c-0123456789abcdef", Signal: 65}))
			return err
		}(), `"signal"`},
		{"command id", func() error {
			_, err := c.Signal(t.Context(), request(&carrelv1.SignalRequest{Workspace: "demo", CommandId: "../x"}))
			return err
		}(), "command id"},
		{"key", func() error {
			_, err := w.Create(t.Context(), request(&carrelv1.CreateRequest{Key: "a\nb"}))
			return err
		}(), "invisible"},
		{"limit", func() error {
			_, err := w.Create(t.Context(), request(&carrelv1.CreateRequest{Key: "x", Limits: &carrelv1.Limits{Pids: 1}}))
			return err
		}(), "pids"},
	} {
		if connect.CodeOf(x.err) != connect.CodeInvalidArgument || !strings.Contains(fmt.Sprint(x.err), x.text) {
			t.Errorf("%s: %v, want invalid_argument with %q", x.name, x.err, x.text)
		}
	}
	if g.Last().Argv != nil {
		t.Errorf("an invalid request ran %q", g.Last().Argv)
	}
	err := exec(&carrelv1.ExecRequest{Workspace: "demo", Command: command("cat"), Stdin: make([]byte, 2<<20)})
	if connect.CodeOf(err) != connect.CodeResourceExhausted {
		t.Errorf("a message of 2 MiB: %v", err)
	}
}

func TestDetachLogsAndSignal(t *testing.T) {
	socket, _ := apitest.Serve(t, &apitest.Gate{}, &alice, api.Options{})
	create(t, socket, "demo")
	c := commandsOn(t, socket)
	d, err := c.Detach(t.Context(), request(&carrelv1.DetachRequest{
		Workspace: "demo",
		Command:   command("sh", "-c", "echo one; exec sleep 60"),
	}))
	if err != nil {
		t.Fatal(err)
	}
	cmd := d.Msg.GetCommandId()
	logs, err := c.Logs(t.Context(), request(&carrelv1.LogsRequest{Workspace: "demo", CommandId: cmd, Follow: true}))
	if err != nil {
		t.Fatal(err)
	}
	defer logs.Close()
	if !logs.Receive() || string(logs.Msg().GetData()) != "one\n" {
		t.Fatalf("first piece %v, %v", logs.Msg(), logs.Err())
	}
	list, err := c.ListCommands(t.Context(), request(&carrelv1.ListCommandsRequest{Workspace: "demo"}))
	if err != nil || len(list.Msg.GetCommands()) != 1 || list.Msg.GetCommands()[0].GetCommandId() != cmd ||
		!list.Msg.GetCommands()[0].GetDetached() {
		t.Errorf("commands %v, %v", list, err)
	}
	if _, err := c.Signal(t.Context(), request(&carrelv1.SignalRequest{Workspace: "demo", CommandId: cmd, Signal: 9})); err != nil {
		t.Fatal(err)
	}
	var last *carrelv1.LogsResponse
	for logs.Receive() {
		last = logs.Msg()
	}
	if logs.Err() != nil || last.GetStatus().GetCode() != 137 {
		t.Errorf("last piece %v, %v", last, logs.Err())
	}
}

func TestAuditFollowEndsWithTheServer(t *testing.T) {
	g := &apitest.Gate{}
	socket, server := apitest.Serve(t, g, &root, api.Options{})
	g.Record(root, "one")
	c := carrelv1connect.NewAuditServiceClient(unix(t, socket, false), "http://carrel")
	s, err := c.Show(t.Context(), request(&carrelv1.ShowRequest{Follow: true}))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if !s.Receive() || !bytes.Contains(s.Msg().GetLines()[0], []byte(`"one"`)) {
		t.Fatalf("first %v, %v", s.Msg(), s.Err())
	}
	g.Record(root, "two")
	if !s.Receive() || !bytes.Contains(s.Msg().GetLines()[0], []byte(`"two"`)) {
		t.Fatalf("second %v, %v", s.Msg(), s.Err())
	}
	server.Drain(t.Context())
	if s.Receive() || s.Err() != nil {
		t.Errorf("after the end: %v", s.Err())
	}
}
