package daemon

import (
	"errors"
	"flag"
	"fmt"
	"io"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/state/config"
)

// ErrUsage is wrapped by errors about the command line. ErrHelp reports that --help was
// answered.
var (
	ErrUsage = errors.New("carreld --help lists the flags")
	ErrHelp  = flag.ErrHelp
)

// options are the flags that are not settings.
type options struct {
	settings     map[string]string
	file         string
	readyFD      int
	awaitFD      int
	archiverFD   int
	listenerFD   int
	oldLogFD     int
	rootless     bool
	version      bool
	printConfig  bool
	printSample  bool
	verifyAudit  bool
	printMarks   bool
	acceptDamage bool
}

// Flags are the flags of carreld, for its manual page.
func Flags() *flag.FlagSet { return new(options).flags() }

func (o *options) flags() *flag.FlagSet {
	f := flag.NewFlagSet("carreld", flag.ContinueOnError)
	f.SetOutput(io.Discard) // an error is one line, and ours to print
	f.StringVar(&o.file, "config", "", "read the configuration from this `file` instead of "+config.DefaultFile)
	f.IntVar(&o.readyFD, "ready-fd", -1, "write one line to this inherited descriptor when serving, and close it")
	f.IntVar(&o.awaitFD, "await-fd", -1, "do nothing before a line comes from this inherited `descriptor`, and end if it ends without")
	f.IntVar(
		&o.archiverFD, "archiver-fd", -1, "the program carrel-archive, open at this inherited descriptor; else it is looked for beside this one",
	)
	f.IntVar(
		&o.listenerFD, "listener-fd", -1, "serve on this inherited `descriptor`: the socket at the usual path, listening; else one is made there",
	)
	f.IntVar(
		&o.oldLogFD, "old-log-fd", -1, "rotate standard error, a file, into the file that is open at this inherited `descriptor`",
	)
	f.BoolVar(
		&o.rootless, "rootless", false, "serve the calling user alone, with that user's rights and without a broker; see docs/operations.md",
	)
	f.BoolVar(&o.version, "version", false, "print the version and exit")
	f.BoolVar(&o.printConfig, "print-config", false, "print every setting with its value and source, and exit")
	f.BoolVar(&o.verifyAudit, "verify-audit", false, "verify the audit log without a running daemon, and exit")
	f.BoolVar(
		&o.printMarks, "print-audit-marks", false, "print what the database that is open as descriptor 3, with its log as 4, knows of the audit "+
			"log, and exit; --verify-audit runs this as the daemon's user",
	)
	f.BoolVar(&o.acceptDamage, "accept-audit-damage", false, "keep a damaged audit log aside and begin a new one that says so")
	f.BoolVar(&o.printSample, "print-sample", false, "print a configuration file with every setting and its default, commented out, and exit")
	o.settings = config.RegisterFlags(f)
	return f
}

func parse(args []string, help io.Writer) (options, error) {
	var o options
	f := o.flags()
	err := f.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprintln(help, "carreld is carrel's daemon. It runs as its own user without privilege; \"carrel up\" starts it.\n\nFlags:")
		f.SetOutput(help)
		f.PrintDefaults()
		return o, ErrHelp
	case err != nil:
		return o, fmt.Errorf("cannot start: %w; %w: %w", err, ErrUsage, errdefs.ErrInvalidArgument)
	case f.NArg() > 0:
		return o, fmt.Errorf("cannot start: %q is no flag, and carreld takes nothing else; %w: %w",
			f.Arg(0), ErrUsage, errdefs.ErrInvalidArgument)
	case o.readyFD != -1 && o.readyFD < 3, o.awaitFD != -1 && o.awaitFD < 3:
		return o, fmt.Errorf("cannot start: --ready-fd and --await-fd must be inherited descriptors from 3 on; %w: %w",
			ErrUsage, errdefs.ErrInvalidArgument)
	}
	for _, fd := range []int{o.readyFD, o.awaitFD, o.listenerFD} {
		if fd >= 0 {
			unix.CloseOnExec(fd)
		}
	}
	return o, nil
}

func printConfig(w io.Writer, cfg *config.Config) error {
	for _, s := range cfg.Effective() {
		if _, err := fmt.Fprintf(w, "%-20s %-20q # %s\n", s.Name+":", s.Value, s.From); err != nil {
			return err
		}
	}
	return nil
}
