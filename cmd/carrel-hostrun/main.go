// Command carrel-hostrun supervises one command on this machine: a step of an agent, or a job in the background. The command line
// starts it, as the user who asked.
package main

import (
	"fmt"
	"os"

	"github.com/carrel-dev/carrel/internal/agent/hosts/jobs"
	"github.com/carrel-dev/carrel/internal/base/build"
	"github.com/carrel-dev/carrel/internal/boundary/hostrun"
)

func init() {
	if !hostrun.Supervises(os.Args) { // it names itself, and each command waits for it
		build.Program("carrel-hostrun")
	}
}

func main() {
	if code, is := hostrun.Stage(os.Args); is {
		os.Exit(code)
	}
	if code, is := jobs.Stage(os.Args); is {
		os.Exit(code)
	}
	fmt.Fprintf(os.Stderr, "carrel-hostrun %s supervises what \"carrel ask\" and \"carrel chat\" run on this machine, which start it; "+
		"see \"carrel ask --help\"\n", build.Version())
	os.Exit(2)
}
