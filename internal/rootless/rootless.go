// Package rootless is "carrel run" for a user without root: it puts the gate, the
// runtime and a starter into one process, for one command in a workspace of its own. Nothing
// has to be installed or configured, and only the record stays.
//
// It must not hold isolation of its own: package launch starts the same executor as the
// broker does, and judges it by the same table.
package rootless

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/crashpoint"
	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/runtime/namespace"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox"
	"github.com/carrel-dev/carrel/internal/gate"
	"github.com/carrel-dev/carrel/internal/gate/judge"
	"github.com/carrel-dev/carrel/internal/linux/pollfd"
	"github.com/carrel-dev/carrel/internal/linux/relay"
	"github.com/carrel-dev/carrel/internal/policy/rules"
	"github.com/carrel-dev/carrel/internal/rootless/copies"
	"github.com/carrel-dev/carrel/internal/service/approvals"
	"github.com/carrel-dev/carrel/internal/service/oneshot"
	"github.com/carrel-dev/carrel/internal/spec/approval"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/state/audit"
	"github.com/carrel-dev/carrel/internal/state/record"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

// namePrefix starts the names of workspaces for one command.
const namePrefix = "run"

// Options say what to run, and in what.
type Options struct {
	// Executor is the path of carrel-executor.
	Executor string
	// Argv, Env and Dir are the command, as in execapi.ExecParams; a Dir below the home is
	// written "~/NAME".
	Argv, Env []string
	Dir       string
	// Stdin gives it a pipe as stdin; else that is /dev/null. Terminal, if set, runs it on
	// a terminal of so many rows and columns.
	Stdin    bool
	Terminal *[2]uint16
	// Mounts are directories of the caller's, with destinations as for a workspace.
	Mounts []workspace.Mount
	// Accept are controls that the workspace may run without.
	Accept []string
	// Allow is what the command may do beyond what others may.
	Allow []workspace.Opening
	// Egress is what the command may reach.
	Egress Egress
	// Archive is the path of carrel-archive. Required if a secret has a file.
	Archive string
	// Memory is the most that each process may use, in bytes, Pids how many there may be, OpenFiles how many files a process may have
	// open, each 0 for what HostLimits says. Timeout ends the command; 0 is never.
	Memory, Pids, OpenFiles int64
	Timeout                 time.Duration
	// Continue is an earlier run with a staged copy, with which this one goes on where a mount is staged.
	Continue id.Workspace
	// Keep leaves the home on disk.
	Keep bool
	// IDs says which ids executor and command have; "" is OneID.
	IDs IDs
	// Source is who wrote the command: "user" or "llm".
	Source string
	// Ask has the person at the terminal answer where the policy wants that; nil is nobody,
	// and then what has to be asked is not run.
	Ask func(context.Context, approval.Question) (approval.Kind, string, error)
	// Note gets what the person should know about their file of rules, before the command is judged. Required.
	Note func(string)
}

// Run is a command that runs.
type Run struct {
	// Name is the name of its workspace, Report the proof of its isolation.
	Name   id.Workspace
	Report workspace.Report

	terminal bool
	accept   []string

	running *oneshot.Running
	gate    *gate.Gate
	runtime *namespace.Runtime
	state   *state
	records *record.Writer
}

// Start starts a command. Close must be called, also to have its outcome recorded.
func Start(ctx context.Context, o Options) (*Run, error) {
	// The rules are read while the run is prepared.
	rules := sync.OnceValues(func() (*rules.Engine, error) { return loadPolicy(o.Note) })
	go func() { _, _ = rules() }()    // who asks gets the error
	defer func() { _, _ = rules() }() // Note is not called after Start
	for _, c := range o.Accept {
		if !sandbox.IsControl(c) {
			return nil, fmt.Errorf("cannot accept %q: there is no such control; \"carrel run --report\" lists them: %w",
				c, errdefs.ErrInvalidArgument)
		}
	}
	if err := errors.Join(
		workspace.CheckMounts(o.Mounts), workspace.CheckOpenings(o.Allow, o.Mounts), workspace.CheckSecretFiles(o.Egress.Files, o.Mounts),
	); err != nil {
		return nil, err
	}
	ranges, why, err := o.IDs.ranges()
	if err != nil {
		return nil, err
	}
	limits, tmpfs, err := HostLimits()
	if err != nil {
		return nil, err
	}
	limits.MemoryBytes, limits.Pids = cmp.Or(o.Memory, limits.MemoryBytes), cmp.Or(o.Pids, limits.Pids)
	limits.OpenFiles = cmp.Or(o.OpenFiles, limits.OpenFiles)
	if err := limits.Validate(); err != nil {
		return nil, err
	}
	st, err := openState()
	if err != nil {
		return nil, err
	}
	command := execapi.ExecParams{
		Argv: o.Argv, Env: o.Env, Stdin: execapi.Null, Stdout: execapi.Pipe, Stderr: execapi.Pipe,
		TimeoutMS: o.Timeout.Milliseconds(), Asked: execapi.Asked{Source: o.Source},
	}
	if o.Stdin {
		command.Stdin = execapi.Pipe
	}
	if o.Terminal != nil {
		command.Rows, command.Cols = o.Terminal[0], o.Terminal[1]
	}
	st.goesOn = o.Continue
	key := id.Key(id.NewTrace())
	r := &Run{Name: id.Derive(namePrefix, key, 0), state: st, terminal: o.Terminal != nil, accept: o.Accept}
	command.Cwd = workspace.Mount{Destination: o.Dir}.AtHome().Destination
	s := &starter{
		Broker: namespace.Unserved(noStay), name: r.Name, options: &o, state: st,
		launcher: Launcher{Executor: o.Executor, TmpfsBytes: tmpfs, Ranges: ranges, NoRange: why},
	}
	r.runtime = namespace.New(namespace.Config{Broker: s, Executor: s.connect})
	redactor, err := record.OpenRedactor(filepath.Join(st.dir, "redact.key"))
	if err != nil {
		return nil, err
	}
	shared := audit.OpenShared(st.auditPath())
	r.records = record.NewWriter(shared, redactor)
	if len(o.Egress.Rules)+len(o.Egress.Models.List) > 0 {
		var env []string
		if s.way, env, s.authority, err = newWayOut(&o.Egress, r.Name, r.records); err != nil {
			return nil, err
		}
		command.Env = append(env, command.Env...) // what the caller sets counts
	}
	r.gate = gate.New(gate.Config{
		Records: r.records, Judge: judge.New(rules), Ask: approvals.Here{Prompt: o.Ask, Records: r.records}, Log: slog.New(slog.DiscardHandler),
	})
	closeBroken := func(names []id.Workspace) error { return oneshot.CloseBroken(ctx, shared, r.records, names) }
	if err := st.register(r.Name, closeBroken); err != nil {
		return nil, err
	}
	crashpoint.Here("run.begin.registered")
	by := principal.Principal{Kind: principal.User, UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())}
	r.running, err = oneshot.Run(ctx, r.gate, r.runtime, by, oneshot.Workspace{
		Name: r.Name, Limits: limits, Mounts: o.Mounts, Allow: o.Allow, Accept: slices.Clone(o.Accept), Reach: o.Egress.texts(),
		Command: command, TTY: o.Terminal != nil, Keep: o.Keep, Prepare: s.placeFiles,
	})
	if err != nil {
		_ = r.runtime.Close()
		st.close()
		return nil, err
	}
	r.Report = r.running.Report
	return r, nil
}

