package namespace_test

import (
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/spec/permit"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
	"github.com/carrel-dev/carrel/internal/wire/jsonrpc"
)

// What an executor sends for a socket of a task is taken only if it is one.
func TestListenTakesOnlyTheSocket(t *testing.T) {
	task := id.NewCommand()
	var send atomic.Pointer[[]*os.File] // the executor's side has goroutines of its own
	f := setUp(t, table{execapi.MethodListen: func(*jsonrpc.Conn, *jsonrpc.Request) (any, []*os.File, error) {
		return struct{}{}, *send.Load(), nil
	}})
	p, end := permit.Issue(name)
	defer end()
	socket := func(network, address string) *os.File {
		t.Helper()
		l, err := new(net.ListenConfig).Listen(t.Context(), network, address)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		file, err := l.(interface{ File() (*os.File, error) }).File()
		if err != nil {
			t.Fatal(err)
		}
		return file
	}
	pair := func() *os.File {
		l, err := new(net.ListenConfig).Listen(t.Context(), "unix", execapi.Listening(task))
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		c, err := new(net.Dialer).DialContext(t.Context(), "unix", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		in, err := l.Accept() // it has the name too
		if err != nil {
			t.Fatal(err)
		}
		defer in.Close()
		file, err := in.(*net.UnixConn).File()
		if err != nil {
			t.Fatal(err)
		}
		return file
	}
	file := func() *os.File {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		w.Close()
		return r
	}
	for what, files := range map[string][]*os.File{
		"none": nil, "two": {file(), file()}, "a pipe": {file()}, "TCP": {socket("tcp", "127.0.0.1:0")},
		"another name": {socket("unix", "@carrel-test-other-"+string(task))}, "one that is connected": {pair()},
		"packets": {socket("unixpacket", execapi.Listening(task))},
	} {
		send.Store(&files)
		if l, err := f.Listen(t.Context(), p, task); err == nil {
			l.Close()
			t.Errorf("%s was taken for the socket", what)
		} else if !errdefs.IsInternal(err) {
			t.Errorf("%s: %v", what, err)
		}
	}
	send.Store(&[]*os.File{socket("unix", execapi.Listening(task))})
	l, err := f.Listen(t.Context(), p, task)
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
}

// An executor of an older release is said to be one.
func TestListenOfAnOlderExecutor(t *testing.T) {
	f := setUp(t, nil)
	p, end := permit.Issue(name)
	defer end()
	_, err := f.Listen(t.Context(), p, id.NewCommand())
	if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "stop and start the workspace") {
		t.Errorf("%v", err)
	}
	if _, err := f.Listen(t.Context(), permit.Permit{}, id.NewCommand()); !errdefs.IsPermissionDenied(err) {
		t.Errorf("without a permit: %v", err)
	}
}
