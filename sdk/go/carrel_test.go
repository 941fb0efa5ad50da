package carrel_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/containerd/errdefs"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/surface/api"
	"github.com/carrel-dev/carrel/internal/surface/api/apitest"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
	carrel "github.com/carrel-dev/carrel/sdk/go"
	"github.com/carrel-dev/carrel/test/leaks"
)

func TestMain(m *testing.M) { leaks.Main(m) }

var alice = principal.Principal{Kind: principal.User, UID: 1000, GID: 1000}

// desk serves a double with one workspace, "demo".
func desk(t *testing.T) (*carrel.Client, *apitest.Gate, *api.Server) {
	t.Helper()
	g := &apitest.Gate{}
	socket, server := apitest.Serve(t, g, &alice, api.Options{Version: "v1"})
	c, err := carrel.Dial(t.Context(), "unix://"+socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if _, err := c.Workspaces().Create(t.Context(), connect.NewRequest(&carrelv1.CreateRequest{Key: "demo"})); err != nil {
		t.Fatal(err)
	}
	return c, g, server
}

func TestHosts(t *testing.T) {
	t.Setenv(carrel.HostEnv, "")
	c, err := carrel.New(carrel.Options{})
	if err != nil || c.Host() != carrel.DefaultHost {
		t.Errorf("default: %v, %v", c, err)
	}
	t.Setenv(carrel.HostEnv, "unix:///run/other.sock")
	if c, err := carrel.New(carrel.Options{}); err != nil || c.Host() != "unix:///run/other.sock" {
		t.Errorf("environment: %v, %v", c, err)
	}
	if c, err := carrel.New(carrel.Options{Host: "unix:///a"}); err != nil || c.Host() != "unix:///a" {
		t.Errorf("option: %v, %v", c, err)
	}
	for _, host := range []string{"tcp://x:1", "/run/carrel.sock", "unix://relative", "unix:/x", "https://x"} {
		if _, err := carrel.New(carrel.Options{Host: host}); !errdefs.IsInvalidArgument(err) {
			t.Errorf("host %q: %v", host, err)
		}
	}
}

func TestReachErrors(t *testing.T) {
	dir, err := os.MkdirTemp("", "carrel")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	dead := filepath.Join(dir, "dead")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: dead, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	for path, text := range map[string]string{filepath.Join(dir, "none"): "no such socket", dead: "nothing listens"} {
		_, err := carrel.Dial(t.Context(), "unix://"+path)
		if !errdefs.IsUnavailable(err) || !strings.HasPrefix(err.Error(), "cannot reach carrel at "+path) ||
			!strings.Contains(err.Error(), text) {
			t.Errorf("Dial: %v", err)
		}
		c, err := carrel.New(carrel.Options{Host: "unix://" + path})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Start(t.Context(), "demo", carrel.Spec{Argv: []string{"id"}}); !errdefs.IsUnavailable(err) ||
			!strings.Contains(err.Error(), text) {
			t.Errorf("Start: %v", err)
		}
		if s, err := c.Commands().Logs(t.Context(), connect.NewRequest(&carrelv1.LogsRequest{})); err == nil {
			s.Receive()
			if !errdefs.IsUnavailable(s.Err()) || !strings.Contains(s.Err().Error(), text) {
				t.Errorf("Logs: %v", s.Err())
			}
			s.Close()
		} else if !errdefs.IsUnavailable(err) {
			t.Errorf("Logs: %v", err)
		}
	}
}

func TestASocketThatIsNotCarrels(t *testing.T) {
	dir, err := os.MkdirTemp("", "carrel")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	for name, answer := range map[string]string{
		"other protocol": "220 mail.example ESMTP\r\n",
		"flood":          strings.Repeat("x", 64<<10),
		"other server":   "HTTP/1.1 404 Not Found\r\nConnection: close\r\n\r\n404 page not found",
		"old version":    "HTTP/1.1 426 Upgrade Required\r\nUpgrade: carrel-fds/2\r\n\r\n",
	} {
		l, err := new(net.ListenConfig).Listen(t.Context(), "unix", filepath.Join(dir, "s"))
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			s, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(s, answer)
			s.Close()
		}()
		c, err := carrel.New(carrel.Options{Host: "unix://" + l.Addr().String()})
		if err != nil {
			t.Fatal(err)
		}
		_, err = c.Start(t.Context(), "demo", carrel.Spec{Argv: []string{"id"}})
		if err == nil || !strings.HasPrefix(err.Error(), "cannot ") {
			t.Errorf("%s: %v", name, err)
		}
		<-done
		l.Close()
	}
}

