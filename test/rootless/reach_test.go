//go:build linux

package rootless_test

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A mount through which a command would act as the user, outside of its workspace, is refused: what is
// reached by it is what matters, not how it is named.
func TestMountsOfCarrelsOwn(t *testing.T) {
	u := newOwner(t)
	u.sh("mkdir -p .config/carrel other; ln -s .config alias")
	run := filepath.Join(u.home, "session/run")
	u.sh("mkdir -p session; mkdir -m 700 session/run")
	u.env = append(u.env, "XDG_RUNTIME_DIR="+run)
	u.must("create", "demo")
	alias := filepath.Join(u.home, "other")
	bound := os.Geteuid() == 0 // others mount nothing on the host
	if bound {
		if err := unix.Mount(run, alias, "", unix.MS_BIND, ""); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Unmount(alias, unix.MNT_DETACH) })
	}
	for _, c := range []struct{ mount, want string }{
		{run + ":/mnt/x", "the socket of your carrel"},
		{run + ":/mnt/x:ro", "the socket of your carrel"},
		{filepath.Dir(run) + ":/mnt/x:ro", "the socket of your carrel"},
		{run + "/carrel:/mnt/x:ro", "the socket of your carrel"},
		{"other:/mnt/x:ro", "the socket of your carrel"},
		{"other/carrel:/mnt/x:ro", "the socket of your carrel"},
		{"/run:/mnt/x:ro", "the socket of the system's carrel"},
		{".config:/mnt/x", "the settings and rules"},
		{"alias:/mnt/x", "the settings and rules"},
		{".config/carrel:/mnt/x", "the settings and rules"},
		{".local/state/carrel/homes:/mnt/x:ro", "record is kept"},
		{programs + ":/mnt/x", "the programs of your carrel"},
	} {
		if !bound && strings.HasPrefix(c.mount, "other") {
			continue
		}
		c.mount = u.from(c.mount)
		for _, r := range []result{
			u.carrel("create", "-v", c.mount, "bad"),
			u.run("-v", c.mount, "--", "true"),
		} {
			if r.code == 0 || !strings.Contains(r.err, c.want) && !strings.Contains(r.err, "may not open") {
				t.Errorf("-v %s: %+v", c.mount, r)
			}
		}
	}
	for _, good := range []string{".config:/mnt/x:ro", ".config/carrel:/mnt/x:ro", programs + ":/mnt/x:ro", "project:/mnt/x"} {
		if r := u.run("-v", u.from(good), "--", "true"); r.code != 0 {
			t.Errorf("-v %s: %+v", good, r)
		}
	}
}

// Where no mount was foreseen, the daemon does not serve who is in a user namespace below its own.
func TestPeerInAnotherUserNamespace(t *testing.T) {
	u := newOwner(t)
	u.must("create", "demo")
	ls := filepath.Join(programs, "carrel") + " ls"
	r := u.sh("unshare -U --map-current-user " + ls)
	if r.code == 0 || !strings.Contains(r.err, "user namespace") {
		t.Errorf("%+v", r)
	}
	if r := u.sh(ls); r.code != 0 || !strings.Contains(r.out, "demo") {
		t.Errorf("%+v", r)
	}
}

// Who mounts a directory with a socket in it that a program of the host listens on is told, and the report says it.
func TestHostSocketsAreNamed(t *testing.T) {
	u := newOwner(t)
	at := filepath.Join(u.home, "project/agent.sock")
	l, err := net.Listen("unix", at)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := os.Chmod(at, 0o777); err != nil {
		t.Fatal(err)
	}
	const said = "host-sockets does not hold: outside: programs of the host listen at /mnt/p/agent.sock"
	if r := u.run("-v", u.home+"/project:/mnt/p:ro", "--", "true"); r.code != 0 || !strings.Contains(r.err, said) {
		t.Errorf("%+v", r)
	}
	if r := u.carrel("create", "-v", u.home+"/project:/mnt/p", "demo"); r.code != 0 || !strings.Contains(r.err, said) {
		t.Errorf("%+v", r)
	}
	if got := u.must("inspect", "-o", "json", "demo"); !strings.Contains(got, "host-sockets") || !strings.Contains(got, "/mnt/p/agent.sock") {
		t.Errorf("%s", got)
	}
	l.Close()
	if r := u.run("-v", u.home+"/project:/mnt/p", "--", "true"); r.code != 0 || r.err != "" {
		t.Errorf("%+v", r)
	}
}

// from makes a source absolute: it is meant from the home.
func (u *user) from(mount string) string {
	if strings.HasPrefix(mount, "/") {
		return mount
	}
	return filepath.Join(u.home, mount)
}
