package serve

import (
	"crypto/x509"
	"errors"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/egress/ca"
	"github.com/carrel-dev/carrel/internal/egress/intercept"
	"github.com/carrel-dev/carrel/internal/spec/netrule"
	"github.com/carrel-dev/carrel/internal/wire/egressapi"
)

// authorities are where the host's certificate authorities are kept, beside /etc: Debian and Alpine, Fedora, SUSE.
var authorities = []string{"/usr/share/ca-certificates", "/usr/local/share/ca-certificates", "/usr/share/pki", "/var/lib/ca-certificates"}

// readRoots reads the authorities by which hosts are checked, once.
func (p *process) readRoots() error {
	if p.roots != nil {
		return nil
	}
	roots, err := x509.SystemCertPool()
	if err == nil && roots.Equal(x509.NewCertPool()) {
		err = errors.New("there are none")
	}
	if err != nil {
		return fmt.Errorf("cannot read the host's certificate authorities; install ca-certificates: %w: %w", err, errdefs.ErrFailedPrecondition)
	}
	p.roots = roots
	return nil
}

// interceptorOf returns what reads inside TLS for a Setup, nil if nothing is to be read, or the workspace has no authority.
func (p *process) interceptorOf(s *egressapi.Setup) (*intercept.Interceptor, error) {
	if !s.InsideTLS() || len(s.Secrets) == 0 && s.CA.Reveal() == "" {
		return nil, nil //nolint:nilnil // a nil Interceptor intercepts nothing
	}
	if err := p.readRoots(); err != nil {
		return nil, err
	}
	authority, err := ca.Parse([]byte(s.CA.Reveal()))
	if err != nil {
		return nil, err
	}
	return intercept.New(intercept.Config{CA: authority, Roots: p.roots, Secrets: intercept.Of(s.Secrets)})
}

// sameSecrets reports whether connections that are intercepted by one Setup may go on by the other.
func sameSecrets(a, b *egressapi.Setup) bool {
	return a.InsideTLS() == b.InsideTLS() && a.CA.Reveal() == b.CA.Reveal() && slices.EqualFunc(a.Secrets, b.Secrets, func(x,
		y egressapi.Secret,
	) bool {
		return x.Name == y.Name && x.Placeholder == y.Placeholder && x.Value.Reveal() == y.Value.Reveal() &&
			slices.EqualFunc(x.Hosts, y.Hosts, func(p, q netrule.Rule) bool { return p == q }) && slices.Equal(x.Headers, y.Headers) &&
			x.Sending.Equal(y.Sending)
	})
}
