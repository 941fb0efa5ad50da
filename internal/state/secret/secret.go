// Package secret seals bytes that are kept on disk, so that they can be read only with a key that is kept apart from
// them. It uses age (https://age-encryption.org/v1) with one X25519 key.
//
// It must not keep what it seals, and must not know what that is for. What it does not do: it cannot tell that a sealed
// text was replaced by an older one about the same thing; it does not hold against who can read the key file, or the
// memory of the process that opened it; and whoever has the key can seal as well as unseal.
package secret

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"

	"filippo.io/age"
	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/redact"
)

// Bounds, in bytes.
const (
	// MaxAbout is the longest text that says what is sealed.
	MaxAbout = 1 << 10
	// MaxValue is the longest value.
	MaxValue = 64 << 10
	// MaxSealed is the longest sealed text. It has room for the header of age.
	MaxSealed = MaxAbout + MaxValue + 4<<10
)

// What is sealed, before age encrypts it. Lengths are big-endian.
//
//	"carrel1\n" | length of about, 2 bytes | length of value, 4 bytes | about | value | zeros
//
// The zeros fill it up to a multiple of step, so that the length of a sealed text does not tell that of the value.
const (
	magic = "carrel1\n"
	head  = len(magic) + 2 + 4
	step  = 512
)

// Sealer seals and unseals with one key. It never prints the key. Its methods may be called from any goroutine.
type Sealer struct {
	of *identity // package fmt calls no method of a field that is not exported, and prints only the address
}

// identity is a key, and where it came from.
type identity struct {
	key  *age.X25519Identity
	path string
}

// Path is the file of the key.
func (s *Sealer) Path() string { return s.of.path }

// Seal returns a value that only Unseal with the same about can read. Equal values give different texts. An about or a
// value that is too long is invalid_argument.
func (s *Sealer) Seal(about string, v redact.Value) ([]byte, error) {
	value := v.Reveal()
	switch {
	case len(about) > MaxAbout:
		return nil, fmt.Errorf("cannot seal a secret: what it is about has %d bytes, and at most %d are allowed: %w", len(about), MaxAbout,
			errdefs.ErrInvalidArgument)
	case len(value) > MaxValue:
		return nil, fmt.Errorf("cannot seal a secret: it is longer than %d bytes: %w", MaxValue, errdefs.ErrInvalidArgument)
	}
	size := head + len(about) + len(value)
	plain := make([]byte, 0, (size+step-1)/step*step)
	plain = append(plain, magic...)
	plain = binary.BigEndian.AppendUint16(plain, uint16(len(about)))
	plain = binary.BigEndian.AppendUint32(plain, uint32(len(value)))
	plain = append(append(plain, about...), value...)
	plain = plain[:cap(plain)]
	defer clear(plain)
	var out bytes.Buffer
	w, err := age.Encrypt(&out, s.of.key.Recipient())
	if err == nil {
		_, err = w.Write(plain)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		return nil, fmt.Errorf("cannot seal a secret: %w", err)
	}
	return out.Bytes(), nil
}

// Unseal returns the value of what Seal returned for the same about. failed_precondition: it was sealed with another
// key, about something else, or was changed since. The error does not say about what it is: its caller knows.
func (s *Sealer) Unseal(about string, sealed []byte) (redact.Value, error) {
	no := func(why string) (redact.Value, error) {
		return redact.Value{}, fmt.Errorf("cannot unseal the value: %s: %w", why, errdefs.ErrFailedPrecondition)
	}
	const changed = "what is stored was changed or cut off; restore it from a backup, or store the secret anew"
	if len(sealed) > MaxSealed {
		return no(changed)
	}
	r, err := age.Decrypt(bytes.NewReader(sealed), s.of.key)
	if _, other := errors.AsType[*age.NoIdentityMatchError](err); other {
		return no(fmt.Sprintf("the key in %s is not the one that it was sealed with; put that key back, or store the secret anew", s.of.path))
	}
	if err != nil {
		return no(changed) // the error of age quotes what is stored
	}
	plain, err := io.ReadAll(r)
	defer clear(plain)
	if err != nil || len(plain) < head || string(plain[:len(magic)]) != magic {
		return no(changed)
	}
	short := uint64(binary.BigEndian.Uint16(plain[len(magic):]))
	long := uint64(binary.BigEndian.Uint32(plain[len(magic)+2:]))
	rest := plain[head:]
	if short+long > uint64(len(rest)) || long > MaxValue || len(bytes.Trim(rest[short+long:], "\x00")) > 0 {
		return no(changed)
	}
	if string(rest[:short]) != about {
		return no("it is about something else, so it was put here from another place; restore it from a backup, or store the secret anew")
	}
	return redact.NewValue(string(rest[short : short+long])), nil
}

// Format implements fmt.Formatter for every verb.
func (*Sealer) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, redact.Hidden) }

// String implements fmt.Stringer.
func (*Sealer) String() string { return redact.Hidden }

// MarshalJSON implements json.Marshaler.
func (*Sealer) MarshalJSON() ([]byte, error) { return json.Marshal(redact.Hidden) }

// LogValue implements slog.LogValuer.
func (*Sealer) LogValue() slog.Value { return slog.StringValue(redact.Hidden) }