// Far are the far ends of the command's streams.
func (r *Run) Far() (relay.Far, error) {
	files := r.running.Files()
	if err := pollfd.OpenAll(files); err != nil {
		return relay.Far{}, err
	}
	switch {
	case len(files) == 1 && r.terminal:
		return relay.Far{Terminal: files[0]}, nil
	case len(files) == 2:
		return relay.Far{Stdout: files[0], Stderr: files[1]}, nil
	case len(files) == 3:
		return relay.Far{Stdin: files[0], Stdout: files[1], Stderr: files[2]}, nil
	}
	return relay.Far{}, fmt.Errorf("cannot use the executor's answer: it carries %d descriptors: %w", len(files), errdefs.ErrInternal)
}

// Wait returns how the command ended.
func (r *Run) Wait(ctx context.Context) (execapi.Status, error) { return r.running.Wait(ctx) }

// OpenPort says that a port of the command's loopback is to be reached from outside, which is recorded.
func (r *Run) OpenPort(ctx context.Context, port int) error { return r.running.OpenPort(ctx, port) }

// DialPort connects to it. The connection is the caller's to close.
func (r *Run) DialPort(ctx context.Context, port int) (*net.TCPConn, error) {
	return r.running.DialPort(ctx, port)
}

// Signal sends a signal to the command's process group.
func (r *Run) Signal(ctx context.Context, signal int) error { return r.running.Signal(ctx, signal) }

// Resize sets the size of its terminal.
func (r *Run) Resize(ctx context.Context, rows, cols uint16) error {
	return r.running.Resize(ctx, rows, cols)
}

// Close hangs the command up if it still runs, and returns when nothing of the workspace
// is left and its outcome is recorded. retained is where its home was kept, and notes are for a person to
// read.
func (r *Run) Close() (retained string, notes []string, err error) {
	_ = r.running.Close() // its end says what there is to say
	r.gate.Settle()
	err = errors.Join(r.runtime.Close(), r.records.FlushSums())
	crashpoint.Here("run.end.settled")
	r.state.close()
	return r.running.Retained, r.state.notes, err
}

// Sync applies the source of the staged copies as it changes, until the context ends. tell is told of each copy what was applied, or
// why it could not be.
func (r *Run) Sync(ctx context.Context, tell func(*copies.Copy, copies.Result, error)) {
	var all sync.WaitGroup
	for _, c := range r.state.copies {
		all.Go(func() {
			c.Sync(ctx, HostReads(c.Source), func(res copies.Result, err error) { tell(c.Copy, res, err) })
		})
	}
	all.Wait()
}

// Changes are what the command changed in the directories that it could write, after Close.
func (r *Run) Changes() []Changes { return r.state.changes }

// Copies are the staged copies in which the command changed something, after Close.
func (r *Run) Copies() []Staged { return r.state.kept }

// Hangup ends the command, if it still runs.
func (r *Run) Hangup() error { return r.running.Close() }

// Weaker returns the controls that the workspace runs without because that was accepted or asked
// for, and those that do not hold and need not.
func (r *Run) Weaker() []workspace.Control {
	var weaker []workspace.Control
	for _, c := range r.Report.Controls {
		if c.Opened != "" || c.State == workspace.Failed || slices.Contains(r.accept, c.ID) && c.State != workspace.Verified {
			weaker = append(weaker, c)
		}
	}
	return weaker
}
