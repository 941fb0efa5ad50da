// Package thread runs code on an operating system thread of its own.
//
// In Linux ids, capabilities, groups and securebits belong to a thread. Code that drops one of these,
// or joins a group that it cannot leave, must not do so on a thread that the Go scheduler uses for
// other goroutines later.
package thread

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// Throwaway runs f on a new thread that ends after f, so that f's changes to the thread are lost. It
// returns f's error. The first thread of a process cannot end: if the scheduler picks that one,
// Throwaway blocks it and uses another.
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
