// Package jobs keeps the background jobs of one user: commands on hosts that outlive the process that began them. Each job
// on this machine has a supervisor of its own, this program started again (see Stage), and each on a remote host one in the
// shell of that host.
//
// A job is a directory of the registry:
//
//	job.json        what it is, durable before anything starts
//	lock            locked by the supervisor from before the job can be seen until the supervisor ends
//	control         a FIFO: one byte tells the supervisor to end the job
//	stdout.N …      the output: the file N begins at byte N of the stream. The first one stays, of the others the last two
//	end.json        how it ended, in place of end.new, which has held the room for it from the beginning
//
// A job without an end whose lock is free is lost: its supervisor was killed, or the machine was started anew.
//
// The package must not judge commands or ask anybody: its caller had the command judged before. It follows no symbolic
// link in its directories.
package jobs

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/hostrun"
)

// Bounds of the registry.
const (
	// MaxJobs is how many jobs are kept. The oldest that have ended go first.
	MaxJobs = 200
	// MaxAge is how long a job that has ended is kept.
	MaxAge = 30 * 24 * time.Hour
	// MaxTime is how long a job may run.
	MaxTime = 24 * time.Hour
)

// Spec is what a job is. It does not change.
type Spec struct {
	ID   id.Command `json:"id"`
	Argv []string   `json:"argv"`
	// Dir is where it begins on this machine.
	Dir string `json:"dir,omitempty"`
	// ReadOnly: it runs under the profile of commands that change nothing, or not at all. AsRoot lets it run as root.
	ReadOnly bool  `json:"read_only,omitempty"`
	AsRoot   bool  `json:"as_root,omitempty"`
	LimitMS  int64 `json:"limit_ms"`
	// Profile and Writes are those of hostrun.Command on this machine; "" is the profile that follows from ReadOnly.
	Profile string   `json:"profile,omitempty"`
	Writes  []string `json:"writes,omitempty"`
	// MaxMemory and MaxProcesses are those of hostrun.Limits.
	MaxMemory    int64 `json:"max_memory,omitempty"`
	MaxProcesses int   `json:"max_processes,omitempty"`
	// Host is the name of a remote host in the file Inventory; "" is this machine.
	Host      string    `json:"host,omitempty"`
	Inventory string    `json:"inventory,omitempty"`
	Began     time.Time `json:"began"`
}

// Limit is how long the job may run.
func (s Spec) Limit() time.Duration { return time.Duration(s.LimitMS) * time.Millisecond }

// End is how a job ended.
type End struct {
	// Code is the exit code, or 128 and the number of Signal.
	Code   int `json:"code"`
	Signal int `json:"signal,omitempty"`
	// TimedOut: its time was over. Stopped: somebody stopped it.
	TimedOut bool `json:"timed_out,omitempty"`
	Stopped  bool `json:"stopped,omitempty"`
	// Error says why it is not known how it ended.
	Error string `json:"error,omitempty"`
	// Left are processes that could not be ended.
	Left []string  `json:"left,omitempty"`
	At   time.Time `json:"at"`
}

// State is what a job does.
type State string

// The states of a job.
const (
	Running  State = "running"
	Exited   State = "exited"
	Stopped  State = "stopped"
	TimedOut State = "timed out"
	// Lost: its supervisor has ended, and how the command ended is not known.
	Lost State = "lost"
	// Unknown: the remote host could not be asked.
	Unknown State = "unknown"
)

// Over reports whether nothing more is to come of the job.
func (s State) Over() bool { return s != Running && s != Unknown }

// Job is a job as it was found.
type Job struct {
	Spec
	State State
	// End is nil if there is none, or it is not known.
	End *End
	// Why says why the state is Lost or Unknown, and what to do.
	Why string
	// Seen is when a job on a remote host was seen to run last. It is when lock was changed last.
	Seen time.Time
}

// Status is the state in words: "exited 3" and not "exited".
func (j Job) Status() string {
	if j.State == Exited && j.End != nil {
		return fmt.Sprintf("exited %d", j.End.Code)
	}
	return string(j.State)
}

// ErrNotRun is wrapped by errors of a Shell that has run nothing.
var ErrNotRun = errors.New("it was not run")

// Shell runs a program on a remote host of an inventory and returns what it wrote to stdout. A program that fails is an
// error with what it wrote to stderr.
type Shell func(ctx context.Context, inventory, host string, argv []string) ([]byte, error)

// Config holds the dependencies of Open.
type Config struct {
	// Dir is the directory of the registry, of which the parent is there. Required.
	Dir string
	// Shell reaches remote hosts. Without it their jobs are in state Unknown.
	Shell Shell
}

// Registry is the jobs of one user. Its methods may be called from any goroutine and by several processes at once.
type Registry struct {
	cfg Config
	dir folder
	// program supervises jobs on this machine; nil is the running one.
	program *hostrun.Program
}

// By is the registry with a program that supervises the jobs which begin on this machine. Without one it is the running program,
// which must call hostrun.Stage and Stage then.
func (r *Registry) By(p *hostrun.Program) *Registry {
	with := *r
	with.program = p
	return &with
}

// Open opens the registry, and makes it if there is none. The caller must call Close.
func Open(cfg Config) (*Registry, error) {
	dir, err := openRegistry(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("cannot use the directory of background jobs: %w", err)
	}
	return &Registry{cfg: cfg, dir: dir}, nil
}

// Close lets go of the directory. Jobs go on.
func (r *Registry) Close() { r.dir.close() }

func check(s Spec) error {
	if _, err := id.ParseCommand(string(s.ID)); err != nil {
		return err
	}
	if len(s.Argv) == 0 || s.Limit() <= 0 || s.Limit() > MaxTime {
		return fmt.Errorf("cannot begin job %s: it has no command, or no time between 1ms and %v: %w", s.ID, MaxTime, errdefs.ErrInvalidArgument)
	}
	return nil
}

func notFound(job id.Command) error {
	return fmt.Errorf("cannot find job %s: there is none, or it was removed; \"carrel job ls\" lists them: %w", job, errdefs.ErrNotFound)
}
