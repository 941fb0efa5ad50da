package fleet

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha1" //nolint:gosec // G505: the hash of host names in known_hosts, sshd(8); it hides them and proves nothing
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/crypto/ssh"
)

const (
	maxKnownHosts = 16 << 20 // bytes of one file
	maxHostFiles  = 16       // that are remembered
)

// HostKeyError is a host key that is not accepted. Nothing was sent to the host but what a handshake takes.
type HostKeyError struct {
	// Host is the name under which known_hosts is asked, such as "web1" or "[web1]:2222".
	Host string
	// Fingerprint is that of the key that the host showed, as ssh-keygen -l prints it.
	Fingerprint string
	// File and Line are where known_hosts has another key, or this one as revoked; "" and 0 if the host is unknown.
	File string
	Line int
	// Revoked says that the key is revoked.
	Revoked bool
	text    string
}

func (e *HostKeyError) Error() string { return e.text }

// Unwrap returns the kind: permission denied for a changed or revoked key, and a failed precondition for an unknown host.
func (e *HostKeyError) Unwrap() error {
	if e.File == "" {
		return errdefs.ErrFailedPrecondition
	}
	return errdefs.ErrPermissionDenied
}

// knownKey is one line of known_hosts.
type knownKey struct {
	marker string // "", cert-authority or revoked
	hosts  []string
	key    ssh.PublicKey
	file   string
	line   int
}

// knownHosts are the keys of files. sshd(8) has their format.
type knownHosts []knownKey

// hostFiles remembers the keys of files for as long as their times and sizes stay.
type hostFiles struct {
	mu    sync.Mutex
	files map[string]hostFile
}

type hostFile struct {
	at   time.Time
	size int64
	keys knownHosts
}

// read reads files, of which each may be absent.
func (c *hostFiles) read(names []string) (all knownHosts, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, name := range names {
		st, err := os.Stat(name) // before the file is read: a change meanwhile is seen the next time
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("cannot read known hosts: %w", err)
		}
		f, ok := c.files[name]
		if !ok || !f.at.Equal(st.ModTime()) || f.size != st.Size() {
			f = hostFile{at: st.ModTime(), size: st.Size()}
			if f.keys, err = readKnownHosts(name); err != nil {
				return nil, err
			}
			if c.files == nil || len(c.files) >= maxHostFiles {
				c.files = map[string]hostFile{}
			}
			c.files[name] = f
		}
		all = append(all, f.keys...)
	}
	return all, nil
}

// readKnownHosts reads one file. A line that cannot be read is an error, since it might revoke a key. A key of a type that is
// not supported is passed over: no host can show it here.
func readKnownHosts(name string) (all knownHosts, err error) {
	b, err := readFile(name, maxKnownHosts)
	if err != nil {
		return nil, err
	}
	n := 0
	for line := range bytes.SplitSeq(b, []byte("\n")) {
		n++
		marker, hosts, key, _, _, err := ssh.ParseKnownHosts(line)
		if errors.Is(err, io.EOF) {
			if len(bytes.Fields(line)) == 0 || bytes.HasPrefix(bytes.TrimSpace(line), []byte("#")) {
				continue
			}
			err = errors.New("it is no line of known_hosts")
		}
		if err != nil && foreignKey(line) {
			continue
		}
		if err == nil && !slices.Contains([]string{"", "cert-authority", "revoked"}, marker) {
			err = fmt.Errorf("the marker @%.20s is unknown", marker)
		}
		if err != nil {
			return nil, at(name, n, "%w; correct or remove the line", err)
		}
		all = append(all, knownKey{marker, hosts, key, name, n})
	}
	return all, nil
}

// foreignKey reports whether a line has a key of a type that package ssh does not know.
func foreignKey(line []byte) bool {
	f := bytes.Fields(line)
	if len(f) > 0 && f[0][0] == '@' {
		f = f[1:]
	}
	known := slices.Concat(ssh.SupportedAlgorithms().HostKeys, ssh.InsecureAlgorithms().HostKeys, ssh.SupportedAlgorithms().PublicKeyAuths)
	return len(f) >= 3 && letters(string(f[1]), "-@._") && !slices.Contains(known, string(f[1]))
}

