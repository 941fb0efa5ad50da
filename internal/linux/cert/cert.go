// Package cert holds the daemon's key and certificate for TLS, its own or an administrator's, and
// checks the key's fingerprint in the client.
//
// It must not know what is served.
package cert

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/linux/wholefile"
)

const (
	// life is the validity of a certificate of our own. It is renewed, with the same key,
	// renewBefore its end.
	life        = 366 * 24 * time.Hour
	renewBefore = 30 * 24 * time.Hour
	// lookEvery bounds how often the files are checked for changes.
	lookEvery = time.Minute
)

// Config holds the options of Open. CertFile and KeyFile go together; without them Dir is required.
type Config struct {
	// CertFile and KeyFile are PEM files of the administrator. They are read again when they
	// change.
	CertFile, KeyFile string
	// Dir is a directory that only this user can enter. It holds a key and a certificate of our
	// own, key.pem and cert.pem, which are made if they are missing.
	Dir string
	// Names are the host names and addresses of our own certificate.
	Names []string
	// Warn is called with errors after Open; the last good certificate stays in use.
	Warn func(error)
	// Now is the clock; nil means the host's.
	Now func() time.Time
}

// Keeper holds the certificate. Its methods may be called from any goroutine.
type Keeper struct {
	cfg Config

	mu     sync.Mutex
	cert   *tls.Certificate
	looked time.Time
	stamp  string // state of the files; see stampOf
}

// Open reads the key and the certificate. Without CertFile it makes them if they are missing.
func Open(cfg Config) (*Keeper, error) {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if (cfg.CertFile == "") != (cfg.KeyFile == "") {
		return nil, fmt.Errorf("cannot serve TLS with a certificate and no key, or a key and no certificate: "+
			"set both tls_cert and tls_key, or neither: %w", errdefs.ErrInvalidArgument)
	}
	k := &Keeper{cfg: cfg}
	if err := k.look(); err != nil {
		return nil, err
	}
	return k, nil
}

// own reports whether the certificate is our own.
func (k *Keeper) own() bool { return k.cfg.CertFile == "" }

// Certificate implements tls.Config.GetCertificate.
func (k *Keeper) Certificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if now := k.cfg.Now(); now.Sub(k.looked) >= lookEvery || now.Before(k.looked) {
		if err := k.look(); err != nil {
			k.looked = now
			if k.cfg.Warn != nil {
				k.cfg.Warn(err)
			}
		}
	}
	return k.cert, nil
}

// Fingerprint returns the fingerprint of the key in use.
func (k *Keeper) Fingerprint() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return Fingerprint(k.cert.Leaf)
}

// IsFor reports whether the certificate is valid for this host name.
func (k *Keeper) IsFor(host string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.cert.Leaf.VerifyHostname(host) == nil
}

// look reads the files again if they have changed, and renews our own certificate in time. k.mu is
// held, or nobody else has k.
func (k *Keeper) look() error {
	if k.own() {
		return k.lookOwn()
	}
	stamp, err := stampOf(k.cfg.CertFile, k.cfg.KeyFile)
	if err == nil && stamp == k.stamp {
		k.looked = k.cfg.Now()
		return nil
	}
	if err == nil {
		err = k.use(tls.LoadX509KeyPair(k.cfg.CertFile, k.cfg.KeyFile))
	}
	if err != nil {
		return fmt.Errorf("cannot use %s and %s for TLS: %w; the daemon's user must be able to read both, "+
			"and the key must be the certificate's: %w", k.cfg.CertFile, k.cfg.KeyFile, err, errdefs.ErrFailedPrecondition)
	}
	k.stamp = stamp
	return nil
}

// use starts to use a certificate.
func (k *Keeper) use(c tls.Certificate, err error) error {
	if err != nil {
		return err
	}
	if c.Leaf == nil {
		if c.Leaf, err = x509.ParseCertificate(c.Certificate[0]); err != nil {
			return err
		}
	}
	k.cert, k.looked = &c, k.cfg.Now()
	return nil
}

