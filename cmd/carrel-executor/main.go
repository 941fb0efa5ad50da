// Command carrel-executor is PID 1 of a workspace. It is started by carrel-broker only.
package main

import (
	"fmt"
	"os"

	"github.com/carrel-dev/carrel/internal/build"
	"github.com/carrel-dev/carrel/internal/executor"
)

func main() {
	if err := executor.Run(build.Version()); err != nil {
		fmt.Fprintln(os.Stderr, "carrel-executor:", err)
		os.Exit(1)
	}
}
