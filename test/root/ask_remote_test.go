package root_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	osuser "os/user"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/carrel-dev/carrel/test/ptytest"
	"github.com/carrel-dev/carrel/test/userdb"
)

// operator is a user with a home, a shell and a key, who may log in at servers of the test.
type operator struct {
	*syscall.Credential
	name, home string
	key        ssh.PublicKey
}

var trace = regexp.MustCompile(`"trace":"[0-9a-f]+"`)

// newOperator makes a user, who goes with the test.
func newOperator(t *testing.T) *operator {
	t.Helper()
	needRoot(t)
	o := &operator{name: "crt-op-" + strings.ToLower(rand.Text()[:6]), home: filepath.Join(base, "op-"+rand.Text()[:6])}
	if err := userdb.Run(t.Context(), "/usr/sbin/useradd", "-m", "-U", "-d", o.home, "-s", "/bin/sh", "-p", "*", o.name); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// What a job has left is ended by its supervisor, which nobody waits for.
		var err error
		for end := time.Now().Add(patience); ; <-time.After(50 * time.Millisecond) {
			err = userdb.Run(context.WithoutCancel(t.Context()), "/usr/sbin/userdel", "-r", o.name)
			if err == nil || !strings.Contains(err.Error(), "currently used by process") || time.Now().After(end) {
				break
			}
		}
		if err != nil {
			t.Error(err)
		}
	})
	u, err := osuser.Lookup(o.name)
	if err != nil {
		t.Fatal(err)
	}
	uid, _ := strconv.ParseUint(u.Uid, 10, 32)
	gid, _ := strconv.ParseUint(u.Gid, 10, 32)
	o.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if o.key, err = ssh.NewPublicKey(public); err != nil {
		t.Fatal(err)
	}
	block, err := ssh.MarshalPrivateKey(private, "")
	if err != nil {
		t.Fatal(err)
	}
	o.write(t, ".ssh/id_ed25519", pem.EncodeToMemory(block))
	return o
}

