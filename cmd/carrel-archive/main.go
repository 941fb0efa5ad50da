// Command carrel-archive packs a workspace's home and unpacks one, as the workspace's
// own id and inside its boundary.
package main

import (
	"context"
	"os"

	"github.com/carrel-dev/carrel/internal/archive"
	"github.com/carrel-dev/carrel/internal/build"
)

// Signals keep what they do by default: there is nothing to bring to an end that the
// caller does not remove.
func main() {
	os.Exit(archive.Run(context.Background(), build.Version(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}
