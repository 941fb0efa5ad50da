package sandbox

import (
	"runtime"
)

// Thread is one operating system thread that keeps its state: its cgroups,
// its cgroup namespace, its file system ids. Commands are started from it.
type Thread struct {
	work chan func()
}

// NewThread starts a thread. It lives as long as the process.
func NewThread() *Thread {
	t := &Thread{work: make(chan func())}
	go func() {
		runtime.LockOSThread()
		for f := range t.work {
			f()
		}
	}()
	return t
}

// Do runs f on the thread and returns when f has.
func (t *Thread) Do(f func()) {
	done := make(chan struct{})
	t.work <- func() { defer close(done); f() }
	<-done
}
