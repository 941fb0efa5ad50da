package root_test

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/linux/thread"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/wire/mountgrant"
)

// Two users of the host who are not in passwd.
const alice, bob = 61001, 61002

// actAs runs f on a thread that has a user's ids and no others.
func actAs(t testing.TB, uid uintptr, f func() error) {
	t.Helper()
	err := thread.Throwaway(func() error {
		for _, call := range []func() unix.Errno{
			func() unix.Errno { _, _, e := unix.RawSyscall(unix.SYS_SETGROUPS, 0, 0, 0); return e },
			func() unix.Errno { _, _, e := unix.RawSyscall(unix.SYS_SETRESGID, uid, uid, uid); return e },
			func() unix.Errno { _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, uid, uid, uid); return e },
		} {
			if e := call(); e != 0 {
				return e
			}
		}
		return f()
	})
	if err != nil {
		t.Fatal(err)
	}
}

// users makes a directory of alice that contains one of bob and one of root.
func users(t testing.TB) (hers, his, roots string) {
	t.Helper()
	top := t.TempDir()
	hers, his, roots = top+"/alice", top+"/bob", top+"/root"
	for dir, uid := range map[string]int{hers: alice, his: bob, roots: 0} {
		if err := errors.Join(os.Mkdir(dir, 0o700), os.Chown(dir, uid, uid)); err != nil {
			t.Fatal(err)
		}
	}
	for dir := top; dir != "/"; dir = filepath.Dir(dir) { // the way to it is open
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if filepath.Dir(dir) == os.TempDir() {
			break
		}
	}
	return hers, his, roots
}

// offered is a grant of a user's, with descriptors of opened.
func offered(t testing.TB, uid uintptr, m mountgrant.Message, opened ...string) (far, near *os.File) {
	t.Helper()
	var dirs []*os.File
	for _, o := range opened { // by root: what the user may open is not the question here
		d, err := os.Open(o)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		dirs = append(dirs, d)
	}
	actAs(t, uid, func() (err error) {
		far, near, err = mountgrant.Offer(m, dirs)
		return err
	})
	t.Cleanup(func() { far.Close(); near.Close() })
	return far, near
}

// hand sends a request with descriptors beside it.
func (w *wire) hand(t testing.TB, text string, files ...*os.File) {
	t.Helper()
	var fds []int
	for _, f := range files {
		control(t, f, func(fd int) error { fds = append(fds, fd); return nil })
	}
	_ = w.SetWriteDeadline(time.Now().Add(patience))
	if _, _, err := w.WriteMsgUnix([]byte(text), unix.UnixRights(fds...), nil); err != nil && !errors.Is(err, unix.EPIPE) {
		t.Fatal(err)
	}
}

