// Command carrel-archive packs and unpacks a workspace's home, with the workspace's own id
// and inside its boundary.
package main

import (
	"context"
	"os"

	"github.com/carrel-dev/carrel/internal/archive"
	"github.com/carrel-dev/carrel/internal/build"
)

func init() { build.Program("carrel-archive") }

// Signals keep their default action: the caller removes what is incomplete.
func main() {
	os.Exit(archive.Run(context.Background(), build.Version(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}
