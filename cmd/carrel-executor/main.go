// Command carrel-executor is PID 1 of a workspace. It is started by carrel-broker only.
package main

import (
	"fmt"
	"os"
	"runtime"

	"github.com/carrel-dev/carrel/internal/base/build"
	"github.com/carrel-dev/carrel/internal/boundary/executor"
)

// The first stage runs on the process's first thread.
func init() {
	runtime.LockOSThread()
	build.Program("carrel-executor")
}

func main() {
	if err := executor.Run(build.Version(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "carrel-executor:", err)
		os.Exit(1)
	}
}