// write writes a file of the operator's.
func (o *operator) write(t *testing.T, name string, b []byte) string {
	t.Helper()
	p := filepath.Join(o.home, name)
	err := errors.Join(os.MkdirAll(filepath.Dir(p), 0o700), os.WriteFile(p, b, 0o600))
	for at := p; at != o.home; at = filepath.Dir(at) {
		err = errors.Join(err, os.Chown(at, int(o.Uid), int(o.Gid)))
	}
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// sshd is a real server at an address of the loopback, where the operator may log in, with more lines of configuration. It returns
// its port and its line of known_hosts.
func (o *operator) sshd(t *testing.T, address string, more ...string) (port, known string) {
	t.Helper()
	program, err := exec.LookPath("/usr/sbin/sshd")
	if err != nil {
		t.Skip("there is no sshd: apt-get install openssh-server")
	}
	if err := os.MkdirAll("/run/sshd", 0o755); err != nil { // where it keeps what it gives its rights up in
		t.Fatal(err)
	}
	dir := t.TempDir()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	block, err := ssh.MarshalPrivateKey(private, "")
	if err != nil {
		t.Fatal(err)
	}
	hostKey, err := ssh.NewPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	free, err := net.Listen("tcp", net.JoinHostPort(address, "0"))
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ = net.SplitHostPort(free.Addr().String())
	_ = free.Close()
	for name, text := range map[string]string{
		"host_key": string(pem.EncodeToMemory(block)), "keys": string(ssh.MarshalAuthorizedKey(o.key)),
		"config": fmt.Sprintf("ListenAddress %s\nPort %s\nHostKey %s/host_key\nAuthorizedKeysFile %s/keys\nUsePAM no\nStrictModes no\n"+
			"PidFile none\nPasswordAuthentication no\nAllowUsers %s\n%s\n", address, port, dir, dir, o.name, strings.Join(more, "\n")),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(filepath.Join(dir, "keys"), 0o644); err != nil {
		t.Fatal(err)
	}
	openWay(t, dir) // the user reads the keys
	c := exec.CommandContext(context.WithoutCancel(t.Context()), program, "-D", "-e", "-f", filepath.Join(dir, "config"))
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Process.Kill()
		_ = c.Wait()
	})
	for deadline := time.Now().Add(patience); ; {
		conn, err := net.Dial("tcp", net.JoinHostPort(address, port))
		if err == nil {
			_ = conn.Close()
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	return port, fmt.Sprintf("[%s]:%s %s", address, port, ssh.MarshalAuthorizedKey(hostKey))
}

// Steps for remote hosts run there, with the user's key, at servers that known_hosts has and nowhere else; one plan for two
// hosts is asked about once. A server with another key gets nothing.
func TestAskOnRemoteHosts(t *testing.T) {
	o := newOperator(t)
	m := newModeled(t, "")
	m.set(t, nil, "set", "SHARED_KEY", "planted-"+rand.Text(), "--host", "api.test:"+m.port)
	port1, known1 := o.sshd(t, "127.0.0.2")
	port2, known2 := o.sshd(t, "127.0.0.3")
	port3, _ := o.sshd(t, "127.0.0.4")
	_, other, _ := strings.Cut(known1, " ")
	o.write(t, ".ssh/known_hosts", []byte(known1+known2+"[127.0.0.4]:"+port3+" "+other)) // the key of another
	o.write(t, ".config/carrel/hosts.yaml", fmt.Appendf(nil, "hosts:\n  web-1: {address: 127.0.0.2, port: %s, env: {set: {AT: first}}}\n"+
		"  web-2: {address: 127.0.0.3, port: %s, env: {set: {AT: second}}}\n  web-3: {address: 127.0.0.4, port: %s}\n", port1, port2, port3))
	ask := func(prompt string) *ptytest.Terminal {
		c := m.command(context.Background(), o.Credential, "ask", "--llm", "m1", "--model", "house", "--on", "remote", prompt)
		c.Env = append(c.Environ(), "HOME="+o.home, "XDG_CONFIG_HOME=")
		return ptytest.Start(t, c, 50, 120, false)
	}
	s := m.script(t, always(planOf("remote web-1 web-2", "echo from-$AT-$(id -un)", false)),
		always(directly("it is known")))
	mark := m.mark(t)
	x := ask("where?")
	x.Expect(question)
	if screen := x.Screen(); !strings.Contains(screen, "1. remote web-1: ") || !strings.Contains(screen, "2. remote web-2: ") {
		t.Errorf("asked %q", screen)
	}
	x.Type("y\n")
	x.Expect("it is known")
	x.Wait()
	for _, at := range []string{"first", "second"} {
		if said := s.said(); len(said) != 2 || !strings.Contains(said[1], "from-"+at+"-"+o.name) {
			t.Errorf("the model was told %q", said)
		}
	}
	m.recorded(t, mark, `"target":"remote","host":"web-1"`, "echo from-")
	m.recorded(t, mark, `"target":"remote","host":"web-2"`, "echo from-")
	// One trace tells the story of the turn.
	traces := map[string]int{}
	for _, r := range m.since(t, mark) {
		for _, kind := range []string{"task.run", "plan.run", `"target":"remote"`} {
			if r.Type == "intent" && strings.Contains(r.raw, kind) {
				traces[trace.FindString(r.raw)]++
			}
		}
	}
	if len(traces) != 1 {
		t.Errorf("the turn has several traces: %v", traces)
	}
	left := filepath.Join(o.home, "left")
	s = m.script(t, always(planOf("remote web-3", "touch "+left, false)), always(directly("it failed")))
	x = ask("there?")
	x.Expect(question)
	x.Type("y\n")
	x.Expect("it failed")
	x.Wait()
	if said := s.said(); len(said) != 2 || !strings.Contains(said[1], "known_hosts") {
		t.Errorf("the model was told %q", said)
	}
	if _, err := os.Lstat(left); err == nil {
		t.Error("a step was run at a server with another key, or here")
	}
}
