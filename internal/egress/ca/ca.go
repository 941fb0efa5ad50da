// Package ca makes the certificates that egress shows in place of a host's. Each workspace has a CA of its own, which
// only that workspace trusts.
//
// It must not decide which hosts are intercepted, and signs for those only.
package ca

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"time"

	"github.com/containerd/errdefs"
)

const (
	// before is how long before its making a CA is valid: clocks differ.
	before = 24 * time.Hour
	// maxCommonName is the length of a common name in characters (RFC 5280, appendix A).
	maxCommonName = 64
	maxPEM        = 16 << 10
)

// The types of the blocks of PEM.
const (
	blockKey  = "PRIVATE KEY"
	blockCert = "CERTIFICATE"
)

// CA is the key and the certificate of a workspace's authority.
type CA struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
}

// Make makes a CA for the workspace of this name, which is valid for so long.
func Make(name string, life time.Duration) (*CA, error) {
	cn := "carrel egress of " + name
	if len(cn) > maxCommonName {
		cn = cn[:maxCommonName]
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("cannot make a CA: %w", err)
	}
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	now := time.Now()
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: cn}, NotBefore: now.Add(-before), NotAfter: now.Add(life),
		KeyUsage: x509.KeyUsageCertSign, BasicConstraintsValid: true, IsCA: true, MaxPathLenZero: true,
	}, &x509.Certificate{Subject: pkix.Name{CommonName: cn}}, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("cannot make a CA: %w: %w", err, errdefs.ErrInvalidArgument)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("cannot make a CA: %w", err)
	}
	return &CA{key, cert}, nil
}

// PEM returns the certificate, which the workspace is to trust.
func (c *CA) PEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: blockCert, Bytes: c.cert.Raw})
}

// NotAfter is when the CA's certificates cease to be valid.
func (c *CA) NotAfter() time.Time { return c.cert.NotAfter }

// Marshal returns the key and the certificate as Parse takes them. They are secret.
func (c *CA) Marshal() ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(c.key)
	if err != nil {
		return nil, fmt.Errorf("cannot marshal the CA's key: %w", err)
	}
	return append(pem.EncodeToMemory(&pem.Block{Type: blockKey, Bytes: der}), c.PEM()...), nil
}

// Parse reads what Marshal returned. The error is of kind invalid argument and shows nothing of b.
func Parse(b []byte) (*CA, error) {
	if len(b) > maxPEM {
		return nil, bad("it is too long")
	}
	key, rest := pem.Decode(b)
	cert, rest := pem.Decode(rest)
	if key == nil || cert == nil || key.Type != blockKey || cert.Type != blockCert || len(bytes.TrimSpace(rest)) > 0 {
		return nil, bad("it is not a key and a certificate in PEM")
	}
	k, err := x509.ParsePKCS8PrivateKey(key.Bytes)
	private, ok := k.(*ecdsa.PrivateKey)
	if err != nil || !ok || private.Curve != elliptic.P256() {
		return nil, bad("its key is not one of ECDSA on P-256")
	}
	c, err := x509.ParseCertificate(cert.Bytes)
	switch {
	case err != nil:
		return nil, bad("its certificate cannot be read")
	case !private.PublicKey.Equal(c.PublicKey):
		return nil, bad("its certificate is for another key")
	case !c.BasicConstraintsValid || !c.IsCA || !c.MaxPathLenZero || c.KeyUsage != x509.KeyUsageCertSign:
		return nil, bad("its certificate is not one of a CA that signs for hosts only")
	}
	return &CA{private, c}, nil
}

func bad(why string) error {
	return fmt.Errorf("cannot use the CA: %s; make it with ca.Make: %w", why, errdefs.ErrInvalidArgument)
}

// Format implements fmt.Formatter. It shows the name and not the key.
func (c *CA) Format(f fmt.State, _ rune) {
	_, _ = io.WriteString(f, "CA("+c.cert.Subject.CommonName+")")
}

func newSerial() (*big.Int, error) {
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("cannot make a certificate: %w", err)
	}
	return n.Add(n, big.NewInt(1)), nil // 0 is none (RFC 5280, 4.1.2.2)
}
