package workspace

import (
	"time"

	"github.com/carrel-dev/carrel/internal/base/id"
)

// Entry is one record of what was done in a workspace, without secrets.
type Entry struct {
	Time time.Time
	// Seq is the number of the record, and Intent that of the intent whose outcome it is.
	Seq, Intent int64
	// Type is the type of the record, as "intent", and Status how it ended, "" if it says nothing of that.
	Type, Status string
	// Kind is the operation, "" if the record of its intent is no longer kept.
	Kind      string
	Principal string
	Command   id.Command
	// Words are what the operation is about: the words of a command, or a path. They may be cut off, as Error may be.
	Words []string
	Error string
	// Exit says how a command ended, nil if the record does not.
	Exit *Exit
}

// Exit is how a command ended.
type Exit struct {
	Code     int  `json:"code"`
	Signal   int  `json:"signal"`
	TimedOut bool `json:"timed_out"`
	OOM      bool `json:"oom"`
}

// EntriesWanted says which entries are asked for.
type EntriesWanted struct {
	// From is the earliest time, and Until what they are before; the zero Until is no bound.
	From, Until time.Time
	// Most is how many, and Newest says that they are the last ones of those that Take takes, instead of the first.
	Most   int
	Newest bool
	Take   func(*Entry) bool
}
