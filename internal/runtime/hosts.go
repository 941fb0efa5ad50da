package runtime

import (
	"context"
	"time"

	"github.com/carrel-dev/carrel/internal/execapi"
	"github.com/carrel-dev/carrel/internal/operation"
)

// Hosts carry out commands on hosts. It is a process of the user who asked, with the rights, the keys and the files of that
// user: the daemon has none of them. It must not choose another target than it is told, and what it says of itself is
// believed as far as the user is.
type Hosts interface {
	// Local reports whether commands on this machine are carried out.
	Local() bool
	// Remotes are the names of the remote hosts that there are.
	Remotes() []string
	// RunOn carries out one command and returns when it has ended. If ctx ends, so does the command.
	RunOn(ctx context.Context, c HostCommand) (HostResult, error)
}

// HostCommand is one command on one host.
type HostCommand struct {
	// Kind is operation.Host or operation.Remote, and Name is that of the remote host.
	Kind operation.TargetKind
	Name string
	Argv []string
	// ReadOnly: it must not be able to change anything, or must not be run.
	ReadOnly bool
	Timeout  time.Duration
	// MaxOutput is in bytes for each stream.
	MaxOutput int
}

// HostResult is what became of a command on a host.
type HostResult struct {
	// Status is nil if it is not known how the command ended.
	Status         *execapi.Status
	Stdout, Stderr []byte
	// Lost are the bytes of output that were not kept.
	Lost int64
	// Held says what held the command, for people.
	Held string
}
