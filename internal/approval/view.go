package approval

import (
	"github.com/carrel-dev/carrel/internal/action"
	"github.com/carrel-dev/carrel/internal/id"
	"github.com/carrel-dev/carrel/internal/policy"
)

// Question is what a person is shown of an action that they are asked about.
type Question struct {
	// Trace is that of the records of the request.
	Trace id.Trace    `json:"trace"`
	Kind  action.Kind `json:"kind"`
	// Key and Owner are those of the workspace, User is who the command runs as in it.
	Key   id.Key   `json:"key,omitempty"`
	Owner string   `json:"owner,omitempty"`
	User  string   `json:"user,omitempty"`
	Argv  []string `json:"argv,omitempty"`
	Cwd   string   `json:"cwd,omitempty"`
	// Env are names of variables; their values may be secret.
	Env []string `json:"env,omitempty"`
	// Source is who wrote it.
	Source policy.Origin `json:"source"`
	// Isolation is boundary and root of the workspace.
	Isolation string `json:"isolation,omitempty"`
	// Decision is why it is asked.
	Decision policy.Decision `json:"decision"`
}

// View is an approval as a person sees it.
type View struct {
	Approval
	Question
}

// Filter chooses approvals; what is empty chooses all.
type Filter struct {
	State State
	// Workspace is a key or a derived name, Requester as in Subject.By.
	Workspace, Requester string
	// After is what the page before ended with; Limit bounds the page.
	After string
	Limit int
}
