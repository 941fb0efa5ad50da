package gate

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/action"
	"github.com/carrel-dev/carrel/internal/audit"
	"github.com/carrel-dev/carrel/internal/principal"
)

const (
	// maxArgv is how many bytes of arguments a record holds in full.
	maxArgv = 16 << 10
	// maxAction bounds the canonical action in a record. Escaping can make the
	// arguments six times as long.
	maxAction = 40 << 10
	// maxError bounds the text of an error in a record.
	maxError = 4 << 10
)

// cut says what a record left out of a long action.
type cut struct {
	Argc       int    `json:"argc"`
	ArgvBytes  int    `json:"argv_bytes"`
	ArgvSHA256 string `json:"argv_sha256"`
	Env        int    `json:"env,omitempty"`
}

// intentOf is the record of a request before it is carried out.
func (g *Gate) intentOf(r *request) (audit.Record, error) {
	canonical, err := r.action.Canonical()
	if err != nil {
		return audit.Record{}, err
	}
	rec := audit.Record{
		Type: audit.Intent, Trace: r.trace, Principal: r.by.String(), Owner: onBehalf(r.by), Workspace: r.on.Name,
		Action: canonical, ActionDigest: action.Digest(canonical),
		Approval: noApproval,
	}
	if r.judged != nil {
		rec.Policy, rec.Decision = r.judged.Level.String(), r.judged.recorded
	}
	if s := r.pass.String(); s != "" {
		rec.Approval = s
	}
	if r.on.Boundary != "" {
		rec.Isolation = isolationOf(r)
	}
	// Before anything is encoded or cut off: half a secret would not be found.
	clean, changed := without(&r.action, g.clean(r), g.argvOf(r))
	if changed {
		if rec.Action, err = clean.Canonical(); err != nil {
			return audit.Record{}, err
		}
	}
	if bytesOf(clean.Argv) > maxArgv || len(rec.Action) > maxAction {
		rec.Action, rec.Data, err = shorten(clean, r.action.Argv)
	}
	return rec, err
}

// shorten returns the canonical form of a with as many of the first arguments
// and names as fit, and what was left out of argv, which has the secrets that a is without.
// The digest stays that of the whole.
func shorten(a action.Action, argv []string) (canonical, data json.RawMessage, err error) {
	c := cut{Argc: len(argv), ArgvBytes: bytesOf(argv)}
	h := sha256.New()
	for _, s := range argv {
		h.Write([]byte(s))
		h.Write([]byte{0})
	}
	c.ArgvSHA256 = hex.EncodeToString(h.Sum(nil))
	whole := a
	for limit := maxArgv; ; limit /= 2 {
		a.Argv = firstBytes(whole.Argv, limit)
		if names := firstBytes(whole.Env, limit/2); len(names) < len(whole.Env) || bytesOf(names) < bytesOf(whole.Env) {
			a.Env, c.Env = names, len(whole.Env)
		}
		if canonical, err = a.Canonical(); err != nil {
			return nil, nil, err
		}
		if len(canonical) <= maxAction || limit == 0 {
			break
		}
	}
	data, err = json.Marshal(c)
	return canonical, data, err
}

// firstBytes returns the first limit bytes of list, the last string cut at a
// character if it does not fit.
func firstBytes(list []string, limit int) []string {
	var out []string
	for _, s := range list {
		if limit <= 0 {
			break
		}
		s = clipTo(s, limit)
		out = append(out, s)
		limit -= len(s) + 1
	}
	return out
}

func bytesOf(list []string) int {
	n := 0
	for _, s := range list {
		n += len(s)
	}
	return n
}

// onBehalf is whose token a principal is, "" if it is none.
func onBehalf(p principal.Principal) string {
	if p.Kind != principal.Token {
		return ""
	}
	return p.Owner()
}

// outcomeOf is the record of what became of an intent.
func outcomeOf(r *request, seq int64, data any, err error) audit.Record {
	rec := audit.Record{
		Type: audit.Outcome, Trace: r.trace, Principal: r.by.String(), Owner: onBehalf(r.by), Workspace: r.on.Name,
		Intent: seq, Status: audit.StatusOK,
	}
	if data != nil {
		rec.Data, _ = json.Marshal(data) // the types given here always marshal
	}
	if err != nil {
		rec.Status, rec.Error, rec.ErrorKind = audit.StatusFailed, err.Error(), kindOf(err) // cut off when it is without secrets
	}
	return rec
}

func clip(s string) string { return clipTo(s, maxError) }

// clipTo cuts s at limit bytes without splitting a character.
func clipTo(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	for limit > 0 && !utf8.RuneStart(s[limit]) {
		limit--
	}
	return s[:limit]
}

// kindOf is the errdefs kind of an error in a record.
func kindOf(err error) string {
	for _, k := range []struct {
		name string
		is   func(error) bool
	}{
		{"not_found", errdefs.IsNotFound},
		{"already_exists", errdefs.IsAlreadyExists},
		{"invalid_argument", errdefs.IsInvalidArgument},
		{"permission_denied", errdefs.IsPermissionDenied},
		{"failed_precondition", errdefs.IsFailedPrecondition},
		{"resource_exhausted", errdefs.IsResourceExhausted},
		{"unavailable", errdefs.IsUnavailable},
		{"aborted", errdefs.IsAborted},
		{"data_loss", errdefs.IsDataLoss},
		{"deadline_exceeded", errdefs.IsDeadlineExceeded},
		{"canceled", errdefs.IsCanceled},
		{"internal", errdefs.IsInternal},
	} {
		if k.is(err) {
			return k.name
		}
	}
	return "unknown"
}

// setEnv puts the names of env, NAME=VALUE strings, and the digest over the whole
// into a.
func setEnv(a *action.Action, env []string) {
	if len(env) == 0 {
		return
	}
	sorted := slices.Sorted(slices.Values(env))
	h := sha256.New()
	a.Env = make([]string, 0, len(sorted))
	for _, kv := range sorted {
		h.Write([]byte(kv))
		h.Write([]byte{0})
		name, _, _ := strings.Cut(kv, "=")
		a.Env = append(a.Env, name)
	}
	a.EnvDigest = hex.EncodeToString(h.Sum(nil))
}
