// Package operation is the table of everything that can be done with carrel. Each row says
// what an operation is called, who may do it, what it is done to, how it is judged and
// recorded, and by which calls of the API it is asked for. Each operation has a payload of
// its own type, and one canonical form that approvals are bound to and records keep.
//
// It is pure, and it must not know how an operation is carried out.
package operation

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// Name names an operation: the thing, a dot, the verb.
type Name string

// Operation is one thing to be done: the payload of a row of the table. Its JSON holds what
// the canonical form says beside name and target; a field that is empty is left out.
type Operation interface {
	// Op names the row.
	Op() Name
}

// TargetKind says what an operation is done to.
type TargetKind string

// The kinds of target.
const (
	// Daemon is the daemon as a whole; the operation needs no further target.
	Daemon TargetKind = ""
	// Workspace is a workspace, with everything that runs and is kept in it.
	Workspace TargetKind = "workspace"
	// Archive, Approval, Token and Secret are named by the payload.
	Archive  TargetKind = "archive"
	Approval TargetKind = "approval"
	Token    TargetKind = "token"
	Secret   TargetKind = "secret"
	// Host is this machine, as the caller's own user, and Remote another one.
	Host   TargetKind = "host"
	Remote TargetKind = "remote"
)

// Target is one thing that an operation is done to, with what decides who reaches it. Its
// kind and name are part of the canonical form.
type Target struct {
	Kind TargetKind
	// Name is the derived name of a workspace, or the name of a remote host.
	Name id.Workspace
	// Key is the workspace's, and Owner says whose it is.
	Key   id.Key
	Owner string
	// NewKey is the key that it has afterwards, if the operation changes it.
	NewKey id.Key
	// Boundary and Root are the workspace's.
	Boundary workspace.Boundary
	Root     workspace.Root
	// ID is what an archive, an approval, a token or a secret is called.
	ID string
	// Taken: an operation that was to make the target found it there.
	Taken bool
	// Requester asked for what an approval is about.
	Requester string
	// Makers are the ids of a token and of the tokens that made it, one the other.
	Makers []string
}

// Isolation is boundary and root in a record and in a question; "" without a workspace.
func (t Target) Isolation() string {
	if t.Boundary == "" {
		return ""
	}
	return "boundary=" + string(t.Boundary) + " root=" + string(t.Root)
}

// Workspace is the derived name of the workspace that the operation is about, "" if it is about a host.
func (t Target) Workspace() id.Workspace {
	if t.Kind == Host || t.Kind == Remote {
		return ""
	}
	return t.Name
}

// Names are what the target is called, for a principal's scope: its key, then its name.
func (t Target) Names() []string { return []string{string(t.Key), string(t.Name)} }

// Canonical returns the canonical bytes of an operation on a target: JSON with the name, the
// target and then the fields of the payload in their order, empty ones left out. Equal
// operations on equal targets give equal bytes. docs/protocols/audit.md specifies the form,
// which is frozen: fields are added and never changed.
func Canonical(op Operation, on Target) ([]byte, error) {
	payload, err := json.Marshal(op)
	if err == nil && (len(payload) < 2 || payload[0] != '{') {
		err = fmt.Errorf("its payload is no JSON object")
	}
	if err != nil {
		return nil, fmt.Errorf("cannot write operation %s in canonical form: %w", op.Op(), err)
	}
	b := make([]byte, 0, len(payload)+96)
	b = append(b, `{"kind":`...)
	b = strconv.AppendQuote(b, string(op.Op()))
	switch {
	case on.Kind == Host || on.Kind == Remote:
		b = append(b, `,"target":`...)
		b = strconv.AppendQuote(b, string(on.Kind))
		if on.Name != "" {
			b = append(b, `,"host":`...)
			b = strconv.AppendQuote(b, string(on.Name))
		}
	case on.Name != "":
		b = append(b, `,"workspace":`...)
		b = strconv.AppendQuote(b, string(on.Name))
	}
	if len(payload) > 2 {
		b = append(b, ',')
	}
	return append(b, payload[1:]...), nil
}

// Digest is "sha256:" and the hex SHA-256 of canonical bytes.
func Digest(canonical []byte) string {
	sum := sha256.Sum256(canonical)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// NameIn is the name of the operation in its canonical form, "" if there is none.
func NameIn(canonical []byte) Name {
	var head struct {
		Kind Name `json:"kind"`
	}
	if json.Unmarshal(canonical, &head) != nil {
		return ""
	}
	return head.Kind
}

// Same is the digest of an operation on a target without the id that carrel gives a command: the same command asked for
// again has the same.
func Same(op Operation, on Target) (string, error) {
	if c, ok := op.(Commanding); ok {
		words := c.Command()
		words.ID = ""
		op = c.With(words)
	}
	canonical, err := Canonical(op, on)
	if err != nil {
		return "", err
	}
	return Digest(canonical), nil
}
