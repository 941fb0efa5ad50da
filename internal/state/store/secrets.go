package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/spec/workspace"
)

// MaxSecrets is how many secrets are kept for one owner.
const MaxSecrets = 64

// AddSecret keeps a secret with its value, sealed, and returns what is kept. already_exists: its owner has one with this
// name; resource_exhausted: its owner has as many as may be.
func (s *Store) AddSecret(ctx context.Context, x workspace.Secret, sealed []byte) (workspace.Secret, error) {
	fail := func(err error) (workspace.Secret, error) {
		return workspace.Secret{}, fmt.Errorf("cannot store secret %s: %w", x.Name, err)
	}
	hosts, err := json.Marshal(x.Hosts)
	headers, herr := json.Marshal(x.Headers)
	sending, serr := json.Marshal(x.Sending)
	if err = errors.Join(err, herr, serr); err != nil {
		return fail(err)
	}
	give, err := s.turn(ctx)
	if err != nil {
		return fail(err)
	}
	defer give()
	at := s.stamp()
	err = s.inTx(ctx, func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, `INSERT INTO secrets (owner, name, sealed, hosts, headers, sending, created_ns)
			VALUES (?, ?, ?, ?, ?, ?, ?)`, x.Owner, x.Name, sealed, string(hosts), string(headers), string(sending), at); err != nil {
			return err
		}
		var n int
		if err := tx.QueryRowContext(ctx, `SELECT count(*) FROM secrets WHERE owner = ?`, x.Owner).Scan(&n); err != nil {
			return err
		}
		if n > MaxSecrets {
			return fmt.Errorf("%s has %d, the most there may be; remove some with \"carrel secret rm\": %w", x.Owner, MaxSecrets,
				errdefs.ErrResourceExhausted)
		}
		return nil
	})
	if conflict(err) {
		return fail(fmt.Errorf("%s has one with this name; give it another value with \"carrel secret rotate %s\": %w", x.Owner, x.Name,
			errdefs.ErrAlreadyExists))
	}
	if err != nil {
		return fail(err)
	}
	x.Created, x.Rotated = time.Unix(0, at), time.Time{}
	return x, nil
}

// RotateSecret gives a secret another value, and returns what is kept. x is what Secret returned: if another one has taken
// its place since, that is not_found.
func (s *Store) RotateSecret(ctx context.Context, x workspace.Secret, sealed []byte) (workspace.Secret, error) {
	var at int64
	err := s.changeSecret(ctx, "rotate", x, func() (int64, error) {
		at = s.stamp()
		return s.execCounted(ctx, `UPDATE secrets SET sealed = ?, rotated_ns = ? WHERE owner = ? AND name = ? AND created_ns = ?`, sealed, at,
			x.Owner, x.Name, x.Created.UnixNano())
	})
	if err != nil {
		return workspace.Secret{}, err
	}
	x.Rotated = time.Unix(0, at)
	return x, nil
}

// RemoveSecret removes a secret, which x names as for RotateSecret.
func (s *Store) RemoveSecret(ctx context.Context, x workspace.Secret) error {
	return s.changeSecret(ctx, "remove", x, func() (int64, error) {
		return s.execCounted(ctx, `DELETE FROM secrets WHERE owner = ? AND name = ? AND created_ns = ?`, x.Owner, x.Name, x.Created.UnixNano())
	})
}

// changeSecret makes, in a turn, a change of one row, and sees that there was one.
func (s *Store) changeSecret(ctx context.Context, verb string, x workspace.Secret, change func() (int64, error)) error {
	var n int64
	err := s.inTurn(ctx, func() (err error) {
		n, err = change()
		return err
	})
	if err != nil {
		return fmt.Errorf("cannot %s secret %s: %w", verb, x.Name, err)
	}
	if n == 0 {
		return fmt.Errorf("cannot %s secret %s: it was removed meanwhile; \"carrel secret ls\" lists those that there are: %w", verb, x.Name,
			errdefs.ErrNotFound)
	}
	return nil
}

// Secret returns a secret of an owner, with its sealed value. not_found: there is none.
func (s *Store) Secret(ctx context.Context, owner, name string) (x workspace.Secret, sealed []byte, err error) {
	err = s.inTurn(ctx, func() (err error) {
		x, err = scanSecret(s.db.QueryRowContext(ctx, secretColumns+`, sealed FROM secrets WHERE owner = ? AND name = ?`, owner, name).Scan,
			&sealed)
		return err
	})
	if errors.Is(err, sql.ErrNoRows) {
		return x, nil, fmt.Errorf("cannot find secret %s: %s has none with this name; store it with \"carrel secret set %s\": %w", name, owner,
			name, errdefs.ErrNotFound)
	}
	if err != nil {
		return x, nil, fmt.Errorf("cannot read secret %s: %w", name, err)
	}
	return x, sealed, nil
}

// Secrets returns the secrets of an owner by name, without their values. Without an owner they are those of all, by owner.
func (s *Store) Secrets(ctx context.Context, owner string) ([]workspace.Secret, error) {
	all, err := list(ctx, s, func(scan func(...any) error) (workspace.Secret, error) { return scanSecret(scan) },
		secretColumns+` FROM secrets WHERE ?1 IN ('', owner) ORDER BY owner, name`, owner)
	if err != nil {
		return nil, fmt.Errorf("cannot read the secrets: %w", err)
	}
	return all, nil
}

// secretColumns are what scanSecret reads, before more.
//
//nolint:gosec // names of columns
const secretColumns = `SELECT owner, name, hosts, headers, sending, created_ns, rotated_ns`

func scanSecret(scan func(...any) error, more ...any) (x workspace.Secret, err error) {
	var hosts, headers, sending []byte
	var created, rotated int64
	if err := scan(append([]any{&x.Owner, &x.Name, &hosts, &headers, &sending, &created, &rotated}, more...)...); err != nil {
		return x, err
	}
	x.Created, x.Rotated = time.Unix(0, created), timeOf(rotated)
	return x, errors.Join(json.Unmarshal(hosts, &x.Hosts), json.Unmarshal(headers, &x.Headers), json.Unmarshal(sending, &x.Sending))
}
