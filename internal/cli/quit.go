package cli

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// exitQuit is the exit code of a process that Ctrl-\ ended, as shells count.
const exitQuit = 128 + int(syscall.SIGQUIT)

// Main is Run for a process that does nothing else: Ctrl-\ has it say so and call end with its exit code, where Go
// would print what its goroutines do.
func Main(args []string, s Streams, end func(code int)) int {
	a := &app{Streams: s, quit: make(chan os.Signal, 1)}
	go func() {
		<-a.quit
		fmt.Fprintln(s.Err, "carrel: quit")
		end(exitQuit)
	}()
	a.endAtQuit()
	return a.line(args)
}

// endAtQuit has Ctrl-\ end the process, unless whoever started it has that signal ignored.
func (a *app) endAtQuit() {
	if a.quit != nil && !signal.Ignored(syscall.SIGQUIT) {
		signal.Notify(a.quit, syscall.SIGQUIT)
	}
}

// leaveQuit leaves Ctrl-\ to what the caller has attached for it, until endAtQuit.
func (a *app) leaveQuit() {
	if a.quit != nil {
		signal.Stop(a.quit)
	}
}