func TestExec(t *testing.T) {
	c, g, _ := desk(t)
	spec := carrel.Spec{
		Argv: []string{"sh", "-c", "cat; echo $A >&2; exit 3"}, Env: []string{"A=b=c"}, Dir: "/", Timeout: time.Minute - 500*time.Microsecond,
	}
	res, err := c.Exec(t.Context(), "demo", spec, []byte("in"))
	if err != nil || string(res.Stdout) != "in" || string(res.Stderr) != "b=c\n" || res.Status.Code != 3 || res.ID == "" {
		t.Errorf("%+v, %v", res, err)
	}
	if e := g.Last(); e.TimeoutMS != 60_000 || e.Cwd != "/" {
		t.Errorf("parameters %+v", e)
	}
	_, err = c.Exec(t.Context(), "demo", carrel.Spec{Argv: []string{"no-such-program"}}, nil)
	if !errdefs.IsNotFound(err) || !carrel.IsCommandError(err) {
		t.Errorf("no program: %v", err)
	}
	_, err = c.Exec(t.Context(), "nope", carrel.Spec{Argv: []string{"id"}}, nil)
	if !errdefs.IsNotFound(err) || carrel.IsCommandError(err) || !strings.HasPrefix(err.Error(), "cannot find workspace") {
		t.Errorf("no workspace: %v", err)
	}
	for name, s := range map[string]carrel.Spec{
		"variable": {Argv: []string{"id"}, Env: []string{"x"}},
		"argument": {Argv: []string{"echo", "\xff"}},
		"nothing":  {},
	} {
		if _, err := c.Exec(t.Context(), "demo", s, nil); !errdefs.IsInvalidArgument(err) {
			t.Errorf("bad %s: %v", name, err)
		}
		if _, err := c.Start(t.Context(), "demo", s); !errdefs.IsInvalidArgument(err) {
			t.Errorf("start of a bad %s: %v", name, err)
		}
	}
	// The largest there is, in every respect.
	big := carrel.Spec{Argv: []string{"sh", "-c", "cat; head -c 300000 /dev/zero >&2", strings.Repeat("x", 100<<10)}}
	if res, err = c.Exec(t.Context(), "demo", big, make([]byte, 256<<10)); err != nil || len(res.Stdout) != 256<<10 ||
		len(res.Stderr) != 256<<10 || res.StderrLost != 300000-256<<10 {
		t.Errorf("the largest: %v", err)
	}
}

func TestExecEndsWithItsContext(t *testing.T) {
	c, g, _ := desk(t)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := c.Exec(ctx, "demo", carrel.Spec{Argv: []string{"sleep", "60"}}, nil)
		done <- err
	}()
	if err := g.Await(t.Context(), func(e execapi.ExecParams, _ execapi.ResizeParams) bool { return len(e.Argv) > 0 }); err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("err = %v", err)
	}
	idle(t, g)
	// The client is as good as before.
	if _, err := c.Exec(t.Context(), "demo", carrel.Spec{Argv: []string{"true"}}, nil); err != nil {
		t.Error(err)
	}
}