// stampOf returns a text that changes when the files change.
func stampOf(files ...string) (string, error) {
	var s strings.Builder
	for _, f := range files {
		fi, err := os.Stat(f)
		if err != nil {
			return "", err
		}
		// Not the time only: it is as coarse as the kernel's tick, and a renamed file keeps its
		// own.
		if st, ok := fi.Sys().(*syscall.Stat_t); ok {
			fmt.Fprint(&s, st.Dev, " ", st.Ino, " ", st.Ctim.Nano(), " ")
		}
		fmt.Fprint(&s, fi.ModTime().UnixNano(), " ", fi.Size(), " ")
	}
	return s.String(), nil
}

func (k *Keeper) lookOwn() error {
	if k.cert == nil {
		c, err := tls.LoadX509KeyPair(filepath.Join(k.cfg.Dir, "cert.pem"), filepath.Join(k.cfg.Dir, "key.pem"))
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return fmt.Errorf("cannot use the key in %s: %w; restore both files, or remove them for a new key, "+
				"which clients have to pin anew: %w", k.cfg.Dir, err, errdefs.ErrFailedPrecondition)
		default:
			if err := k.use(c, nil); err != nil {
				return err
			}
		}
	}
	k.looked = k.cfg.Now()
	if k.cert != nil && k.looked.Before(k.cert.Leaf.NotAfter.Add(-renewBefore)) && !k.looked.Before(k.cert.Leaf.NotBefore) && k.forAll() {
		return nil
	}
	key, err := k.key()
	if err != nil {
		return err
	}
	return k.issue(key)
}

// forAll reports whether the certificate is valid for all configured names.
func (k *Keeper) forAll() bool {
	for _, n := range k.cfg.Names {
		if k.cert.Leaf.VerifyHostname(n) != nil {
			return false
		}
	}
	return true
}

// key reads the key, or makes one. The key is on disk before there is a certificate for it.
func (k *Keeper) key() (crypto.Signer, error) {
	path := filepath.Join(k.cfg.Dir, "key.pem")
	text, err := os.ReadFile(path)
	if err == nil {
		block, _ := pem.Decode(text)
		if block == nil {
			return nil, fmt.Errorf("cannot read the key in %s: it is not PEM; remove it for a new one, which clients have to pin anew: %w",
				path, errdefs.ErrFailedPrecondition)
		}
		key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("cannot read the key in %s: %w: %w", path, err, errdefs.ErrFailedPrecondition)
		}
		if s, ok := key.(crypto.Signer); ok {
			return s, nil
		}
		return nil, fmt.Errorf("cannot use the key in %s: it cannot sign: %w", path, errdefs.ErrFailedPrecondition)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("cannot read the key for TLS: %w", err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("cannot make a key for TLS: %w", err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("cannot make a key for TLS: %w", err)
	}
	return key, put(path, "PRIVATE KEY", der)
}

// issue makes a certificate for key and uses it.
func (k *Keeper) issue(key crypto.Signer) error {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return fmt.Errorf("cannot make a certificate: %w", err)
	}
	now := k.cfg.Now()
	t := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: "carrel"},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(life), // clocks of clients differ
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
	}
	for _, n := range k.cfg.Names {
		if ip := net.ParseIP(n); ip != nil {
			t.IPAddresses = append(t.IPAddresses, ip)
		} else {
			t.DNSNames = append(t.DNSNames, n)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
	if err != nil {
		return fmt.Errorf("cannot make a certificate: %w", err)
	}
	if err := put(filepath.Join(k.cfg.Dir, "cert.pem"), "CERTIFICATE", der); err != nil {
		return err
	}
	return k.use(tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil)
}

// put writes a PEM file that only this user may read, atomically.
func put(path, kind string, der []byte) error {
	fail := func(err error) error {
		return fmt.Errorf("cannot write %s: %w", path, err)
	}
	if err := wholefile.Put(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})); err != nil {
		return fail(err)
	}
	return nil
}
