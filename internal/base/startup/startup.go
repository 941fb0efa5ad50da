// Package startup is what a process and whoever started it tell each other: the starter, that the
// process may begin; the process, that it serves. The starter is "carrel up", by inherited
// descriptors, or systemd, by the socket that $NOTIFY_SOCKET names (sd_notify(3)).
package startup

import (
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/containerd/errdefs"
)

// Await waits for a line from descriptor fd: the starter has recorded the process by then. If the
// descriptor ends without one, the starter has ended. A negative fd is not waited for.
func Await(fd int) error {
	if fd < 0 {
		return nil
	}
	f := os.NewFile(uintptr(fd), "await")
	defer f.Close()
	if n, err := f.Read(make([]byte, 16)); n == 0 {
		return fmt.Errorf("cannot begin: the process that started this one has ended: %w: %w", err, errdefs.ErrUnavailable)
	}
	return nil
}

// notifySocket is the variable in which systemd names its socket.
const notifySocket = "NOTIFY_SOCKET"

// Ready tells the starter that the process serves: a line to descriptor fd, unless it is negative, and
// a message to systemd, if that started it.
func Ready(fd int) error {
	var err error
	if fd >= 0 {
		f := os.NewFile(uintptr(fd), "ready")
		_, err = f.WriteString("ready\n")
		err = errors.Join(err, f.Close())
	}
	if to := os.Getenv(notifySocket); to != "" {
		_ = os.Unsetenv(notifySocket) // for this process alone, and cannot fail
		err = errors.Join(err, notify(to))
	}
	if err != nil {
		return fmt.Errorf("cannot say that this process is ready: %w", err)
	}
	return nil
}

func notify(to string) error {
	// A leading @ is an abstract socket, in Go as in systemd.
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: to, Net: "unixgram"})
	if err != nil {
		return err
	}
	_, err = c.Write([]byte("READY=1"))
	return errors.Join(err, c.Close())
}
