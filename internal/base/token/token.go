// Package token makes, formats, parses and hashes the API's tokens.
//
//	crl_0123456789ab_AbCd…                 60 characters
//	    └ id: 12     └ 43 characters of base64url (RFC 4648, section 5) without padding: 28 random bytes,
//	      hex digits   then the CRC-32 (IEEE, big-endian) of all bytes before: "crl_", the id, "_", the 28
//
// With the prefix and the checksum scanners of secrets recognise a token with hardly any false alarm,
// and a mistyped token is recognised without a look at the stored ones.
//
// The package must not store tokens or decide what one may do. A Secret never prints itself.
package token

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"log/slog"
	"strings"
)

// Prefix begins every token.
const Prefix = "crl_"

// Pattern is a regular expression (RE2) that every token matches, for redaction and for
// scanners of secrets.
const Pattern = `crl_[0-9a-f]{12}_[A-Za-z0-9_-]{43}`

// ID names a token and is no secret: 12 hexadecimal digits.
type ID string

const (
	idLen     = 12
	randomLen = 28
	bodyLen   = 43 // of 28 bytes and 4 of the checksum in base64url
	// Len is the length of every token in bytes.
	Len = len(Prefix) + idLen + 1 + bodyLen
)

// Secret is a complete token. Only Reveal returns its text; printed in any other way, it lacks the
// random part. The zero value is no token.
type Secret struct{ text string }

// ErrForm is the error of Parse. It does not contain the text, which may be a secret.
var ErrForm = errors.New("it is not of the form " + Prefix + "ID_SECRET, or was mistyped")

// strict refuses a last character with unused bits, so that a token has only one form.
var strict = base64.RawURLEncoding.Strict()

// New returns a fresh token.
func New() Secret {
	var b [idLen / 2]byte
	rand.Read(b[:]) // never fails: crypto/rand ends the process instead
	body := make([]byte, randomLen, randomLen+4)
	rand.Read(body)
	return assemble(ID(hex.EncodeToString(b[:])), body)
}

func assemble(id ID, body []byte) Secret {
	head := Prefix + string(id) + "_"
	body = binary.BigEndian.AppendUint32(body, checksum(head, body))
	return Secret{head + strict.EncodeToString(body)}
}

func checksum(head string, body []byte) uint32 {
	return crc32.Update(crc32.ChecksumIEEE([]byte(head)), crc32.IEEETable, body)
}

// Parse reads a token. Its only error is ErrForm.
func Parse(s string) (Secret, error) {
	if len(s) != Len || !strings.HasPrefix(s, Prefix) || s[Len-bodyLen-1] != '_' {
		return Secret{}, ErrForm
	}
	if _, err := ParseID(s[len(Prefix) : Len-bodyLen-1]); err != nil {
		return Secret{}, ErrForm
	}
	// The decoder would ignore newlines.
	if strings.ContainsAny(s, "\r\n") {
		return Secret{}, ErrForm
	}
	body, err := strict.DecodeString(s[Len-bodyLen:])
	if err != nil || len(body) != randomLen+4 ||
		binary.BigEndian.Uint32(body[randomLen:]) != checksum(s[:Len-bodyLen], body[:randomLen]) {
		return Secret{}, ErrForm
	}
	return Secret{s}, nil
}

// ParseID checks that s has the form of an id.
func ParseID(s string) (ID, error) {
	if len(s) != idLen {
		return "", errID
	}
	for _, c := range []byte(s) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return "", errID
		}
	}
	return ID(s), nil
}

var errID = errors.New(`the id of a token is 12 hexadecimal digits, as in "0123456789ab"; "carrel token ls" lists them`)

// ID returns the id of the token, or "" for the zero value.
func (s Secret) ID() ID {
	if s.text == "" {
		return ""
	}
	return ID(s.text[len(Prefix) : len(Prefix)+idLen])
}

// Reveal returns the token itself.
func (s Secret) Reveal() string { return s.text }

// Hash returns the SHA-256 of the token's text, which is all that is stored of it. The text is random,
// so a slow hash would not be safer.
func (s Secret) Hash() [sha256.Size]byte { return sha256.Sum256([]byte(s.text)) }

// String returns the token without its random part.
func (s Secret) String() string {
	if s.text == "" {
		return "no token"
	}
	return Prefix + string(s.ID()) + "_…"
}

// Format prints String, whatever the verb: %#v would show the field.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, s.String()) }

// LogValue returns String, for package slog.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalText returns String, for JSON and the like.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }
