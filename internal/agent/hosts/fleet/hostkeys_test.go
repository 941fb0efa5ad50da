package fleet_test

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"
	"golang.org/x/crypto/ssh/knownhosts"

	"github.com/carrel-dev/carrel/internal/agent/hosts/fleet"
)

// certify makes a host certificate for a server's key, beside it.
func certify(t *testing.T, ca ssh.Signer, key ssh.PublicKey, kind uint32, until time.Time, principals ...string) []byte {
	t.Helper()
	cert := &ssh.Certificate{
		Key: key, CertType: kind, ValidPrincipals: principals, Serial: 7, ValidBefore: uint64(until.Unix()), KeyId: "test",
	}
	if err := cert.SignCert(rand.Reader, ca); err != nil {
		t.Fatal(err)
	}
	return ssh.MarshalAuthorizedKey(cert)
}

func TestHostKeys(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	s := l.start(nil)
	name := fmt.Sprintf("[%s]:%d", s.ip, s.port)
	other, _ := newKey(t)
	otherLine, right := s.line(other.PublicKey()), s.line(s.key)
	finger := ssh.FingerprintSHA256(s.key)
	for _, x := range []struct {
		title string
		lines []string
		ok    bool
		bad   string // what the error says
		kind  func(error) bool
	}{
		{title: "known", lines: []string{"# a comment", "", right}, ok: true},
		{title: "hashed", lines: []string{knownhosts.HashHostname(name) + " " + string(ssh.MarshalAuthorizedKey(s.key))}, ok: true},
		{title: "pattern", lines: []string{"[127.*]:* " + string(ssh.MarshalAuthorizedKey(s.key))}, ok: true},
		{title: "one of two keys", lines: []string{otherLine, right}, ok: true},
		{title: "a key of another type too", lines: []string{strings.Replace(right, "ssh-ed25519 ", "ssh-future AAAA", 1), right}, ok: true},
		{title: "none", bad: finger, kind: errdefs.IsFailedPrecondition},
		{
			title: "none, the command", bad: fmt.Sprintf("ssh-keyscan -p %d -t ed25519 '%s' | ssh-keygen -lf -", s.port, s.ip),
			kind: errdefs.IsFailedPrecondition,
		},
		{
			title: "another port", lines: []string{s.ip + " " + string(ssh.MarshalAuthorizedKey(s.key))}, bad: "unknown",
			kind: errdefs.IsFailedPrecondition,
		},
		{
			title: "negated", lines: []string{"![" + s.ip + "]:*,[127.*]:* " + string(ssh.MarshalAuthorizedKey(s.key))}, bad: "unknown",
			kind: errdefs.IsFailedPrecondition,
		},
		{title: "changed", lines: []string{"# a comment", otherLine}, bad: "known_hosts:2 has another", kind: errdefs.IsPermissionDenied},
		{
			title: "changed, hashed", lines: []string{knownhosts.HashHostname(name) + " " + string(ssh.MarshalAuthorizedKey(other.PublicKey()))},
			bad: "known_hosts:1 has another", kind: errdefs.IsPermissionDenied,
		},
		{
			title: "revoked", lines: []string{right + "@revoked * " + string(ssh.MarshalAuthorizedKey(s.key))}, bad: "known_hosts:2;",
			kind: errdefs.IsPermissionDenied,
		},
		{
			title: "revoked for others", lines: []string{right + "@revoked elsewhere " + string(ssh.MarshalAuthorizedKey(s.key))}, bad: "is revoked",
			kind: errdefs.IsPermissionDenied,
		},
		{title: "an authority's own key", lines: []string{"@cert-authority " + right}, bad: "no common algorithm", kind: errdefs.IsUnavailable},
		{
			title: "an authority's own key, and another", lines: []string{"@cert-authority " + right + otherLine}, bad: "known_hosts:2 has another",
			kind: errdefs.IsPermissionDenied,
		},
		{title: "half a line", lines: []string{right + "@revoked *"}, bad: "known_hosts:2: ", kind: errdefs.IsInvalidArgument},
		{title: "a damaged key", lines: []string{right + "@revoked * ssh-ed25519 AAAA"}, bad: "known_hosts:2: ", kind: errdefs.IsInvalidArgument},
		{title: "a marker of the future", lines: []string{"@later " + right}, bad: "known_hosts:1: ", kind: errdefs.IsInvalidArgument},
	} {
		t.Run(x.title, func(t *testing.T) {
			os.Remove(filepath.Join(l.home, ".ssh", "known_hosts"))
			l.known(strings.Split(strings.Trim(strings.ReplaceAll(strings.Join(x.lines, "\n"), "\n\n@", "\n@"), "\n"), "\n")...)
			ran := filepath.Join(t.TempDir(), "ran")
			_, err := l.client().Run(t.Context(), l.host("web", s), fleet.Step{Argv: []string{"touch", ran}})
			_, did := os.Stat(ran)
			if x.ok {
				if err != nil || did != nil {
					t.Errorf("%v, %v", err, did)
				}
				return
			}
			if err == nil || !x.kind(err) || !strings.Contains(err.Error(), x.bad) || did == nil {
				t.Errorf("%v; it ran: %v", err, did == nil)
			}
		})
	}
	os.Remove(filepath.Join(l.home, ".ssh", "known_hosts"))
	_, err := l.client().Run(t.Context(), l.host("web", s), fleet.Step{Argv: []string{"true"}})
	var e *fleet.HostKeyError
	if !errors.As(err, &e) || e.Host != name || e.Fingerprint != finger || e.File != "" {
		t.Errorf("%+v", e)
	}
}

// A host shows the key that is known, also where it has others that the client would rather see.
func TestHostKeyOfManyIsThatKnown(t *testing.T) {
	needSSHD(t) // with which ssh-keygen comes
	l := newLab(t)
	dir := t.TempDir()
	var lines []string
	keys := map[string]string{}
	for _, kind := range []string{"rsa", "ecdsa"} {
		name := filepath.Join(dir, kind)
		if out, err := exec.Command("ssh-keygen", "-q", "-t", kind, "-N", "", "-f", name).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		b, err := os.ReadFile(name + ".pub")
		if err != nil {
			t.Fatal(err)
		}
		keys[kind] = string(b)
		lines = append(lines, "HostKey "+name)
	}
	s := l.start(nil, lines...)
	keys["ed25519"] = string(ssh.MarshalAuthorizedKey(s.key))
	h := l.host("web", s)
	for kind, key := range keys {
		os.Remove(filepath.Join(l.home, ".ssh", "known_hosts"))
		l.known(fmt.Sprintf("[%s]:%d %s", s.ip, s.port, key))
		if r, err := l.client().Run(t.Context(), h, fleet.Step{Argv: []string{"true"}}); err != nil || !r.OK() {
			t.Errorf("%s: %+v, %v", kind, r, err)
		}
	}
	// A key that is revoked while the client runs is refused from the next connection on.
	l.config.Idle = time.Nanosecond
	c := l.client()
	if r, err := c.Run(t.Context(), h, fleet.Step{Argv: []string{"true"}}); err != nil || !r.OK() {
		t.Errorf("%+v, %v", r, err)
	}
	for _, key := range keys {
		l.known("@revoked * " + key)
	}
	for { // until the idle connection has ended
		_, err := c.Run(t.Context(), h, fleet.Step{Argv: []string{"true"}})
		if err == nil {
			continue
		}
		if !errdefs.IsPermissionDenied(err) || !strings.Contains(err.Error(), "revoked") {
			t.Error(err)
		}
		break
	}
}

func TestHostCertificates(t *testing.T) {
	t.Parallel()
	needSSHD(t)
	l := newLab(t)
	ca, _ := newKey(t)
	hour := time.Now().Add(time.Hour)
	dir := t.TempDir()
	// The key of the server is made when it starts, so the certificate is that of a key which is made here.
	start := func(t *testing.T, kind uint32, until time.Time, principals ...string) (*sshd, ssh.PublicKey) {
		signer, private := newKey(t)
		file := write(t, filepath.Join(dir, t.Name()[strings.LastIndexByte(t.Name(), '/')+1:]), private, 0o600)
		write(t, file+"-cert.pub", certify(t, ca, signer.PublicKey(), kind, until, principals...), 0o600)
		return l.start(nil, "HostKey "+file, "HostCertificate "+file+"-cert.pub"), signer.PublicKey()
	}
	for _, x := range []struct {
		title  string
		kind   uint32
		until  time.Time
		who    string
		alias  string
		marker string // of a second line, with the key of the host or the authority
		of     string
		bad    string
	}{
		{title: "good", kind: ssh.HostCert, until: hour},
		{title: "alias", kind: ssh.HostCert, until: hour, who: "web.example", alias: "web.example"},
		{title: "expired", kind: ssh.HostCert, until: time.Now().Add(-time.Hour), bad: "expired"},
		{title: "principal", kind: ssh.HostCert, until: hour, who: "elsewhere", bad: "principal"},
		{title: "revoked-key", kind: ssh.HostCert, until: hour, marker: "@revoked *", of: "host", bad: "revoked"},
		{title: "revoked-authority", kind: ssh.HostCert, until: hour, marker: "@revoked *", of: "ca", bad: "revoked"},
	} {
		t.Run(x.title, func(t *testing.T) {
			var who []string
			if x.who != "" {
				who = []string{x.who}
			}
			s, key := start(t, x.kind, x.until, who...)
			os.Remove(filepath.Join(l.home, ".ssh", "known_hosts"))
			l.known("@cert-authority * " + strings.TrimSpace(string(ssh.MarshalAuthorizedKey(ca.PublicKey()))))
			if x.marker != "" {
				k := key
				if x.of == "ca" {
					k = ca.PublicKey()
				}
				l.known(x.marker + " " + string(ssh.MarshalAuthorizedKey(k)))
			}
			config := l.config
			if x.alias != "" {
				var err error
				if config.SSH, err = fleet.ParseSSHConfig([]fleet.File{{Name: "config", Data: []byte("HostKeyAlias " + x.alias)}}, nil); err != nil {
					t.Fatal(err)
				}
			}
			c, err := fleet.New(config)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			_, err = c.Run(t.Context(), l.host("web", s), fleet.Step{Argv: []string{"true"}})
			if x.bad == "" && err != nil || x.bad != "" && (!errdefs.IsPermissionDenied(err) || !strings.Contains(err.Error(), x.bad)) {
				t.Errorf("%v", err)
			}
		})
	}
}

// agentWith runs an agent with keys and a number of new ones, and returns its socket.
func agentWith(t *testing.T, more int, keys ...any) string {
	t.Helper()
	ring := agent.NewKeyring()
	for range more {
		_, private := newKey(t)
		key, err := ssh.ParseRawPrivateKey(private)
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, key)
	}
	for _, key := range keys {
		if err := ring.Add(agent.AddedKey{PrivateKey: key}); err != nil {
			t.Fatal(err)
		}
	}
	dir, err := os.MkdirTemp("", "fleet") // t.TempDir is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("unix", filepath.Join(dir, "agent"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close(); os.RemoveAll(dir) })
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			go func() { defer conn.Close(); agent.ServeAgent(ring, conn) }()
		}
	}()
	return ln.Addr().String()
}

