package cert_test

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/linux/cert"
)

func keeper(t *testing.T, cfg cert.Config) *cert.Keeper {
	t.Helper()
	k, err := cert.Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// try connects to a server with k's certificate, and returns the client's error.
func try(t *testing.T, k *cert.Keeper, client *tls.Config) error {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	near, err := new(net.Dialer).DialContext(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer near.Close()
	far, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer far.Close()
		s := tls.Server(far, &tls.Config{GetCertificate: k.Certificate, MinVersion: tls.VersionTLS13})
		_ = s.HandshakeContext(context.Background())
		_, _ = s.Write([]byte("x"))
	}()
	client = client.Clone()
	if client.ServerName == "" {
		client.ServerName = "localhost"
	}
	c := tls.Client(near, client)
	err = c.HandshakeContext(t.Context())
	if err == nil {
		_, err = io.ReadFull(c, make([]byte, 1))
	}
	near.Close()
	<-done
	return err
}

func TestOwnCertificate(t *testing.T) {
	dir := t.TempDir()
	now := time.Now()
	cfg := cert.Config{Dir: dir, Names: []string{"localhost", "192.0.2.1"}, Now: func() time.Time { return now }}
	k := keeper(t, cfg)
	for _, f := range []string{"key.pem", "cert.pem"} {
		if fi, err := os.Stat(filepath.Join(dir, f)); err != nil || fi.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", f, fi, err)
		}
	}
	pin := k.Fingerprint()
	if got, err := cert.ParseFingerprint(strings.ToUpper(pin)); err != nil || got != pin {
		t.Errorf("%s, %v", got, err)
	}
	if err := try(t, k, cert.Pin(pin)); err != nil {
		t.Errorf("pinned: %v", err)
	}
	other := keeper(t, cert.Config{Dir: t.TempDir(), Names: cfg.Names})
	var wrong *cert.PinError
	if err := try(t, k, cert.Pin(other.Fingerprint())); !errors.As(err, &wrong) || wrong.Got != pin {
		t.Errorf("another server's pin: %v", err)
	}
	if err := try(t, k, cert.Pin("")); err == nil {
		t.Error("a certificate that nobody signed passes without a pin")
	}
	old := cert.Pin(pin)
	old.MinVersion, old.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	if err := try(t, k, old); err == nil {
		t.Error("TLS 1.2 was spoken")
	}
	if !k.IsFor("localhost") || !k.IsFor("192.0.2.1") || k.IsFor("attacker.example") {
		t.Error("the names are not those that were given")
	}
	// Opened again, it is the same; before its end it is renewed, and the pin stays valid.
	first, _ := k.Certificate(nil)
	again, _ := keeper(t, cfg).Certificate(nil)
	if string(again.Certificate[0]) != string(first.Certificate[0]) {
		t.Error("a restart made another certificate")
	}
	now = now.Add(340 * 24 * time.Hour)
	renewed, _ := k.Certificate(nil)
	if string(renewed.Certificate[0]) == string(first.Certificate[0]) ||
		k.Fingerprint() != pin || renewed.Leaf.NotAfter.Sub(now) < 300*24*time.Hour {
		t.Errorf("not renewed: good until %v, %s", renewed.Leaf.NotAfter, k.Fingerprint())
	}
	// With another name it is made anew, with the same key.
	cfg.Names = append(cfg.Names, "carrel.example")
	if k := keeper(t, cfg); !k.IsFor("carrel.example") || k.Fingerprint() != pin {
		t.Error("a new name is not taken up, or has another key")
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".new-*")); len(left) > 0 {
		t.Errorf("left over: %v", left)
	}
}

func TestDamagedOwnCertificate(t *testing.T) {
	for name, damage := range map[string]func(dir string) error{
		"key of another": func(dir string) error {
			other := t.TempDir()
			keeper(t, cert.Config{Dir: other})
			return os.Rename(filepath.Join(other, "key.pem"), filepath.Join(dir, "key.pem"))
		},
		"no PEM": func(dir string) error { return os.WriteFile(filepath.Join(dir, "key.pem"), []byte("x"), 0o600) },
	} {
		dir := t.TempDir()
		keeper(t, cert.Config{Dir: dir})
		if err := damage(dir); err != nil {
			t.Fatal(err)
		}
		if _, err := cert.Open(cert.Config{Dir: dir}); !errdefs.IsFailedPrecondition(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// A crash between the two files leaves the key, which is kept.
	dir := t.TempDir()
	pin := keeper(t, cert.Config{Dir: dir}).Fingerprint()
	if err := os.Remove(filepath.Join(dir, "cert.pem")); err != nil {
		t.Fatal(err)
	}
	if k := keeper(t, cert.Config{Dir: dir}); k.Fingerprint() != pin {
		t.Error("a lost certificate took the key with it")
	}
}

func TestGivenCertificate(t *testing.T) {
	a, b := t.TempDir(), t.TempDir()
	first, second := keeper(t, cert.Config{Dir: a, Names: []string{"a.example"}}), keeper(t, cert.Config{Dir: b, Names: []string{"b.example"}})
	now := time.Now()
	// A pair that was made in the same instant is noticed as another one.
	for _, f := range []string{a + "/cert.pem", a + "/key.pem", b + "/cert.pem", b + "/key.pem"} {
		if err := os.Chtimes(f, now, now); err != nil {
			t.Fatal(err)
		}
	}
	var warned error
	cfg := cert.Config{
		CertFile: filepath.Join(a, "cert.pem"), KeyFile: filepath.Join(a, "key.pem"),
		Now: func() time.Time { return now }, Warn: func(err error) { warned = err },
	}
	k := keeper(t, cfg)
	if k.Fingerprint() != first.Fingerprint() || !k.IsFor("a.example") {
		t.Error("another certificate than the given one is used")
	}
	// Half of a new pair is there: the old one stays in use.
	swap := func(f string) {
		t.Helper()
		if err := os.Rename(filepath.Join(b, f), filepath.Join(a, f)); err != nil {
			t.Fatal(err)
		}
		now = now.Add(2 * time.Minute)
	}
	swap("cert.pem")
	if _, err := k.Certificate(nil); err != nil || warned == nil || k.Fingerprint() != first.Fingerprint() {
		t.Errorf("%v, warned of %v", err, warned)
	}
	swap("key.pem")
	if _, err := k.Certificate(nil); err != nil || k.Fingerprint() != second.Fingerprint() {
		t.Errorf("a new certificate is not taken up: %v", err)
	}
	for _, bad := range []cert.Config{{CertFile: "x"}, {KeyFile: "x"}, {CertFile: "/nowhere", KeyFile: "/nowhere"}} {
		if _, err := cert.Open(bad); err == nil {
			t.Errorf("%+v passes", bad)
		}
	}
}

func TestParseFingerprint(t *testing.T) {
	const digits = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	for _, s := range []string{digits, "sha256:" + digits, "SHA256:" + strings.ToUpper(digits), "01:23" + digits[4:]} {
		if got, err := cert.ParseFingerprint(s); err != nil || got != "sha256:"+digits {
			t.Errorf("%q: %q, %v", s, got, err)
		}
	}
	for _, s := range []string{"", "sha256:", digits[1:], digits + "00", "md5:" + digits, strings.Repeat("g", 64)} {
		if got, err := cert.ParseFingerprint(s); err == nil {
			t.Errorf("%q is taken as %q", s, got)
		}
	}
}
