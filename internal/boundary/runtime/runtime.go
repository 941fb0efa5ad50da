// Package runtime carries actions out. Runtime is the one interface the gate
// sees; its backends live in packages below this one, and every backend passes
// the suite in runtimetest.
//
// The story of a workspace: Create gives it ids, a user and a home; Start puts an
// executor in its boundary and proves the isolation; Run, Spawn and Detach start
// commands there; Stop ends everything that runs and keeps the home; Destroy ends
// its life, and its ids are never used again. Each step is idempotent, and a step
// that fails leaves the workspace in the state it was in.
//
// A method that changes anything takes a permit of the gate, and changes the workspace that
// the permit names; without one it is permission_denied. A Runtime must not decide who may do
// what, and it must not write records.
package runtime

import (
	"context"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/spec/permit"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

// Mounts are directories of the host for a new workspace. A backend must not take the
// word of whoever calls it for them: Grant is the client's own.
type Mounts struct {
	List []workspace.Mount
	// Grant is the far end of package mountgrant's socket. It stays the caller's.
	Grant *os.File
}

// Plan is what a new workspace is to be.
type Plan struct {
	// KeyDigest is the lower-case hex SHA-256 of its key.
	KeyDigest string
	// Owner is the same for all workspaces of one owner, which together have bounds of their own: 16
	// lower-case hex digits, or "" for an owner without.
	Owner  string
	Limits workspace.Limits
	// Allow is what commands may do beyond what others may.
	Allow []workspace.Opening
	// Mounts are asked for by their grant, which says so for its maker; nil is none.
	Mounts *Mounts
	// Start asks for it to be started as well, with this way out.
	Start bool
	Way   Way
}

// Way is the way out of a start; the zero value is none.
type Way struct {
	Open bool
	// Trust is the certificate, in PEM, of an authority that programs trust beside the host's, "" for none.
	Trust string
}

// ErrNotRunning is wrapped by the error of a call that found no executor. Nothing
// was carried out then, so that the call may be made again after a Start.
var ErrNotRunning = fmt.Errorf("the workspace is not running: %w", errdefs.ErrFailedPrecondition)

// ErrSilent is wrapped by the error of a call that an executor did not answer, though it may
// live. Whether anything was carried out is not known.
var ErrSilent = fmt.Errorf("its executor does not answer: %w", errdefs.ErrUnavailable)

// Runtime is a backend. Errors carry the kinds of containerd/errdefs:
// not_found (no such workspace or command), failed_precondition (not running, a
// control does not hold), resource_exhausted (pids, memory, commands),
// unavailable (broker or executor gone; trying again may help),
// already_exists (the name belongs to another key), invalid_argument.
type Runtime interface {
	// Create makes the workspace or returns the one there is for this key digest.
	// already_exists: the name has another key. A new one is started too if the plan says so,
	// and then is running; one that could not be started is stopped, and Start tells why.
	Create(ctx context.Context, p permit.Permit, plan Plan) (workspace.Real, workspace.Report, error)
	// Start returns once the isolation is proved; the report's Err is nil then. A way out reaches nothing before Egress.
	// One that runs keeps the way that it has.
	Start(ctx context.Context, p permit.Permit, w Way) (workspace.Real, workspace.Report, error)
	Stop(ctx context.Context, p permit.Permit) (workspace.Real, error)
	Destroy(ctx context.Context, p permit.Permit, purge bool) (workspace.Real, error)
	// Discard destroys a workspace that nobody has put anything into: it is stopped and its
	// home is as it was made. failed_precondition: it is not so, and stays.
	Discard(ctx context.Context, p permit.Permit) error
	// Pause freezes the commands of a running workspace; Resume lets them go on.
	Pause(ctx context.Context, p permit.Permit) (workspace.Real, error)
	Resume(ctx context.Context, p permit.Permit) (workspace.Real, error)
	// Limit changes the limits, at once where it runs. failed_precondition: what runs uses
	// more.
	Limit(ctx context.Context, p permit.Permit, limits workspace.Limits) (workspace.Real, error)
	// Forget removes the home that Destroy kept, by its path; one that is gone is no error.
	Forget(ctx context.Context, p permit.Permit, retained string) error

	// Revive makes a destroyed workspace a stopped one again, with the home that Destroy kept at that path.
	// After an error it is destroyed, or Destroy finishes that, and keeps the home.
	Revive(ctx context.Context, p permit.Permit, retained string) (workspace.Real, error)

	// Run runs a command to its end (e.Wait is set by it). When ctx ends first the command
	// is ended too.
	Run(ctx context.Context, p permit.Permit, e execapi.ExecParams) (execapi.ExecResult, error)
	// Spawn starts an attached command, on a terminal if tty.
	Spawn(ctx context.Context, p permit.Permit, e execapi.ExecParams, tty bool, fds ...*os.File) (Process, error)
	// Detach starts a command that the executor keeps (e.Detach is set by it).
	Detach(ctx context.Context, p permit.Permit, e execapi.ExecParams, tty bool) error
	// Attach opens the output of a detached command, or its terminal where it has one, which
	// gives the right to type; the caller closes the files.
	Attach(ctx context.Context, p permit.Permit, o execapi.OutputParams) (execapi.OutputResult, []*os.File, error)
	Signal(ctx context.Context, p permit.Permit, s execapi.StopTaskParams) error
	Resize(ctx context.Context, p permit.Permit, r execapi.ResizeParams) error
	// Dial connects to a TCP port of the workspace's loopback, by 127.0.0.1 and else by ::1. The socket is the caller's to close.
	// unavailable: nothing listens there. deadline_exceeded: what listens accepts no connection.
	Dial(ctx context.Context, p permit.Permit, port int) (*net.TCPConn, error)
	// Listen opens the socket execapi.Listening(task), which programs of the workspace alone can connect to. It is the caller's to
	// close, and ends with the caller.
	Listen(ctx context.Context, p permit.Permit, task id.Command) (*net.UnixListener, error)

	// What follows changes nothing.

	// List returns every workspace that is not destroyed.
	List(ctx context.Context) (map[id.Workspace]workspace.Real, error)
	// Report returns the proof of a running workspace.
	Report(ctx context.Context, name id.Workspace) (workspace.Report, error)
	// Egress returns the control socket (package egressapi) of a fresh carrel-egress of a workspace that was started
	// with a way out, instead of the one before, which has ended then. It reaches nothing before it is told the rules, and
	// ends when the socket is closed, which is up to the caller.
	Egress(ctx context.Context, name id.Workspace) (*os.File, error)
	// Stats returns what the commands of a running workspace use.
	Stats(ctx context.Context, name id.Workspace) (workspace.Stats, error)
	// Mended returns what the backend put right when it was started last, and what tells
	// that start from others.
	Mended(ctx context.Context) (start string, list []workspace.Mended, err error)
	Commands(ctx context.Context, name id.Workspace) ([]execapi.Command, error)
	// Output opens the output of a detached command; the caller closes the files.
	Output(ctx context.Context, name id.Workspace, o execapi.OutputParams) (execapi.OutputResult, []*os.File, error)
	// Silent is since when the executor of a workspace has answered nothing; zero if it answers,
	// or nobody has asked it. It never waits.
	Silent(name id.Workspace) time.Time
	// Gone returns a channel that is closed when the executor that serves a workspace now has gone, or the connection to it.
	Gone(ctx context.Context, name id.Workspace) (<-chan struct{}, error)
	// Ping makes one round trip to the executor.
	Ping(ctx context.Context, name id.Workspace) error
	// Close lets go of connections; workspaces and detached commands live on.
	Close() error
}

// ByBoundary are the backends, each for the workspaces with its boundary.
type ByBoundary map[workspace.Boundary]Runtime

// Of returns the backend of a boundary. failed_precondition: this build or this host has none.
func (b ByBoundary) Of(boundary workspace.Boundary) (Runtime, error) {
	if r, ok := b[boundary]; ok {
		return r, nil
	}
	return nil, fmt.Errorf("cannot serve a workspace with the boundary %q: this daemon has no backend for it; \"carrel doctor\" tells "+
		"which it has: %w",
		boundary, errdefs.ErrFailedPrecondition)
}

// Process is a started attached command. Its client must call Close.
type Process interface {
	// Files are the far ends of the pipes asked for, in the order stdin, stdout,
	// stderr, or the terminal's master side. The caller owns them.
	Files() []*os.File
	// PID is the command's pid inside the workspace.
	PID() int
	// Wait returns how the command ended. An executor that went away first is an
	// unavailable error.
	Wait(ctx context.Context) (execapi.Status, error)
	// Close hangs the command up if it still runs.
	Close() error
}
