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

	"github.com/carrel-dev/carrel/internal/audit"
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
		return redact.New(key), nil
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
	return redact.New(key), nil
}

// redacting is a recorder that takes secrets out of what was asked for and what is said of
// it, before it is hashed. The digest of an action is that of the whole.
type redacting struct {
	recorder
	r *redact.Redactor
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
	r.Action, r.Data = w.bounded(r.Action), w.bounded(r.Data)
	if len(r.Decision) > 0 { // its reasons have words of the command
		r.Decision = w.bounded(r.Decision)
	}
	r.Error = clip(w.r.Text(r.Error))
}

// bounded is raw without secrets. What stands for a short one is longer than it: a text that
// would not fit into a record any more is left out.
func (w redacting) bounded(raw json.RawMessage) json.RawMessage {
	clean := json.RawMessage(w.r.JSON(raw))
	if len(clean) > len(raw) && len(clean) > maxAction+maxError {
		return json.RawMessage(`{"redacted":"too many secrets to show the rest"}`)
	}
	return clean
}
