package api

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/containerd/errdefs"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/spec/approval"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
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

// parseAnyRef is parseRef where "" stands for every workspace.
func parseAnyRef(s string) (string, error) {
	if s == "" {
		return "", nil
	}
	return parseRef(s)
}

// execParams reads a workspace and a command, the streams left as they are. What may be run is
// validated where the operation is made.
func execParams(workspace string, c *carrelv1.Command) (string, execapi.ExecParams, error) {
	ref, err := parseRef(workspace)
	if err != nil {
		return "", execapi.ExecParams{}, err
	}
	env := make([]string, 0, len(c.GetEnv()))
	for k, v := range c.GetEnv() {
		if strings.Contains(k, "=") {
			k = "=" + k // which is refused; K=V with "=" in K would read as another name
		}
		env = append(env, k+"="+v)
	}
	slices.Sort(env) // a map has no order
	return ref, execapi.ExecParams{
		Argv: c.GetArgv(), Env: env, Cwd: c.GetCwd(), TimeoutMS: c.GetTimeoutMs(), GraceMS: c.GetGraceMs(),
		Asked: execapi.Asked{Source: c.GetSource(), Thread: c.GetThread(), WaitMS: c.GetApprovalWaitMs()},
	}, checkAsked(c)
}

// spawning is an attached command that is asked for.
type spawning struct {
	ref      string
	exec     execapi.ExecParams
	terminal bool
}

// spawnParams reads the start of an attached command.
func spawnParams(m *carrelv1.StreamStart) (s spawning, err error) {
	if s.ref, s.exec, err = execParams(m.GetWorkspace(), m.GetCommand()); err != nil {
		return s, err
	}
	window, err := windowFrom(m.GetTerminal())
	if err != nil {
		return s, err
	}
	s.exec.Stdin, s.exec.Stdout, s.exec.Stderr = execapi.Null, execapi.Pipe, execapi.Pipe
	if m.GetStdin() {
		s.exec.Stdin = execapi.Pipe
	}
	if s.terminal = window != nil; s.terminal {
		s.exec.Rows, s.exec.Cols = window.Rows, window.Cols
	}
	return s, nil
}

// maxThread bounds the name of a thread in bytes.
const maxThread = 128

func checkAsked(c *carrelv1.Command) error {
	switch c.GetSource() {
	case "", "user", "llm":
	default:
		return invalid("command.source", fmt.Sprintf("%.32q is none", c.GetSource()), "it is user, if a person wrote the command, or llm")
	}
	if t := c.GetThread(); len(t) > maxThread || !utf8.ValidString(t) || strings.ContainsFunc(t,
		func(r rune) bool { return !unicode.IsPrint(r) }) {
		return invalid("command.thread", "it is too long or not plain text",
			fmt.Sprintf("give at most %d bytes of printable text, or leave it empty", maxThread))
	}
	return between("command.approval_wait_ms", c.GetApprovalWaitMs(), -1, approval.MaxWait.Milliseconds(), "0 is as configured, -1 not at all")
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

// window is the size of a terminal in characters.
type window struct{ Rows, Cols uint16 }

// windowFrom checks a terminal's size. nil is no terminal.
func windowFrom(w *carrelv1.WindowSize) (*window, error) {
	if w == nil {
		return nil, nil
	}
	for field, v := range map[string]uint32{"terminal.rows": w.GetRows(), "terminal.cols": w.GetCols()} {
		if err := between(field, int64(v), 0, math.MaxUint16, "give the size in characters, 0 if unknown"); err != nil {
			return nil, err
		}
	}
	return &window{Rows: uint16(w.GetRows()), Cols: uint16(w.GetCols())}, nil
}
