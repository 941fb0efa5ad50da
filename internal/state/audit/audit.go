// Package audit keeps the record: an append-only file of JSON lines, each
// carrying the hash of the one before it, so that a change to any line shows.
// docs/protocols/audit.md specifies the format, which is frozen.
//
// Append returns once the record is on disk, and concurrent appenders share one
// write and one fdatasync. After a failed write or fdatasync a Log accepts no
// record, because what reached the disk is unknown. A full disk is the exception:
// a Log holds room behind the end of its file, see Room, and goes on once there
// is some again.
//
// The package must not decide what is recorded, redact values (callers pass no
// secrets) or change a line once it is written. Only the gate appends.
package audit

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/id"
)

// Type says what a record is about.
type Type string

// The types of record.
const (
	// Intent: an action passed the gate and is about to be carried out.
	Intent Type = "intent"
	// Outcome: the result of the intent whose seq is in Record.Intent.
	Outcome Type = "outcome"
	// Read: an operation that only reads what is kept. It has no outcome.
	Read Type = "read"
	// Observed: how often operations that get no record each were done; Data has a count for
	// each of them.
	Observed Type = "observed"
	// Denial: an action was refused.
	Denial Type = "denial"
	// Login: the first request with a token on a connection.
	Login Type = "login"
	// Connection: a connection of a workspace ended or was refused; Data is an egressapi.Connection.
	Connection Type = "connection"
	// Usage: what the models of a run have used; Data has it by model.
	Usage Type = "usage"
	// Lifecycle: the daemon started or stopped, or an executor ended.
	Lifecycle Type = "lifecycle"
	// Request: a person is asked about an action. Approval: the answer, or that there was none.
	Request  Type = "request"
	Approval Type = "approval"
	// Policy: other rules were loaded, or could not be.
	Policy Type = "policy"
	// Rotation: the first record of any file but the first; Data is a Rotated.
	Rotation Type = "rotation"
	// Removed: full files of the log are removed by the settings; Data is a Removal.
	Removed Type = "removed"
	// Repair: the log itself was repaired when it was opened; Data is a Mended.
	Repair Type = "repair"
)

// The values of Record.Status in outcomes and denials.
const (
	StatusOK          = "ok"
	StatusFailed      = "failed"
	StatusDenied      = "denied"
	StatusInterrupted = "interrupted"
)

// MaxRecord bounds one line, newline included, in bytes.
const MaxRecord = 64 << 10

// Record is one line of the log, with its fields in the order of the line. Empty
// fields are left out, except the first four.
type Record struct {
	// The Log sets Hash, PrevHash and Seq; Append ignores given values. Seq counts from 1.
	Hash     string `json:"hash"`
	PrevHash string `json:"prev_hash"`
	Seq      int64  `json:"seq"`
	// If Time is zero the Log sets it.
	Time      time.Time `json:"time"`
	Trace     id.Trace  `json:"trace,omitempty"`
	Type      Type      `json:"type"`
	Principal string    `json:"principal,omitempty"`
	// Owner is the owner of the token, if Principal is a token.
	Owner     string       `json:"owner,omitempty"`
	Workspace id.Workspace `json:"workspace,omitempty"`
	// Intent is the seq of the intent that an outcome belongs to.
	Intent int64 `json:"intent,omitempty"`
	// Action is the canonical JSON of the action and ActionDigest its digest.
	Action       json.RawMessage `json:"action,omitempty"`
	ActionDigest string          `json:"action_digest,omitempty"`
	// Policy is the level of the decision, Decision the whole decision.
	Policy    string          `json:"policy,omitempty"`
	Decision  json.RawMessage `json:"decision,omitempty"`
	Approval  string          `json:"approval,omitempty"`
	Isolation string          `json:"isolation,omitempty"`
	Status    string          `json:"status,omitempty"`
	Error     string          `json:"error,omitempty"`
	// ErrorKind is the errdefs kind of the error, as "not_found".
	ErrorKind string `json:"error_kind,omitempty"`
	// Data is a JSON object with further members that depend on the type.
	Data json.RawMessage `json:"data,omitempty"`
}

// Head identifies the last record of a chain. An empty chain has the zero Head.
type Head struct {
	Seq  int64  `json:"seq"`
	Hash string `json:"hash"`
}

// A line is fixed in its first bytes so that it can be checked without parsing:
//
//	{"hash":"<64 hex>","prev_hash":"<64 hex>","seq":<n>,"time":"…",…}\n
//	         ^hashAt  ^coverAt     ^prevAt         ^seqAt
//
// hash is SHA-256 over the bytes from coverAt up to the newline.
const (
	hashLen = 64
	open    = `{"hash":"`
	link    = `"prev_hash":"`
	number  = `","seq":`

	hashAt  = len(open)
	coverAt = hashAt + hashLen + len(`",`)
	prevAt  = coverAt + len(link)
	seqAt   = prevAt + hashLen + len(number)
	minLine = seqAt + len(`1,"time":""}`)
)

// Genesis is the prev_hash of the first record.
const Genesis = "0000000000000000000000000000000000000000000000000000000000000000"

