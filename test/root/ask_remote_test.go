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

// A change to files of a remote host is shown with its lines, made on a yes by the user there and nowhere else, recorded with
// the host as its target, listed and undone. What changes before the answer, and what is no file of its own, stays. Whoever is
// killed in between, no file is changed in the end, or all are.
func TestAskForAPatchOfARemoteHost(t *testing.T) {
	o := newOperator(t)
	m := newModeled(t, "")
	m.set(t, nil, "set", "SHARED_KEY", "planted-"+rand.Text(), "--host", "api.test:"+m.port)
	port, known := o.sshd(t, "127.0.0.2")
	bin := t.TempDir() // the programs of the host that are killed, once there is a file that says so
	openWay(t, bin)
	wrapper := "#!/bin/sh\n[ ! -e \"$HOME/kill\" ] || case $* in *./b.conf) : >\"$HOME/killed\"; kill -s KILL 0 ;; esac\n" +
		"exec /bin/mv \"$@\"\n"
	if err := os.WriteFile(filepath.Join(bin, "mv"), []byte(wrapper), 0o755); err != nil {
		t.Fatal(err)
	}
	o.write(t, ".ssh/known_hosts", []byte(known))
	o.write(t, ".config/carrel/hosts.yaml", fmt.Appendf(nil,
		"hosts:\n  web-1: {address: 127.0.0.2, port: %s, env: {set: {PATH: %q}}}\n", port, bin+":/usr/bin:/bin"))
	carrel := func(args ...string) *exec.Cmd {
		c := m.command(context.Background(), o.Credential, args...)
		c.Env, c.Dir = append(c.Environ(), "HOME="+o.home, "XDG_CONFIG_HOME=", "XDG_STATE_HOME="), "/"
		return c
	}
	const was = "port = 80\nname = a\n"
	reset := func() {
		t.Helper()
		for _, n := range []string{"a.conf", "b.conf"} {
			_ = os.Remove(filepath.Join(o.home, n))
			if err := os.Chmod(o.write(t, n, []byte(was)), 0o640); err != nil {
				t.Fatal(err)
			}
		}
	}
	is := func(a, b string) {
		t.Helper()
		for n, want := range map[string]string{"a.conf": a, "b.conf": b} {
			text, err := os.ReadFile(filepath.Join(o.home, n))
			if err != nil || string(text) != want {
				t.Errorf("%s is %q, %v, and has to be %q", n, text, err, want)
			}
		}
		if left, err := filepath.Glob(filepath.Join(o.home, ".carrel-*")); err != nil || len(left) > 0 {
			t.Errorf("%q are left", left)
		}
	}
	change := strings.Replace(was, "80", "8080", 1)
	plan := patchOf("remote web-1", portDiff("a.conf")+portDiff("b.conf"), "", "a.conf", "b.conf")
	ask := func(plan string, happens func(), keys, says string) (told []string) {
		t.Helper()
		s := m.script(t, always(plan), always(directly("so it is")))
		x := ptytest.Start(t, carrel("ask", "--llm", "m1", "--model", "house", "--on", "remote", "change it"), 60, 120, false)
		x.Expect("[f] choose among its files")
		if screen := x.Screen(); !strings.Contains(screen, "remote web-1: change 2 files") || !strings.Contains(screen, "+port = 8080") {
			t.Errorf("asked %q", screen)
		}
		happens()
		x.Type(keys)
		x.Expect(says)
		if says != "not approved" {
			x.Expect("so it is")
		}
		x.Wait()
		return s.said()
	}
	nothing := func() {}
	reset()
	ask(plan, func() { is(was, was) }, "n\n\n", "not approved")
	is(was, was)
	mark := m.mark(t)
	ask(plan, nothing, "y\n", "1. remote web-1: done")
	is(change, change)
	if fi, err := os.Stat(filepath.Join(o.home, "a.conf")); err != nil || fi.Mode().Perm() != 0o640 {
		t.Errorf("%v, %v", fi, err)
	}
	m.recorded(t, mark, `"kind":"patch.apply"`, `"target":"remote","host":"web-1"`, filepath.Join(o.home, "a.conf"))
	list := finish(carrel("undo", "--remote", "web-1"), "")
	id := regexp.MustCompile(`p-[0-9a-f]{16}`).FindString(list.out)
	if id == "" || !strings.Contains(list.out, "a.conf") {
		t.Errorf("%+v", list)
	}
	if r := finish(carrel("undo", "--remote", "web-1", id), ""); r.code != 0 {
		t.Errorf("%+v", r)
	}
	is(was, was)
	if r := finish(carrel("undo", "--remote", "web-1", id), ""); r.code == 0 || !strings.Contains(r.err, "undone before") {
		t.Errorf("%+v", r)
	}
	if r := finish(carrel("undo", "--remote", "web-9"), ""); r.code == 0 || !strings.Contains(r.err, "no remote host") {
		t.Errorf("%+v", r)
	}
	// One of the files alone.
	ask(plan, nothing, "f\ny\nn\n", "left as they are: b.conf")
	is(change, was)
	// A line more behind what was shown, before the answer: the change is merged into it, as on this machine.
	reset()
	mark = m.mark(t)
	told := ask(plan, func() { o.write(t, "b.conf", []byte(was+"last = z\n")) }, "y\n", "b.conf")
	is(change, change+"last = z\n")
	if !strings.Contains(told[1], `\"merged\":[\"b.conf\"]`) {
		t.Errorf("the model was told %q", told[1])
	}
	m.recorded(t, mark, `"type":"outcome"`, `"merged":["b.conf"]`, `"made":"sha256:`)
	// Another content, or something else, before the answer.
	other := strings.Replace(was, "a\n", "b\n", 1)
	reset()
	ask(plan, func() { o.write(t, "b.conf", []byte(other)) }, "y\n", "has changed since")
	is(was, other)
	reset()
	b := filepath.Join(o.home, "b.conf")
	ask(plan, func() {
		if err := errors.Join(os.Rename(b, b+"-2"), os.Symlink(b+"-2", b)); err != nil {
			t.Fatal(err)
		}
	}, "y\n", "symbolic link")
	if to, err := os.Readlink(b); err != nil || to != b+"-2" {
		t.Errorf("%q, %v", to, err)
	}
	_ = os.Remove(b)
	is2, err := os.ReadFile(filepath.Join(o.home, "a.conf"))
	if err != nil || string(is2) != was {
		t.Errorf("%q, %v", is2, err)
	}
	// What is no file of its own is refused before anybody is asked.
	reset()
	for _, c := range [][2]string{
		{"l.conf", "symbolic link"},
		{"h.conf", "hard links"},
		{"/proc/uptime", "no file in /proc"},
		{"/proc/self/environ", "does not let tools read it"},
		{"/var/tmp/x", "files are changed below"},
	} {
		_ = os.Symlink("a.conf", filepath.Join(o.home, "l.conf"))
		_ = os.Link(b+"-2", filepath.Join(o.home, "h.conf"))
		s := m.script(t, always(patchOf("remote web-1", portDiff(c[0]), "", c[0])), always(directly("so it is")))
		r := finish(carrel("ask", "--llm", "m1", "--on", "remote", "change it"), "")
		if said := s.said(); r.code != 0 || strings.Contains(r.err, "plan 1") || len(said) != 2 || !strings.Contains(said[1], c[1]) {
			t.Errorf("%s: %+v, the model was told %q", c[0], r, last(said))
		}
	}
	// Everything of it on the host is killed before the second file is exchanged; the next request there takes it back.
	reset()
	o.write(t, "kill", nil)
	ask(plan, nothing, "y\n", "1. remote web-1: ")
	if _, err := os.Stat(filepath.Join(o.home, "killed")); err != nil {
		t.Errorf("nothing was killed: %v", err)
	}
	if text, err := os.ReadFile(filepath.Join(o.home, "a.conf")); err != nil || string(text) != change {
		t.Errorf("the kill came before the first file: %q, %v", text, err)
	}
	_ = os.Remove(filepath.Join(o.home, "kill"))
	if r := finish(carrel("undo", "--remote", "web-1"), ""); r.code != 0 {
		t.Errorf("%+v", r)
	}
	is(was, was)
}
