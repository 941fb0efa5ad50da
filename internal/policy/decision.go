package policy

import (
	"fmt"

	"github.com/containerd/errdefs"
)

// Level is what is to happen with an action.
type Level uint8

// The levels, the strictest last.
const (
	Safe    Level = iota // may run
	Confirm              // a person has to say so
	Block                // may not run
)

var levelNames = [...]string{"SAFE", "CONFIRM", "BLOCK"}

// String returns SAFE, CONFIRM or BLOCK.
func (l Level) String() string { return levelNames[min(int(l), len(levelNames)-1)] }

// MarshalText writes the level as String.
func (l Level) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// UnmarshalText reads what MarshalText writes.
func (l *Level) UnmarshalText(b []byte) error {
	for i, n := range levelNames {
		if n == string(b) {
			*l = Level(i)
			return nil
		}
	}
	return fmt.Errorf("cannot read the level %q: it is one of SAFE, CONFIRM, BLOCK: %w", b, errdefs.ErrInvalidArgument)
}

// Profile is where a command is to run, which decides what it may do unasked.
type Profile string

// The profiles.
const (
	// Host is this machine itself.
	Host Profile = "host"
	// Remote is another machine, over SSH.
	Remote Profile = "remote"
	// Workspace is a workspace whose boundary was verified.
	Workspace Profile = "workspace"
)

// Profiles are all there are.
var Profiles = []Profile{Host, Remote, Workspace}

// Origin is who wrote a command.
type Origin string

// The origins.
const (
	User Origin = "user"
	LLM  Origin = "llm"
)

// Question is what is asked.
type Question struct {
	// Command is a shell text. It is empty if Argv is given.
	Command string `json:"command,omitempty"`
	// Argv is a command whose words are fixed: no shell reads it.
	Argv    []string `json:"argv,omitempty"`
	Profile Profile  `json:"profile"`
	// Verified says that every required control of the workspace's boundary was seen to
	// hold. Without it the profile workspace is judged as host.
	Verified bool `json:"verified,omitempty"`
	// Source is who wrote the command; nothing stands for a model.
	Source Origin `json:"source,omitempty"`
	// Seen says that a person has approved this very action before in the same thread, so
	// that it is not a model's first run of it.
	Seen bool `json:"seen,omitempty"`
	// Workspace is the key of the workspace, Hosts are the machines, for rules about them.
	Workspace string   `json:"workspace,omitempty"`
	Hosts     []string `json:"hosts,omitempty"`
	// Home is the home of who it runs as, "~" if unknown; Dir is where it runs, absolute or
	// empty.
	Home string `json:"home,omitempty"`
	Dir  string `json:"dir,omitempty"`
	// Env are variables that the caller adds, as NAME=value.
	Env []string `json:"env,omitempty"`
}

// Decision is the answer. All lists are in a fixed order: the same question to the same
// policy gives the same bytes.
type Decision struct {
	Level        Level    `json:"level"`
	RiskScore    int      `json:"risk_score"`
	Capabilities []string `json:"capabilities"`
	// MatchedRules are the ids of all rules that matched, in the order of the policy.
	MatchedRules []string `json:"matched_rules"`
	// LegacyRules are the names that those rules give themselves in legacy_rule.
	LegacyRules []string `json:"legacy_rules,omitempty"`
	// NeverWhitelist says that no answer to it may be remembered.
	NeverWhitelist bool `json:"never_whitelist"`
	// Reasons say for a person why it is not SAFE, or what it does if it is; the strictest
	// first.
	Reasons []string `json:"reasons"`
	// Segments are the commands that were judged, those inside others after them.
	Segments []Segment `json:"segments,omitempty"`
	// Profile is the one that it was judged by.
	Profile Profile `json:"profile"`
	// Policy is the digest of the rules and knowledge, "sha256:" and hex.
	Policy string `json:"policy"`
}

// Segment is one command of a question.
type Segment struct {
	// Text is the command as it stands or, if it stands in another's words, those words.
	Text string `json:"text"`
	// Program is the name it is known by, empty if it is unknown or not a command.
	Program string `json:"program,omitempty"`
	// Via is the program that runs it, empty if the shell does.
	Via            string   `json:"via,omitempty"`
	Level          Level    `json:"level"`
	RiskScore      int      `json:"risk_score"`
	Capabilities   []string `json:"capabilities"`
	MatchedRules   []string `json:"matched_rules"`
	NeverWhitelist bool     `json:"never_whitelist,omitempty"`
	Reasons        []string `json:"reasons,omitempty"`
}
