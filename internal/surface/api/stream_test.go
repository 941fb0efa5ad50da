package api_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/gen/carrel/v1/carrelv1connect"
	"github.com/carrel-dev/carrel/internal/surface/api"
	"github.com/carrel-dev/carrel/internal/surface/api/apitest"
)

type stream = connect.BidiStreamForClient[carrelv1.StreamRequest, carrelv1.StreamResponse]

func start(t *testing.T, socket string, m *carrelv1.StreamStart) *stream {
	t.Helper()
	return startWith(t, commandsOn(t, socket), m)
}

func startWith(t *testing.T, c carrelv1connect.CommandServiceClient, m *carrelv1.StreamStart) *stream {
	t.Helper()
	s := c.Stream(t.Context())
	if err := s.Send(&carrelv1.StreamRequest{Message: &carrelv1.StreamRequest_Start{Start: m}}); err != nil {
		t.Fatal(err)
	}
	m1, err := s.Receive()
	if err != nil {
		t.Fatal(err)
	}
	if m1.GetCommandId() == "" {
		t.Fatalf("first message %v", m1)
	}
	return s
}

// drain reads a stream to its end.
func drain(s *stream) (stdout, stderr string, status *carrelv1.Status, err error) {
	for {
		m, err := s.Receive()
		if errors.Is(err, io.EOF) {
			return stdout, stderr, status, nil
		}
		if err != nil {
			return stdout, stderr, status, err
		}
		stdout += string(m.GetStdout())
		stderr += string(m.GetStderr())
		if m.GetExited() != nil {
			status = m.GetExited()
		}
	}
}

func TestStream(t *testing.T) {
	g := &apitest.Gate{}
	socket, _ := apitest.Serve(t, g, &alice, api.Options{})
	create(t, socket, "demo")
	send := func(s *stream, m *carrelv1.StreamRequest) {
		t.Helper()
		if err := s.Send(m); err != nil {
			t.Fatal(err)
		}
	}
	t.Run("stdin", func(t *testing.T) {
		s := start(t, socket, &carrelv1.StreamStart{Workspace: "demo", Command: command("sh", "-c", "cat; echo err >&2; exit 4"), Stdin: true})
		send(s, &carrelv1.StreamRequest{Message: &carrelv1.StreamRequest_Stdin{Stdin: []byte("in")}})
		send(s, &carrelv1.StreamRequest{Message: &carrelv1.StreamRequest_CloseStdin{CloseStdin: true}})
		out, errs, status, err := drain(s)
		if err != nil || out != "in" || errs != "err\n" || status.GetCode() != 4 {
			t.Errorf("%q, %q, %v, %v", out, errs, status, err)
		}
	})
	t.Run("large output", func(t *testing.T) {
		s := start(t, socket, &carrelv1.StreamStart{Workspace: "demo", Command: command("head", "-c", "3000000", "/dev/zero")})
		out, _, status, err := drain(s)
		if err != nil || len(out) != 3_000_000 || status.GetCode() != 0 {
			t.Errorf("%d bytes, %v, %v", len(out), status, err)
		}
	})
	t.Run("signal", func(t *testing.T) {
		s := start(t, socket, &carrelv1.StreamStart{Workspace: "demo", Command: command("sleep", "60")})
		send(s, &carrelv1.StreamRequest{Message: &carrelv1.StreamRequest_Signal{Signal: 15}})
		_, _, status, err := drain(s)
		if err != nil || status.GetCode() != 143 || status.GetSignal() != 15 {
			t.Errorf("%v, %v", status, err)
		}
	})
	t.Run("terminal", func(t *testing.T) {
		s := start(t, socket, &carrelv1.StreamStart{Workspace: "demo", Command: command("sh", "-c",
			"stty size; read x; stty size; echo $x"), Terminal: &carrelv1.WindowSize{Rows: 20, Cols: 70}})
		first, err := s.Receive()
		if err != nil || !strings.HasPrefix(string(first.GetStdout()), "20 70") {
			t.Fatalf("%v, %v", first, err)
		}
		send(s, &carrelv1.StreamRequest{Message: &carrelv1.StreamRequest_Resize{Resize: &carrelv1.WindowSize{Rows: 30, Cols: 80}}})
		send(s, &carrelv1.StreamRequest{Message: &carrelv1.StreamRequest_Stdin{Stdin: []byte("typed\n")}})
		out, _, status, err := drain(s)
		if err != nil || !strings.Contains(out, "30 80") || !strings.Contains(out, "typed") || status.GetCode() != 0 {
			t.Errorf("%q, %v, %v", out, status, err)
		}
	})
	t.Run("first message is not a start", func(t *testing.T) {
		s := commandsOn(t, socket).Stream(t.Context())
		send(s, &carrelv1.StreamRequest{Message: &carrelv1.StreamRequest_Signal{Signal: 15}})
		if _, err := s.Receive(); connect.CodeOf(err) != connect.CodeInvalidArgument {
			t.Errorf("err = %v", err)
		}
	})
	t.Run("stdin that was not asked for", func(t *testing.T) {
		s := start(t, socket, &carrelv1.StreamStart{Workspace: "demo", Command: command("sleep", "60")})
		send(s, &carrelv1.StreamRequest{Message: &carrelv1.StreamRequest_Stdin{Stdin: []byte("in")}})
		if _, _, _, err := drain(s); connect.CodeOf(err) != connect.CodeInvalidArgument {
			t.Errorf("err = %v", err)
		}
	})
	t.Run("a pipe held open after the end", func(t *testing.T) {
		// setsid takes the holder out of the process group that the double signals.
		s := start(t, socket, &carrelv1.StreamStart{Workspace: "demo", Command: command("sh", "-c", "setsid sleep 30 & echo out")})
		began := time.Now()
		out, _, status, err := drain(s)
		if err != nil || out != "out\n" || status.GetCode() != 0 || time.Since(began) > 20*time.Second {
			t.Errorf("%q, %v, %v after %v", out, status, err, time.Since(began))
		}
	})
}

// running reports whether the workspace lists a command that has not ended.
func running(t *testing.T, socket string) bool {
	t.Helper()
	list, err := commandsOn(t, socket).ListCommands(t.Context(), request(&carrelv1.ListCommandsRequest{Workspace: "demo"}))
	if err != nil {
		t.Fatal(err)
	}
	return len(list.Msg.GetCommands()) > 0
}

// idle waits until the command that was started is gone.
func idle(t *testing.T, g *apitest.Gate) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := g.Idle(ctx); err != nil {
		t.Fatal(err)
	}
}

func TestAStreamsClientThatGoesHangsTheCommandUp(t *testing.T) {
	g := &apitest.Gate{}
	socket, _ := apitest.Serve(t, g, &alice, api.Options{})
	create(t, socket, "demo")
	for name, argv := range map[string][]string{
		"silent":   {"sleep", "60"},
		"flooding": {"cat", "/dev/zero"},
	} {
		t.Run(name, func(t *testing.T) {
			client := unix(t, socket, true)
			tr := client.Transport.(*http.Transport)
			dial := tr.DialContext
			var conn net.Conn
			tr.DialContext = func(ctx context.Context, network, addr string) (_ net.Conn, err error) {
				conn, err = dial(ctx, network, addr)
				return conn, err
			}
			startWith(t, carrelv1connect.NewCommandServiceClient(client, "http://carrel"),
				&carrelv1.StreamStart{Workspace: "demo", Command: command(argv...), Stdin: true})
			if !running(t, socket) {
				t.Fatal("the command does not run")
			}
			conn.Close()
			idle(t, g)
		})
	}
}
