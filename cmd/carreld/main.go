// Command carreld is carrel's daemon: it holds the state and serves the API,
// without any privilege. See internal/daemon.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/carrel-dev/carrel/internal/base/build"
	"github.com/carrel-dev/carrel/internal/base/errtext"
	"github.com/carrel-dev/carrel/internal/daemon"
)

func init() { build.Program("carreld") }

func main() {
	// A second signal ends the process at once.
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	context.AfterFunc(ctx, stop)
	err := daemon.Run(ctx, os.Args[1:], os.Environ(), daemon.Streams{Out: os.Stdout, Err: os.Stderr})
	switch {
	case err == nil || errors.Is(err, daemon.ErrHelp):
		return
	case errors.Is(err, daemon.ErrUsage):
		fmt.Fprintln(os.Stderr, "carreld:", errtext.Text(err))
		os.Exit(2)
	default:
		fmt.Fprintln(os.Stderr, "carreld:", errtext.Text(err))
		os.Exit(1)
	}
}
