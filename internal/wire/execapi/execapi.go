// Package execapi holds the messages between the daemon and an executor: JSON-RPC
// 2.0 on a Unix stream socket with file descriptors, specified in
// docs/protocols/executor.md. It is data only.
package execapi

import (
	"time"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// Version is the protocol version of this build, MinVersion the oldest that it serves. An
// executor outlives the daemon that started it, so a release that raises Version keeps
// MinVersion at the version of the release before.
const (
	Version    = 3
	MinVersion = 3
)

// Methods served by the executor. MethodExited is a notification it sends.
const (
	MethodHello         = "hello"
	MethodPing          = "ping"
	MethodExec          = "exec"
	MethodSpawnTerminal = "spawn_terminal"
	MethodResize        = "resize"
	MethodAttach        = "attach"
	MethodLogs          = "logs"
	MethodStopTask      = "stop_task"
	MethodList          = "list"
	MethodHold          = "hold"
	MethodDial          = "dial"
	MethodListen        = "listen"
	MethodShutdown      = "shutdown"
	MethodExited        = "exited"
)

// Limits of the protocol.
const (
	// MaxFrame bounds one message, newline included.
	MaxFrame = 1 << 20
	// MaxArgs and MaxArgBytes bound argv and env together.
	MaxArgs     = 4096
	MaxArgBytes = 512 << 10
	// MaxShown bounds ExecParams.Shown: its bytes, and one more for each word.
	MaxShown = 1 << 10
	// MaxCapture bounds captured output and stdin data of one command, each.
	MaxCapture = 256 << 10
	// MaxOutput bounds the kept output of a detached command, DefaultOutput is the default.
	MaxOutput     = 16 << 20
	DefaultOutput = 1 << 20
	// MaxFollowers bounds how many clients may read the output of detached commands at once, all
	// commands of a workspace together.
	MaxFollowers = 256
	// MaxSessions bounds the sessions of a workspace, MaxClients the clients of one of them, and MaxSession the bytes of
	// its name.
	MaxSessions = 32
	MaxClients  = 16
	MaxSession  = 32
	// MaxRecording bounds the file of a recording, in bytes.
	MaxRecording = 16 << 20
	// MaxCommands bounds how many commands are listed at once, including ended
	// detached ones whose output is kept.
	MaxCommands = 1024
	// MaxDials bounds how many connections to ports are being opened at once, and DialTimeout how long one may take.
	MaxDials    = 256
	DialTimeout = 10 * time.Second
	// Backlog is how many connections wait at a socket of MethodListen until they are accepted.
	Backlog = 16
	// MinSocket and MaxSocket bound the descriptor of ExecParams.Socket: above the streams, and below the least limit of
	// open files that a workspace can have.
	MinSocket = 3
	MaxSocket = 63
	// DefaultGraceMS is the default time between TERM and KILL.
	DefaultGraceMS = 2000
	MaxGraceMS     = 60_000
)

// HelloParams (MethodHello) opens a connection. Any other first request is refused.
type HelloParams struct {
	Version    int `json:"version"`
	MinVersion int `json:"min_version"`
	// Role says what the connection is for. Attached commands belong to the
	// connection that started them, whichever it is.
	Role Role `json:"role,omitempty"`
}

// Role of a connection.
type Role string

// A control connection, the default, is answered whatever the commands do. On a spawn
// connection the thread that forks commands handles requests one after the other, which is the
// fastest way to start a command.
const (
	Control Role = ""
	Spawn   Role = "spawn"
)

// HelloResult is the agreed version and who answered.
type HelloResult struct {
	Version   int          `json:"version"`
	Build     string       `json:"build"`
	Workspace id.Workspace `json:"workspace"`
	// Held: it refuses new commands (MethodHold).
	Held bool `json:"held,omitempty"`
}

// Stream says what one of stdin, stdout and stderr of a command is.
type Stream string

// The kinds of stream. "" is Null.
const (
	// Null is /dev/null.
	Null Stream = "null"
	// Pipe is a pipe owned by the command's user, so that /dev/stdout can be
	// reopened; the far end comes back as an fd of the reply.
	Pipe Stream = "pipe"
	// Capture collects output up to OutputLimit into the reply (Wait) or the
	// bounded buffer (Detach). For stdin it feeds StdinData and closes.
	Capture Stream = "capture"
	// FD is a file descriptor sent with the request, in the order stdin, stdout,
	// stderr. Directories, block devices and terminals are refused.
	FD Stream = "fd"
)

// ExecParams starts a command (MethodExec), or one on a terminal
// (MethodSpawnTerminal, where the streams are ignored and one fd comes back:
// the terminal's master side).
type ExecParams struct {
	ID   id.Command `json:"id"`
	Argv []string   `json:"argv"`
	// Program: the first descriptor sent is the program, a regular file, and Argv[0] is
	// only its name. It need not be in the workspace.
	Program bool `json:"program,omitempty"`
	// Shown, if not empty, is listed instead of Argv, which holds secrets. It has at most
	// MaxShown bytes.
	Shown []string `json:"shown,omitempty"`
	// Env are NAME=VALUE strings laid over the executor's base environment.
	Env []string `json:"env,omitempty"`
	// Cwd is absolute inside the workspace, or "" for the home.
	Cwd    string `json:"cwd,omitempty"`
	Stdin  Stream `json:"stdin,omitempty"`
	Stdout Stream `json:"stdout,omitempty"`
	Stderr Stream `json:"stderr,omitempty"`
	// StdinData is what Capture feeds to stdin.
	StdinData []byte `json:"stdin_data,omitempty"`
	// Wait delays the reply until the command has ended. Without it the reply
	// says that it started, and MethodExited follows on the same connection.
	Wait bool `json:"wait,omitempty"`
	// Detach gives the command to the executor: it outlives the connection, and
	// its output is kept up to OutputLimit.
	Detach bool `json:"detach,omitempty"`
	// TimeoutMS ends the command after that long; 0 means never.
	TimeoutMS int64 `json:"timeout_ms,omitempty"`
	// GraceMS is the time between TERM and KILL; 0 means DefaultGraceMS.
	GraceMS int64 `json:"grace_ms,omitempty"`
	// OutputLimit is in bytes for each captured stream; 0 means the default.
	OutputLimit int64  `json:"output_limit,omitempty"`
	Rows        uint16 `json:"rows,omitempty"`
	Cols        uint16 `json:"cols,omitempty"`
	// Session names the terminal of a detached command, so that clients can join it: what it shows is kept, and drawn for
	// each of them. See CheckSession.
	Session string `json:"session,omitempty"`
	// Record writes the output of a session to the file Recording(ID) in the home.
	Record bool `json:"record,omitempty"`
	// Socket, if not 0, has an attached command inherit one end of a stream socket as this descriptor, whose number is in
	// SocketVariable. The other end comes back. Its stdin is /dev/null, and its output is kept up to OutputLimit, as that
	// of a detached command. MinSocket to MaxSocket.
	Socket int `json:"socket,omitempty"`
	// Asked is for the gate. It is not sent to the executor.
	Asked Asked `json:"-"`
}

// SocketVariable is the variable of a command's environment with the number of ExecParams.Socket.
const SocketVariable = "CARREL_TASK_FD"

// Keeps reports whether the executor keeps the command's output after its end.
func (p *ExecParams) Keeps() bool { return p.Detach || p.Socket != 0 }

// Asked is the context in which a client asks for a command.
type Asked struct {
	// Source is who wrote the command: "user" or "llm"; "" means llm.
	Source string
	// Thread names the conversation of the command, "" for none.
	Thread string
	// Trace joins its records with those of what it is part of; "" is a trace of its own.
	Trace id.Trace
	// WaitMS bounds the wait for a person's answer. 0 means the configured time. If it is
	// negative the request fails at once, and the question stays open for a later request.
	WaitMS int64
}

// ExecResult answers MethodExec and MethodSpawnTerminal. Its fds are the far
// ends of Pipe streams in the order stdin, stdout, stderr, of Socket, or the master side.
type ExecResult struct {
	// PID is the command's pid inside the workspace.
	PID int `json:"pid"`
	// Status is set if Wait was asked for.
	Status *Status `json:"status,omitempty"`
	Stdout []byte  `json:"stdout,omitempty"`
	Stderr []byte  `json:"stderr,omitempty"`
	// StdoutLost and StderrLost count the bytes over OutputLimit that were
	// read and dropped.
	StdoutLost int64 `json:"stdout_lost,omitempty"`
	StderrLost int64 `json:"stderr_lost,omitempty"`
}

// Status is how a command ended.
type Status struct {
	// Code is the exit code, or 128+Signal if a signal ended it.
	Code   int `json:"code"`
	Signal int `json:"signal,omitempty"`
	// TimedOut: TimeoutMS passed. OOM: the workspace ran out of memory meanwhile.
	TimedOut bool `json:"timed_out,omitempty"`
	OOM      bool `json:"oom,omitempty"`
	// Killed counts the processes that it left behind and that were ended with it.
	Killed int `json:"killed,omitempty"`
	// Stuck counts its processes that KILL did not end: they sleep in the kernel and wait for
	// a file system or a device. If the main process is one of them, Code is 137 although it
	// has not ended.
	Stuck int `json:"stuck,omitempty"`
	// StartedNS and EndedNS are Unix times in nanoseconds.
	StartedNS int64 `json:"started_ns"`
	EndedNS   int64 `json:"ended_ns"`
	// UserUS and SystemUS are processor time in microseconds, MaxRSSKiB the
	// largest resident set of one of its processes.
	UserUS    int64 `json:"user_us"`
	SystemUS  int64 `json:"system_us"`
	MaxRSSKiB int64 `json:"max_rss_kib"`
}

// Exited is the params of MethodExited.
type Exited struct {
	ID     id.Command `json:"id"`
	Status Status     `json:"status"`
}

// CommandParams names a command.
type CommandParams struct {
	ID id.Command `json:"id"`
}

// ResizeParams sets the size of a command's terminal.
type ResizeParams struct {
	ID   id.Command `json:"id"`
	Rows uint16     `json:"rows"`
	Cols uint16     `json:"cols"`
	// Client is whose window has this size, for a session: its terminal has the smallest of them.
	Client int `json:"client,omitempty"`
}

// OutputParams asks for the output of a command that keeps it (MethodLogs, MethodAttach).
// The reply carries one fd, the read end of a pipe with the kept output and, with
// Follow, further output until the command ends. For MethodAttach on a command with
// a terminal it is a stream socket, on which writing types into the terminal.
type OutputParams struct {
	ID     id.Command `json:"id"`
	Follow bool       `json:"follow,omitempty"`
	// Join joins a session: what its terminal shows is drawn, from now on to its end, for a window of this size, 0 if it is
	// not known. By MethodAttach what is written is typed, and the window's size counts. By MethodLogs neither.
	Join bool   `json:"join,omitempty"`
	Rows uint16 `json:"rows,omitempty"`
	Cols uint16 `json:"cols,omitempty"`
}

// OutputResult describes the output behind the fd of the reply.
type OutputResult struct {
	TTY bool `json:"tty"`
	// Lost is how many bytes of the oldest output are no longer kept.
	Lost int64 `json:"lost,omitempty"`
	// Status is set if the command has ended.
	Status *Status `json:"status,omitempty"`
	// Client is the number of a client that has joined, for ResizeParams.
	Client int `json:"client,omitempty"`
}

// HoldParams (MethodHold) starts or ends the refusal of new commands. Once On is answered no
// command is being started: every command admitted before runs its own program.
type HoldParams struct {
	On bool `json:"on"`
}

// DialParams (MethodDial) opens a TCP connection to a port of the workspace's loopback, by 127.0.0.1 and else by ::1. The reply
// carries the connected socket.
type DialParams struct {
	Port int `json:"port"`
}

// ListenParams (MethodListen) opens a listening Unix stream socket in the workspace, with the abstract name Listening(Task). The reply
// carries the socket, and the executor keeps none, so that it ends with whoever has it.
type ListenParams struct {
	Task id.Command `json:"task"`
}

// Listening is the abstract name of the socket of a task, with the "@" that package net puts in front of it.
func Listening(task id.Command) string { return "@carrel-mcp-" + string(task) }

// StopTaskParams (MethodStopTask) sends Signal to a command's process group. If Signal is 0 it
// ends the command and all processes that it left (TERM, grace, KILL).
type StopTaskParams struct {
	ID      id.Command `json:"id"`
	Signal  int        `json:"signal,omitempty"`
	GraceMS int64      `json:"grace_ms,omitempty"`
	// Hangup ends the command as the end of its connection does: HUP first.
	Hangup bool `json:"hangup,omitempty"`
}

// Command is one row of MethodList.
type Command struct {
	ID        id.Command `json:"id"`
	PID       int        `json:"pid"`
	Argv      []string   `json:"argv"`
	Detached  bool       `json:"detached"`
	TTY       bool       `json:"tty"`
	StartedNS int64      `json:"started_ns"`
	// Processes counts the live processes in its sub-group.
	Processes int     `json:"processes"`
	Status    *Status `json:"status,omitempty"`
	// Session is the name of the session, "" for none; Clients are those that have joined it, and Rows and Cols its size.
	Session string `json:"session,omitempty"`
	Clients int    `json:"clients,omitempty"`
	Rows    int    `json:"rows,omitempty"`
	Cols    int    `json:"cols,omitempty"`
	// Record: it writes a recording.
	Record bool `json:"record,omitempty"`
}

// ListResult answers MethodList.
type ListResult struct {
	Commands []Command        `json:"commands"`
	Limits   workspace.Limits `json:"limits"`
}
