package workspace

import "github.com/carrel-dev/carrel/internal/id"

// Mended is one thing that a start put right, or could not.
type Mended struct {
	Kind MendedKind `json:"kind"`
	// Workspace is empty for what concerns the host.
	Workspace id.Workspace `json:"workspace,omitempty"`
	// Done says for people what was done, or why nothing was.
	Done string `json:"done"`
}

// MendedKind says what was found.
type MendedKind string

// The kinds.
const (
	// CreateUndone and DestroyFinished are operations that had broken off.
	CreateUndone    MendedKind = "create_undone"
	DestroyFinished MendedKind = "destroy_finished"
	// ExecutorLost is a workspace whose executor had ended; it is stopped.
	ExecutorLost MendedKind = "executor_lost"
	// StartSwept is what a start had left that broke off: groups, socket, report.
	StartSwept MendedKind = "start_swept"
	// UserDatabase is what a killed tool had left in /etc.
	UserDatabase MendedKind = "user_database"
	// NotMended could not be put right and stays as it is.
	NotMended MendedKind = "not_mended"
	// MoreMended counts those that there was no room for.
	MoreMended MendedKind = "more"
)

// Retained is the home of a destroyed workspace.
type Retained struct {
	Workspace id.Workspace
	Key       id.Key
	Owner     string
	Boundary  Boundary
	Root      Root
	// Home is where it is on the host.
	Home string
	// DestroyedAtMS and ExpiresMS are Unix times in milliseconds; ExpiresMS is when it is
	// removed, 0 is never.
	DestroyedAtMS, ExpiresMS int64
}
