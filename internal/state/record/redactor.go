package record

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/base/redact"
)

// OpenRedactor returns what takes secrets out of records, events and logs, with the key at
// path, which is made if there is none. The key only makes equal secrets comparable: one that
// is lost is made anew.
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
