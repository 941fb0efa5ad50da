// Package checkpoint encodes and checks signed checkpoints: their text, their keys and signatures,
// and proofs that a record is in a log. Text and signatures have the form of C2SP tlog-checkpoint and
// signed-note, hashes that of RFC 6962.
//
// It is pure: it must not read a file or a clock or keep a key, and it does not decide when a
// checkpoint is made or which keys are trusted.
package checkpoint

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

// Checkpoint is the number of records in the log of an origin, and the root of their tree.
type Checkpoint struct {
	Origin string
	Size   int64
	Root   tlog.Hash
}

// Limits for parsing. A consistency or inclusion proof has at most two hashes for each level of a
// tree, and a tree has at most 62 levels.
const (
	MaxNote   = 4 << 10
	MaxProof  = 128
	maxOrigin = 64
)

// Text returns the text to sign:
//
//	<origin>\n<size>\n<root in base64>\n
func (c Checkpoint) Text() string {
	return c.Origin + "\n" + strconv.FormatInt(c.Size, 10) + "\n" + c.Root.String() + "\n"
}

// ParseText parses a Text. It accepts no other form.
func ParseText(text string) (Checkpoint, error) {
	lines := strings.Split(text, "\n")
	if len(lines) != 4 || lines[3] != "" {
		return Checkpoint{}, malformed("it does not have three lines")
	}
	c := Checkpoint{Origin: lines[0]}
	if !IsName(c.Origin) {
		return Checkpoint{}, malformed("its origin is not a name")
	}
	var err error
	if c.Size, err = parseSize(lines[1]); err != nil {
		return Checkpoint{}, malformed("its size is not a number")
	}
	if c.Root, err = ParseHash(lines[2]); err != nil {
		return Checkpoint{}, malformed("its root is not a hash")
	}
	return c, nil
}

// parseSize parses the canonical decimal form of a number.
func parseSize(s string) (int64, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 || strconv.FormatInt(n, 10) != s {
		return 0, errors.New("not a number in canonical form")
	}
	return n, nil
}

// ParseHash parses the canonical base64 of 32 bytes.
func ParseHash(s string) (h tlog.Hash, err error) {
	b, err := base64.StdEncoding.Strict().DecodeString(s)
	if err != nil || len(b) != len(h) || base64.StdEncoding.EncodeToString(b) != s {
		return h, errors.New("not the base64 of a hash")
	}
	copy(h[:], b)
	return h, nil
}

func malformed(what string) error {
	return fmt.Errorf("cannot read a checkpoint: %s: %w", what, errdefs.ErrInvalidArgument)
}

// IsName reports whether s can name a log or a key: lower-case letters, digits, hyphens and
// dots.
func IsName(s string) bool {
	for _, c := range []byte(s) {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' && c != '.' {
			return false
		}
	}
	return len(s) > 0 && len(s) <= maxOrigin
}

// NewKey makes an Ed25519 key with this name. secret is for the signer only, and public for
// verifiers; both are text without spaces.
func NewKey(rand io.Reader, name string) (secret, public string, err error) {
	if !IsName(name) {
		return "", "", fmt.Errorf("cannot make a key named %q: %w", name, errdefs.ErrInvalidArgument)
	}
	secret, public, err = note.GenerateKey(rand, name)
	if err != nil {
		return "", "", fmt.Errorf("cannot make a key for checkpoints: %w", err)
	}
	return secret, public, nil
}

// Public returns the public key of a secret one.
func Public(secret string) (public string, err error) {
	// PRIVATE+KEY+<name>+<hash>+<base64 of 1 and the seed>, as package note defines it.
	parts := strings.SplitN(secret, "+", 5)
	if len(parts) != 5 {
		return "", errKey
	}
	seed, err := base64.StdEncoding.DecodeString(parts[4])
	if err != nil || len(seed) != 33 {
		return "", errKey
	}
	pub, err := publicOf(seed[1:])
	if err != nil {
		return "", errKey
	}
	return note.NewEd25519VerifierKey(parts[2], pub)
}

var errKey = fmt.Errorf("cannot read a key for checkpoints: it does not have the form of one: %w", errdefs.ErrInvalidArgument)