func TestRun(t *testing.T) {
	c, g, server := desk(t)
	run := func(ctx context.Context, s carrel.Spec, x carrel.Streams) (carrel.Status, error) {
		t.Helper()
		cmd, err := c.Start(ctx, "demo", s)
		if err != nil {
			t.Fatal(err)
		}
		return cmd.Run(ctx, x)
	}
	t.Run("streams", func(t *testing.T) {
		var out, errs bytes.Buffer
		st, err := run(t.Context(), carrel.Spec{Argv: []string{"sh", "-c", "cat; echo err >&2; exit 5"}, Stdin: true},
			carrel.Streams{Stdin: strings.NewReader("in"), Stdout: &out, Stderr: &errs})
		if err != nil || st.Code != 5 || out.String() != "in" || errs.String() != "err\n" {
			t.Errorf("%+v, %v, %q, %q", st, err, out.String(), errs.String())
		}
	})
	t.Run("much, to a file", func(t *testing.T) {
		f, err := os.Create(filepath.Join(t.TempDir(), "out"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		st, err := run(t.Context(), carrel.Spec{Argv: []string{"head", "-c", "20000000", "/dev/zero"}}, carrel.Streams{Stdout: f})
		if i, _ := f.Stat(); err != nil || st.Code != 0 || i.Size() != 20_000_000 {
			t.Errorf("%+v, %v, %d bytes", st, err, i.Size())
		}
	})
	t.Run("a reader that goes", func(t *testing.T) {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		r.Close()
		st, err := run(t.Context(), carrel.Spec{Argv: []string{"cat", "/dev/zero"}}, carrel.Streams{Stdout: w})
		if err != nil || st.Signal != 13 {
			t.Errorf("%+v, %v", st, err)
		}
	})
	t.Run("an output held open", func(t *testing.T) {
		var out bytes.Buffer
		st, err := run(t.Context(), carrel.Spec{Argv: []string{"sh", "-c", "setsid sleep 30 & echo out"}}, carrel.Streams{Stdout: &out})
		if err != nil || st.Code != 0 || out.String() != "out\n" {
			t.Errorf("%+v, %v, %q", st, err, out.String())
		}
	})
	t.Run("terminal", func(t *testing.T) {
		var out bytes.Buffer
		st, err := run(
			t.Context(), carrel.Spec{Argv: []string{"stty", "size"}, Terminal: &carrel.WindowSize{Rows: 7, Cols: 9}}, carrel.Streams{Stdout: &out},
		)
		if err != nil || st.Code != 0 || !strings.Contains(out.String(), "7 9") {
			t.Errorf("%+v, %v, %q", st, err, out.String())
		}
	})
	t.Run("cancel", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cmd, err := c.Start(ctx, "demo", carrel.Spec{Argv: []string{"sleep", "60"}})
		if err != nil {
			t.Fatal(err)
		}
		cancel()
		if _, err := cmd.Run(ctx, carrel.Streams{}); !errors.Is(err, context.Canceled) && !errdefs.IsUnavailable(err) {
			t.Errorf("err = %v", err)
		}
		idle(t, g)
	})
	t.Run("the daemon goes", func(t *testing.T) {
		cmd, err := c.Start(t.Context(), "demo", carrel.Spec{Argv: []string{"sleep", "60"}})
		if err != nil {
			t.Fatal(err)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		server.Drain(ended)
		if _, err := cmd.Run(t.Context(), carrel.Streams{}); !errdefs.IsUnavailable(err) {
			t.Errorf("err = %v", err)
		}
		idle(t, g)
	})
}

func idle(t *testing.T, g *apitest.Gate) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := g.Idle(ctx); err != nil {
		t.Fatal(err)
	}
}

func TestSignalResizeStop(t *testing.T) {
	c, g, _ := desk(t)
	cmd, err := c.Start(t.Context(), "demo", carrel.Spec{Argv: []string{"sleep", "60"}, Terminal: &carrel.WindowSize{}})
	if err != nil {
		t.Fatal(err)
	}
	defer cmd.Close()
	if err := cmd.Resize(t.Context(), carrel.WindowSize{Rows: 3, Cols: 4}); err != nil || g.Resized().Rows != 3 || g.Resized().Cols != 4 {
		t.Errorf("resize: %v, %+v", err, g.Resized())
	}
	if err := cmd.Signal(t.Context(), 10); err != nil {
		t.Fatal(err)
	}
	st, err := cmd.Wait(t.Context())
	if err != nil || st.Signal != 10 || st.Code != 138 {
		t.Errorf("%+v, %v", st, err)
	}
	if err := cmd.Stop(t.Context(), 0); !errdefs.IsNotFound(err) {
		t.Errorf("stop of an ended command: %v", err)
	}
	if _, err := c.Start(t.Context(), "nope", carrel.Spec{Argv: []string{"id"}}); !errdefs.IsNotFound(err) {
		t.Errorf("no workspace: %v", err)
	}
}

func TestAttach(t *testing.T) {
	c, _, _ := desk(t)
	d, err := c.Commands().Detach(
		t.Context(), connect.NewRequest(
			&carrelv1.DetachRequest{Workspace: "demo", Command: &carrelv1.Command{Argv: []string{"sh", "-c", "echo out; exit 2"}}},
		),
	)
	if err != nil {
		t.Fatal(err)
	}
	a, err := c.Attach(t.Context(), "demo", d.Msg.GetCommandId(), true)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	if out, err := io.ReadAll(a.File); string(out) != "out\n" || err != nil {
		t.Errorf("%q, %v", out, err)
	}
	if _, err := c.Attach(t.Context(), "demo", "c-0000000000000000", false); !errdefs.IsNotFound(err) {
		t.Errorf("no command: %v", err)
	}
}

func TestStreamThroughTheDaemon(t *testing.T) {
	c, _, _ := desk(t)
	s := c.Commands().Stream(t.Context())
	if err := s.Send(&carrelv1.StreamRequest{
		Message: &carrelv1.StreamRequest_Start{Start: &carrelv1.StreamStart{Workspace: "nope", Command: &carrelv1.Command{Argv: []string{"id"}}}},
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Receive(); !errdefs.IsNotFound(err) {
		t.Errorf("err = %v", err)
	}
}
