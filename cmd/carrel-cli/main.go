// Command carrel-cli is the command line of carrel, which the program carrel starts.
package main

import (
	"os"

	"github.com/carrel-dev/carrel/internal/build"
	"github.com/carrel-dev/carrel/internal/cli"
	"github.com/carrel-dev/carrel/internal/hostrun"
	"github.com/carrel-dev/carrel/internal/jobs"
)

func init() {
	if !hostrun.Supervises(os.Args) { // it names itself, and each command waits for it
		build.Program("carrel")
	}
}

func main() {
	if code, is := hostrun.Stage(os.Args); is { // it was started to hold a command on this machine
		os.Exit(code)
	}
	if code, is := jobs.Stage(os.Args); is { // it was started to supervise a background job
		os.Exit(code)
	}
	os.Exit(cli.Main(os.Args[1:], cli.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}, os.Exit))
}
