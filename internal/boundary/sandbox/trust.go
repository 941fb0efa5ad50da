package sandbox

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// TrustFile has the certificate of Net.Trust alone, for programs that add to their own authorities, and
// BundleFile has it with those of the host.
const (
	TrustFile  = "/etc/carrel/egress-ca.pem"
	BundleFile = "/etc/carrel/ca-bundle.pem"
)

// TrustVariables are for programs that do not read the host's bundle, over which the one with the authority of egress
// is laid: those of adding add a file to their own, the others replace theirs by one.
func TrustVariables() []string {
	var all []string
	for _, name := range adding {
		all = append(all, name+"="+TrustFile)
	}
	for _, name := range replacing {
		all = append(all, name+"="+BundleFile)
	}
	return all
}

var adding = []string{
	"NODE_EXTRA_CA_CERTS", // Node, and Bun
	"DENO_CERT",           // Deno has Mozilla's list
}

var replacing = []string{
	"SSL_CERT_FILE", // Go, OpenSSL, Python's ssl and httpx, Ruby, PHP, Rust with the host's authorities, Julia, .NET
	"REQUESTS_CA_BUNDLE",
	"CURL_CA_BUNDLE", // curl and libcurl that are built for other places, and R
	"AWS_CA_BUNDLE",
	"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", // gRPC in C++, Python, Ruby and PHP has a list of its own
	"GIT_SSL_CAINFO",                   // git that is built for other places, as those of Conda and Guix
	"CARGO_HTTP_CAINFO",
	"PIP_CERT",
	"NIX_SSL_CERT_FILE",                  // what Nix has built
	"CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE", // gcloud
	"HTTPLIB2_CA_CERTS",
	"WEBSOCKET_CLIENT_CA_BUNDLE", // Python's websocket-client
	"PERL_LWP_SSL_CA_FILE",       // else Mozilla::CA
	"BUNDLE_SSL_CA_CERT",         // Bundler
	"HEX_CACERTS_PATH",           // Elixir
	"JULIA_SSL_CA_ROOTS_PATH",
}

// bundles are where distributions keep the host's authorities in one file: Debian and Alpine, Fedora, SUSE.
var bundles = []string{
	"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", "/var/lib/ca-certificates/ca-bundle.pem",
}

// trust has programs trust one more authority: the bundle with it is laid over the host's, also for Java.
func (c *copier) trust(authority string) error {
	if authority == "" {
		return nil
	}
	if err := c.bundle(authority); err != nil {
		return err
	}
	return javaTrust()
}

// bundle makes BundleFile and lays it over the host's.
func (c *copier) bundle(authority string) error {
	if err := makeDirs(at("etc/carrel")); err != nil {
		return err
	}
	if err := makeFile(at(TrustFile), []byte(authority), 0o644); err != nil {
		return err
	}
	for _, p := range bundles {
		var st unix.Stat_t
		err := unix.Lstat(at(p), &st)
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
			continue
		}
		if err != nil {
			return &os.PathError{Op: "lstat", Path: p, Err: err}
		}
		if st.Mode&unix.S_IFMT != unix.S_IFREG {
			continue // a link could lead out of the new root; what it leads to is in the list
		}
		if err := c.copy(p, at(BundleFile), 0o644); err != nil {
			return fmt.Errorf("cannot copy %s: %w", p, err)
		}
		if err := appendTo(at(BundleFile), "\n"+authority); err != nil {
			return err
		}
		tree, err := Clone(unix.AT_FDCWD, at(BundleFile), readOnly)
		if err != nil {
			return err
		}
		return Attach(tree, at(p))
	}
	// The host has none of them: its programs find this one by their variables.
	return makeFile(at(BundleFile), []byte(authority), 0o644)
}

func appendTo(path, text string) error {
	fd, err := openFile(path, unix.O_WRONLY|unix.O_APPEND, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return writeAll(fd, path, []byte(text))
}
