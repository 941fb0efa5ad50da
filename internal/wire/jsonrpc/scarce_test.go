package jsonrpc_test

import (
	"context"
	"errors"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/wire/jsonrpc"
)

// limitFiles lowers how many descriptors this process may have until the returned function is called.
func limitFiles(t *testing.T, most uint64) (restore func()) {
	t.Helper()
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: most, Max: was.Max}); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
			t.Fatal(err)
		}
	}
}

// A process that may open no more descriptors cannot take those of a message: the message fails, and says so, and the
// connection goes on. Before, the end of one caller's limit was the end of everybody's commands.
func TestNoDescriptorForAMessage(t *testing.T) {
	for name, c := range map[string]struct{ out, back int }{"a request": {2, 0}, "a reply": {0, 2}} {
		t.Run(name, func(t *testing.T) {
			var files []*os.File
			for range 2 {
				_, w := pipe(t)
				files = append(files, w)
			}
			handler := func(_ context.Context, _ *jsonrpc.Conn, r *jsonrpc.Request) (any, []*os.File, error) {
				if r.Method != "back" {
					return "there", nil, nil
				}
				return "there", files, nil
			}
			conn, _ := pair(t, jsonrpc.Config{MaxFDs: 3}, jsonrpc.Config{MaxFDs: 3, Handler: handler})
			method := "out"
			if c.back > 0 {
				method = "back"
			}
			var sent []*os.File
			if c.out > 0 {
				sent = files
			}
			restore := limitFiles(t, 3) // which are taken
			_, err := conn.Call(t.Context(), method, nil, nil, sent...)
			restore()
			if !errdefs.IsResourceExhausted(err) || !jsonrpc.Undelivered(err) || !strings.Contains(err.Error(), "0 of them came") {
				t.Errorf("the error is %v", err)
			}
			var got string
			if _, err := conn.Call(t.Context(), "out", nil, &got); err != nil || got != "there" {
				t.Errorf("the connection after that: %q, %v", got, err)
			}
		})
	}
}

// The kernel bounds the descriptors of a user that are in sockets and not yet taken. Beyond, one message fails.
func TestTooManyInFlight(t *testing.T) {
	conn, _ := pair(t, jsonrpc.Config{MaxFDs: 3}, jsonrpc.Config{MaxFDs: 3, Handler: swap})
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pair[0])
	defer unix.Close(pair[1])
	_, w := pipe(t)

	failed := make(chan error)
	go func() {
		// Root may pass the bound. The thread that gives that up ends with this goroutine.
		runtime.LockOSThread()
		failed <- func() error {
			header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
			var data [2]unix.CapUserData
			if err := unix.Capget(&header, &data[0]); err != nil {
				return err
			}
			data[0].Effective &^= 1<<unix.CAP_SYS_RESOURCE | 1<<unix.CAP_SYS_ADMIN
			if err := unix.Capset(&header, &data[0]); err != nil {
				return err
			}
			defer limitFiles(t, 256)()
			many := make([]int, 250)
			for i := range many {
				many[i] = pair[0]
			}
			for err == nil {
				err = unix.Sendmsg(pair[0], []byte("x"), unix.UnixRights(many...), nil, unix.MSG_DONTWAIT)
			}
			if !errors.Is(err, unix.ETOOMANYREFS) {
				return err
			}
			_, err := conn.Call(context.Background(), "swap", nil, nil, w)
			return err
		}()
	}()
	if err := <-failed; !errdefs.IsResourceExhausted(err) || !errors.Is(err, unix.ETOOMANYREFS) || jsonrpc.Undelivered(err) {
		t.Errorf("the error is %v", err)
	}
	if conn.Err() != nil {
		t.Fatalf("the connection ended: %v", conn.Err())
	}
	var n int
	got, err := conn.Call(t.Context(), "swap", nil, &n, w)
	if err != nil || len(got) != 1 {
		t.Fatalf("the connection after that: %d, %v", len(got), err)
	}
	_ = got[0].Close()
}
