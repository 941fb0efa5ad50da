package workspace

import (
	"time"

	"github.com/carrel-dev/carrel/internal/base/id"
)

// Event is something that happened to a workspace.
type Event struct {
	// Number counts up from the start of the daemon, from 1.
	Number    int64
	Time      time.Time
	Workspace id.Workspace
	Key       id.Key
	Owner     string
	// Kind is the kind of the action, as in the audit log.
	Kind string
	// State is the state of the workspace after it.
	State State
	// Status is ok or failed; Error says why it failed.
	Status, Error string
	// Note explains an event that belongs to no action, for people.
	Note      string
	Principal string
	// Command is set for events about a command.
	Command id.Command
	// Intent is the sequence number of the record of the intent.
	Intent int64
}

// Usage is what the commands of a workspace use, and their limits.
type Usage struct {
	Name   id.Workspace
	Key    id.Key
	State  State
	Limits Limits
	Stats
}
