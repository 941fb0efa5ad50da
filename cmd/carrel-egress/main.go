// Command carrel-egress connects what runs in a workspace to the hosts that its rules name. carrel starts it.
package main

import (
	"fmt"
	"os"

	"github.com/carrel-dev/carrel/internal/base/build"
	"github.com/carrel-dev/carrel/internal/egress/serve"
)

func init() { build.Program("carrel-egress") }

func main() {
	if err := serve.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "carrel-egress:", err)
		os.Exit(1)
	}
}
