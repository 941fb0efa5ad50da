// Package plan reads the answers of a language model: plans of commands, plans of changes to files, calls of tools that
// read, and plain answers.
//
// An answer is one JSON object of a known form. Anything else is an error that says where it is wrong and what is
// allowed there, so that the error can be sent back to the model. The forms are one table, from which Parse and Schema
// are made.
//
// The package must not repair an answer, read anything out of its prose, or choose a target that the answer does not
// name. It does not judge: a plan that was parsed is a proposal.
package plan

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/spec/tools"
)

// Bounds of an answer. Lengths are in bytes, of the decoded text where it is a member.
const (
	MaxAnswer   = 256 << 10
	MaxDepth    = 32
	MaxCommands = 32 // in one list
	MaxCommand  = 16 << 10
	MaxFiles    = 64
	MaxPath     = 4095 // PATH_MAX without its NUL
	MaxProse    = 8 << 10
	MaxEvidence = 32
	// MinEvidence is the shortest quotation that counts as evidence.
	MinEvidence = 4
	// MaxTimeout is in seconds.
	MaxTimeout = 24 * 60 * 60
)

// Type says which form an answer has.
type Type string

// The types of an answer.
const (
	CommandPlanType   Type = "command_plan"
	FilePatchPlanType Type = "file_patch_plan"
	ToolCallsType     Type = "tool_calls"
	DirectAnswerType  Type = "direct_answer"
	NoChangeType      Type = "no_change"
	ContinueType      Type = "continue_planning"
)

// Answer is an answer that was parsed. Of the pointers exactly the one that Type names is set.
type Answer struct {
	Type     Type
	Commands *CommandPlan
	Patch    *FilePatchPlan
	Tools    *ToolCalls
	Direct   *DirectAnswer
	NoChange *NoChange
	Continue *ContinuePlanning
}

// CommandPlan is commands to be run in their order. The names of its members are those of LinuxAgent, but for target.
type CommandPlan struct {
	Type            Type     `json:"type"`
	Goal            string   `json:"goal"`
	Commands        []Step   `json:"commands"`
	RiskSummary     string   `json:"risk_summary"`
	PreflightChecks []Step   `json:"preflight_checks"`
	Verification    []Step   `json:"verification_commands"`
	Rollback        []Step   `json:"rollback_commands"`
	RequiresRoot    bool     `json:"requires_root"`
	SideEffects     []string `json:"expected_side_effects"`
}

// Step is one command and where it runs. ReadOnly is the model's own claim.
type Step struct {
	// Command is one line of shell text.
	Command  string `json:"command"`
	Purpose  string `json:"purpose"`
	ReadOnly bool   `json:"read_only"`
	Target   Target `json:"target"`
	// Background asks that the plan goes on while the command runs.
	Background bool `json:"background,omitempty"`
	// TimeoutSeconds is 0 if the plan names none.
	TimeoutSeconds int `json:"timeout_seconds,omitempty"`
}

// Intent says whether a change to files was asked for as a new file. It is a claim of the model's.
type Intent string

// The intents.
const (
	Create  Intent = "create"
	Update  Intent = "update"
	Unknown Intent = "unknown"
)

// FilePatchPlan is a change to files of one target. Either UnifiedDiff or Patch is set.
type FilePatchPlan struct {
	Type         Type     `json:"type"`
	Goal         string   `json:"goal"`
	Intent       Intent   `json:"request_intent"`
	Target       Target   `json:"target"`
	FilesChanged []string `json:"files_changed"`
	UnifiedDiff  string   `json:"unified_diff,omitempty"`
	// Patch is in the apply_patch grammar of coding agents.
	Patch        string             `json:"patch,omitempty"`
	RiskSummary  string             `json:"risk_summary"`
	Verification []Step             `json:"verification_commands"`
	Rollback     []Step             `json:"rollback_commands"`
	Permissions  []PermissionChange `json:"permission_changes"`
}

// Text is the change: the unified diff, or else the patch.
func (p *FilePatchPlan) Text() string { return cmp.Or(p.UnifiedDiff, p.Patch) }

// PermissionChange is a file's mode after the change, in octal digits.
type PermissionChange struct {
	Path string `json:"path"`
	Mode string `json:"mode"`
}

// Bits is the mode as permission bits; 0 if no Parse returned it.
func (p PermissionChange) Bits() uint32 {
	n, err := strconv.ParseUint(p.Mode, 8, 9)
	if err != nil {
		return 0
	}
	return uint32(n)
}

// ToolCalls are calls of tools that read. They have no order.
type ToolCalls struct {
	Type  Type       `json:"type"`
	Calls []ToolCall `json:"calls"`
}

// ToolCall is one call, and where it reads: a single place.
type ToolCall struct {
	Target Target `json:"target"`
	tools.Call
}

// DirectAnswer is an answer in prose. It changes nothing.
type DirectAnswer struct {
	Type   Type   `json:"type"`
	Answer string `json:"answer"`
	// Remember is a note that the model proposes for later sessions, "" for none.
	Remember string `json:"remember,omitempty"`
}

// NoChange says that what was asked for is there already. Evidence are quotations of tool output: see Evidence.
type NoChange struct {
	Type     Type     `json:"type"`
	Answer   string   `json:"answer"`
	Evidence []string `json:"evidence"`
}

// ContinuePlanning asks for another turn.
type ContinuePlanning struct {
	Type   Type   `json:"type"`
	Reason string `json:"reason"`
}

// form returns a pointer to a new value of the form that a type names, set in the answer.
func (a *Answer) form() any {
	switch a.Type {
	case CommandPlanType:
		a.Commands = &CommandPlan{}
		return a.Commands
	case FilePatchPlanType:
		a.Patch = &FilePatchPlan{}
		return a.Patch
	case ToolCallsType:
		a.Tools = &ToolCalls{}
		return a.Tools
	case DirectAnswerType:
		a.Direct = &DirectAnswer{}
		return a.Direct
	case NoChangeType:
		a.NoChange = &NoChange{}
		return a.NoChange
	case ContinueType:
		a.Continue = &ContinuePlanning{}
		return a.Continue
	}
	return nil
}

// Canonical returns the bytes that a digest of the answer is made of: JSON with the members in the order of the structs,
// without white space, optional members that are not set left out. Answers that mean the same have the same bytes. It
// fails for an answer that no Parse returned.
func (a Answer) Canonical() ([]byte, error) {
	var v any
	switch {
	case a.Type == CommandPlanType && a.Commands != nil:
		v = a.Commands
	case a.Type == FilePatchPlanType && a.Patch != nil:
		v = a.Patch
	case a.Type == ToolCallsType && a.Tools != nil:
		v = a.Tools
	case a.Type == DirectAnswerType && a.Direct != nil:
		v = a.Direct
	case a.Type == NoChangeType && a.NoChange != nil:
		v = a.NoChange
	case a.Type == ContinueType && a.Continue != nil:
		v = a.Continue
	default:
		return nil, fmt.Errorf("cannot write an answer of type %.40q in canonical form: no Parse returned it: %w", a.Type,
			errdefs.ErrInvalidArgument)
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, fmt.Errorf("cannot write an answer in canonical form: %w", err)
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}
