package ca

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/spec/netrule"
)

const (
	// leafLife is how long a certificate for a host is valid. A new one is made when less than leafSpare is left.
	leafLife  = 7 * 24 * time.Hour
	leafSpare = 24 * time.Hour
	// mostLeaves bounds the certificates that are kept.
	mostLeaves = 1024
)

// Leaves makes and keeps certificates for hosts. Its methods may be called from any goroutine.
type Leaves struct {
	ca    *CA
	bound func(netrule.Host) bool

	mu   sync.Mutex
	kept map[netrule.Host]*tls.Certificate
}

// Leaves returns a maker of certificates for the hosts that bound reports, and no others.
func (c *CA) Leaves(bound func(netrule.Host) bool) *Leaves {
	return &Leaves{ca: c, bound: bound, kept: map[netrule.Host]*tls.Certificate{}}
}

// Leaf returns a certificate for exactly this host, with its key. It is valid from 24 hours ago, and for 7 days unless
// the CA ends before. The error is of kind permission denied if the host is not bound, and failed precondition if the
// CA has ended.
func (l *Leaves) Leaf(h netrule.Host) (*tls.Certificate, error) {
	if h == (netrule.Host{}) || !l.bound(h) {
		return nil, fmt.Errorf("cannot make a certificate for %q: no secret is bound to it: %w", h, errdefs.ErrPermissionDenied)
	}
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if c := l.kept[h]; c != nil && now.Before(c.Leaf.NotAfter) &&
		(now.Add(leafSpare).Before(c.Leaf.NotAfter) || !c.Leaf.NotAfter.Before(l.ca.cert.NotAfter)) {
		return c, nil
	}
	c, err := l.ca.leaf(h, now)
	if err != nil {
		return nil, err
	}
	if len(l.kept) >= mostLeaves {
		for other := range l.kept { // any: it is made again in less than a millisecond
			delete(l.kept, other)
			break
		}
	}
	l.kept[h] = c
	return c, nil
}

func (c *CA) leaf(h netrule.Host, now time.Time) (*tls.Certificate, error) {
	if !now.Before(c.cert.NotAfter) {
		return nil, fmt.Errorf("cannot make a certificate for %s: the workspace's CA was valid until %s; start the workspace again: %w",
			h, c.cert.NotAfter.UTC().Format(time.RFC3339), errdefs.ErrFailedPrecondition)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("cannot make a certificate for %s: %w", h, err)
	}
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	t := &x509.Certificate{
		SerialNumber: serial, NotBefore: now.Add(-before), NotAfter: now.Add(leafLife),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, BasicConstraintsValid: true,
	}
	if t.NotAfter.After(c.cert.NotAfter) {
		t.NotAfter = c.cert.NotAfter
	}
	if a, ok := h.Addr(); ok {
		t.IPAddresses = []net.IP{a.AsSlice()}
	} else {
		t.DNSNames = []string{h.Name()}
	}
	if name := h.String(); len(name) <= maxCommonName {
		t.Subject = pkix.Name{CommonName: name}
	}
	der, err := x509.CreateCertificate(rand.Reader, t, c.cert, key.Public(), c.key)
	if err != nil {
		return nil, fmt.Errorf("cannot make a certificate for %s: %w", h, err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("cannot make a certificate for %s: %w", h, err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}, nil
}
