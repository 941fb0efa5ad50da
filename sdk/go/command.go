package carrel

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"connectrpc.com/connect"
	"github.com/containerd/errdefs"

	carrelv1 "github.com/carrel-dev/carrel/gen/carrel/v1"
	"github.com/carrel-dev/carrel/internal/wire/fdapi"
)

// WindowSize is the size of a terminal in characters; 0 is unknown.
type WindowSize struct{ Rows, Cols uint16 }

// Spec says what to run.
type Spec struct {
	// Argv is the program and its arguments. A program without a slash is searched in the
	// workspace's PATH.
	Argv []string
	// Env are NAME=VALUE strings laid over the workspace's base environment.
	Env []string
	// Dir is absolute inside the workspace; "" is the home.
	Dir string
	// Timeout ends the command after this time, with Grace between TERM and KILL. Both have a
	// resolution of a millisecond; 0 is no timeout and a grace of two seconds.
	Timeout, Grace time.Duration
	// Stdin gives the command a pipe as its stdin, which is otherwise /dev/null.
	Stdin bool
	// Terminal, if set, runs the command on a new terminal of that size.
	Terminal *WindowSize
	// Source is who wrote the command: SourceUser or SourceLLM; "" counts as a model.
	Source string
	// Thread names the conversation that it belongs to; answers for a thread are remembered
	// for it. "" is none.
	Thread string
	// ApprovalWait is how long to wait for a person's answer if one is needed; 0 is as configured
	// in the daemon. DoNotWait fails at once instead; see ApprovalOf.
	ApprovalWait time.Duration
}

// The values of Spec.Source.
const (
	SourceUser = "user"
	SourceLLM  = "llm"
)

// DoNotWait is a Spec.ApprovalWait.
const DoNotWait = -time.Millisecond

// message is the spec as a message of the API. It refuses text that is not UTF-8, which JSON
// would change.
func (s *Spec) message() (*carrelv1.Command, error) {
	for field, texts := range map[string][]string{"Argv": s.Argv, "Env": s.Env, "Dir": {s.Dir}, "Thread": {s.Thread}} {
		for _, t := range texts {
			if !utf8.ValidString(t) {
				return nil, fmt.Errorf("cannot use %q in %s: it is not valid UTF-8; pass such data by stdin or a file: %w",
					t, field, errdefs.ErrInvalidArgument)
			}
		}
	}
	m := &carrelv1.Command{
		Argv: s.Argv, Cwd: s.Dir, TimeoutMs: milliseconds(s.Timeout), GraceMs: milliseconds(s.Grace),
		Source: s.Source, Thread: s.Thread, ApprovalWaitMs: milliseconds(s.ApprovalWait),
	}
	if s.ApprovalWait < 0 {
		m.ApprovalWaitMs = -1
	}
	if len(s.Env) > 0 {
		m.Env = make(map[string]string, len(s.Env))
	}
	for _, e := range s.Env {
		k, v, ok := strings.Cut(e, "=")
		if !ok || k == "" {
			return nil, fmt.Errorf("cannot use %q in Env: it is not a variable; give NAME=VALUE: %w", k, errdefs.ErrInvalidArgument)
		}
		m.Env[k] = v
	}
	return m, nil
}

// start is the spec of an attached command.
func (s *Spec) start(workspace string) (*carrelv1.StreamStart, error) {
	command, err := s.message()
	if err != nil {
		return nil, err
	}
	m := &carrelv1.StreamStart{Workspace: workspace, Command: command, Stdin: s.Stdin}
	if s.Terminal != nil {
		m.Terminal = s.Terminal.message()
	}
	return m, nil
}

func (w WindowSize) message() *carrelv1.WindowSize {
	return &carrelv1.WindowSize{Rows: uint32(w.Rows), Cols: uint32(w.Cols)}
}

// milliseconds rounds up, so that a short timeout does not become none.
func milliseconds(d time.Duration) int64 {
	return int64((d + time.Millisecond - 1) / time.Millisecond)
}

// Status is how a command ended.
type Status struct {
	// Code is the exit code, or 128 + Signal if a signal ended it.
	Code   int
	Signal int
	// TimedOut: the Timeout passed. OOM: the workspace ran out of memory while it ran.
	TimedOut, OOM bool
	// Killed is how many of its processes were left and ended with it.
	Killed int
	// Stuck is how many of its processes KILL did not end: they wait in the kernel for a file
	// system or a device that does not answer. If the main process is one of them, Code is 137
	// although it has not ended.
	Stuck          int
	Started, Ended time.Time
	// User and System are processor time.
	User, System time.Duration
	// MaxRSS is the largest resident set of one of its processes, in bytes.
	MaxRSS int64
}

