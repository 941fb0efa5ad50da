package namespace_test

import (
	"os"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/wire/execapi"
	"github.com/carrel-dev/carrel/internal/wire/jsonrpc"
)

// A daemon without a free descriptor cannot take the streams of a command that was started. That command is ended, because
// nobody has it, and those of others go on.
func TestSpawnWithoutDescriptors(t *testing.T) {
	ended := make(chan execapi.StopTaskParams, 1)
	var begun int
	f := setUp(t, table{
		execapi.MethodExec: func(*jsonrpc.Conn, *jsonrpc.Request) (any, []*os.File, error) {
			if begun++; begun == 1 {
				return execapi.ExecResult{PID: 1}, nil, nil
			}
			r, w, err := os.Pipe()
			if err != nil {
				return nil, nil, err
			}
			var was unix.Rlimit
			_ = unix.Getrlimit(unix.RLIMIT_NOFILE, &was)
			t.Cleanup(func() { _ = unix.Setrlimit(unix.RLIMIT_NOFILE, &was) })
			err = unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: was.Max})
			return execapi.ExecResult{PID: 2}, []*os.File{r, w}, err
		},
		execapi.MethodStopTask: func(c *jsonrpc.Conn, r *jsonrpc.Request) (any, []*os.File, error) {
			s := decode[execapi.StopTaskParams](t, r)
			ended <- s
			return struct{}{}, nil, nil
		},
	})
	first, err := f.Spawn(t.Context(), may(name), command(), false)
	if err != nil {
		t.Fatal(err)
	}
	second := command()
	second.ID += "2"
	if _, err := f.Spawn(t.Context(), may(name), second, false); !errdefs.IsResourceExhausted(err) {
		t.Errorf("the error is %v", err)
	}
	select {
	case s := <-ended:
		if s.ID != second.ID || !s.Hangup {
			t.Errorf("ended was %+v", s)
		}
	case <-time.After(10 * time.Second):
		t.Error("it runs on, and nobody has it")
	}
	if err := first.Close(); err != nil {
		t.Errorf("the link: %v", err)
	}
	if s := <-ended; s.ID == second.ID {
		t.Errorf("ended was %+v", s)
	}
}
