package fleet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"
)

const (
	maxKeyFile = 64 << 10
	// maxSigners bounds the keys that are offered to one host. Most hosts end a login after six.
	maxSigners = 32
)

// defaultKeys are looked for in ~/.ssh where no identity file is named.
var defaultKeys = []string{"id_ed25519", "id_ecdsa", "id_rsa"}

// keyring is what a login to one host may use. Close ends the connection to the agent.
type keyring struct {
	signers []ssh.Signer
	notes   []string // keys that could not be used, and why
	agent   net.Conn
}

func (k *keyring) Close() {
	if k.agent != nil {
		k.agent.Close()
	}
}

// keys returns the caller's keys for a host: of its identity files first, and then the others of the agent unless only the
// files count. The agent is asked for signatures and nothing else, and it is never forwarded.
func (t *target) keys(ctx context.Context) (*keyring, error) {
	ring := &keyring{}
	var held []ssh.Signer
	if t.agent != "" && t.agent != "none" {
		conn, err := (&net.Dialer{}).DialContext(ctx, "unix", t.agent)
		if err != nil {
			ring.notes = append(ring.notes, fmt.Sprintf("the agent does not answer: %v", err))
		} else {
			ring.agent = conn
			stop := context.AfterFunc(ctx, func() { conn.Close() })
			defer stop()
			if held, err = agent.NewClient(conn).Signers(); err != nil {
				ring.notes = append(ring.notes, fmt.Sprintf("the agent lists no keys: %v", err))
			}
		}
	}
	files, named := t.identityFiles, true
	if len(files) == 0 {
		named = false
		for _, name := range defaultKeys {
			files = append(files, filepath.Join(t.by.home, ".ssh", name))
		}
	}
	seen := map[string]bool{}
	add := func(s ssh.Signer) {
		if blob := string(s.PublicKey().Marshal()); !seen[blob] && len(ring.signers) < maxSigners {
			seen[blob] = true
			ring.signers = append(ring.signers, s)
		}
	}
	for _, name := range files {
		s, err := keyOf(name, held)
		switch {
		case err == nil:
			add(s)
		case errors.Is(err, fs.ErrNotExist) && !named:
		case t.strictKeys:
			ring.Close()
			return nil, err
		default:
			ring.notes = append(ring.notes, err.Error())
		}
	}
	if !t.identitiesOnly {
		for _, s := range held {
			add(s)
		}
	}
	if len(ring.signers) == 0 {
		ring.Close()
		why := "there is no key"
		if len(ring.notes) > 0 {
			why = strings.Join(ring.notes, "; ")
		}
		return nil, fmt.Errorf("cannot log in to %s: %s; add a key to the agent with ssh-add, or name an identity file: %w",
			t.name, why, errdefs.ErrFailedPrecondition)
	}
	return ring, nil
}

// keyOf returns the signer of a key file: the agent's if it holds the key, otherwise of the file itself.
func keyOf(name string, held []ssh.Signer) (ssh.Signer, error) {
	from := func(key ssh.PublicKey) ssh.Signer {
		for _, s := range held {
			if bytes.Equal(s.PublicKey().Marshal(), key.Marshal()) {
				return s
			}
		}
		return nil
	}
	public := func() ssh.Signer {
		b, err := readFile(strings.TrimSuffix(name, ".pub")+".pub", maxKeyFile)
		if err != nil {
			return nil
		}
		key, _, _, _, err := ssh.ParseAuthorizedKey(b)
		if err != nil {
			return nil
		}
		return from(key)
	}
	if s := public(); s != nil {
		return s, nil
	}
	b, err := readFile(name, maxKeyFile)
	if err != nil {
		return nil, err
	}
	if st, err := os.Stat(name); err == nil && st.Mode().Perm()&0o077 != 0 && !strings.HasSuffix(name, ".pub") {
		return nil, fmt.Errorf("cannot use the key %s: others may read or write it (mode %04o); chmod 600 it: %w",
			name, st.Mode().Perm(), errdefs.ErrFailedPrecondition)
	}
	s, err := ssh.ParsePrivateKey(b)
	var missing *ssh.PassphraseMissingError
	switch {
	case err == nil:
		if own := from(s.PublicKey()); own != nil {
			return own, nil
		}
		return s, nil
	case errors.As(err, &missing):
		if missing.PublicKey != nil {
			if s := from(missing.PublicKey); s != nil {
				return s, nil
			}
		}
		return nil, fmt.Errorf("cannot use the key %s: it has a passphrase, and nobody is asked for it here; run ssh-add %s: %w",
			name, Quote(name), errdefs.ErrFailedPrecondition)
	}
	return nil, fmt.Errorf("cannot use the key %s: it is no private key, and the agent does not hold it: %w",
		name, errdefs.ErrFailedPrecondition)
}
