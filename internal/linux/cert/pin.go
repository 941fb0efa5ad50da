package cert

import (
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/containerd/errdefs"
)

// prefix begins a fingerprint.
const prefix = "sha256:"

// Fingerprint returns the fingerprint of a certificate's key: "sha256:" and the hex SHA-256 of its
// SubjectPublicKeyInfo (RFC 7469, section 2.4, in hex). It stays the same when a certificate is
// renewed with the same key. OpenSSL prints it with
//
//	openssl x509 -in cert.pem -pubkey -noout | openssl pkey -pubin -outform der | sha256sum
func Fingerprint(c *x509.Certificate) string {
	sum := sha256.Sum256(c.RawSubjectPublicKeyInfo)
	return prefix + hex.EncodeToString(sum[:])
}

// ParseFingerprint checks that s is a fingerprint, with or without its prefix, in either
// case and with or without colons, and returns it as Fingerprint writes it.
func ParseFingerprint(s string) (string, error) {
	digits := strings.ToLower(strings.ReplaceAll(s, ":", ""))
	digits = strings.TrimPrefix(digits, strings.TrimSuffix(prefix, ":"))
	if b, err := hex.DecodeString(digits); err != nil || len(b) != sha256.Size {
		return "", fmt.Errorf("cannot use %q as a fingerprint: it must be \"sha256:\" and 64 hexadecimal digits, "+
			"as \"carrel up\" and \"carrel token create\" print it: %w", s, errdefs.ErrInvalidArgument)
	}
	return prefix + digits, nil
}

// Pin returns the client's configuration for a server whose key has the fingerprint, which
// ParseFingerprint returned. Only the key is checked then, not the issuer, name and validity of the
// certificate. With "" the system's authorities must have signed the server's certificate.
func Pin(fingerprint string) *tls.Config {
	c := &tls.Config{MinVersion: tls.VersionTLS13}
	if fingerprint == "" {
		return c
	}
	c.InsecureSkipVerify = true // VerifyConnection, which runs for every connection, checks the key instead
	c.VerifyConnection = func(s tls.ConnectionState) error {
		if len(s.PeerCertificates) == 0 {
			return &PinError{Want: fingerprint}
		}
		if got := Fingerprint(s.PeerCertificates[0]); subtle.ConstantTimeCompare([]byte(got), []byte(fingerprint)) != 1 {
			return &PinError{Want: fingerprint, Got: got}
		}
		return nil
	}
	return c
}

// PinError is the error for a server with another key than the pinned one.
type PinError struct{ Want, Got string }

func (e *PinError) Error() string {
	return fmt.Sprintf("the server's key has the fingerprint %q and must have %q: it is another server, or somebody stands between",
		e.Got, e.Want)
}
