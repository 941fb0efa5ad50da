package cli

import (
	"context"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// onKey calls do when a key is pressed on the terminal, and shows no key there. Signals of the terminal
// stay what they are. The function that it returns puts the terminal back. Without a terminal, or in the
// background, there are no keys.
func (a *app) onKey(key byte, do func()) (end func(), err error) {
	if !isTerminal(a.In) {
		return func() {}, nil
	}
	restore, err := eachKey(a.In)
	if err != nil {
		return nil, fmt.Errorf("cannot make the terminal send each key: %w", err)
	}
	if restore == nil {
		return func() {}, nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if a.pressed(ctx, key) {
			do()
		}
	}()
	return func() {
		cancel()
		<-done
		restore()
	}, nil
}

// eachKey makes a terminal send each key at once and show none. It returns nil in the background, where a
// change of the terminal would stop the process.
func eachKey(f *os.File) (restore func(), err error) {
	var old *unix.Termios
	err = withFD(f, func(fd int) error {
		// A terminal that does not control this session has no foreground, and answers with an error.
		if front, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP); err == nil && front != unix.Getpgrp() {
			return nil
		}
		got, err := unix.IoctlGetTermios(fd, unix.TCGETS)
		if err != nil {
			return err
		}
		keys := *got
		keys.Lflag &^= unix.ICANON | unix.ECHO
		keys.Cc[unix.VMIN], keys.Cc[unix.VTIME] = 1, 0
		old = got
		return unix.IoctlSetTermios(fd, unix.TCSETS, &keys)
	})
	if err != nil || old == nil {
		return nil, err
	}
	// There is nothing left to try if it fails.
	return func() { _ = withFD(f, func(fd int) error { return unix.IoctlSetTermios(fd, unix.TCSETS, old) }) }, nil
}

// pressed reads until a key is pressed, and reports whether it was before ctx or the input ended.
func (a *app) pressed(ctx context.Context, key byte) bool {
	woken, wake, err := os.Pipe()
	if err != nil {
		return false
	}
	defer woken.Close()
	defer wake.Close()
	defer context.AfterFunc(ctx, func() { _ = wake.Close() })()
	one := make([]byte, 1)
	for {
		if await(a.In, woken) != nil || ctx.Err() != nil {
			return false
		}
		if n, err := a.In.Read(one); err != nil || n == 0 {
			return false
		}
		if one[0] == key {
			return true
		}
	}
}