// Sign returns a note of c, signed by s.
func Sign(c Checkpoint, s note.Signer) ([]byte, error) {
	b, err := note.Sign(&note.Note{Text: c.Text()}, s)
	if err != nil {
		return nil, fmt.Errorf("cannot sign a checkpoint: %w", err)
	}
	return b, nil
}

// Join returns one note with the signatures of both notes in this order. Their texts must be equal.
func Join(a, b []byte) ([]byte, error) {
	text, first, ok := cutNote(a)
	other, second, ok2 := cutNote(b)
	if !ok || !ok2 || text != other {
		return nil, malformed("two notes to be joined are not on one text")
	}
	return []byte(text + "\n" + first + second), nil
}

// cutNote splits a note into its text and the lines of its signatures.
func cutNote(b []byte) (text, sigs string, ok bool) {
	text, sigs, ok = strings.Cut(string(b), "\n\n")
	return text + "\n", sigs, ok && strings.HasSuffix(sigs, "\n")
}

// Keys are the public keys that a reader trusts.
type Keys struct {
	// Log is the key of the daemon's log, Broker the broker's, nil if it is not known.
	Log, Broker note.Verifier
}

// ParseKeys parses public keys; "" means that a key is not known.
func ParseKeys(log, broker string) (k Keys, err error) {
	for _, one := range []struct {
		text string
		to   *note.Verifier
	}{{log, &k.Log}, {broker, &k.Broker}} {
		if one.text = strings.TrimSpace(one.text); one.text == "" {
			continue
		}
		if *one.to, err = note.NewVerifier(one.text); err != nil {
			return k, fmt.Errorf("cannot read the public key %.100q: %w: %w", one.text, err, errdefs.ErrInvalidArgument)
		}
	}
	return k, nil
}

// Signed is a checkpoint and its signers.
type Signed struct {
	Checkpoint
	// Log and Broker: signed by the key of each.
	Log, Broker bool
}

// Open parses a note and checks its signatures by keys. A note without a signature by one of them, or
// with a wrong one, is an error (data_loss); other signatures are ignored.
func Open(b []byte, keys Keys) (Signed, error) {
	if len(b) > MaxNote {
		return Signed{}, malformed("it is longer than " + strconv.Itoa(MaxNote) + " bytes")
	}
	var list []note.Verifier
	for _, v := range []note.Verifier{keys.Log, keys.Broker} {
		if v != nil {
			list = append(list, v)
		}
	}
	n, err := note.Open(b, note.VerifierList(list...))
	if err != nil {
		return Signed{}, fmt.Errorf("cannot believe a checkpoint: %w: %w", err, errdefs.ErrDataLoss)
	}
	c, err := ParseText(n.Text)
	if err != nil {
		return Signed{}, err
	}
	s := Signed{Checkpoint: c}
	for _, sig := range n.Sigs {
		// The log's key has the name of the log, and the broker's another.
		own := sig.Name == c.Origin
		s.Log = s.Log || own && is(keys.Log, sig)
		s.Broker = s.Broker || !own && is(keys.Broker, sig)
	}
	if !s.Log && !s.Broker {
		return Signed{}, fmt.Errorf("cannot believe a checkpoint: it is signed by the key of another part: %w", errdefs.ErrDataLoss)
	}
	return s, nil
}

func is(v note.Verifier, sig note.Signature) bool {
	return v != nil && v.Name() == sig.Name && v.KeyHash() == sig.Hash
}

// Split splits a file of notes, each followed by an empty line, and returns the number of bytes that
// complete notes take. What follows them was torn by a crash, or is no note.
func Split(b []byte) (notes [][]byte, whole int) {
	for {
		text, rest, ok := bytes.Cut(b[whole:], []byte("\n\n"))
		if !ok {
			return notes, whole
		}
		sigs, _, ok := bytes.Cut(rest, []byte("\n\n"))
		if !ok {
			return notes, whole
		}
		n := len(text) + 2 + len(sigs) + 1
		notes = append(notes, b[whole:whole+n])
		whole += n + 1
	}
}
