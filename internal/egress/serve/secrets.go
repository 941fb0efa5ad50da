package serve

import (
	"crypto/x509"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/egress/ca"
	"github.com/carrel-dev/carrel/internal/egress/intercept"
	"github.com/carrel-dev/carrel/internal/egressapi"
	"github.com/carrel-dev/carrel/internal/netrule"
)

// rootsFor reads the authorities by which hosts are checked, if there is or may be a secret. The files that the system
// keeps them in cannot be read once the process is confined.
func rootsFor(s *egressapi.Setup) (*x509.CertPool, error) {
	if s.CA.Reveal() == "" {
		return x509.NewCertPool(), nil
	}
	roots, err := x509.SystemCertPool()
	if err != nil {
		return nil, fmt.Errorf("cannot read the host's certificate authorities; install ca-certificates: %w: %w",
			err, errdefs.ErrFailedPrecondition)
	}
	return roots, nil
}

// interceptorOf returns what serves the hosts that the secrets of a Setup are bound to, nil if there are none.
func interceptorOf(s *egressapi.Setup, roots *x509.CertPool) (*intercept.Interceptor, error) {
	if len(s.Secrets) == 0 {
		return nil, nil //nolint:nilnil // a nil Interceptor intercepts nothing
	}
	authority, err := ca.Parse([]byte(s.CA.Reveal()))
	if err != nil {
		return nil, err
	}
	c := intercept.Config{CA: authority, Roots: roots}
	for _, x := range s.Secrets {
		c.Secrets = append(c.Secrets, intercept.Secret{
			Name: x.Name, Placeholder: x.Placeholder, Value: x.Value.Value, Hosts: x.Hosts, Headers: x.Headers,
		})
	}
	return intercept.New(c)
}

// sameSecrets reports whether connections that are intercepted by one Setup may go on by the other.
func sameSecrets(a, b *egressapi.Setup) bool {
	return a.CA.Reveal() == b.CA.Reveal() && slices.EqualFunc(a.Secrets, b.Secrets, func(x, y egressapi.Secret) bool {
		return x.Name == y.Name && x.Placeholder == y.Placeholder && x.Value.Reveal() == y.Value.Reveal() &&
			slices.EqualFunc(x.Hosts, y.Hosts, func(p, q netrule.Rule) bool { return p == q }) && slices.Equal(x.Headers, y.Headers)
	})
}
