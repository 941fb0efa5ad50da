package daemon

import (
	"cmp"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/redact"
	"github.com/carrel-dev/carrel/internal/state/config"
	"github.com/carrel-dev/carrel/internal/state/secret"
)

// maxSecretsFile bounds a file of redact.files, and maxKeyFile one of the daemon's own keys,
// in bytes.
const (
	maxSecretsFile = 1 << 20
	maxKeyFile     = 64 << 10
)

// heldSecrets are the secrets that the daemon masks in its output: those of redact.files, and
// its own keys.
type heldSecrets struct {
	redactor *redact.Redactor
	cfg      *config.Config
	log      *slog.Logger
}

// readFiles reads redact.files. If one cannot be used, the values read before stay.
// What it returns has the redactor know them.
func (h heldSecrets) readFiles() (know func(), err error) {
	var all []string
	for _, path := range h.cfg.RedactFiles {
		b, err := config.ReadSecret(path, "file of secrets", maxSecretsFile)
		if err != nil {
			return nil, fmt.Errorf("redact.files: %w", err)
		}
		if len(b) > maxSecretsFile {
			return nil, fmt.Errorf("redact.files: %s: it is longer than %d bytes: %w", path, maxSecretsFile, errdefs.ErrInvalidArgument)
		}
		values, short, err := redact.Parse(string(b))
		if err != nil {
			return nil, fmt.Errorf("redact.files: %s: %w", path, err)
		}
		if short > 0 {
			h.log.Warn("values in a file of secrets are too short to be looked for", "file", path, "values", short)
		}
		all = append(all, values...)
	}
	return func() { h.redactor.Know("redact.files", all...) }, nil
}

// readKeys reads the keys that the daemon signs and serves with, once they exist.
func (h heldSecrets) readKeys() error {
	dir := stateDir(h.cfg)
	tlsKey := h.cfg.TLSKey
	if tlsKey == "" {
		tlsKey = filepath.Join(dir, "tls", "key.pem")
	}
	var all []string
	for _, k := range []struct {
		path  string
		parts func(string) []string
	}{
		{filepath.Join(dir, "audit", "checkpoint.key"), noteKey},
		{h.cfg.WebhookSecretFile, hookSecret},
		{tlsKey, pemLines},
		{secret.KeyPath(secretsKey(h.cfg)), ageKey},
	} {
		if k.path == "" {
			continue
		}
		b, err := os.ReadFile(k.path)
		if errors.Is(err, fs.ErrNotExist) {
			continue // the daemon does not serve over TLS
		}
		if err == nil && len(b) > maxKeyFile {
			err = fmt.Errorf("it is longer than %d bytes", maxKeyFile)
		}
		if err != nil {
			return fmt.Errorf("cannot read %s, which must be masked in all output: %w: %w", k.path, err, errdefs.ErrUnavailable)
		}
		all = append(all, k.parts(string(b))...)
	}
	h.redactor.Know("keys", all...)
	return nil
}

// hookSecret is a webhook's secret with and without its prefix.
func hookSecret(s string) []string {
	s = strings.TrimSpace(s)
	return []string{s, strings.TrimPrefix(s, "whsec_")}
}

// noteKey is the secret part of a signed note's key: PRIVATE+KEY+name+hash+base64.
func noteKey(s string) []string {
	const before = 4
	parts := strings.SplitN(strings.TrimSpace(s), "+", before+1)
	if len(parts) <= before {
		return nil
	}
	return []string{parts[before]}
}

// secretsKey is the file of the key that secrets are sealed with, unless systemd hands over another one.
func secretsKey(cfg *config.Config) string {
	return cmp.Or(cfg.SecretsKey, filepath.Join(stateDir(cfg), "secrets.key"))
}

// ageKey is the key in a file of age.
func ageKey(s string) (keys []string) {
	for line := range strings.Lines(s) {
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
			keys = append(keys, line)
		}
	}
	return keys
}

// pemLines are the lines of private keys, because output shows a key line by line. The last
// line may be too short to be recognised.
func pemLines(s string) (lines []string) {
	rest := []byte(s)
	for {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return lines
		}
		if !strings.HasSuffix(block.Type, "PRIVATE KEY") {
			continue
		}
		for line := range strings.Lines(string(pem.EncodeToMemory(&pem.Block{Type: block.Type, Bytes: block.Bytes}))) {
			if line = strings.TrimSpace(line); !strings.HasPrefix(line, "-----") {
				lines = append(lines, line)
			}
		}
	}
}
