// Package fdapi holds the messages of the descriptor hand-over: the JSON-RPC 2.0
// that a client on the local socket speaks after it has upgraded its connection,
// so that the bytes of a command go between client and command directly and
// never through the daemon. It is specified in docs/protocols/api.md.
//
// It is data only; neither side's behaviour belongs here.
package fdapi

import (
	"github.com/carrel-dev/carrel/internal/execapi"
	"github.com/carrel-dev/carrel/internal/id"
	"github.com/carrel-dev/carrel/internal/workspace"
)

//	client                                        daemon
//	  │  POST /carrel.v1/descriptors HTTP/1.1        │
//	  │  Connection: Upgrade                         │
//	  │  Upgrade: carrel-fds/1                       │
//	  ├─────────────────────────────────────────────►│
//	  │◄─────────────────────────────────────────────┤ 101, or an HTTP error
//	  │  exec {workspace, command, stdin, terminal}  │
//	  ├─────────────────────────────────────────────►│
//	  │◄─────────────────────────────────────────────┤ {command_id, pid} + fds
//	  │          bytes go over the fds               │
//	  │  signal, resize                              │
//	  ├─────────────────────────────────────────────►│
//	  │◄─────────────────────────────────────────────┤ notification exited
//	  │  end of connection: hang up what still runs  │

// The upgrade.
const (
	Path = "/carrel.v1/descriptors"
	// Protocol is the value of the Upgrade header; its number is the version.
	Protocol = "carrel-fds/1"
)

// The methods, and the notification that the daemon sends.
const (
	MethodCreate = "create"
	MethodRun    = "run"
	MethodExec   = "exec"
	MethodAttach = "attach"
	MethodSignal = "signal"
	MethodResize = "resize"
	MethodExited = "exited"
)

// Limits of one connection.
const (
	// MaxFDs is the most descriptors in one message from the daemon. A client sends
	// one, with create, and else none.
	MaxFDs = 3
	// MaxCommands is how many commands may be attached to it at once.
	MaxCommands = 64
)

// Command says what to run.
type Command struct {
	Argv []string `json:"argv"`
	// Env are NAME=VALUE strings laid over the base environment.
	Env []string `json:"env,omitempty"`
	// Cwd is absolute inside the workspace, or "" for the home.
	Cwd string `json:"cwd,omitempty"`
	// TimeoutMS ends the command after that long; 0 means never.
	TimeoutMS int64 `json:"timeout_ms,omitempty"`
	// GraceMS is the time between TERM and KILL; 0 means the default.
	GraceMS int64 `json:"grace_ms,omitempty"`
	// Source, Thread and ApprovalWaitMS are as in carrel.v1.Command.
	Source         string `json:"source,omitempty"`
	Thread         string `json:"thread,omitempty"`
	ApprovalWaitMS int64  `json:"approval_wait_ms,omitempty"`
}

// WindowSize is the size of a terminal in characters.
type WindowSize struct {
	Rows uint16 `json:"rows"`
	Cols uint16 `json:"cols"`
}

// CreateParams makes a workspace as WorkspaceService.Create does, with project mounts.
// One descriptor comes with it: the far end of package grant's socket, in which the
// same mounts are asked for.
type CreateParams struct {
	Key     string           `json:"key"`
	Limits  workspace.Limits `json:"limits"`
	NoStart bool             `json:"no_start,omitempty"`
	Profile string           `json:"profile,omitempty"`
	// TTLMS and IdleTimeoutMS are 0 for the default and -1 for ever.
	TTLMS         int64  `json:"ttl_ms,omitempty"`
	IdleTimeoutMS int64  `json:"idle_timeout_ms,omitempty"`
	RequestID     string `json:"request_id,omitempty"`

	// Allow is what commands may do beyond what others may, as in CreateRequest.
	Allow  []workspace.Opening `json:"allow,omitempty"`
	Mounts []workspace.Mount   `json:"mounts"`
}

// CreateResult names the workspace.
type CreateResult struct {
	Workspace id.Workspace `json:"workspace"`
	// Created is false if it was there already.
	Created bool `json:"created"`
}

// RunParams runs a command to its end, as CommandService.Exec does. The connection's
// end ends it.
type RunParams struct {
	Workspace string  `json:"workspace"`
	Command   Command `json:"command"`
	// Stdin is fed to it, at most execapi.MaxCapture bytes.
	Stdin []byte `json:"stdin,omitempty"`
	// DiscardOutput sends stdout and stderr to /dev/null instead of capturing them.
	DiscardOutput bool `json:"discard_output,omitempty"`
}

// RunResult is what became of it. Stdout and Stderr are at most execapi.MaxCapture
// bytes each; the rest is counted and dropped.
type RunResult struct {
	CommandID  id.Command      `json:"command_id"`
	Status     *execapi.Status `json:"status"`
	Stdout     []byte          `json:"stdout,omitempty"`
	Stderr     []byte          `json:"stderr,omitempty"`
	StdoutLost int64           `json:"stdout_lost,omitempty"`
	StderrLost int64           `json:"stderr_lost,omitempty"`
}

// ExecParams starts an attached command.
type ExecParams struct {
	// Workspace is a key or a derived name, here and below.
	Workspace string  `json:"workspace"`
	Command   Command `json:"command"`
	// Stdin asks for a pipe to the command's stdin; else that is /dev/null.
	Stdin bool `json:"stdin,omitempty"`
	// Terminal runs the command on a new terminal of that size.
	Terminal *WindowSize `json:"terminal,omitempty"`
}

// ExecResult carries the fds [stdin write end, if asked for] [stdout read end]
// [stderr read end], or with Terminal the one master side.
type ExecResult struct {
	CommandID id.Command `json:"command_id"`
	PID       int        `json:"pid"`
}

// AttachParams opens the output of a detached command. Follow goes on until it
// ends; on a command with a terminal it is implied and the terminal itself comes.
type AttachParams struct {
	Workspace string     `json:"workspace"`
	CommandID id.Command `json:"command_id"`
	Follow    bool       `json:"follow,omitempty"`
}

// AttachResult carries one fd: the master side if TTY, else a pipe to read from.
type AttachResult = execapi.OutputResult

// SignalParams sends Signal to a command's process group, or ends the command
// (TERM, grace, KILL of all it left) when Signal is 0.
type SignalParams struct {
	Workspace string     `json:"workspace"`
	CommandID id.Command `json:"command_id"`
	Signal    int        `json:"signal,omitempty"`
	GraceMS   int64      `json:"grace_ms,omitempty"`
}

// ResizeParams sets the size of a command's terminal.
type ResizeParams struct {
	Workspace string     `json:"workspace"`
	CommandID id.Command `json:"command_id"`
	WindowSize
}

// Exited is the params of MethodExited. Error is set instead of Status when it is
// not known how the command ended, because its executor went away.
type Exited struct {
	CommandID id.Command      `json:"command_id"`
	Status    *execapi.Status `json:"status,omitempty"`
	Error     string          `json:"error,omitempty"`
}
