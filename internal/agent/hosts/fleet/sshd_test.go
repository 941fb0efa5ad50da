package fleet_test

import (
	"bufio"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/carrel-dev/carrel/internal/agent/hosts/fleet"
	"github.com/carrel-dev/carrel/test/leaks"
)

func TestMain(m *testing.M) { leaks.Main(m) }

// sshd is a real sshd on a loopback address, run as the user of the test.
type sshd struct {
	ip   string
	port int
	key  ssh.PublicKey
}

// lab is what the caller has: a home with a key, known_hosts and a client's configuration.
type lab struct {
	t       *testing.T
	home    string
	user    string
	keyFile string
	config  fleet.Config
}

func newKey(t *testing.T) (ssh.Signer, []byte) {
	t.Helper()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	block, err := ssh.MarshalPrivateKey(private, "test")
	if err != nil {
		t.Fatal(err)
	}
	signer, err := ssh.NewSignerFromKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return signer, pem.EncodeToMemory(block)
}

func write(t *testing.T, name string, b []byte, mode os.FileMode) string {
	t.Helper()
	if err := os.WriteFile(name, b, mode); err != nil {
		t.Fatal(err)
	}
	return name
}

func newLab(t *testing.T) *lab {
	t.Helper()
	u, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	l := &lab{t: t, home: t.TempDir(), user: u.Username}
	if err := os.Mkdir(filepath.Join(l.home, ".ssh"), 0o700); err != nil {
		t.Fatal(err)
	}
	signer, private := newKey(t)
	l.keyFile = write(t, filepath.Join(l.home, ".ssh", "id_ed25519"), private, 0o600)
	write(t, filepath.Join(l.home, "authorized_keys"), ssh.MarshalAuthorizedKey(signer.PublicKey()), 0o600)
	l.config = fleet.Config{
		User: l.user, Home: l.home, SystemKnownHosts: []string{}, ConnectTimeout: 20 * time.Second, KillGrace: time.Second,
	}
	return l
}

// known adds lines to known_hosts.
func (l *lab) known(lines ...string) {
	l.t.Helper()
	name := filepath.Join(l.home, ".ssh", "known_hosts")
	old, err := os.ReadFile(name)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		l.t.Fatal(err)
	}
	write(l.t, name, append(old, strings.Join(lines, "\n")+"\n"...), 0o600)
}

func (l *lab) client() *fleet.Client {
	l.t.Helper()
	c, err := fleet.New(l.config)
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { c.Close() })
	return c
}

// line is a line of known_hosts for a server.
func (s *sshd) line(key ssh.PublicKey) string {
	return fmt.Sprintf("[%s]:%d %s", s.ip, s.port, ssh.MarshalAuthorizedKey(key))
}

func (l *lab) host(name string, s *sshd) fleet.Host {
	return fleet.Host{Name: name, Address: s.ip, Port: s.port, User: l.user, IdentityFiles: []string{l.keyFile}}
}

var lastIP atomic.Uint32

// loopback returns an address of this host that no other test uses.
func loopback() string {
	n := lastIP.Add(1)
	return fmt.Sprintf("127.%d.%d.%d", 10+os.Getpid()%200, 1+n/250, 1+n%250)
}

// port returns a port that is free on an address.
func port(t *testing.T, ip string) int {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(ip, "0"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// start runs an sshd on one address and more. The lines are more of its configuration.
func (l *lab) start(more []string, lines ...string) *sshd {
	l.t.Helper()
	program, err := exec.LookPath("/usr/sbin/sshd")
	if err != nil {
		l.t.Skip(noSSHD)
	}
	if os.Geteuid() == 0 {
		if err := os.MkdirAll("/run/sshd", 0o755); err != nil { // what sshd as root asks for
			l.t.Fatal(err)
		}
	}
	s := &sshd{ip: loopback()}
	s.port = port(l.t, s.ip)
	signer, private := newKey(l.t)
	s.key = signer.PublicKey()
	dir := l.t.TempDir()
	hostKey := write(l.t, filepath.Join(dir, "host_key"), private, 0o600)
	write(l.t, hostKey+".pub", ssh.MarshalAuthorizedKey(s.key), 0o600)
	conf := []string{
		"Port " + strconv.Itoa(s.port), "ListenAddress " + s.ip, "HostKey " + hostKey,
		"AuthorizedKeysFile " + filepath.Join(l.home, "authorized_keys"),
		"StrictModes no", "UsePAM no", "PidFile none", "PermitRootLogin yes", "PasswordAuthentication no", "KbdInteractiveAuthentication no",
		"MaxStartups 500", "AllowTcpForwarding yes", "PrintMotd no",
	}
	for _, ip := range more {
		conf = append(conf, "ListenAddress "+ip)
	}
	for _, line := range lines {
		conf = append(conf, strings.ReplaceAll(line, "HOSTKEY", hostKey))
	}
	cmd := exec.Command(program, "-D", "-e",
		"-f", write(l.t, filepath.Join(dir, "sshd_config"), []byte(strings.Join(conf, "\n")+"\n"), 0o600))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stderr, err := cmd.StderrPipe()
	if err != nil {
		l.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		l.t.Fatal(err)
	}
	done := make(chan struct{})
	l.t.Cleanup(func() {
		syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		<-done
		cmd.Wait()
	})
	up := make(chan string, 1)
	go func() {
		defer close(done)
		var log strings.Builder
		waiting := 1 + len(more)
		for sc := bufio.NewScanner(stderr); sc.Scan(); {
			if waiting > 0 {
				log.WriteString(sc.Text() + "\n")
			}
			if strings.Contains(sc.Text(), "Server listening on") {
				if waiting--; waiting == 0 {
					up <- ""
				}
			}
		}
		if waiting > 0 {
			up <- log.String()
		}
	}()
	if said := <-up; said != "" {
		l.t.Fatalf("sshd did not start: %s", said)
	}
	return s
}

// relay passes connections on to a server, counts them, and can cut them.
type relay struct {
	sshd
	count atomic.Int32
	mu    sync.Mutex
	conns []net.Conn
}

func newRelay(t *testing.T, to *sshd) *relay {
	t.Helper()
	r := &relay{sshd: sshd{ip: loopback(), key: to.key}}
	ln, err := net.Listen("tcp", net.JoinHostPort(r.ip, "0"))
	if err != nil {
		t.Fatal(err)
	}
	r.port = ln.Addr().(*net.TCPAddr).Port
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			near, err := ln.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", net.JoinHostPort(to.ip, strconv.Itoa(to.port)))
			if err != nil {
				near.Close()
				continue
			}
			r.count.Add(1)
			r.mu.Lock()
			r.conns = append(r.conns, near, far)
			r.mu.Unlock()
			for _, x := range [][2]net.Conn{{near, far}, {far, near}} {
				wg.Go(func() { io.Copy(x[0], x[1]); x[0].Close() })
			}
		}
	})
	t.Cleanup(func() { ln.Close(); r.cut(); wg.Wait() })
	return r
}

func (r *relay) cut() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.conns {
		c.Close()
	}
}

// fifo is a pipe by which a step tells the test something.
func fifo(t *testing.T) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(name, 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// heard waits until a step has written a line to a pipe, and returns it.
func heard(t *testing.T, name string) string {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	line, err := bufio.NewReader(f).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(line)
}

const noSSHD = "there is no /usr/sbin/sshd: install openssh-server"

// needSSHD skips a test that starts servers in tests of its own, which cannot skip it.
func needSSHD(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("/usr/sbin/sshd"); err != nil {
		t.Skip(noSSHD)
	}
}