func TestLogin(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	s := l.start(nil)
	l.known(s.line(s.key))
	try := func(t *testing.T, agentSocket string, conf string, h fleet.Host) error {
		t.Helper()
		config := l.config
		config.AgentSocket = agentSocket
		var err error
		if config.SSH, err = fleet.ParseSSHConfig([]fleet.File{{Name: "config", Data: []byte(conf)}}, nil); err != nil {
			t.Fatal(err)
		}
		c, err := fleet.New(config)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_, err = c.Run(t.Context(), h, fleet.Step{Argv: []string{"true"}})
		return err
	}
	h := l.host("web", s)
	h.IdentityFiles = nil
	if err := try(t, "", "", h); err != nil { // ~/.ssh/id_ed25519
		t.Error(err)
	}
	if err := try(t, "", "IdentityFile %d/.ssh/id_ed25519", h); err != nil {
		t.Error(err)
	}
	h.IdentityFiles = []string{"~/.ssh/id_ed25519"}
	if err := try(t, "", "", h); err != nil {
		t.Error(err)
	}
	_, strange := newKey(t)
	h.IdentityFiles = []string{write(t, filepath.Join(l.home, "strange"), strange, 0o600)}
	if err := try(t, "", "", h); !errdefs.IsUnauthorized(err) {
		t.Errorf("a key that the host does not know: %v", err)
	}
	h.IdentityFiles = []string{write(t, filepath.Join(l.home, "wide"), strange, 0o644)}
	if err := try(t, "", "", h); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("a key that others may read: %v", err)
	}
	h.IdentityFiles = []string{filepath.Join(l.home, "absent")}
	if err := try(t, "", "", h); err == nil || !strings.Contains(err.Error(), "absent") {
		t.Errorf("a key that is not there: %v", err)
	}

	// A key with a passphrase, alone and in an agent.
	b, err := os.ReadFile(l.keyFile)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := ssh.ParseRawPrivateKey(b)
	if err != nil {
		t.Fatal(err)
	}
	locked := write(t, filepath.Join(l.home, "locked"), b, 0o600)
	if out, err := exec.Command("ssh-keygen", "-p", "-f", locked, "-P", "", "-N", "secret").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	h.IdentityFiles = []string{locked}
	if err := try(t, "", "", h); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "ssh-add '"+locked+"'") {
		t.Errorf("a key with a passphrase: %v", err)
	}
	socket := agentWith(t, 0, raw)
	if err := try(t, socket, "", h); err != nil {
		t.Errorf("a key with a passphrase that the agent holds: %v", err)
	}
	h.IdentityFiles = nil
	if err := try(t, "", "IdentityAgent "+socket+"\nIdentityFile "+filepath.Join(l.home, "absent"), h); err != nil {
		t.Errorf("a key of the agent: %v", err)
	}
	conf := "IdentitiesOnly yes\nIdentityFile " + filepath.Join(l.home, "strange")
	if err := try(t, socket, conf, h); !errdefs.IsUnauthorized(err) {
		t.Errorf("a key of the agent that is not to be used: %v", err)
	}
	conf = "IdentityAgent none\nIdentityFile " + filepath.Join(l.home, "absent")
	if err := try(t, socket, conf, h); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("an agent that is not to be used: %v", err)
	}
}

// A step reaches a host by way of another, and by that alone.
func TestJump(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	far, near := l.start(nil), l.start(nil)
	first := newRelay(t, near)
	l.known(far.line(far.key), first.line(near.key))
	h := l.host("far", far)
	h.Jump = []fleet.Host{l.host("near", &first.sshd)}
	c := l.client()
	for range 2 {
		if r := run(t, c, h, fleet.Step{Argv: []string{"true"}}); !r.OK() {
			t.Errorf("%+v", r)
		}
	}
	if n := first.count.Load(); n != 1 {
		t.Errorf("%d connections to the host on the way", n)
	}
	// By the ssh configuration, which is the same way.
	conf := fmt.Sprintf("Host far\n HostName %s\n Port %d\n ProxyJump %s@%s:%d\n", far.ip, far.port, l.user, first.ip, first.port)
	config := l.config
	var err error
	if config.SSH, err = fleet.ParseSSHConfig([]fleet.File{{Name: "config", Data: []byte(conf)}}, nil); err != nil {
		t.Fatal(err)
	}
	byConfig, err := fleet.New(config)
	if err != nil {
		t.Fatal(err)
	}
	defer byConfig.Close()
	alias := fleet.Host{Name: "far", Address: "far"}
	if r, err := byConfig.Run(t.Context(), alias, fleet.Step{Argv: []string{"true"}}); err != nil || !r.OK() {
		t.Errorf("%+v, %v", r, err)
	}
	if n := first.count.Load(); n != 2 {
		t.Errorf("%d connections to the host on the way", n)
	}
	// The way is down: the host is not reached by another, though it could be.
	ip := loopback()
	h.Jump[0].Address, h.Jump[0].Port = ip, port(t, ip)
	ran := filepath.Join(t.TempDir(), "ran")
	_, err = c.Run(t.Context(), h, fleet.Step{Argv: []string{"touch", ran}})
	if _, did := os.Stat(ran); !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), "by way of near") || did == nil {
		t.Errorf("%v; it ran: %v", err, did == nil)
	}
	// The host on the way is checked like any other.
	h.Jump[0].Address, h.Jump[0].Port = near.ip, near.port
	_, err = c.Run(t.Context(), h, fleet.Step{Argv: []string{"true"}})
	if !strings.Contains(fmt.Sprint(err), "["+near.ip+"]:"+strconv.Itoa(near.port)) {
		t.Errorf("%v", err)
	}
}
