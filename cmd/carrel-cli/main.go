// Command carrel-cli is the command line of carrel, which the program carrel starts.
package main

import (
	"os"

	"github.com/carrel-dev/carrel/internal/base/build"
	"github.com/carrel-dev/carrel/internal/cli"
)

func init() { build.Program("carrel") }

func main() {
	os.Exit(cli.Main(os.Args[1:], cli.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}, os.Exit))
}