// Result is a command that ran to its end.
type Result struct {
	ID     string
	Status Status
	// Stdout and Stderr are at most 256 KiB each; the rest is counted as lost.
	Stdout, Stderr         []byte
	StdoutLost, StderrLost int64
}

// Exec runs a command in workspace, which is a key or a derived name, and returns its output. Its
// stdin is stdin, at most 256 KiB; Stdin and Terminal of the spec are not used. A command that
// fails is not an error: see Result.Status.
//
// The command ends when ctx ends.
func (c *Client) Exec(ctx context.Context, workspace string, s Spec, stdin []byte) (*Result, error) {
	command, err := s.message()
	if err != nil {
		return nil, err
	}
	req, res := &carrelv1.ExecRequest{Workspace: workspace, Command: command, Stdin: stdin}, new(carrelv1.ExecResponse)
	if !c.host.direct() {
		r, err := c.Commands().Exec(ctx, connect.NewRequest(req))
		if err != nil {
			return nil, err
		}
		res = r.Msg
	} else if err := c.execHere(ctx, req, res); err != nil {
		return nil, err
	}
	if res.GetStatus() == nil {
		return nil, fmt.Errorf("cannot tell how %s ended: the daemon did not say: %w", res.GetCommandId(), errdefs.ErrInternal)
	}
	return &Result{
		ID: res.GetCommandId(), Status: StatusOf(res.GetStatus()), Stdout: res.GetStdout(), Stderr: res.GetStderr(),
		StdoutLost: res.GetStdoutLost(), StderrLost: res.GetStderrLost(),
	}, nil
}

// execHere makes the call on a connection that no other call uses, so that closing it ends the
// command.
func (c *Client) execHere(ctx context.Context, req *carrelv1.ExecRequest, res *carrelv1.ExecResponse) error {
	x, err := c.take(ctx)
	if err != nil {
		return err
	}
	defer c.give(x)
	_, err = x.call(ctx, fdapi.Exec, req, res, 0)
	if err != nil && ctx.Err() != nil {
		x.Close() // the daemon then ends the call
	}
	return err
}

// maxIdle is how many connections wait for the next Exec.
const maxIdle = 16

// take returns an idle connection that is open, or a new one. Each serves one call at a time, so
// that closing it ends only that call.
func (c *Client) take(ctx context.Context) (*session, error) {
	for {
		c.mu.Lock()
		n := len(c.idle)
		if n == 0 {
			c.mu.Unlock()
			return c.open(ctx)
		}
		x := c.idle[n-1]
		c.idle = c.idle[:n-1]
		c.mu.Unlock()
		if x.alive() {
			return x, nil
		}
	}
}

func (c *Client) give(x *session) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || len(c.idle) >= maxIdle || !x.alive() {
		x.Close()
		return
	}
	c.idle = append(c.idle, x)
}

func (x *session) alive() bool {
	select {
	case <-x.Done():
		return false
	default:
		return true
	}
}

// StatusOf turns the status of a generated message into a Status.
func StatusOf(s *carrelv1.Status) Status {
	return Status{
		Code: int(s.GetCode()), Signal: int(s.GetSignal()), TimedOut: s.GetTimedOut(), OOM: s.GetOom(), Killed: int(s.GetKilled()),
		Stuck:   int(s.GetStuck()),
		Started: time.Unix(0, s.GetStartedUnixNs()), Ended: time.Unix(0, s.GetEndedUnixNs()),
		User: time.Duration(s.GetUserUs()) * time.Microsecond, System: time.Duration(s.GetSystemUs()) * time.Microsecond,
		MaxRSS: s.GetMaxRssKib() << 10,
	}
}

// Command is a running command that this process is attached to. It is hung up when
// Close is called or this process ends.
type Command struct {
	// ID names it, as in "carrel ps".
	ID string
	// PID is its pid inside the workspace, 0 if the daemon is elsewhere.
	PID int
	// Stdin is nil unless the spec asked for it; close it to end the input.
	Stdin *os.File
	// Stdout and Stderr are nil on a terminal.
	Stdout, Stderr *os.File
	// Terminal is the master side, if the spec has one. Reading it ends with EIO when the last
	// process on it has ended. With a token or over TLS it is a socket instead, and reading it
	// ends with EOF.
	Terminal *os.File

	workspace string
	link      link
}