// check refuses a record that cannot be written as one valid line.
func (r *Record) check() error {
	if r.Type == "" {
		return fmt.Errorf("cannot append to the audit log: the record has no type: %w", errdefs.ErrInvalidArgument)
	}
	for _, raw := range []json.RawMessage{r.Action, r.Decision, r.Data} {
		if len(raw) > 0 && (bytes.IndexByte(raw, '\n') >= 0 || !json.Valid(raw)) {
			return fmt.Errorf("cannot append to the audit log: the %s record carries something other than JSON on one line: %w",
				r.Type, errdefs.ErrInvalidArgument)
		}
	}
	return nil
}

// appendStart appends the fields that depend on the chain. seal fills in the hash later.
func appendStart(b, prev []byte, seq int64, now time.Time) []byte {
	b = append(b, open...)
	b = append(b, Genesis...)
	b = append(b, `",`+link...)
	b = append(b, prev...)
	b = append(b, number...)
	b = strconv.AppendInt(b, seq, 10)
	b = append(b, `,"time":"`...)
	b = now.UTC().AppendFormat(b, time.RFC3339Nano)
	return append(b, '"')
}

// appendRest appends all other fields and the end of the line.
func (r *Record) appendRest(b []byte) []byte {
	b = appendField(b, "trace", string(r.Trace))
	b = appendField(b, "type", string(r.Type))
	b = appendField(b, "principal", r.Principal)
	b = appendField(b, "owner", r.Owner)
	b = appendField(b, "workspace", string(r.Workspace))
	if r.Intent != 0 {
		b = append(b, `,"intent":`...)
		b = strconv.AppendInt(b, r.Intent, 10)
	}
	b = appendRaw(b, "action", r.Action)
	b = appendField(b, "action_digest", r.ActionDigest)
	b = appendField(b, "policy", r.Policy)
	b = appendRaw(b, "decision", r.Decision)
	b = appendField(b, "approval", r.Approval)
	b = appendField(b, "isolation", r.Isolation)
	b = appendField(b, "status", r.Status)
	b = appendField(b, "error", r.Error)
	b = appendField(b, "error_kind", r.ErrorKind)
	b = appendRaw(b, "data", r.Data)
	return append(b, "}\n"...)
}

// seal computes the hash of line, which has its newline, and writes it into the line.
func seal(line []byte) {
	sum := digest(line[:len(line)-1])
	hex.Encode(line[hashAt:], sum[:])
}

// hashOf returns the hash that a line states.
func hashOf(line []byte) []byte { return line[hashAt : hashAt+hashLen] }

func appendRaw(b []byte, name string, v json.RawMessage) []byte {
	if len(v) == 0 {
		return b
	}
	b = append(b, `,"`...)
	b = append(b, name...)
	b = append(b, `":`...)
	return append(b, v...)
}

func appendField(b []byte, name, v string) []byte {
	if v == "" {
		return b
	}
	b = append(b, `,"`...)
	b = append(b, name...)
	b = append(b, `":`...)
	return appendString(b, v)
}

// appendString writes v as a JSON string. Almost every value is plain ASCII;
// the rest goes to encoding/json, which also replaces invalid UTF-8.
func appendString(b []byte, v string) []byte {
	for i := range len(v) {
		if c := v[i]; c < 0x20 || c >= 0x7f || c == '"' || c == '\\' {
			quoted, _ := json.Marshal(v) // a string always marshals
			return append(b, quoted...)
		}
	}
	b = append(b, '"')
	b = append(b, v...)
	return append(b, '"')
}

// Decode decodes one line and ignores fields of a later version. It does not check
// the hash.
func Decode(line []byte) (Record, error) {
	var r Record
	if err := json.Unmarshal(line, &r); err != nil {
		return Record{}, fmt.Errorf("cannot read an audit record: %w: %w", err, errdefs.ErrDataLoss)
	}
	return r, nil
}

// frame is the fixed part of a line.
type frame struct {
	seq        int64
	hash, prev []byte
}

// parseFrame decodes the fixed part of a line without its newline. It returns false
// for any form that appendStart does not write. It need not check that hash and prev
// are hexadecimal: they are compared with computed hashes.
func parseFrame(line []byte) (frame, bool) {
	if len(line) < minLine || len(line) >= MaxRecord ||
		string(line[:hashAt]) != open ||
		string(line[hashAt+hashLen:prevAt]) != `",`+link ||
		string(line[prevAt+hashLen:seqAt]) != number {
		return frame{}, false
	}
	f := frame{hash: line[hashAt : hashAt+hashLen], prev: line[prevAt : prevAt+hashLen]}
	for i := seqAt; i < len(line); i++ {
		c := line[i]
		if c == ',' && i > seqAt {
			return f, bytes.HasPrefix(line[i:], []byte(`,"time":"`))
		}
		// 18 digits hold every number that fits, and a leading zero is no number.
		if c < '0' || c > '9' || i-seqAt >= 18 || (i == seqAt && c == '0') {
			return frame{}, false
		}
		f.seq = f.seq*10 + int64(c-'0')
	}
	return frame{}, false
}
