// Package hostrun runs one command on this machine as the caller's own user, under a profile that says what the command
// may then do. It works in the caller's own process and a child of it, a supervisor (see Stage), which holds the command and ends all
// that it started. The supervisor is a small program of its own, carrel-hostrun, as it is started for each command.
//
// A profile's controls are tried before the command begins, inside and from outside. If one that the profile requires
// is not verified, Run returns an error with its remedy and the command does not run. There is no weaker run instead.
//
// The package must not judge commands, ask anybody, or run in the daemon: its caller had the command judged before.
package hostrun

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// Bounds of a Command, and what is taken where it says nothing.
const (
	MaxArguments  = 4096
	MaxArgvBytes  = 128 << 10
	MaxNames      = 64
	MaxWrites     = 8
	MaxEnvBytes   = 128 << 10
	MaxTimeout    = 24 * time.Hour
	MaxGrace      = time.Minute
	MaxOutput     = 64 << 20
	DefaultTime   = 10 * time.Minute
	DefaultGrace  = 2 * time.Second
	DefaultOutput = 1 << 20
)

// Command is what to run. Argv and Profile are required.
type Command struct {
	// Argv is the program and its arguments. A program without a slash is looked up in PATH.
	Argv []string
	// Dir is where it begins: an absolute path of a directory. Without one it is the caller's.
	Dir string
	// Writes are directories that WorkspaceWrite lets it change, by absolute paths, at most MaxWrites; Dir if there is none, which
	// must be named then. Other profiles take none.
	Writes []string
	// Env are names of variables of the caller's to pass on. PATH, HOME, USER, LOGNAME, LANG and TZ are passed always,
	// others not.
	Env []string
	// Timeout ends the command; 0 is DefaultTime. Grace is how long it has after SIGTERM; 0 is DefaultGrace.
	Timeout, Grace time.Duration
	// MaxOutput is how many bytes of each stream are kept; 0 is DefaultOutput.
	MaxOutput int
	Profile   Profile
	Limits    Limits
	// AllowRoot lets it run as uid 0.
	AllowRoot bool

	// Began is called once the command runs, with what holds it. Optional.
	Began func([]workspace.Control) `json:"-"`
	// Stdout and Stderr get the streams as they come, beside what is kept. They must take all they are given, and not wait.
	// Optional.
	Stdout, Stderr io.Writer `json:"-"`
}

// Result is how a command ended.
type Result struct {
	// Code is its exit code, or 128 and the number of the Signal that ended it.
	Code   int
	Signal unix.Signal
	// TimedOut: it was ended because its time was over.
	TimedOut       bool
	Stdout, Stderr Output
	// Controls are what held it, each as it was requested and found.
	Controls []workspace.Control
	// Left are processes that could not be ended, as people read it, with what to do. They are another user's.
	Left []string
	// Hint says what its failure probably means and what to do next, if that is known.
	Hint string
}

// Run runs a command and returns when it and all that it started have ended. A command that fails is no error. If ctx
// ends, so does the command, and the error is that of ctx beside what there was until then.
//
// Errors: invalid_argument, permission_denied (root without AllowRoot, a program that may not be run), not_found (no
// such program or directory), failed_precondition (a control does not hold; the command did not run), unavailable.
//
// The running program supervises the command, and must call Stage.
func Run(ctx context.Context, c Command) (Result, error) { return new(Runner).Run(ctx, c) }

// plan is a Command that was checked.
type plan struct {
	Command
	row  *row
	spec spec
}

// prepare checks a command and fills in what it leaves open.
func prepare(c Command) (p *plan, err error) {
	p = &plan{Command: c, row: rowOf(c.Profile)}
	size := 0
	for _, a := range c.Argv {
		size += len(a) + 1
		if strings.ContainsRune(a, 0) {
			return nil, bad("cannot run the command: an argument has a zero byte")
		}
	}
	switch {
	case p.row == nil:
		return nil, bad("cannot run the command: there is no profile %.40q; take one of %s", string(c.Profile), profileNames())
	case len(c.Argv) == 0 || c.Argv[0] == "":
		return nil, bad("cannot run the command: it names no program")
	case len(c.Argv) > MaxArguments || size > MaxArgvBytes:
		return nil, bad("cannot run the command: it has %d arguments of %d bytes, and at most %d of %d bytes are taken; use a file",
			len(c.Argv), size, MaxArguments, MaxArgvBytes)
	case c.Timeout < 0 || c.Timeout > MaxTimeout || c.Grace < 0 || c.Grace > MaxGrace:
		return nil, bad("cannot run the command: timeout %v and grace %v must be between 0 and %v and %v",
			c.Timeout, c.Grace, MaxTimeout, MaxGrace)
	case c.MaxOutput < 0 || c.MaxOutput > MaxOutput:
		return nil, bad("cannot run the command: %d bytes of output cannot be kept, at most %d", c.MaxOutput, MaxOutput)
	case (os.Geteuid() == 0 || os.Getuid() == 0) && !c.AllowRoot:
		return nil, fmt.Errorf("cannot run the command as root: nobody allowed that; run carrel as an ordinary user, or allow root: %w",
			errdefs.ErrPermissionDenied)
	}
	orDefault(&p.Timeout, DefaultTime)
	orDefault(&p.Grace, DefaultGrace)
	orDefault(&p.MaxOutput, DefaultOutput)
	env, err := environment(c.Env, os.LookupEnv)
	if err != nil {
		return nil, err
	}
	if own := privateIn(p.row); p.row.host && len(own) > 0 {
		env = slices.DeleteFunc(env, func(v string) bool { return strings.HasPrefix(v, "TMPDIR=") })
		env = append(env, "TMPDIR="+own[0])
	}
	p.spec = spec{
		Profile: p.row.name, Argv: c.Argv, Env: env, GraceMS: p.Grace.Milliseconds(), Caller: os.Getpid(), Root: os.Geteuid() == 0,
	}
	if p.row.limited {
		if p.spec.Memory, p.spec.Processes, err = c.Limits.bounds(); err != nil {
			return nil, err
		}
	}
	return p, p.directories()
}

func orDefault[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

// within reports whether a path is dir or below it. Both are clean.
func within(path, dir string) bool {
	return path == dir || dir == "/" || strings.HasPrefix(path, dir+"/")
}

func bad(why string, args ...any) error {
	return fmt.Errorf(why+": %w", append(args, errdefs.ErrInvalidArgument)...)
}
