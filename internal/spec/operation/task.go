package operation

import (
	"crypto/sha256"
	"encoding/hex"

	"github.com/carrel-dev/carrel/internal/base/id"
)

// Task is a task that is to be run. Its command is an operation of its own.
type Task struct {
	// Protocol is what its program speaks: "carrel" or "acp".
	Protocol string `json:"protocol,omitempty"`
	// PromptDigest is the hex SHA-256 of the prompt, of which there are PromptBytes.
	PromptDigest string `json:"prompt_digest,omitempty"`
	PromptBytes  int    `json:"prompt_bytes,omitempty"`
	// FD is the descriptor on which its program speaks; 0 is its stdin and stdout.
	FD int `json:"fd,omitempty"`
}

// NewTask returns the operation that runs a task.
func NewTask(protocol, prompt string, fd int) Task {
	sum := sha256.Sum256([]byte(prompt))
	return Task{protocol, hex.EncodeToString(sum[:]), len(prompt), fd}
}

// Op implements Operation.
func (Task) Op() Name { return RunTask }

// TaskAsks is what a task asks a person for. All of it is what the task says.
type TaskAsks struct {
	// ID is the command that the task is.
	ID id.Command `json:"command,omitempty"`
	// Title says what it is about, and Asked are the words of the command, or one text of what else it is, in full.
	Title string   `json:"title,omitempty"`
	Asked []string `json:"asked,omitempty"`
	// Number tells the questions of one task from each other, so that an answer is to one of them.
	Number int `json:"number,omitempty"`
}

// Op implements Operation.
func (TaskAsks) Op() Name { return AskTask }

// TaskKey is a secret that a task asks for by its name.
type TaskKey struct {
	ID   id.Command `json:"command,omitempty"`
	Name string     `json:"name,omitempty"`
}

// Op implements Operation.
func (TaskKey) Op() Name { return KeyTask }
