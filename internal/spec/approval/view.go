package approval

import (
	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/policy/rules"
	"github.com/carrel-dev/carrel/internal/spec/operation"
)

// Question is what a person sees of an action to approve.
type Question struct {
	// Trace is the trace of the request's records.
	Trace id.Trace       `json:"trace"`
	Kind  operation.Name `json:"kind"`
	// Key and Owner are the workspace's; User is the user that the command runs as.
	Key   id.Key   `json:"key,omitempty"`
	Owner string   `json:"owner,omitempty"`
	User  string   `json:"user,omitempty"`
	Argv  []string `json:"argv,omitempty"`
	Cwd   string   `json:"cwd,omitempty"`
	// Env holds names of variables; their values may be secret.
	Env []string `json:"env,omitempty"`
	// Host, Port and Rule are those of a connection, and of the rule that asks about it.
	Host string `json:"host,omitempty"`
	Port uint16 `json:"port,omitempty"`
	Rule string `json:"rule,omitempty"`
	// Source is who wrote the action.
	Source rules.Origin `json:"source"`
	// Isolation is the boundary and root of the workspace.
	Isolation string `json:"isolation,omitempty"`
	// Decision is the decision that asks for the approval.
	Decision rules.Decision `json:"decision"`
}

// View is an approval as a person sees it.
type View struct {
	Approval
	Question
}

// Filter selects approvals; empty fields select all.
type Filter struct {
	State State
	// Workspace is a key or a derived name; Requester is a Subject.By.
	Workspace, Requester string
	// After is the last id of the previous page; Limit is the page's size.
	After string
	Limit int
}
