package main

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
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/carrel-dev/carrel/test/bench/measure"
	"github.com/carrel-dev/carrel/test/bench/report"
	"github.com/carrel-dev/carrel/test/terminal"
)

var (
	sshdPackage    = debian{"sshd", "openssh-server"}
	ansiblePackage = debian{"ansible", "ansible-core"}
)

// sshPort is where the servers of the fleet listen, each on an address of its own.
const sshPort = "2222"

// fleet measures one command on many hosts: servers of OpenSSH on addresses of the loopback, one for each host.
func (b *bench) fleet() error {
	many := 100
	if b.quick {
		many = 10
	}
	a, err := b.asker()
	if err != nil {
		return err
	}
	f, err := b.newFleet(a.p, many)
	if err != nil {
		b.Miss(report.Fleet, err)
		return nil
	}
	peak := func(target string) (kib float64, err error) {
		x, err := a.ask(stepOf("remote "+target, "id"), func(*terminal.Terminal) error { return nil }, "--on", "remote", "who am I there?")
		if err != nil {
			return 0, err
		}
		return float64(x.Command.ProcessState.SysUsage().(*syscall.Rusage).Maxrss), nil
	}
	ours := measure.Contestant{Name: fmt.Sprintf("carrel ask of %d hosts", many), Op: func() (time.Duration, error) {
		began := time.Now()
		_, err := peak("*")
		return time.Since(began), err
	}}
	all := []measure.Contestant{ours}
	for _, x := range []struct {
		name  string
		forks []string
	}{{report.Ansible, nil}, {report.AnsibleAll, []string{"--forks", "100"}}} {
		c, err := f.ansible(x.name, x.forks)
		if err != nil {
			b.Miss(x.name, err)
			continue
		}
		all = append(all, c)
	}
	got := measure.Interleave(b.ctx, measure.Pace{Rounds: 3, Block: time.Second}, all)
	if err := b.times(report.Fleet, time.Millisecond, got[0], got[1:]); err != nil {
		return err
	}
	one, err := peak("h1")
	if err != nil {
		return err
	}
	whole, err := peak("*")
	if err != nil {
		return err
	}
	b.Add(report.Row{ID: report.FleetMemory, Unit: "KiB", Ours: report.Stat{
		Name: fmt.Sprintf("a host more, of %d", many), N: 1, P50: (whole - one) / float64(many-1),
	}})
	return nil
}

// manyHosts is the fleet.
type manyHosts struct {
	b         *bench
	p         person
	inventory string // ansible's
	many      int
}

