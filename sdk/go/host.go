package carrel

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/base/token"
	"github.com/carrel-dev/carrel/internal/linux/cert"
)

// Further environment variables. They are read only together with HostEnv, so that a token is not
// sent to a host that a program chose.
const (
	// TokenEnv holds a token, and TokenFileEnv the path of a file with one.
	TokenEnv     = "CARREL_TOKEN"
	TokenFileEnv = "CARREL_TOKEN_FILE" //nolint:gosec // the name of a variable
	// FingerprintEnv holds the fingerprint of the daemon's key.
	FingerprintEnv = "CARREL_FINGERPRINT"
	// CAFileEnv holds the path of a file of certificate authorities.
	CAFileEnv = "CARREL_CA_FILE"
)

// host is the daemon of a client, and its token.
type host struct {
	// socket is the path of a Unix socket. If it is "", address is the HOST:PORT of a TLS server,
	// whose key has the fingerprint; "" trusts authorities, and nil those of the system.
	socket, address, fingerprint string
	authorities                  *x509.CertPool
	secret                       token.Secret
	// dial takes the place of all of them but the secret.
	dial func(context.Context) (net.Conn, error)
}

func hostFrom(opts Options) (h host, err error) {
	h.dial = opts.Dial
	if opts.Host == "" && opts.Dial == nil {
		opts.Host = os.Getenv(HostEnv)
		if opts.Token == "" && opts.TokenFile == "" {
			opts.Token, opts.TokenFile = os.Getenv(TokenEnv), os.Getenv(TokenFileEnv)
		}
		if opts.Fingerprint == "" {
			opts.Fingerprint = os.Getenv(FingerprintEnv)
		}
		if opts.CAFile == "" {
			opts.CAFile = os.Getenv(CAFileEnv)
		}
	}
	if opts.Host == "" {
		opts.Host = DefaultHost
	}
	if path, ok := strings.CutPrefix(opts.Host, "unix://"); opts.Dial != nil {
		// who dials knows where
	} else if ok && filepath.IsAbs(path) {
		h.socket = path
	} else if h.address, err = addressOf(opts.Host); err != nil {
		return h, err
	}
	if opts.Fingerprint != "" && h.socket == "" {
		if h.fingerprint, err = cert.ParseFingerprint(opts.Fingerprint); err != nil {
			return h, err
		}
	}
	if opts.CAFile != "" && h.socket == "" {
		if h.authorities, err = readAuthorities(opts.CAFile); err != nil {
			return h, err
		}
	}
	text := opts.Token
	if opts.Token == "" && opts.TokenFile != "" {
		if text, err = readToken(opts.TokenFile); err != nil {
			return h, err
		}
	}
	if text == "" {
		return h, nil
	}
	if h.secret, err = token.Parse(text); err != nil {
		return h, fmt.Errorf("cannot use the token: %w; see that all of its %d characters are there: %w",
			err, token.Len, errdefs.ErrInvalidArgument)
	}
	return h, nil
}

// addressOf accepts only https://HOST:PORT, without a path or a user.
func addressOf(s string) (string, error) {
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "https" || u.Hostname() == "" || u.Port() == "" || u.User != nil || strings.Trim(u.Path, "/") != "" ||
		u.RawQuery != "" || u.Fragment != "" {
		return "", fmt.Errorf(
			"cannot use %q as the host: it must be unix:// and the absolute path of the daemon's socket, as in %s, or https://HOST:PORT: %w", s,
			DefaultHost, errdefs.ErrInvalidArgument,
		)
	}
	return net.JoinHostPort(u.Hostname(), u.Port()), nil
}

// maxAuthorities bounds a file of certificate authorities, in bytes; the system's has a few hundred KiB.
const maxAuthorities = 4 << 20

