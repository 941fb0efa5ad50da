// Package action is what a principal wants done, in the one canonical form that
// policy judges, approvals are bound to and records keep.
//
// It is pure, and it must not know how an action is carried out.
package action

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"github.com/carrel-dev/carrel/internal/id"
	"github.com/carrel-dev/carrel/internal/workspace"
)

// Kind names what is done.
type Kind string

// The kinds of action.
const (
	Create  Kind = "workspace.create"
	Start   Kind = "workspace.start"
	Stop    Kind = "workspace.stop"
	Destroy Kind = "workspace.destroy"
	Pause   Kind = "workspace.pause"
	Resume  Kind = "workspace.resume"
	Update  Kind = "workspace.update"
	Archive Kind = "workspace.archive"
	Restore Kind = "workspace.restore"

	ReadArchive   Kind = "archive.read"
	RemoveArchive Kind = "archive.remove"

	// RunOnce makes a workspace for one command, and ends it with that.
	RunOnce Kind = "workspace.run"

	Exec    Kind = "command.exec"
	Attach  Kind = "command.attach"
	Signal  Kind = "command.signal"
	Recover Kind = "daemon.recover"

	// Answer answers a question about an action, Revoke takes a permission back.
	Answer Kind = "approval.answer"
	Revoke Kind = "permission.revoke"

	// Forget removes the home that was kept of a destroyed workspace.
	Forget Kind = "home.remove"
)

// The kinds that only look, or change nothing that is kept. They are recorded
// when they are refused.
const (
	Inspect  Kind = "workspace.inspect"
	Stats    Kind = "workspace.stats"
	Watch    Kind = "workspace.watch"
	Commands Kind = "command.list"
	Logs     Kind = "command.logs"
	Resize   Kind = "command.resize"
	Audit    Kind = "audit.read"
	Mended   Kind = "daemon.mended"
	List     Kind = "workspace.list"
	Archives Kind = "archive.list"
	Version  Kind = "daemon.version"
	WhoAmI   Kind = "principal.whoami"
	// Login is who comes with a token: its first request of a connection, or a refused one.
	Login Kind = "login"

	Policy          Kind = "policy.reload"
	InspectApproval Kind = "approval.inspect"

	ListTokens Kind = "token.list"
)

// The kinds about tokens that change what is kept.
const (
	CreateToken Kind = "token.create"
	RevokeToken Kind = "token.revoke"
)

// Action is one thing to be done. Fields that a kind does not use stay empty.
type Action struct {
	Kind      Kind         `json:"kind"`
	Workspace id.Workspace `json:"workspace,omitempty"`
	Key       id.Key       `json:"key,omitempty"`
	Argv      []string     `json:"argv,omitempty"`
	// Env lists the names of the variables that the caller set, sorted; values
	// may be secret and are not part of the record.
	Env []string `json:"env,omitempty"`
	// EnvDigest is the hex SHA-256 over the sorted "NAME=VALUE\0" strings, so that
	// two actions that differ in a value differ in digest.
	EnvDigest string     `json:"env_digest,omitempty"`
	Cwd       string     `json:"cwd,omitempty"`
	TTY       bool       `json:"tty,omitempty"`
	Detach    bool       `json:"detach,omitempty"`
	TimeoutMS int64      `json:"timeout_ms,omitempty"`
	Command   id.Command `json:"command,omitempty"`
	Signal    string     `json:"signal,omitempty"`
	Purge     bool       `json:"purge,omitempty"`
	// Limits is the canonical JSON of the limits asked for, when any were.
	Limits json.RawMessage `json:"limits,omitempty"`
	// Profile, TTLMS and IdleMS are what a workspace is to have, in milliseconds; -1 is
	// for ever.
	Profile string `json:"profile,omitempty"`
	TTLMS   int64  `json:"ttl_ms,omitempty"`
	IdleMS  int64  `json:"idle_ms,omitempty"`
	NoStart bool   `json:"no_start,omitempty"`
	// Archive is the id of the archive that it is about. Live: it was taken while commands
	// ran. Export: it was sent to the client.
	Archive string `json:"archive,omitempty"`
	Live    bool   `json:"live,omitempty"`
	Export  bool   `json:"export,omitempty"`
	// Mounts is the canonical JSON of the project mounts asked for, when any were.
	Mounts json.RawMessage `json:"mounts,omitempty"`
	// Allow is what its commands may do beyond what others may.
	Allow []workspace.Opening `json:"allow,omitempty"`
	// Accept are the controls that it may run without.
	Accept []string `json:"accept,omitempty"`
	// Token is the canonical JSON of the token that is wanted, or the id of the one that it
	// is about.
	Token json.RawMessage `json:"token,omitempty"`
	// Source is who wrote a command: user or llm.
	Source string `json:"source,omitempty"`
	// Approval is the question that an answer is about, or the permission that is revoked.
	Approval id.Approval `json:"approval,omitempty"`
	// Secrets are values of its variables that nobody is to be shown, wherever they stand.
	// They are no part of the canonical form, whose EnvDigest has them.
	Secrets []string `json:"-"`
}

// Canonical returns the action's canonical bytes: JSON with the fields in the
// order above and empty ones left out. Equal actions give equal bytes.
func (a Action) Canonical() ([]byte, error) {
	b, err := json.Marshal(a)
	if err != nil {
		return nil, fmt.Errorf("cannot write action %s in canonical form: %w", a.Kind, err)
	}
	return b, nil
}

// Digest is "sha256:" and the hex SHA-256 of canonical bytes.
func Digest(canonical []byte) string {
	sum := sha256.Sum256(canonical)
	return "sha256:" + hex.EncodeToString(sum[:])
}
