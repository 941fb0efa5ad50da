// Command carrel is what users run: the front of the command line, and by it the full program.
package main

import (
	"os"

	"github.com/carrel-dev/carrel/internal/cli/fast"
)

func main() { os.Exit(fast.Run(os.Args)) }
