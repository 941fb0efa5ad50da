package api

import (
	"fmt"
	"math"
	"path"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/containerd/errdefs"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/execapi"
	"github.com/carrel-dev/carrel/internal/fdapi"
	"github.com/carrel-dev/carrel/internal/id"
)

// maxSignal is SIGRTMAX of Linux on every architecture that carrel runs on.
const maxSignal = 64

func invalid(field, why, next string) error {
	return fmt.Errorf("cannot use the field %q of the request: %s; %s: %w", field, why, next, errdefs.ErrInvalidArgument)
}

// parseRef checks a reference to a workspace. A derived name is a valid key too,
// so one check serves both.
func parseRef(s string) (string, error) {
	if s == "" {
		return "", invalid("workspace", "it is empty", "give the key or the name of a workspace; \"carrel ls\" lists them")
	}
	k, err := id.ParseKey(s)
	return string(k), err
}

// commandFrom turns a command of the wire into the one form of the descriptor
// hand-over. A map has no order, so the variables are sorted.
func commandFrom(c *carrelv1.Command) fdapi.Command {
	env := make([]string, 0, len(c.GetEnv()))
	for k, v := range c.GetEnv() {
		if strings.Contains(k, "=") {
			k = "=" + k // checkCommand refuses it; K=V with "=" in K would read as another name
		}
		env = append(env, k+"="+v)
	}
	slices.Sort(env)
	return fdapi.Command{
		Argv:      c.GetArgv(),
		Env:       env,
		Cwd:       c.GetCwd(),
		TimeoutMS: c.GetTimeoutMs(),
		GraceMS:   c.GetGraceMs(),

		Source: c.GetSource(), Thread: c.GetThread(), ApprovalWaitMS: c.GetApprovalWaitMs(),
	}
}

// execParams checks a command and returns the executor's parameters for it, the
// streams left as they are.
func execParams(c fdapi.Command) (execapi.ExecParams, error) {
	if err := checkCommand(c); err != nil {
		return execapi.ExecParams{}, err
	}
	return execapi.ExecParams{
		Argv:      c.Argv,
		Env:       c.Env,
		Cwd:       c.Cwd,
		TimeoutMS: c.TimeoutMS,
		GraceMS:   c.GraceMS,
		Asked:     execapi.Asked{Source: c.Source, Thread: c.Thread, WaitMS: c.ApprovalWaitMS},
	}, nil
}

// maxThread bounds the name of a thread in bytes.
const maxThread = 128

func checkAsked(c *fdapi.Command) error {
	switch c.Source {
	case "", "user", "llm":
	default:
		return invalid("command.source", fmt.Sprintf("%.32q is none", c.Source), "it is user, if a person wrote the command, or llm")
	}
	if len(c.Thread) > maxThread || !utf8.ValidString(c.Thread) || strings.ContainsFunc(c.Thread, func(r rune) bool { return !unicode.IsPrint(r) }) {
		return invalid("command.thread", "it is too long or not plain text", fmt.Sprintf("give at most %d bytes of printable text, or leave it empty", maxThread))
	}
	return between("command.approval_wait_ms", c.ApprovalWaitMS, -1, maxApprovalWait.Milliseconds(), "0 is as configured, -1 not at all")
}

// maxApprovalWait is the longest time that a request may wait for an answer; it is that of
// package approval.
const maxApprovalWait = 7 * 24 * time.Hour

func checkCommand(c fdapi.Command) error {
	if err := checkAsked(&c); err != nil {
		return err
	}
	if len(c.Argv) == 0 || c.Argv[0] == "" {
		return invalid("command.argv", "it names no program", "give the program and its arguments, for example [\"ls\", \"-l\"]")
	}
	if n := len(c.Argv) + len(c.Env); n > execapi.MaxArgs {
		return invalid("command.argv", fmt.Sprintf("arguments and variables are %d together, at most %d are allowed", n, execapi.MaxArgs), "pass the data by stdin or a file")
	}
	bytes := 0
	for _, a := range c.Argv {
		if strings.IndexByte(a, 0) >= 0 {
			return invalid("command.argv", "an argument contains a NUL byte", "no Unix program can receive one; pass the data by stdin or a file")
		}
		bytes += len(a) + 1
	}
	for _, e := range c.Env {
		name, _, ok := strings.Cut(e, "=")
		if !ok || name == "" || strings.IndexByte(e, 0) >= 0 {
			return invalid("command.env", fmt.Sprintf("%q is not a variable", name), "give NAME=VALUE without NUL bytes, and a NAME without \"=\"")
		}
		bytes += len(e) + 1
	}
	if bytes > execapi.MaxArgBytes {
		return invalid("command.argv", fmt.Sprintf("arguments and variables take %d bytes together, at most %d are allowed", bytes, execapi.MaxArgBytes), "pass the data by stdin or a file")
	}
	if c.Cwd != "" && (!path.IsAbs(c.Cwd) || strings.IndexByte(c.Cwd, 0) >= 0 || len(c.Cwd) >= 4096) {
		return invalid("command.cwd", fmt.Sprintf("%.64q is not an absolute path", c.Cwd), "give one as the command sees it, for example \"/tmp\", or leave it empty for the home")
	}
	if err := between("command.timeout_ms", c.TimeoutMS, 0, math.MaxInt64/1_000_000, "0 is no limit"); err != nil {
		return err
	}
	return between("command.grace_ms", c.GraceMS, 0, execapi.MaxGraceMS, "0 is the default")
}

// between checks a number that comes with its own explanation of zero.
func between(field string, v, low, high int64, next string) error {
	if v < low || v > high {
		return invalid(field, fmt.Sprintf("%d is not between %d and %d", v, low, high), next)
	}
	return nil
}

func checkSignal(sig, graceMS int64) error {
	if err := between("signal", sig, 0, maxSignal, "0 ends the command; \"kill -l\" lists the numbers"); err != nil {
		return err
	}
	return between("grace_ms", graceMS, 0, execapi.MaxGraceMS, "0 is the default")
}

// windowFrom checks a terminal's size. nil is no terminal.
func windowFrom(w *carrelv1.WindowSize) (*fdapi.WindowSize, error) {
	if w == nil {
		return nil, nil
	}
	for field, v := range map[string]uint32{"terminal.rows": w.GetRows(), "terminal.cols": w.GetCols()} {
		if err := between(field, int64(v), 0, math.MaxUint16, "give the size in characters, 0 if unknown"); err != nil {
			return nil, err
		}
	}
	return &fdapi.WindowSize{Rows: uint16(w.GetRows()), Cols: uint16(w.GetCols())}, nil
}