// readFile reads a regular file of at most limit bytes.
func readFile(name string, limit int64) ([]byte, error) {
	st, err := os.Stat(name)
	if err != nil {
		return nil, fmt.Errorf("cannot read %s: %w", name, err)
	}
	if name == os.DevNull {
		return nil, nil
	}
	if !st.Mode().IsRegular() {
		return nil, fmt.Errorf("cannot read %s: it is not a regular file: %w", name, errdefs.ErrFailedPrecondition)
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("cannot read the file: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, fmt.Errorf("cannot read the file: %w", err)
	}
	if int64(len(b)) > limit {
		return nil, fmt.Errorf("cannot read %s: it has more than %d bytes: %w", name, limit, errdefs.ErrInvalidArgument)
	}
	return b, nil
}

// matches reports whether the line is about a host, whose name is in the form of knownName.
func (k *knownKey) matches(name string) bool {
	if len(k.hosts) == 1 && strings.HasPrefix(k.hosts[0], "|1|") {
		salt, hash, _ := strings.Cut(k.hosts[0][len("|1|"):], "|")
		s, err1 := base64.StdEncoding.DecodeString(salt)
		h, err2 := base64.StdEncoding.DecodeString(hash)
		mac := hmac.New(sha1.New, s)
		mac.Write([]byte(name))
		return err1 == nil && err2 == nil && hmac.Equal(mac.Sum(nil), h)
	}
	return matches(name, lowered(k.hosts))
}

func lowered(list []string) []string {
	low := make([]string, len(list))
	for i, s := range list {
		low[i] = strings.ToLower(s)
	}
	return low
}

// knownName is the name of a host in known_hosts: with its port only where that is not 22.
func knownName(host string, port int) string {
	if port == 22 {
		return host
	}
	return "[" + host + "]:" + strconv.Itoa(port)
}

// hostKeys checks the key of one host.
type hostKeys struct {
	known   knownHosts
	name    string   // as knownName returns it
	host    string   // the principal of a certificate
	address string   // where it is dialled, for what a person is told
	port    int      //
	files   []string // of the user, for what a person is told
	behind  bool     // it is reached by way of another host
}

// algorithms are those of the keys that are known for the host, in the order of package ssh, so that it shows a key that can
// be checked. For an unknown host they are all: its key is wanted for the error.
func (h *hostKeys) algorithms(from []string) []string {
	var types, authorities bool
	want := map[string]bool{}
	for i := range h.known {
		k := &h.known[i]
		if k.marker == "revoked" || !k.matches(h.name) {
			continue
		}
		if k.marker == "cert-authority" {
			authorities = true
			continue
		}
		types = true
		want[k.key.Type()] = true
		if k.key.Type() == ssh.KeyAlgoRSA {
			want[ssh.KeyAlgoRSASHA256], want[ssh.KeyAlgoRSASHA512] = true, true
		}
	}
	if !types && !authorities {
		return from
	}
	var list []string
	for _, a := range from {
		if cert := strings.Contains(a, "-cert-v01@"); cert && authorities || !cert && want[a] {
			list = append(list, a)
		}
	}
	return list
}

// check is an ssh.HostKeyCallback.
func (h *hostKeys) check(_ string, remote net.Addr, key ssh.PublicKey) error {
	plain := key
	cert, isCert := key.(*ssh.Certificate)
	if isCert {
		plain = cert.Key
	}
	if k := h.find("revoked", plain, false); k != nil {
		return h.revoked(plain, k)
	}
	if isCert {
		if k := h.find("revoked", cert.SignatureKey, false); k != nil {
			return h.revoked(cert.SignatureKey, k)
		}
		checker := ssh.CertChecker{IsHostAuthority: func(auth ssh.PublicKey, _ string) bool {
			return h.find("cert-authority", auth, true) != nil
		}}
		if err := checker.CheckHostKey(net.JoinHostPort(h.host, strconv.Itoa(h.port)), remote, key); err != nil {
			return fmt.Errorf("cannot trust the certificate of %s (%s): %w: %w",
				h.name, ssh.FingerprintSHA256(plain), err, errdefs.ErrPermissionDenied)
		}
		return nil
	}
	if h.find("", key, true) != nil {
		return nil
	}
	e := &HostKeyError{Host: h.name, Fingerprint: ssh.FingerprintSHA256(key)}
	kind := strings.TrimPrefix(key.Type(), "ssh-")
	for i := range h.known {
		k := &h.known[i]
		if k.marker != "" || !k.matches(h.name) {
			continue
		}
		if e.File == "" || k.key.Type() == key.Type() {
			e.File, e.Line = k.file, k.line
		}
		if k.key.Type() == key.Type() {
			break
		}
	}
	if e.File != "" {
		e.text = fmt.Sprintf("the host key of %s has changed, or another machine answers for it: it shows %s %s, and %s:%d has another; "+
			"ask who runs the host, and only if the new key is right remove that line",
			h.name, kind, e.Fingerprint, e.File, e.Line)
		return e
	}
	scan := "ssh-keyscan -p " + strconv.Itoa(h.port) + " -t " + scanType(key.Type()) + " " + Quote(h.address)
	if h.behind {
		scan = "on the host before it, " + scan
	}
	file := "known_hosts"
	if len(h.files) > 0 {
		file = h.files[0]
	}
	e.text = fmt.Sprintf("the host key of %s is unknown: it shows %s %s; compare that with what the host itself says "+
		"(ssh-keygen -lf /etc/ssh/ssh_host_%s_key.pub, typed there), see the key with: %s | ssh-keygen -lf -, "+
		"and if they agree add the line of ssh-keyscan to %s",
		h.name, kind, e.Fingerprint, scanType(key.Type()), scan, file)
	return e
}

func (h *hostKeys) revoked(key ssh.PublicKey, k *knownKey) error {
	e := &HostKeyError{Host: h.name, Fingerprint: ssh.FingerprintSHA256(key), File: k.file, Line: k.line, Revoked: true}
	e.text = fmt.Sprintf("the key %s of %s is revoked by %s:%d; the host needs a new key", e.Fingerprint, h.name, k.file, k.line)
	return e
}

// find returns a line with a marker and a key, and for the host if named. A revoked key is so for every host.
func (h *hostKeys) find(marker string, key ssh.PublicKey, named bool) *knownKey {
	blob := key.Marshal()
	for i := range h.known {
		k := &h.known[i]
		if k.marker == marker && bytes.Equal(k.key.Marshal(), blob) && (!named || k.matches(h.name)) {
			return k
		}
	}
	return nil
}

// scanType is what ssh-keyscan -t calls a type of key, and what files of host keys are named after.
func scanType(t string) string {
	switch {
	case strings.HasPrefix(t, "ecdsa"):
		return "ecdsa"
	case t == ssh.KeyAlgoRSA:
		return "rsa"
	}
	return strings.TrimPrefix(t, "ssh-")
}
