// Package thread runs code on an operating system thread that serves nothing else.
//
// In Linux ids, capabilities, groups and securebits belong to a thread. Code that gives
// such a thing up, or joins a group that it cannot leave, must not do so on a thread that
// the Go scheduler hands to other goroutines later.
package thread

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// Throwaway runs f on a thread that ends with it, and with it what f did to that thread.
// It returns what f returns. The first thread of a process cannot end: where the
// scheduler picks that one, it is kept busy while another takes its place.
func Throwaway(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
		if unix.Gettid() == unix.Getpid() {
			err := Throwaway(f)
			runtime.UnlockOSThread() // nothing was done to this one
			done <- err
			return
		}
		done <- f()
	}()
	return <-done
}
