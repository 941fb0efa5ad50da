package executor

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
	"github.com/carrel-dev/carrel/internal/wire/jsonrpc"
)

// listen opens a socket at which programs of the workspace reach whoever asked. Its name is abstract: it is known in the
// network of the workspace alone, and ends with the last descriptor, so that no end of anybody leaves a file behind.
func (p *peer) listen(_ *jsonrpc.Request, in *execapi.ListenParams) (any, []*os.File, error) {
	if _, err := id.ParseCommand(string(in.Task)); err != nil {
		return nil, nil, err
	}
	name := execapi.Listening(in.Task)
	fail := func(err error) (any, []*os.File, error) {
		return nil, nil, fmt.Errorf("cannot listen at %s in the workspace: %w", name, err)
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return fail(err)
	}
	f := os.NewFile(uintptr(fd), name)
	if err = unix.Bind(fd, &unix.SockaddrUnix{Name: name}); err == nil {
		err = unix.Listen(fd, execapi.Backlog)
	}
	if err != nil {
		f.Close()
		return fail(err)
	}
	return struct{}{}, []*os.File{f}, nil
}