// Start starts a command in workspace, which is a key or a derived name. The caller must read its
// streams, or the command blocks when they are full.
//
// With a token, or a daemon elsewhere, the streams' bytes pass through the daemon.
func (c *Client) Start(ctx context.Context, workspace string, s Spec) (*Command, error) {
	start, err := s.start(workspace)
	if err != nil {
		return nil, err
	}
	if !c.host.direct() {
		return c.startRemote(ctx, start, s)
	}
	x, err := c.open(ctx)
	if err != nil {
		return nil, err
	}
	want := 2
	switch {
	case s.Terminal != nil:
		want = 1
	case s.Stdin:
		want = 3
	}
	var res carrelv1.SpawnResponse
	fds, err := x.call(ctx, fdapi.Spawn, &carrelv1.SpawnRequest{Start: start}, &res, want)
	if err != nil {
		x.Close()
		return nil, err
	}
	cmd := &Command{ID: res.GetCommandId(), PID: int(res.GetPid()), workspace: workspace, link: x}
	switch want {
	case 1:
		cmd.Terminal = fds[0]
	case 2:
		cmd.Stdout, cmd.Stderr = fds[0], fds[1]
	case 3:
		cmd.Stdin, cmd.Stdout, cmd.Stderr = fds[0], fds[1], fds[2]
	}
	return cmd, nil
}

// Wait returns how the command ended. Some output may still be unread. If the daemon or the
// command's executor ended first, the error is unavailable.
func (c *Command) Wait(ctx context.Context) (Status, error) { return c.link.wait(ctx, c.ID) }

// Signal sends a signal to the command's process group. One that has ended is
// a failed_precondition error, and once it is forgotten a not_found one.
func (c *Command) Signal(ctx context.Context, signal int) error {
	return c.link.signal(ctx, c.workspace, c.ID, signal, 0)
}

// Stop ends the command and all its processes: TERM, the grace, KILL.
func (c *Command) Stop(ctx context.Context, grace time.Duration) error {
	return c.link.signal(ctx, c.workspace, c.ID, 0, grace)
}

// Resize sets the size of its terminal.
func (c *Command) Resize(ctx context.Context, size WindowSize) error {
	return c.link.resize(ctx, c.workspace, c.ID, size)
}

// Close hangs the command up if it still runs, and closes its streams.
func (c *Command) Close() error {
	c.closeFiles()
	return c.link.close()
}

func (c *Command) closeFiles() {
	for _, f := range []*os.File{c.Stdin, c.Stdout, c.Stderr, c.Terminal} {
		if f != nil {
			f.Close() // nobody reads or writes them any more
		}
	}
}

// Attachment is the output of a detached command, as Attach opened it.
type Attachment struct {
	// Terminal says that File is the command's terminal and can be written to.
	Terminal bool
	// Lost is how many bytes of the oldest output are no longer kept.
	Lost int64
	// Status is set if the command had ended already.
	Status *Status
	File   *os.File

	workspace, command string
	link               interface {
		signal(ctx context.Context, workspace, command string, signal int, grace time.Duration) error
		resize(ctx context.Context, workspace, command string, size WindowSize) error
		close() error
	}
}

// Attach opens the output of a detached command: the stored output and, with follow, new output
// until it ends. If the command has a terminal, that is opened; but with a token or from
// elsewhere only its output.
func (c *Client) Attach(ctx context.Context, workspace, command string, follow bool) (*Attachment, error) {
	if !c.host.direct() {
		return c.attachRemote(ctx, workspace, command, follow)
	}
	x, err := c.open(ctx)
	if err != nil {
		return nil, err
	}
	var res carrelv1.AttachResponse
	fds, err := x.call(ctx, fdapi.Attach, &carrelv1.AttachRequest{Workspace: workspace, CommandId: command, Follow: follow}, &res, 1)
	if err != nil {
		x.Close()
		return nil, err
	}
	a := &Attachment{Terminal: res.GetTerminal(), Lost: res.GetLost(), File: fds[0], workspace: workspace, command: command, link: x}
	if res.GetStatus() != nil {
		s := StatusOf(res.GetStatus())
		a.Status = &s
	}
	return a, nil
}

// Err is for when File has ended: it is why the output broke off, as a token that ended or does not
// reach the workspace any more, or nil if it came to its end. Output that the daemon does not carry
// does not break off.
func (a *Attachment) Err() error {
	if f, ok := a.link.(*followed); ok {
		return f.broke()
	}
	return nil
}

// Signal sends a signal to the command's process group.
func (a *Attachment) Signal(ctx context.Context, signal int) error {
	return a.link.signal(ctx, a.workspace, a.command, signal, 0)
}

// Resize sets the size of the command's terminal.
func (a *Attachment) Resize(ctx context.Context, size WindowSize) error {
	return a.link.resize(ctx, a.workspace, a.command, size)
}

// Close closes the output. The command continues.
func (a *Attachment) Close() error {
	a.File.Close()
	return a.link.close()
}
