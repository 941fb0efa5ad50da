// Command carrel-broker is the one process of carrel that has root.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/carrel-dev/carrel/internal/broker"
	"github.com/carrel-dev/carrel/internal/build"
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
	f := flag.NewFlagSet("carrel-broker", flag.ExitOnError)
	f.StringVar(&o.Settings, "settings", broker.DefaultSettings, "read the settings from `FILE`, which only root may be able to write")
	f.BoolVar(&o.Stdio, "stdio", false, "serve the socket that is standard input, for use with sudo")
	f.IntVar(&o.ReadyFD, "ready-fd", -1, "write a line to descriptor `N` once requests are served")
	f.IntVar(&o.AwaitFD, "await-fd", -1, "do nothing before a line comes from descriptor `N`, and end if it ends without")
	f.IntVar(&o.OldLogFD, "old-log-fd", -1, "rotate the log, which is standard error, into the file that is descriptor `N`")
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
	return broker.Run(ctx, o)
}
