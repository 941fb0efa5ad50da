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
// is laid: Node adds a file to its own, the others replace theirs by one.
func TrustVariables() []string {
	return []string{
		"NODE_EXTRA_CA_CERTS=" + TrustFile,
		"SSL_CERT_FILE=" + BundleFile, // Go, OpenSSL, Python's ssl, Rust
		"REQUESTS_CA_BUNDLE=" + BundleFile,
		"CURL_CA_BUNDLE=" + BundleFile,
		"AWS_CA_BUNDLE=" + BundleFile,
	}
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
