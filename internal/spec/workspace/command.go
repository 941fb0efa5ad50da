package workspace

import (
	"fmt"
	"math"
	"path"
	"strings"
	"unicode/utf8"

	"github.com/containerd/errdefs"
)

// Bounds of a command.
const (
	// MaxArgs and MaxArgBytes bound arguments and variables together, in number and in bytes
	// with one more for each.
	MaxArgs     = 4096
	MaxArgBytes = 512 << 10
	// MaxCwd bounds the directory in bytes.
	MaxCwd = 4095
	// MaxGraceMS bounds the time between TERM and KILL.
	MaxGraceMS = 60_000
)

// Command is what to run in a workspace.
type Command struct {
	Argv []string
	// Env are NAME=VALUE strings laid over the base environment.
	Env []string
	// Cwd is absolute inside the workspace, or "" for the home.
	Cwd string
	// TimeoutMS ends the command after that long; 0 means never.
	TimeoutMS int64
	// GraceMS is the time between TERM and KILL; 0 means the default.
	GraceMS int64
}

// Validate reports the first part of a command that cannot be used. The daemon calls it where
// the operation is made, and the executor, which does not trust the daemon, again.
func (c *Command) Validate() error {
	bad := func(format string, v ...any) error {
		return fmt.Errorf("cannot run the command: "+format+": %w", append(v, errdefs.ErrInvalidArgument)...)
	}
	if len(c.Argv) == 0 || c.Argv[0] == "" {
		return bad(`argv names no program; give the program and its arguments, for example ["ls", "-l"]`)
	}
	if n := len(c.Argv) + len(c.Env); n > MaxArgs {
		return bad("argv and env have %d entries together, at most %d are allowed; pass the data by stdin or a file", n, MaxArgs)
	}
	size := 0
	for _, a := range c.Argv {
		if why := unusable(a); why != "" {
			return bad("an argument in argv %s; pass such data by stdin or a file", why)
		}
		size += len(a) + 1
	}
	for _, e := range c.Env {
		name, _, ok := strings.Cut(e, "=")
		if !ok || name == "" {
			return bad(`%.40q in env is not a variable; give NAME=VALUE, and a NAME without "="`, name)
		}
		if why := unusable(e); why != "" {
			return bad("the variable %.40q in env %s; pass such data by stdin or a file", name, why)
		}
		size += len(e) + 1
	}
	if size > MaxArgBytes {
		return bad("argv and env take %d bytes together, at most %d are allowed; pass the data by stdin or a file", size, MaxArgBytes)
	}
	if c.Cwd != "" && (!path.IsAbs(c.Cwd) || unusable(c.Cwd) != "" || len(c.Cwd) > MaxCwd) {
		return bad(
			"its cwd %.64q is not an absolute path; give one as the command sees it, for example \"/tmp\", or leave it empty for the home", c.Cwd,
		)
	}
	if c.TimeoutMS < 0 || c.TimeoutMS > math.MaxInt64/1_000_000 {
		return bad("its timeout of %d ms is out of range; 0 is no limit", c.TimeoutMS)
	}
	if c.GraceMS < 0 || c.GraceMS > MaxGraceMS {
		return bad("its grace of %d ms is not between 0 and %d; 0 is the default", c.GraceMS, MaxGraceMS)
	}
	return nil
}

// unusable says why a text cannot be given to a program and kept in the record, "" if it can.
func unusable(s string) string {
	switch {
	case strings.IndexByte(s, 0) >= 0:
		return "contains a NUL byte, which no Unix program can receive"
	case !utf8.ValidString(s):
		return "is not valid UTF-8"
	}
	return ""
}
