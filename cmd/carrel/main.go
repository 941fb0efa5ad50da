// Command carrel is what users run: the front of the command line, and by it the full program.
package main

import (
	"os"

	"github.com/carrel-dev/carrel/internal/cli/front"
)

func main() { os.Exit(front.Run(os.Args)) }
