package archive

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime/debug"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/base/errtext"
)

// Exit codes of the program.
const (
	ExitOK     = 0
	ExitFailed = 1
	ExitUsage  = 2
)

// memory is a soft limit of the program's heap: the program counts against the workspace's own
// memory limit, beside the pages that it reads and writes.
const memory = 64 << 20

// Report is one line of JSON on standard error. The last line has the summary and, after a
// failure, the error.
type Report struct {
	Progress *Progress `json:"progress,omitempty"`
	Summary  *Summary  `json:"summary,omitempty"`
	Error    string    `json:"error,omitempty"`
	Kind     string    `json:"kind,omitempty"`
}

// Progress counts what was packed or unpacked so far.
type Progress struct {
	Entries int64 `json:"entries"`
	Bytes   int64 `json:"bytes"`
}

// Run is the program: "pack DIR" writes an archive to stdout, "unpack DIR" reads one
// from stdin, and "verify" sees whether that could be unpacked. It returns the exit status.
func Run(ctx context.Context, version string, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	debug.SetMemoryLimit(memory)
	report := json.NewEncoder(stderr)
	report.SetEscapeHTML(false)
	c := command{}
	if err := c.parse(args, stderr); err != nil {
		if err != flag.ErrHelp { //nolint:errorlint // the flag package returns it bare
			fmt.Fprintln(stderr, "carrel-archive:", errtext.Text(err))
		}
		return ExitUsage
	}
	if c.version {
		fmt.Fprintln(stdout, "carrel-archive", version)
		return ExitOK
	}
	c.options.Progress = func(entries, bytes int64) {
		_ = report.Encode(Report{Progress: &Progress{entries, bytes}}) // nobody may read it
	}
	s, err := c.run(ctx, stdin, stdout)
	last := Report{Summary: &s}
	if err != nil {
		last.Error, last.Kind = errtext.Text(err), kind(err)
	}
	if e := report.Encode(last); err == nil && e != nil {
		err = e // without the summary nobody knows that the archive is whole
	}
	if err != nil {
		return ExitFailed
	}
	return ExitOK
}

type command struct {
	verb    string // pack, unpack or verify
	version bool
	dir     string // "" to verify
	limits  Limits
	options Options
}

const usage = `usage: carrel-archive pack [flags] DIR > ARCHIVE
       carrel-archive unpack [flags] DIR < ARCHIVE
       carrel-archive verify [flags] < ARCHIVE

Packs the tree below DIR into a .tar.zst, unpacks one below DIR, which must be empty, or
verifies that one could be unpacked, and makes nothing. It runs with the id of the tree's
owner. After a failed unpack the caller removes what was made. Standard error gets JSON,
one object a line: {"progress":…} at most ten times a second, and last {"summary":…}, with
"error" and "kind" if it failed.
Exit status: 0 done, 1 failed, 2 used wrongly.

flags:
`

// verbs are what it can do, with how many directories each takes.
var verbs = map[string]int{"pack": 1, "unpack": 1, "verify": 0}

func (c *command) parse(args []string, stderr io.Writer) error {
	l := &c.limits
	*l = DefaultLimits()
	f := flag.NewFlagSet("carrel-archive", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.Usage = func() {
		fmt.Fprint(stderr, usage)
		f.PrintDefaults()
	}
	f.Int64Var(&l.Bytes, "max-bytes", l.Bytes, "data of all files, without the holes of sparse ones, in `BYTES`")
	f.Int64Var(&l.FileBytes, "max-file", l.FileBytes, "length of one file in `BYTES`")
	f.Int64Var(&l.Entries, "max-entries", l.Entries, "`NUMBER` of entries")
	f.IntVar(&l.Depth, "max-depth", l.Depth, "`NUMBER` of names in a path, at most 512")
	f.IntVar(&l.PathBytes, "max-path", l.PathBytes, "length of a path or link's target in `BYTES`, at most 4095")
	f.IntVar(&l.XattrBytes, "max-xattrs", l.XattrBytes, "attributes of one entry in `BYTES`")
	f.Int64Var(&l.Ratio, "max-ratio", l.Ratio, "unpack, verify: bytes for each byte of the archive, past the first 64 MiB; 0 is no limit")
	f.BoolVar(&c.options.SkipUnreadable, "skip-unreadable", false, "pack: leave out and count what may not be read")
	f.StringVar(&c.options.SHA256, "sha256", "", "unpack, verify: fail unless the archive's SHA-256 is `HEX`")
	f.BoolVar(&c.options.Sync, "sync", false, "unpack: end only when everything is on disk")
	f.BoolVar(&c.version, "version", false, "print the version and exit")

	verb := ""
	if len(args) > 0 {
		if _, known := verbs[args[0]]; known {
			verb, args = args[0], args[1:]
		}
	}
	if err := f.Parse(args); err != nil {
		return err
	}
	if c.version {
		return nil
	}
	if verb == "" || f.NArg() != verbs[verb] {
		return fmt.Errorf("cannot tell what to do: give pack or unpack, flags and one directory, or verify and flags, see "+
			"carrel-archive -h: %w", errdefs.ErrInvalidArgument)
	}
	c.verb, c.dir = verb, f.Arg(0)
	return nil
}

func (c *command) run(ctx context.Context, stdin io.Reader, stdout io.Writer) (Summary, error) {
	if c.verb == "verify" {
		return Verify(ctx, stdin, c.limits, c.options)
	}
	dir, err := os.OpenFile(c.dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return Summary{}, fmt.Errorf("cannot open the directory: %w: name one that this id may enter: %w", err, errdefs.ErrInvalidArgument)
	}
	defer dir.Close()
	if c.verb == "pack" {
		return Write(ctx, stdout, dir, c.limits, c.options)
	}
	// Until a file has its own mode nobody else may read it.
	unix.Umask(0o077)
	return Read(ctx, stdin, dir, c.limits, c.options)
}

// kind returns the name of an error's kind.
func kind(err error) string {
	for _, k := range []struct {
		is   func(error) bool
		word string
	}{
		{errdefs.IsResourceExhausted, "resource_exhausted"},
		{errdefs.IsDataLoss, "data_loss"},
		{errdefs.IsInvalidArgument, "invalid_argument"},
		{errdefs.IsFailedPrecondition, "failed_precondition"},
		{errdefs.IsPermissionDenied, "permission_denied"},
		{errdefs.IsUnavailable, "unavailable"},
		{errdefs.IsCanceled, "canceled"},
	} {
		if k.is(err) {
			return k.word
		}
	}
	return "unknown"
}
