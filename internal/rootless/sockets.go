package rootless

import (
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/boundary/runtime"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

// Sockets are our ends of the connections that an executor was started with: without root it
// listens on no socket. The zero value has none. Its methods must not be called concurrently.
type Sockets struct{ near []*os.File }

// Make makes a connection for each role and returns the executor's ends, which are the
// caller's to close, also after an error.
func (w *Sockets) Make() (far []*os.File, err error) {
	for _, role := range []execapi.Role{execapi.Control, execapi.Spawn} {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return far, fmt.Errorf("cannot make the sockets of the executor: %w", err)
		}
		w.near = append(w.near, os.NewFile(uintptr(pair[0]), string(role)))
		far = append(far, os.NewFile(uintptr(pair[1]), string(role)))
	}
	return far, nil
}

// Take hands out the connection for a role, once; after that, runtime.ErrNotRunning.
func (w *Sockets) Take(role execapi.Role) (*net.UnixConn, error) {
	for i, f := range w.near {
		if f == nil || f.Name() != string(role) {
			continue
		}
		w.near[i] = nil
		defer f.Close()
		c, err := net.FileConn(f)
		if err != nil {
			return nil, err
		}
		return c.(*net.UnixConn), nil
	}
	return nil, runtime.ErrNotRunning
}

// Close closes those that were not handed out.
func (w *Sockets) Close() {
	for _, f := range w.near {
		if f != nil {
			f.Close()
		}
	}
	w.near = nil
}