// newFleet starts the servers, where p may log in, and has p's files say so.
func (b *bench) newFleet(p person, many int) (*manyHosts, error) {
	sshd, err := exec.LookPath("/usr/sbin/sshd")
	if err != nil { // it is not installed here: that would open the host to others
		return nil, fmt.Errorf("%w; it is in the package %s", err, sshdPackage.pkg)
	}
	if err := os.MkdirAll("/run/sshd", 0o755); err != nil { // where it gives its rights up
		return nil, err
	}
	name := filepath.Base(p.home)
	if err := tool("usermod", "--password", "*", "--shell", "/bin/sh", name); err != nil { // it is locked otherwise
		return nil, err
	}
	dir := filepath.Join(b.dir, "sshd")
	hostKey, hostPEM, err := sshKey()
	if err != nil {
		return nil, err
	}
	userKey, userPEM, err := sshKey()
	if err != nil {
		return nil, err
	}
	f := &manyHosts{b, p, filepath.Join(p.home, "inventory"), many}
	var known, inventory, hosts strings.Builder
	hosts.WriteString("hosts:\n")
	for i := range many {
		at := address(i)
		fmt.Fprintf(&known, "[%s]:%s %s", at, sshPort, hostKey)
		fmt.Fprintf(&inventory, "h%d ansible_host=%s ansible_port=%s ansible_user=%s ansible_python_interpreter=/usr/bin/python3\n",
			i+1, at, sshPort, name)
		fmt.Fprintf(&hosts, "  h%d: {address: %s, port: %s}\n", i+1, at, sshPort)
	}
	for path, text := range map[string]string{
		".ssh/id_ed25519": userPEM, ".ssh/known_hosts": known.String(), "inventory": inventory.String(),
		".config/carrel/hosts.yaml": hosts.String(),
	} {
		path = filepath.Join(p.home, path)
		err = errors.Join(err, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600))
	}
	err = errors.Join(err, os.Mkdir(dir, 0o711), os.WriteFile(filepath.Join(dir, "host_key"), []byte(hostPEM), 0o600),
		os.WriteFile(filepath.Join(dir, "keys"), []byte(userKey), 0o644), tool("chown", "-R", name+":", p.home))
	if err != nil {
		return nil, err
	}
	for i := range many {
		conf := filepath.Join(dir, fmt.Sprint(i))
		if err := os.WriteFile(conf, fmt.Appendf(nil, "ListenAddress %s\nPort %s\nHostKey %s/host_key\nAuthorizedKeysFile %s/keys\nUsePAM no\n"+
			"StrictModes no\nPidFile none\nPasswordAuthentication no\nAllowUsers %s\n", address(i), sshPort, dir, dir, name), 0o600); err != nil {
			return nil, err
		}
		c := exec.CommandContext(context.Background(), sshd, "-D", "-f", conf)
		if err := c.Start(); err != nil {
			return nil, err
		}
		b.later(func(context.Context) error {
			_ = c.Process.Kill()
			_ = c.Wait() // it was killed
			return nil
		})
	}
	return f, f.up()
}

// address is that of a host.
func address(i int) string { return fmt.Sprintf("127.8.%d.%d", i/250, i%250+1) }

// up waits until all servers listen.
func (f *manyHosts) up() error {
	until := time.Now().Add(terminal.Patience)
	for i := 0; i < f.many; {
		c, err := (&net.Dialer{}).DialContext(f.b.ctx, "tcp", net.JoinHostPort(address(i), sshPort))
		switch {
		case err == nil:
			_ = c.Close()
			i++
		case time.Now().After(until):
			return fmt.Errorf("sshd on %s does not listen: %w", address(i), err)
		default:
			time.Sleep(10 * time.Millisecond)
		}
	}
	return nil
}

// sshKey is a new key: its public line and its private file.
func sshKey() (public, private string, err error) {
	pub, priv, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return "", "", err
	}
	key, err := ssh.NewPublicKey(pub)
	if err != nil {
		return "", "", err
	}
	block, err := ssh.MarshalPrivateKey(priv, "")
	if err != nil {
		return "", "", err
	}
	return string(ssh.MarshalAuthorizedKey(key)), string(pem.EncodeToMemory(block)), nil
}

// ansible is an ad-hoc command on all hosts.
func (f *manyHosts) ansible(name string, forks []string) (measure.Contestant, error) {
	path, err := exec.LookPath(ansiblePackage.program)
	if err != nil {
		return measure.Contestant{}, fmt.Errorf("%w; it is in the package %s", err, ansiblePackage.pkg)
	}
	if out, err := exec.CommandContext(f.b.ctx, path, "--version").Output(); err == nil {
		first, _, _ := strings.Cut(string(out), "\n")
		f.b.Versions["ansible"] = first
	}
	return measure.Contestant{Name: name, Op: measure.Timed(func() error {
		c := f.p.command("", append([]string{path, "-i", f.inventory, "all", "-a", "id"}, forks...)...)
		// Connections that are kept would be those of the round before.
		c.Env = append(c.Env, "LANG=C.UTF-8", "ANSIBLE_SSH_ARGS=-o ControlMaster=no -o ControlPersist=no")
		out, err := c.CombinedOutput()
		if n := strings.Count(string(out), "uid="); err == nil && n != f.many {
			err = fmt.Errorf("%d of %d hosts answered", n, f.many)
		}
		if err != nil {
			err = fmt.Errorf("%w: %s", err, lastLine(out))
		}
		return err
	})}, nil
}
