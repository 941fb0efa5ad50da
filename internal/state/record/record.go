// Package record turns requests into lines of the audit log: what was intended, what became
// of it, and what was refused, without secrets and within the bounds of a line.
//
// It must not decide anything. Only the gate and the packages around it write records.
package record

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"

	"github.com/carrel-dev/carrel/internal/base/redact"
	"github.com/carrel-dev/carrel/internal/spec/operation"
	"github.com/carrel-dev/carrel/internal/spec/principal"
	"github.com/carrel-dev/carrel/internal/state/audit"
)

const (
	// maxArgv is how many bytes of arguments a record holds in full.
	maxArgv = 16 << 10
	// maxAction bounds the canonical operation in a record. Escaping can make the arguments
	// six times as long.
	maxAction = 40 << 10
	// MaxError bounds the text of an error in a record, in bytes.
	MaxError = 4 << 10
)

// NoApproval is what a record says of an operation that nobody was asked about.
const NoApproval = "none"

// Recorder is where records go: audit.Log, or audit.Shared.
type Recorder interface {
	Append(ctx context.Context, r audit.Record) (int64, error)
	AppendAsync(r audit.Record) error
	Flush() error
}

// Writer writes records without secrets.
type Writer struct {
	to     Recorder
	redact *redact.Redactor
	sums   Sums
}

// NewWriter returns a Writer to a recorder. r takes the secrets out; nil takes out none.
func NewWriter(to Recorder, r *redact.Redactor) *Writer { return &Writer{to: to, redact: r} }

// Redactor takes out what every record is without.
func (w *Writer) Redactor() *redact.Redactor { return w.redact }

// Append writes a record that is about no request, and returns its number once it is on disk.
func (w *Writer) Append(ctx context.Context, r audit.Record) (int64, error) {
	r.Action = bounded(w.redact, r.Action)
	clean(w.redact, &r)
	return w.to.Append(ctx, r)
}

// AppendAsync writes one without waiting for the disk.
func (w *Writer) AppendAsync(r audit.Record) error {
	clean(w.redact, &r)
	return w.to.AppendAsync(r)
}

// Of returns what the records of a request have in common. It reads the request once.
func (w *Writer) Of(r *operation.Request) (*Of, error) {
	o := &Of{to: w.to, redact: w.redact, request: r}
	command, commands := r.Op.(operation.Commanding)
	if commands && w.redact != nil {
		o.redact = w.redact.With(redact.SecretsOf(command.Full().Env))
	}
	canonical, err := operation.Canonical(r.Op, r.On)
	if err != nil {
		return nil, err
	}
	o.digest, o.action = operation.Digest(canonical), canonical
	// Secrets are taken out before anything is encoded or cut off: half a secret would not
	// be found.
	if !commands {
		o.action = bounded(o.redact, canonical)
		return o, nil
	}
	words := command.Command()
	shown, changed := command.Clean(o.redact)
	if o.argv = shown.Command().Argv; changed {
		if o.action, err = operation.Canonical(shown, r.On); err != nil {
			return nil, err
		}
	}
	if size(o.argv) > maxArgv || len(o.action) > maxAction {
		o.action, o.cut, err = shorten(shown, words.Argv, r.On)
	}
	return o, err
}

// Of writes the records of one request.
type Of struct {
	to      Recorder
	redact  *redact.Redactor
	request *operation.Request
	action  json.RawMessage
	digest  string
	cut     json.RawMessage
	argv    []string
}

// Redactor takes out also what only this request holds: values of its variables.
func (o *Of) Redactor() *redact.Redactor { return o.redact }

// Argv is the command without secrets; it is the same list if it has none.
func (o *Of) Argv() []string { return o.argv }

// Intent is the record of the request before it is carried out.
func (o *Of) Intent() audit.Record {
	r := o.request
	return audit.Record{
		Type: audit.Intent, Trace: r.Trace, Principal: r.By.String(), Owner: OnBehalf(r.By), Workspace: r.On.Workspace(),
		Action: o.action, ActionDigest: o.digest, Approval: NoApproval, Isolation: r.On.Isolation(), Data: o.cut,
	}
}

