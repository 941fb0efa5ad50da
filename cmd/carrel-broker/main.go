// Command carrel-broker is the one process of carrel that has root.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/carrel-dev/carrel/internal/base/build"
	"github.com/carrel-dev/carrel/internal/boundary/broker"
)

func init() { build.Program("carrel-broker") }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "carrel-broker:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	o := broker.Options{Build: build.Version(), Log: os.Stderr}
	f := broker.Flags(&o)
	repair := f.Bool("repair", false, "drop the lines of the ledger that cannot be read, say which, and exit")
	version := f.Bool("version", false, "print the version and exit")
	if err := f.Parse(args); err != nil {
		return err
	}
	if f.NArg() > 0 {
		return fmt.Errorf("cannot use the argument %q: see carrel-broker -h", f.Arg(0))
	}
	if *version {
		fmt.Println("carrel-broker", build.Version())
		return nil
	}
	if *repair {
		return broker.Repair(ctx, o, os.Stdout)
	}
	return broker.Run(ctx, o)
}
