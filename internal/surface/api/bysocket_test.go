package api_test

import (
	"encoding/json"
	"errors"
	"os"
	"testing"

	"github.com/containerd/errdefs"
	unixsys "golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/surface/api"
	"github.com/carrel-dev/carrel/internal/surface/api/apitest"
	"github.com/carrel-dev/carrel/internal/wire/fdapi"
)

// sockets are both ends of a stream socket.
func sockets(t *testing.T) (ours, theirs *os.File) {
	t.Helper()
	pair, err := unixsys.Socketpair(unixsys.AF_UNIX, unixsys.SOCK_STREAM|unixsys.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	ours, theirs = os.NewFile(uintptr(pair[0]), "ours"), os.NewFile(uintptr(pair[1]), "theirs")
	t.Cleanup(func() { ours.Close(); theirs.Close() })
	return ours, theirs
}

// Nothing but one connected stream socket goes to the program for files: not a file, a listener, a socket of another kind, or none.
func TestOnlyASocketTakesFiles(t *testing.T) {
	socket, _ := apitest.Serve(t, &apitest.Gate{}, &alice, api.Options{})
	create(t, socket, "demo")
	file, err := os.Create(t.TempDir() + "/file")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	packets, err := unixsys.Socketpair(unixsys.AF_UNIX, unixsys.SOCK_SEQPACKET|unixsys.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unixsys.Close(packets[0])
	listener, err := unixsys.Socket(unixsys.AF_UNIX, unixsys.SOCK_STREAM|unixsys.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(unixsys.Bind(listener, &unixsys.SockaddrUnix{}), unixsys.Listen(listener, 1)); err != nil { // a name of the kernel's
		t.Fatal(err)
	}
	alone, err := unixsys.Socket(unixsys.AF_UNIX, unixsys.SOCK_STREAM|unixsys.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	for what, f := range map[string]*os.File{
		"none": nil, "a file": file, "packets": os.NewFile(uintptr(packets[1]), ""), "a listener": os.NewFile(uintptr(listener), ""),
		"not connected": os.NewFile(uintptr(alone), ""),
	} {
		var with []*os.File
		if f != nil {
			defer f.Close()
			with = []*os.File{f}
		}
		for _, method := range []string{fdapi.Read, fdapi.Write} {
			c, _ := handOver(t, socket)
			_, err := c.Call(t.Context(), method, json.RawMessage(`{"workspace":"demo","path":"a"}`), nil, with...)
			if !errdefs.IsInvalidArgument(err) {
				t.Errorf("%s by %s: %v", method, what, err)
			}
		}
	}
}
