// Command carrel-agent is the agent that "carrel ask" runs in a workspace. See package loop.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/carrel-dev/carrel/internal/agent/loop"
	"github.com/carrel-dev/carrel/internal/base/build"
)

func init() { build.Program("carrel-agent") }

func main() {
	if err := loop.Main(context.Background(), os.Args[1:], os.Getenv, os.Stdin, os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "carrel-agent:", err)
		os.Exit(1)
	}
}
