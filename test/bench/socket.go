package main

import (
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// socketPair makes a pair of Unix stream sockets: one for us, one for a child.
func socketPair() (near net.Conn, far *os.File, err error) {
	p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	far = os.NewFile(uintptr(p[1]), "far")
	near, err = connOf(os.NewFile(uintptr(p[0]), "near"))
	if err != nil {
		far.Close()
		return nil, nil, err
	}
	return near, far, nil
}

// connOf takes over f, which is a socket.
func connOf(f *os.File) (net.Conn, error) {
	defer f.Close()
	return net.FileConn(f)
}