func readAuthorities(path string) (*x509.CertPool, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("cannot read the certificate authorities: %w; %s or --ca-file names the file: %w",
			err, CAFileEnv, errdefs.ErrInvalidArgument)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxAuthorities))
	if err != nil {
		return nil, fmt.Errorf("cannot read the certificate authorities in %s: %w", path, err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(b) {
		return nil, fmt.Errorf("cannot use %s: it has no certificate in PEM; give the file of the authority that signed tls_cert: %w",
			path, errdefs.ErrInvalidArgument)
	}
	return pool, nil
}

// readToken reads a file that only its owner may read.
func readToken(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("cannot read the token: %w; %s or --token-file names the file: %w", err, TokenFileEnv, errdefs.ErrInvalidArgument)
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return "", fmt.Errorf("cannot read the token: %w", err)
	}
	if fi.Mode().IsRegular() && fi.Mode().Perm()&0o077 != 0 {
		return "", fmt.Errorf(
			"cannot use the token in %s: others may read the file, which has mode %v; "+
				"chmod 600 it, and revoke the token if somebody read it: %w", path,
			fi.Mode().Perm(), errdefs.ErrFailedPrecondition,
		)
	}
	b, err := io.ReadAll(io.LimitReader(f, 4096))
	if err != nil {
		return "", fmt.Errorf("cannot read the token in %s: %w", path, err)
	}
	text := strings.TrimSpace(string(b))
	if text == "" { // without a token the rights would be this user's
		return "", fmt.Errorf("cannot use the token in %s: the file is empty; write a token there, as \"carrel token create\" prints it: %w",
			path, errdefs.ErrInvalidArgument)
	}
	return text, nil
}

// direct reports whether the descriptors of commands can be passed: not with a token, which is
// checked at each request, and not over TLS.
func (h *host) direct() bool { return h.socket != "" && h.secret == token.Secret{} }

func (h *host) String() string {
	switch {
	case h.dial != nil:
		return "inner"
	case h.socket != "":
		return "unix://" + h.socket
	}
	return "https://" + h.address
}

// baseURL is the start of the URLs of requests.
func (h *host) baseURL() string {
	if h.socket != "" || h.dial != nil {
		return "http://carrel"
	}
	return "https://" + h.address
}

// dialTLS connects and verifies the server. Its errors say what to do.
func (h *host) dialTLS(ctx context.Context) (net.Conn, error) {
	config := cert.Pin(h.fingerprint)
	config.RootCAs = h.authorities
	config.NextProtos = []string{"h2", "http/1.1"}
	d := tls.Dialer{NetDialer: &net.Dialer{Timeout: 30 * time.Second}, Config: config}
	c, err := d.DialContext(ctx, "tcp", h.address)
	if err == nil {
		return c, nil
	}
	if ctx.Err() != nil {
		return nil, fmt.Errorf("cannot reach carrel at %s: %w", h, ctx.Err())
	}
	why, kind := err.Error(), error(errdefs.ErrUnavailable)
	if pin, ok := errors.AsType[*cert.PinError](err); ok {
		kind = errdefs.ErrUnauthenticated
		why = pin.Error() + "; do not give it a token; if the daemon's key was replaced, \"carrel version\" on its host shows the new one"
	} else if unknown := new(x509.UnknownAuthorityError); errors.As(err, unknown) {
		kind = errdefs.ErrUnauthenticated
		why = "nobody who is trusted here has signed its certificate; give the fingerprint of its key with --fingerprint or " +
			FingerprintEnv + ", as \"carrel token create\" prints it, or its authority with --ca-file or " + CAFileEnv
	} else if errors.Is(err, syscall.ECONNREFUSED) {
		why = "nothing listens there; see that the daemon runs and that its \"listen\" is set"
	}
	return nil, &reachError{fmt.Errorf("cannot reach carrel at %s: %s: %w", h, why, kind)}
}

// bearer adds the token to requests.
type bearer struct {
	http.RoundTripper
	secret token.Secret
}

func (b bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+b.secret.Reveal())
	return b.RoundTripper.RoundTrip(r)
}
