package workspace

import "github.com/carrel-dev/carrel/internal/base/id"

// Mended is one thing that a start of the broker repaired, or could not repair.
type Mended struct {
	Kind MendedKind `json:"kind"`
	// Workspace is empty if it concerns the host.
	Workspace id.Workspace `json:"workspace,omitempty"`
	// Done says for people what was done, or why nothing was.
	Done string `json:"done"`
}

// MendedKind says what was found.
type MendedKind string

// The kinds.
const (
	// CreateUndone, CreateFinished and DestroyFinished are operations that were interrupted.
	CreateUndone    MendedKind = "create_undone"
	CreateFinished  MendedKind = "create_finished"
	DestroyFinished MendedKind = "destroy_finished"
	// GoesOn is an interrupted operation that is still being finished in the background.
	GoesOn MendedKind = "goes_on"
	// ExecutorLost is a workspace whose executor had ended; it is stopped.
	ExecutorLost MendedKind = "executor_lost"
	// StartSwept is what an interrupted start had left: groups, socket, report.
	StartSwept MendedKind = "start_swept"
	// UserDatabase is what a killed tool had left in /etc.
	UserDatabase MendedKind = "user_database"
	// LedgerCut is a line without an end at that of the ledger, and LedgerRebuilt a workspace that the
	// ledger had lost and the host shows.
	LedgerCut     MendedKind = "ledger_cut"
	LedgerRebuilt MendedKind = "ledger_rebuilt"
	// NotMended could not be repaired and stays as it is.
	NotMended MendedKind = "not_mended"
	// MoreMended counts those beyond the longest list.
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
