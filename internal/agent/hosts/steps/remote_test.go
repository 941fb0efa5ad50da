package steps_test

import (
	"bufio"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/crypto/ssh"

	"github.com/carrel-dev/carrel/internal/agent/hosts/fleet"
	"github.com/carrel-dev/carrel/internal/agent/hosts/steps"
	"github.com/carrel-dev/carrel/internal/boundary/runtime"
)

func write(t *testing.T, name, text string) string {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestOpenRemotes(t *testing.T) {
	dir := t.TempDir()
	for name, x := range map[string]struct{ file, why string }{
		"no file":     {filepath.Join(dir, "missing"), "no such file"},
		"a directory": {dir, "is a directory"},
		"too large":   {write(t, filepath.Join(dir, "large"), strings.Repeat("#", 4<<20+1)), "has more than 4194304 bytes"},
		"no YAML":     {write(t, filepath.Join(dir, "bad"), "hosts: [}"), "bad"},
		"unknown key": {write(t, filepath.Join(dir, "key"), "hosts: {a: {address: a, password: x}}"), "password"},
	} {
		if _, err := steps.OpenRemotes(x.file); err == nil || !strings.Contains(err.Error(), x.why) {
			t.Errorf("%s: %v", name, err)
		}
	}
	good := write(t, filepath.Join(dir, "good"), "hosts: {web-2: {address: b.test}, web-1: {address: a.test}}")
	r, err := steps.OpenRemotesAs(good, fleet.Config{User: "u", Home: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if got := strings.Join(r.Names(), " "); len(r.Names()) != 2 || !strings.Contains(got, "web-1") || !strings.Contains(got, "web-2") {
		t.Errorf("the hosts are %q", got)
	}
	for _, name := range []string{"web-3", "a.test", ""} {
		_, err := r.Run(t.Context(), runtime.HostCommand{Remote: true, Name: name, Argv: []string{"true"}})
		if err == nil || !strings.HasPrefix(err.Error(), "it was not run: there is no remote host") {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func newKey(t *testing.T) (ssh.PublicKey, string) {
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
	return signer.PublicKey(), string(pem.EncodeToMemory(block))
}

// overSSH is an sshd on loopback, run as the user of the test, by the name of web-1 in a file. Each open is as a new process
// would do it.
func overSSH(t *testing.T) (file string, open func() *steps.Remotes) {
	t.Helper()
	program, err := exec.LookPath("/usr/sbin/sshd")
	if err != nil {
		t.Skip("SKIP: there is no /usr/sbin/sshd: install openssh-server")
	}
	if os.Geteuid() == 0 {
		if err := os.MkdirAll("/run/sshd", 0o755); err != nil { // what sshd as root asks for
			t.Fatal(err)
		}
	}
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	l.Close()
	dir := t.TempDir()
	hostKey, hostPrivate := newKey(t)
	mine, private := newKey(t)
	key := write(t, filepath.Join(dir, "id"), private)
	conf := write(t, filepath.Join(dir, "sshd_config"), strings.Join([]string{
		"Port " + strconv.Itoa(port), "ListenAddress 127.0.0.1", "HostKey " + write(t, filepath.Join(dir, "host_key"), hostPrivate),
		"AuthorizedKeysFile " + write(t, filepath.Join(dir, "authorized"), string(ssh.MarshalAuthorizedKey(mine))), "StrictModes no",
		"UsePAM no", "PidFile none", "PermitRootLogin yes", "PasswordAuthentication no", "KbdInteractiveAuthentication no", "",
	}, "\n"))
	cmd := exec.Command(program, "-D", "-e", "-f", conf)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	up, done := make(chan bool, 1), make(chan struct{})
	go func() {
		defer close(done)
		for sc := bufio.NewScanner(stderr); sc.Scan(); {
			if strings.Contains(sc.Text(), "Server listening on") {
				up <- true
			}
		}
		close(up)
	}()
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		<-done
		_ = cmd.Wait()
	})
	if !<-up {
		t.Fatal("sshd did not start")
	}
	known := write(t, filepath.Join(dir, "known_hosts"), fmt.Sprintf("[127.0.0.1]:%d %s", port, ssh.MarshalAuthorizedKey(hostKey)))
	host := fmt.Sprintf("{address: 127.0.0.1, port: %d, user: %s, identity_files: [%s], env: {set: {HOME: %s}}}", port, me.Username, key,
		t.TempDir())
	file = write(t, filepath.Join(dir, "hosts.yaml"), "hosts:\n  web-1: "+host+"\n")
	return file, func() *steps.Remotes {
		r, err := steps.OpenRemotesAs(file, fleet.Config{
			User: me.Username, Home: dir, KnownHosts: []string{known}, SystemKnownHosts: []string{}, KillGrace: time.Second,
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { r.Close() })
		return r
	}
}

// there is a command for web-1.
func there(script string) runtime.HostCommand {
	c := here(script)
	c.Remote, c.Name = true, "web-1"
	return c
}

func TestRemote(t *testing.T) {
	_, open := overSSH(t)
	r := open()
	t.Run("ended", func(t *testing.T) {
		got, err := r.Run(t.Context(), there("echo out; echo err >&2; exit 7"))
		if err != nil || got.Status == nil || got.Status.Code != 7 || got.Status.Signal != 0 || string(got.Stdout) != "out\n" ||
			string(got.Stderr) != "err\n" || got.Lost != 0 || !strings.Contains(got.Held, "nothing but") {
			t.Errorf("%+v, %+v, %v", got, got.Status, err)
		}
	})
	t.Run("signal", func(t *testing.T) {
		got, err := r.Run(t.Context(), there("kill -TERM $$"))
		if err != nil || got.Status == nil || got.Status.Code != 143 || got.Status.Signal != 15 {
			t.Errorf("%+v, %+v, %v", got, got.Status, err)
		}
	})
	t.Run("time-out", func(t *testing.T) {
		c := there("echo begun; sleep 300")
		c.Timeout = time.Second
		got, err := r.Run(t.Context(), c)
		if err != nil || got.Status == nil || !got.Status.TimedOut || string(got.Stdout) != "begun\n" {
			t.Errorf("%+v, %+v, %v", got, got.Status, err)
		}
	})
	t.Run("output", func(t *testing.T) {
		for _, most := range []int{20_000, 1} {
			c := there("echo begin; head -c 100000 /dev/zero | tr '\\0' '\\n'; echo end")
			c.MaxOutput = most
			got, err := r.Run(t.Context(), c)
			if err != nil || most > 1 && (len(got.Stdout) >= most || !strings.HasSuffix(string(got.Stdout), "\nend\n")) ||
				len(got.Stdout) > 20_000 || got.Lost < 80_000 {
				t.Errorf("%v: %d bytes, %d lost", err, len(got.Stdout), got.Lost)
			}
		}
	})
	t.Run("lost", func(t *testing.T) {
		// The server's process of this connection is the parent of the shell's; its end cuts the connection.
		got, err := r.Run(t.Context(), there("echo begun; kill -KILL $(ps -o ppid= -p $PPID) $PPID"))
		if err == nil || got.Status != nil || errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "not known whether it ended") {
			t.Errorf("%+v, %v", got, err)
		}
	})
}
