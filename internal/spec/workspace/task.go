package workspace

import (
	"encoding/json"
	"time"

	"github.com/carrel-dev/carrel/internal/base/fanout"
	"github.com/carrel-dev/carrel/internal/base/id"
)

// TaskState says how far a task is.
type TaskState string

// The states of a task. All but the first are ends.
const (
	TaskRunning   TaskState = "running"
	TaskCompleted TaskState = "completed"
	TaskFailed    TaskState = "failed"
	TaskStopped   TaskState = "stopped"
)

// Task is a program in a workspace that was given a prompt and reports messages. ID is its command's.
type Task struct {
	ID        id.Command
	Workspace id.Workspace
	Owner     string
	// Principal started it.
	Principal string
	// Protocol is what its program speaks: "carrel", "acp", "agent" or "agent-acp".
	Protocol string
	Argv     []string
	State    TaskState
	// Reason says how it ended: why it failed, or what its program said.
	Reason string
	Began  time.Time
	Ended  time.Time
	// Last is the number of its newest message, and the oldest Lost of them are no longer kept.
	Last, Lost int64
}

// TaskSpec says what a task is to be.
type TaskSpec struct {
	// Protocol is "carrel", which "" is too, "acp", "agent" or "agent-acp". Prompt is what the task is to do.
	Protocol, Prompt string
	// After is a task of the same workspace that an agent goes on from: it is told what was said there. Optional.
	After id.Command
	// PlanOnly: an agent's plans are judged and shown, and not carried out.
	PlanOnly bool
	// Orders are how steps of an agent's plans reach several hosts.
	Orders fanout.Orders
	// Over is what of the machine of whoever serves is over a threshold, a line each.
	Over []string
	// Memory are notes of the person that an agent is told in a session that begins. BringsData: the prompt has texts that others wrote.
	Memory     []string
	BringsData bool
	// FD is the descriptor on which the program speaks; 0 is its stdin and stdout.
	FD int
	// Serve: whoever runs it is about to serve its steps on hosts.
	Serve bool
}

// TaskMessage is one message of a task. They are numbered from 1, without a gap. Body is JSON.
type TaskMessage struct {
	Number int64
	Time   time.Time
	Kind   string
	Body   json.RawMessage
}

// TaskUnexpected is how the reason begins with which a task fails whose program has gone.
const TaskUnexpected = "Executor terminated unexpectedly"