// Denial is the record of its refusal. untold is how many before it were not recorded.
func (o *Of) Denial(intent audit.Record, why error, untold int64) audit.Record {
	intent.Type, intent.Status, intent.Isolation = audit.Denial, audit.StatusDenied, ""
	intent.Error, intent.ErrorKind = why.Error(), KindOf(why) // cut off when it is without secrets
	if untold > 0 {
		intent.Data, _ = json.Marshal(struct { // a number always marshals
			Untold int64 `json:"refusals_not_recorded"`
		}{untold})
	}
	return intent
}

// Outcome is the record of what became of the intent with that number.
func (o *Of) Outcome(seq int64, data any, err error) audit.Record {
	r := o.request
	rec := audit.Record{
		Type: audit.Outcome, Trace: r.Trace, Principal: r.By.String(), Owner: OnBehalf(r.By), Workspace: r.On.Workspace(),
		Intent: seq, Status: audit.StatusOK,
	}
	if data != nil {
		rec.Data, _ = json.Marshal(data) // the types given here always marshal
	}
	if err != nil {
		rec.Status, rec.Error, rec.ErrorKind = audit.StatusFailed, err.Error(), KindOf(err)
	}
	return rec
}

// Append writes a record of the request and returns its number once it is on disk.
func (o *Of) Append(ctx context.Context, r audit.Record) (int64, error) {
	clean(o.redact, &r)
	return o.to.Append(ctx, r)
}

// AppendAsync writes one without waiting for the disk.
func (o *Of) AppendAsync(r audit.Record) error {
	clean(o.redact, &r)
	return o.to.AppendAsync(r)
}

// Flush returns when all records that were written before are on disk.
func (o *Of) Flush() error { return o.to.Flush() }

// Error is an error without secrets, for people.
func (o *Of) Error(err error) error {
	if text := err.Error(); o.redact != nil {
		if shown := o.redact.Text(text); shown != text {
			return errors.New(shown)
		}
	}
	return err
}

func clean(r *redact.Redactor, rec *audit.Record) {
	rec.Data = bounded(r, rec.Data)
	if len(rec.Decision) > 0 { // its reasons have words of the command
		rec.Decision = bounded(r, rec.Decision)
	}
	rec.Error = Clip(r.Text(rec.Error))
}

// bounded is raw without secrets. A mask may be longer than the secret: a text that would not
// fit into a record any more is left out.
func bounded(r *redact.Redactor, raw json.RawMessage) json.RawMessage {
	shown := json.RawMessage(r.JSON(raw))
	if len(shown) > len(raw) && len(shown) > maxAction+MaxError {
		return json.RawMessage(`{"redacted":"too many secrets to show the rest"}`)
	}
	return shown
}

// cut says what a record left out of a long command.
type cut struct {
	Argc       int    `json:"argc"`
	ArgvBytes  int    `json:"argv_bytes"`
	ArgvSHA256 string `json:"argv_sha256"`
	Env        int    `json:"env,omitempty"`
}

// shorten returns the canonical form with as many of the first arguments and names as fit,
// and what was left out of argv, which holds the secrets that c is without.
func shorten(c operation.Commanding, argv []string, on operation.Target) (canonical, left json.RawMessage, err error) {
	shown := c.Command()
	out := cut{Argc: len(argv), ArgvBytes: size(argv)}
	h := sha256.New()
	for _, s := range argv {
		h.Write([]byte(s))
		h.Write([]byte{0})
	}
	out.ArgvSHA256 = hex.EncodeToString(h.Sum(nil))
	few := shown
	for limit := maxArgv; ; limit /= 2 {
		few.Argv = FirstBytes(shown.Argv, limit)
		if names := FirstBytes(shown.Env, limit/2); len(names) < len(shown.Env) || size(names) < size(shown.Env) {
			few.Env, out.Env = names, len(shown.Env)
		}
		if canonical, err = operation.Canonical(c.With(few), on); err != nil {
			return nil, nil, err
		}
		if len(canonical) <= maxAction || limit == 0 {
			break
		}
	}
	left, err = json.Marshal(out)
	return canonical, left, err
}

// OnBehalf is the owner of the token that a principal is, or of the workspace that it is in, "" if it is neither.
func OnBehalf(p principal.Principal) string {
	if p.Kind != principal.Token && p.Kind != principal.Inside {
		return ""
	}
	return p.Owner()
}
