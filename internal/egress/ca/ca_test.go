package ca_test

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/egress/ca"
	"github.com/carrel-dev/carrel/internal/spec/netrule"
)

func host(t *testing.T, s string) netrule.Host {
	t.Helper()
	h, err := netrule.ParseHost(s)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func certificate(t *testing.T, c *ca.CA) *x509.Certificate {
	t.Helper()
	b, rest := pem.Decode(c.PEM())
	if b == nil || len(rest) > 0 {
		t.Fatalf("PEM is %q", c.PEM())
	}
	cert, err := x509.ParseCertificate(b.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

const month = 30 * 24 * time.Hour

func TestMake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, err := ca.Make("amber", month)
		if err != nil {
			t.Fatal(err)
		}
		cert := certificate(t, c)
		if cert.Subject.CommonName != "carrel egress of amber" || !cert.IsCA || !cert.MaxPathLenZero || cert.MaxPathLen != 0 ||
			!cert.NotAfter.Equal(time.Now().Add(30*24*time.Hour)) || !cert.NotAfter.Equal(c.NotAfter()) || cert.KeyUsage != x509.KeyUsageCertSign ||
			cert.SignatureAlgorithm != x509.ECDSAWithSHA256 {
			t.Errorf("the certificate of %s is from %v to %v, or for other uses", cert.Subject, cert.NotBefore, cert.NotAfter)
		}
		other, err := ca.Make(strings.Repeat("long", 60), month)
		if err != nil || bytes.Equal(other.PEM(), c.PEM()) {
			t.Errorf("another CA: %v", err)
		}
	})
}

func TestMarshal(t *testing.T) {
	c, _ := ca.Make("amber", month)
	b, err := c.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	again, err := ca.Parse(b)
	if err != nil || !bytes.Equal(again.PEM(), c.PEM()) {
		t.Fatalf("Parse: %v", err)
	}
	b2, _ := again.Marshal()
	if !bytes.Equal(b, b2) {
		t.Error("Marshal of what was parsed differs")
	}
	other, _ := ca.Make("amber", month)
	theirs, _ := other.Marshal()
	key, _, _ := bytes.Cut(theirs, []byte("-----BEGIN CERT"))
	leaf, _ := c.Leaves(func(netrule.Host) bool { return true }).Leaf(host(t, "example.org"))
	leafKey, _ := x509.MarshalPKCS8PrivateKey(leaf.PrivateKey)
	ofLeaf := append(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: leafKey}),
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: leaf.Leaf.Raw})...)
	for what, b := range map[string][]byte{
		"nothing": nil, "the certificate": c.PEM(), "the key": key, "another key": append(key, c.PEM()...), "a leaf": ofLeaf,
		"more": append(bytes.Clone(b), 'x'), "long": append(bytes.Clone(b), bytes.Repeat([]byte("\n"), 1<<20)...),
		"a bad key": bytes.Replace(b, []byte("KEY-----\nMI"), []byte("KEY-----\nAA"), 1),
	} {
		if _, err := ca.Parse(b); !errdefs.IsInvalidArgument(err) {
			t.Errorf("Parse of %s: %v", what, err)
		}
	}
	secret := strings.Split(string(b), "\n")[1]
	type holds struct{ c *ca.CA }
	for _, shown := range []string{fmt.Sprintf("%+v", c), fmt.Sprintf("%#v", c), fmt.Sprintf("%+v", holds{c}), fmt.Sprint(c)} {
		if strings.Contains(shown, secret) || len(shown) > 100 {
			t.Errorf("prints %s", shown)
		}
	}
}

func TestLeaf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := ca.Make("amber", month)
		pool := x509.NewCertPool()
		pool.AddCert(certificate(t, c))
		leaves := c.Leaves(func(h netrule.Host) bool { return h != host(t, "other.example.org") })
		for _, name := range []string{"example.org", "a_b.example.org", "192.0.2.7", "2001:db8::1", strings.Repeat("a123456.", 30) + "org"} {
			l, err := leaves.Leaf(host(t, name))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := l.Leaf.Verify(x509.VerifyOptions{Roots: pool, DNSName: name}); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if n := len(l.Leaf.DNSNames) + len(l.Leaf.IPAddresses); n != 1 || l.Leaf.IsCA {
				t.Errorf("%s: the certificate has %d names", name, n)
			}
			if again, _ := leaves.Leaf(host(t, name)); again != l {
				t.Errorf("%s: the certificate is not kept", name)
			}
			if from, to := time.Since(l.Leaf.NotBefore), time.Until(l.Leaf.NotAfter); from != 24*time.Hour || to != 7*24*time.Hour {
				t.Errorf("%s: it is valid %v back and %v ahead", name, from, to)
			}
		}
		for _, h := range []netrule.Host{{}, host(t, "other.example.org")} {
			if _, err := leaves.Leaf(h); !errdefs.IsPermissionDenied(err) {
				t.Errorf("a certificate for %q: %v", h, err)
			}
		}

		first, _ := leaves.Leaf(host(t, "example.org"))
		<-time.After(6*24*time.Hour + time.Minute)
		second, err := leaves.Leaf(host(t, "example.org"))
		if err != nil || second == first {
			t.Errorf("the certificate is not renewed: %v", err)
		}
		<-time.After(24*24*time.Hour - time.Hour)
		last, err := leaves.Leaf(host(t, "example.org"))
		if err != nil || !last.Leaf.NotAfter.Equal(c.NotAfter().Truncate(time.Second)) {
			t.Errorf("the last certificate: %v", err)
		}
		if again, _ := leaves.Leaf(host(t, "example.org")); again != last {
			t.Error("the last certificate is made again each time")
		}
		<-time.After(2 * time.Hour)
		if _, err := leaves.Leaf(host(t, "example.org")); !errdefs.IsFailedPrecondition(err) {
			t.Errorf("a CA that has ended: %v", err)
		}
	})
}

func TestManyLeaves(t *testing.T) {
	c, _ := ca.Make("amber", month)
	leaves := c.Leaves(func(netrule.Host) bool { return true })
	h := host(t, "10.0.0.1")
	for range 1100 {
		if _, err := leaves.Leaf(h); err != nil {
			t.Fatal(err)
		}
		a, _ := h.Addr()
		h = host(t, netip.Addr.Next(a).String())
	}
	if n := ca.Kept(leaves); n != 1024 {
		t.Errorf("%d certificates are kept", n)
	}
}
