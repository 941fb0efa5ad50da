package rules

import (
	"fmt"

	"github.com/containerd/errdefs"
)

// Level says whether an action may run.
type Level uint8

// The levels, from the least strict.
const (
	Safe    Level = iota // may run
	Confirm              // a person must approve it
	Block                // does not run
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

// Profile is where a command is to run; rules differ by it.
type Profile string

// The profiles.
const (
	// Host is this machine.
	Host Profile = "host"
	// Remote is another machine, over SSH.
	Remote Profile = "remote"
	// Workspace is a workspace with a verified boundary.
	Workspace Profile = "workspace"
)

// Profiles lists the profiles.
var Profiles = []Profile{Host, Remote, Workspace}

// Origin is who wrote a command.
type Origin string

// The origins.
const (
	User Origin = "user"
	LLM  Origin = "llm"
)

// Question is a command to judge and its context.
type Question struct {
	// Command is shell text. Exactly one of Command and Argv is set.
	Command string `json:"command,omitempty"`
	// Argv is a command as an argument vector that no shell reads.
	Argv    []string `json:"argv,omitempty"`
	Profile Profile  `json:"profile"`
	// Verified says that every required control of the workspace's boundary is verified. Without
	// it Workspace is judged as Host.
	Verified bool `json:"verified,omitempty"`
	// Source is who wrote the command; empty means a model.
	Source Origin `json:"source,omitempty"`
	// Seen says that a person approved this exact action earlier in the same thread, so it is not
	// a model's first run.
	Seen bool `json:"seen,omitempty"`
	// Workspace is the key of the workspace and Hosts are the target machines, for rules that
	// name them.
	Workspace string   `json:"workspace,omitempty"`
	Hosts     []string `json:"hosts,omitempty"`
	// Home is the home directory of the user that runs it, "~" if unknown. Dir is its working
	// directory, absolute or empty.
	Home string `json:"home,omitempty"`
	Dir  string `json:"dir,omitempty"`
	// Mounts are the directories of the host that the workspace has, by their absolute paths inside.
	Mounts []string `json:"mounts,omitempty"`
	// Env holds variables that the caller adds, as NAME=value.
	Env []string `json:"env,omitempty"`
}

// Decision is the answer to a Question. All lists have a fixed order: the same question to the
// same policy gives the same bytes.
type Decision struct {
	Level        Level    `json:"level"`
	RiskScore    int      `json:"risk_score"`
	Capabilities []string `json:"capabilities"`
	// MatchedRules holds the ids of all rules that matched, sorted.
	MatchedRules []string `json:"matched_rules"`
	// LegacyRules holds the legacy_rule names of those rules.
	LegacyRules []string `json:"legacy_rules,omitempty"`
	// NeverWhitelist says that no answer to it may be remembered.
	NeverWhitelist bool `json:"never_whitelist"`
	// NoRule says that an answer to it may be remembered for a thread, and no rule may be written that allows it.
	NoRule bool `json:"-"`
	// Reasons explains the level to a person, the strictest reason first.
	Reasons []string `json:"reasons"`
	// Segments holds the commands that were judged, each followed by those it contains.
	Segments []Segment `json:"segments,omitempty"`
	// Profile is the profile that was used.
	Profile Profile `json:"profile"`
	// Policy is the digest of the rules and the knowledge: "sha256:" and hex.
	Policy string `json:"policy"`
}

// Segment is one command of a question.
type Segment struct {
	// Text is the command's source, or the words that hold it if it is inside another command.
	Text string `json:"text"`
	// Program is its name, empty if it is unknown or not a command.
	Program string `json:"program,omitempty"`
	// Via is the program that runs it, empty for the shell.
	Via            string   `json:"via,omitempty"`
	Level          Level    `json:"level"`
	RiskScore      int      `json:"risk_score"`
	Capabilities   []string `json:"capabilities"`
	MatchedRules   []string `json:"matched_rules"`
	NeverWhitelist bool     `json:"never_whitelist,omitempty"`
	Reasons        []string `json:"reasons,omitempty"`

	// Words are what will run, of a decision that asks; nil if not every word is known as it is written, or if
	// something around the command changes what it does.
	Words []string `json:"-"`
	// NoRule is that of the command; see Decision.
	NoRule bool `json:"-"`
	// Inner says that the command is in the words of the one before.
	Inner bool `json:"-"`
}
