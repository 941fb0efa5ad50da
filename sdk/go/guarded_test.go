package carrel_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/containerd/errdefs"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	carrel "github.com/carrel-dev/carrel/sdk/go"
)

// A daemon that was stopped takes connections, by its kernel, and answers nothing: no call waits for it without an end, whatever
// way it takes, and none that has begun.
func TestNothingWaitsForADaemonThatIsStopped(t *testing.T) {
	dir, err := os.MkdirTemp("", "cg")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket := filepath.Join(dir, "s")
	l, err := new(net.ListenConfig).Listen(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	c, err := carrel.New(carrel.Options{Host: "unix://" + socket, Patience: 300 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	stream := func(ctx context.Context, begun bool) error {
		s, err := c.Workspaces().Watch(ctx, connect.NewRequest(&carrelv1.WatchRequest{}))
		if err != nil {
			return err
		}
		defer s.Close()
		if begun && !s.Receive() {
			t.Error("the stream did not begin:", s.Err())
		}
		s.Receive()
		return s.Err()
	}
	t.Run("a stream that has begun", func(t *testing.T) {
		go func() {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { conn.Close() }) // which is not before the call has ended
			_, _ = conn.Read(make([]byte, 1<<10))
			_, _ = conn.Write([]byte("HTTP/1.1 200 OK\r\nContent-Type: application/connect+proto\r\n\r\n\x00\x00\x00\x00\x00"))
		}()
		isGivenUp(t, func(ctx context.Context) error { return stream(ctx, true) })
	})
	for name, call := range map[string]func(context.Context) error{
		"an answer": func(ctx context.Context) error {
			_, err := c.System().Version(ctx, connect.NewRequest(&carrelv1.VersionRequest{}))
			return err
		},
		"a stream": func(ctx context.Context) error { return stream(ctx, false) },
		"a stream both ways": func(ctx context.Context) error {
			_, err := c.DialPort(ctx, "demo", 80)
			return err
		},
		"a command": func(ctx context.Context) error {
			_, err := c.Exec(ctx, "demo", carrel.Spec{Argv: []string{"true"}}, nil)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) { isGivenUp(t, call) })
	}
}

func isGivenUp(t *testing.T, call func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := call(ctx); !errdefs.IsUnavailable(err) || !strings.HasPrefix(err.Error(), "cannot get an answer from carrel at unix://") {
		t.Errorf("%v", err)
	}
}
