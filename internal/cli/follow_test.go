package cli_test

import (
	"bufio"
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/gen/carrel/v1/carrelv1connect"
	carrel "github.com/carrel-dev/carrel/sdk/go"
)

// followed is a daemon that loses its connection behind the first message of a task, and goes on from it once it is there again.
type followed struct {
	carrelv1connect.UnimplementedTaskServiceHandler
	asked chan int64 // from where messages were asked for
}

func (f *followed) FollowTask(_ context.Context, r *connect.Request[carrelv1.FollowTaskRequest],
	s *connect.ServerStream[carrelv1.FollowTaskResponse],
) error {
	after := r.Msg.GetAfter()
	err := s.Send(&carrelv1.FollowTaskResponse{Message: &carrelv1.TaskMessage{
		Number: after + 1, Kind: "message", Body: []byte(`{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"word"}}`),
	}})
	f.asked <- after // once its message is on the way, which the end of the daemon does not take back
	if after == 0 {
		panic(http.ErrAbortHandler)
	}
	return errors.Join(err, s.Send(&carrelv1.FollowTaskResponse{Task: &carrelv1.Task{State: "completed"}}))
}

// A daemon that ends and leaves its socket is waited for by who follows a task, which then goes on where it was.
func TestFollowersWaitForTheDaemon(t *testing.T) {
	t.Parallel()
	f := &followed{asked: make(chan int64, 8)}
	path := filepath.Join(t.TempDir(), "s")
	serve := func() *http.Server {
		l, err := new(net.ListenConfig).Listen(t.Context(), "unix", path)
		if err != nil {
			t.Fatal(err)
		}
		l.(*net.UnixListener).SetUnlinkOnClose(false) // as one that is killed
		_, h := carrelv1connect.NewTaskServiceHandler(f)
		s := &http.Server{Handler: h, ReadHeaderTimeout: time.Minute}
		go func() { _ = s.Serve(l) }()
		t.Cleanup(func() { _ = s.Close() })
		return s
	}
	first := serve()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.CommandContext(t.Context(), self, "task", "follow", "demo", "c-1")
	c.Env = append(os.Environ(), asCLI+"=1", carrel.HostEnv+"=unix://"+path)
	var out strings.Builder
	c.Stdout = &out
	said, err := c.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	if after := <-f.asked; after != 0 {
		t.Errorf("first it asks for messages after %d", after)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(said)
	if !lines.Scan() || lines.Text() != "carrel: the daemon does not answer; it is waited for" {
		t.Fatalf("while there is no daemon it says %q", lines.Text())
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	serve()
	if after := <-f.asked; after != 1 {
		t.Errorf("then it asks for messages after %d", after)
	}
	for lines.Scan() {
		t.Errorf("it says %q", lines.Text())
	}
	if err := c.Wait(); err != nil || strings.Count(out.String(), "word") != 2 {
		t.Errorf("it ends with %v and prints %q", err, out.String())
	}
}