func creation(t testing.TB, name id.Workspace, keyDigest string, fds int, mounts ...workspace.Mount) string {
	t.Helper()
	m, err := json.Marshal(mounts)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"create","fds":%d,"params":{"name":%q,"key_digest":%q,"limits":%s,"mounts":%s}}`+"\n",
		fds, name, keyDigest, limits, m)
}

// What a daemon that was taken over could try, so as to have a directory mounted that
// nobody granted. It has every grant in its hands, and the broker's socket.
func TestADaemonForgesMounts(t *testing.T) {
	b := newBroker(t)
	hers, his, roots := users(t)
	at := func(src string, ro bool) workspace.Mount {
		return workspace.Mount{Source: src, Destination: "/workspace", ReadOnly: ro}
	}
	ask := func(src string, ro bool) mountgrant.Message {
		return mountgrant.Message{KeyDigest: digest, Mounts: []workspace.Mount{at(src, ro)}}
	}
	name := id.Derive("crt", id.Key(rand.Text()), 0)
	ledger := b.ledger(t)
	open := descriptors(t, b.pid)
	refused := func(what, want string, far *os.File, text string) {
		t.Helper()
		w := b.greeted(t)
		defer w.Close()
		w.hand(t, text, far)
		if l := w.line(t); !strings.Contains(l, `"error"`) || !strings.Contains(l, want) {
			t.Errorf("%s: no %q in %q", what, want, l)
		}
	}

	far, _ := offered(t, brokerUID, ask(hers, false), hers)
	refused("a grant of its own", "not a user of carrel", far, creation(t, name, digest, 1, at(hers, false)))

	// A workspace's commands obey it, and can make grants too.
	far, _ = offered(t, uintptr(1_870_000_000+3000*(os.Getpid()%1000)+1), ask(hers, false), hers)
	refused("a grant of a command's", "not a user of carrel", far, creation(t, name, digest, 1, at(hers, false)))

	p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(p[0])
	far = os.NewFile(uintptr(p[1]), "far")
	defer far.Close()
	m := ask(roots, true)
	m.Version = mountgrant.Version
	text, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.Open(roots)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	control(t, dir, func(fd int) error {
		actAs(t, brokerUID, func() error {
			cred := func(uid uint32) []byte {
				return append(unix.UnixCredentials(&unix.Ucred{Pid: int32(os.Getpid()), Uid: uid, Gid: uid}), unix.UnixRights(fd)...)
			}
			if err := unix.Sendmsg(p[0], text, cred(0), nil, 0); !errors.Is(err, unix.EPERM) {
				t.Errorf("it may say that it is root: %v", err)
			}
			return unix.Sendmsg(p[0], text, cred(brokerUID), nil, 0)
		})
		return nil
	})
	refused(
		"a pair of root's that it filled", "uid 0 made the grant and uid 61997 filled it", far, creation(t, name, digest, 1, at(roots, true)),
	)

	far, _ = offered(t, alice, ask(hers, false), hers)
	refused("a grant for another key", "another key", far, creation(t, name, strings.Repeat("a", 64), 1, at(hers, false)))
	far, _ = offered(t, alice, ask(hers, true), hers)
	refused("write access where none was granted", "other mounts were granted", far, creation(t, name, digest, 1, at(hers, false)))
	far, _ = offered(t, alice, ask(hers, true), hers)
	refused("another directory than was granted", "other mounts were granted", far, creation(t, name, digest, 1, at(roots, true)))
	far, near := offered(t, alice, ask(hers, false), hers)
	near.Close()
	refused("a grant that was kept", "no longer waits", far, creation(t, name, digest, 1, at(hers, false)))

	// A user who lies, or was lent a descriptor.
	far, _ = offered(t, alice, ask(his, true), hers)
	refused("a path that is not that of the descriptor", "may not open it", far, creation(t, name, digest, 1, at(his, true)))
	far, _ = offered(t, alice, ask(his, true), his)
	refused("a directory that alice may not open", "may not open it", far, creation(t, name, digest, 1, at(his, true)))
	far, _ = offered(t, alice, ask(roots, true), roots)
	refused("one of root's", "may not open it", far, creation(t, name, digest, 1, at(roots, true)))
	far, _ = offered(t, bob, ask(his, true), hers)
	refused("one of two", "another directory is there", far, creation(t, name, digest, 1, at(his, true)))
	far, _ = offered(t, 0, ask(roots, false), roots)
	refused("root's, writable", "files of root", far, creation(t, name, digest, 1, at(roots, false)))
	asRoot := at(roots, false)
	asRoot.AsRoot = true
	far, _ = offered(t, 0, ask(roots, false), roots)
	refused("files of root, which root did not say", "other mounts were granted", far, creation(t, name, digest, 1, asRoot))
	word := ask(hers, false)
	word.Mounts[0].AsRoot = true
	far, _ = offered(t, alice, word, hers)
	refused("files of root, which alice says", "only root can", far, creation(t, name, digest, 1, word.Mounts[0]))
	file := hers + "/file"
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	far, _ = offered(t, alice, ask(file, true), file)
	refused("a file", "not a directory", far, creation(t, name, digest, 1, at(file, true)))

	// A connection to a process of root is no grant.
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s")})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.DialUnix("unix", nil, l.Addr().(*net.UnixAddr))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	stream, err := c.File()
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	refused("a connection", "did not come through a grant", stream, creation(t, name, digest, 1, at(hers, true)))

	// What no daemon in order sends ends the connection.
	far, _ = offered(t, alice, ask(hers, false), hers)
	for what, x := range map[string]struct {
		text  string
		files []*os.File
	}{
		"mounts without a grant": {creation(t, name, digest, 0, at(hers, false)), nil},
		"a grant without mounts": {creation(t, name, digest, 1), []*os.File{far}},
		"two grants":             {creation(t, name, digest, 2, at(hers, false)), []*os.File{far, far}},
		"a grant for a start":    {`{"jsonrpc":"2.0","id":1,"method":"start","fds":1,"params":{"name":"crt-00000000"}}` + "\n", []*os.File{far}},
	} {
		w := b.greeted(t)
		w.hand(t, x.text, x.files...)
		if said := w.ended(t); strings.Contains(said, `"result"`) {
			t.Errorf("%s: %q", what, said)
		}
		w.Close()
	}
	b.unharmed(t, ledger)
	until(t, "the broker to have closed what it was sent", func() bool { return descriptors(t, b.pid) <= open })

	// What is granted is made, and once.
	w := b.greeted(t)
	w.hand(t, creation(t, name, digest, 1, at(hers, false)), far)
	if l := w.line(t); !strings.Contains(l, `"stopped"`) || !strings.Contains(l, `"owner_uid":61001`) {
		t.Fatalf("a grant in order is refused: %q", l)
	}
	w.Close()
	t.Cleanup(func() {
		if l := b.ask(t, "destroy", fmt.Sprintf(`{"name":%q,"purge":true}`, name)); !strings.Contains(l, `"destroyed"`) {
			t.Error(l)
		}
	})
	refused("a grant used twice", "used already", far, creation(t, id.Derive("crt", id.Key(rand.Text()), 0), digest, 1, at(hers, false)))
}
