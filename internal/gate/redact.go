package gate

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/action"
	"github.com/carrel-dev/carrel/internal/approval"
	"github.com/carrel-dev/carrel/internal/audit"
	"github.com/carrel-dev/carrel/internal/id"
	"github.com/carrel-dev/carrel/internal/redact"
)

// OpenRedactor returns what takes secrets out of records, events and logs, with the key at
// path, which is made if there is none. It only makes equal secrets comparable: one that is
// lost is made anew.
func OpenRedactor(path string) (*redact.Redactor, error) {
	b, err := os.ReadFile(path)
	key, herr := hex.DecodeString(strings.TrimSpace(string(b)))
	switch {
	case err != nil && !errors.Is(err, os.ErrNotExist):
		return nil, fmt.Errorf("cannot read the key for redaction: %w", err)
	case err == nil && herr == nil && len(key) == 32:
		return redactorWith(key), nil
	}
	key = make([]byte, 32)
	if _, err := rand.Read(key); err != nil {
		return nil, fmt.Errorf("cannot make a key for redaction: %w", err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NOFOLLOW, 0o600)
	if err == nil {
		_, err = f.WriteString(hex.EncodeToString(key) + "\n")
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		return nil, fmt.Errorf("cannot keep the key for redaction: %w: %w", err, errdefs.ErrUnavailable)
	}
	return redactorWith(key), nil
}

// redactorWith has a key that it shows nowhere.
func redactorWith(key []byte) *redact.Redactor {
	r := redact.New(key)
	r.Know("key", hex.EncodeToString(key))
	return r
}

// redacting is a recorder that takes secrets out of what was asked for and what is said of
// it, before it is hashed. The digest of an action is that of the whole.
type redacting struct {
	recorder
	r *redact.Redactor
	// done: the action is without them already, as intentOf writes it.
	done bool
}

func (w redacting) Append(ctx context.Context, r audit.Record) (int64, error) {
	w.clean(&r)
	return w.recorder.Append(ctx, r)
}

func (w redacting) AppendAsync(r audit.Record) error {
	w.clean(&r)
	return w.recorder.AppendAsync(r)
}

func (w redacting) clean(r *audit.Record) {
	if !w.done {
		r.Action = bounded(w.r, r.Action)
	}
	r.Data = bounded(w.r, r.Data)
	if len(r.Decision) > 0 { // its reasons have words of the command
		r.Decision = bounded(w.r, r.Decision)
	}
	r.Error = clip(w.r.Text(r.Error))
}

// bounded is raw without secrets. What stands for a short one is longer than it: a text that
// would not fit into a record any more is left out.
func bounded(r *redact.Redactor, raw json.RawMessage) json.RawMessage {
	clean := json.RawMessage(r.JSON(raw))
	if len(clean) > len(raw) && len(clean) > maxAction+maxError {
		return json.RawMessage(`{"redacted":"too many secrets to show the rest"}`)
	}
	return clean
}

// secretsOf are the values of a command's variables that nobody is to be shown.
func (g *Gate) secretsOf(env []string) []string {
	if g.cfg.Redact == nil {
		return nil
	}
	return redact.SecretsOf(env)
}

// clean is what takes secrets out of all that is told of a request.
func (g *Gate) clean(r *request) *redact.Redactor {
	if r.redact == nil && g.cfg.Redact != nil {
		r.redact = g.cfg.Redact.With(r.action.Secrets)
	}
	return r.redact
}

// recordOf is where the records of a request go whose action intentOf wrote.
func (g *Gate) recordOf(r *request) redacting {
	return redacting{g.record.recorder, g.clean(r), true}
}

// argvOf is a request's command without secrets, found once; it is the same list if it has none.
func (g *Gate) argvOf(r *request) []string {
	if r.argv == nil {
		r.argv = g.clean(r).Argv(r.action.Argv)
	}
	return r.argv
}

// without is an action without secrets, as argv is its command. changed is false if it had none.
func without(a *action.Action, r *redact.Redactor, argv []string) (_ action.Action, changed bool) {
	out := *a
	for _, s := range []*string{
		(*string)(&out.Kind), (*string)(&out.Workspace), (*string)(&out.Key), &out.Cwd, (*string)(&out.Command), &out.Signal, &out.Profile, &out.Archive,
		&out.Source, (*string)(&out.Approval),
	} {
		if clean := r.Text(*s); clean != *s {
			*s, changed = clean, true
		}
	}
	same := func(x, y []string) bool { return len(x) == 0 || &x[0] == &y[0] }
	if out.Argv = argv; !same(out.Argv, a.Argv) {
		changed = true
	}
	for _, list := range []*[]string{&out.Env, &out.Accept} {
		if clean := r.Texts(*list); !same(clean, *list) {
			*list, changed = clean, true
		}
	}
	for _, raw := range []*json.RawMessage{&out.Limits, &out.Mounts, &out.Token} {
		if clean := bounded(r, *raw); len(clean) > 0 && &clean[0] != &(*raw)[0] {
			*raw, changed = clean, true
		}
	}
	return out, changed
}

// shownTo is a question as a person sees it now: what is known to be secret may not have been
// when it was asked. Its key stays in what is kept, where it says whom it belongs to.
func (g *Gate) shownTo(v approval.View) approval.View {
	r := g.cfg.Redact
	if r == nil {
		return v
	}
	q := &v.Question
	q.Key, q.Cwd, q.Argv, q.Env = id.Key(r.Text(string(q.Key))), r.Text(q.Cwd), r.Argv(q.Argv), r.Texts(q.Env)
	q.Decision.Reasons = r.Texts(q.Decision.Reasons)
	for i := range q.Decision.Segments {
		s := &q.Decision.Segments[i]
		s.Text, s.Reasons = r.Text(s.Text), r.Texts(s.Reasons)
	}
	v.Subject.Argv = r.Argv(v.Subject.Argv)
	if v.Answer != nil {
		answer := *v.Answer
		answer.Reason = r.Text(answer.Reason)
		v.Answer = &answer
	}
	return v
}
