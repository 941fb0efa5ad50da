package mountgrant_test

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/linux/thread"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/wire/mountgrant"
)

const digest = "2a97516c354b68848cdbd8f54a226a0a55b21ed138e207ad6c5cbb9c00aa5aea"

func message() mountgrant.Message {
	return mountgrant.Message{KeyDigest: digest, Mounts: []workspace.Mount{{
		Source: "/a", Destination: "/workspace",
	}, {Source: "/b", Destination: "/mnt/b", ReadOnly: true}}}
}

func directory(t testing.TB) *os.File {
	t.Helper()
	d, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

func offer(t testing.TB, m mountgrant.Message, dirs ...*os.File) (far, near *os.File) {
	t.Helper()
	far, near, err := mountgrant.Offer(m, dirs)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { far.Close(); near.Close() })
	return far, near
}

// open counts this process's descriptors.
func open(t testing.TB) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

func TestGrantArrives(t *testing.T) {
	a, b := directory(t), directory(t)
	far, _ := offer(t, message(), a, b)
	if !mountgrant.Is(far) {
		t.Error("a grant is not known for one")
	}
	m, who, dirs, err := mountgrant.Take(far)
	if err != nil {
		t.Fatal(err)
	}
	if who.UID != uint32(os.Geteuid()) || who.GID != uint32(os.Getegid()) ||
		m.KeyDigest != digest || len(m.Mounts) != 2 || m.Mounts[1] != message().Mounts[1] {
		t.Errorf("%+v from %+v", m, who)
	}
	for i, want := range []*os.File{a, b} {
		x, err1 := want.Stat()
		y, err2 := dirs[i].Stat()
		if err1 != nil || err2 != nil || !os.SameFile(x, y) {
			t.Errorf("directory %d is another one", i)
		}
		dirs[i].Close()
	}
	// It cannot be used twice.
	if _, _, _, err := mountgrant.Take(far); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "used already") {
		t.Errorf("a grant can be used again: %v", err)
	}
}

func TestGrantOfOneWhoIsGone(t *testing.T) {
	far, near := offer(t, message(), directory(t), directory(t))
	near.Close()
	if _, _, _, err := mountgrant.Take(far); err == nil || !strings.Contains(err.Error(), "no longer waits") {
		t.Errorf("it is taken: %v", err)
	}
}

// pair is a socket pair that may be filled with anything.
func pair(t testing.TB, kind int) (near int, far *os.File) {
	t.Helper()
	p, err := unix.Socketpair(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	far = os.NewFile(uintptr(p[1]), "far")
	t.Cleanup(func() { unix.Close(p[0]); far.Close() })
	return p[0], far
}

func self() []byte {
	return unix.UnixCredentials(&unix.Ucred{Pid: int32(os.Getpid()), Uid: uint32(os.Geteuid()), Gid: uint32(os.Getegid())})
}

func text(t testing.TB, m any) []byte {
	t.Helper()
	b, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestWhatIsNoGrant(t *testing.T) {
	d := directory(t)
	var fd int
	c, err := d.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Control(func(f uintptr) { fd = int(f) }); err != nil {
		t.Fatal(err)
	}
	good := message()
	good.Version, good.Mounts = mountgrant.Version, good.Mounts[:1]
	later := good
	later.Version++
	rights := func(n int) []byte {
		fds := make([]int, n)
		for i := range fds {
			fds[i] = fd
		}
		return unix.UnixRights(fds...)
	}
	join := func(b ...[]byte) []byte {
		return []byte(strings.Join(func() (s []string) {
			for _, x := range b {
				s = append(s, string(x))
			}
			return s
		}(), ""))
	}
	for name, x := range map[string]struct {
		kind      int
		text, oob []byte
	}{
		"a stream":        {unix.SOCK_STREAM, text(t, good), join(self(), rights(1))},
		"datagrams":       {unix.SOCK_DGRAM, text(t, good), join(self(), rights(1))},
		"no sender":       {unix.SOCK_SEQPACKET, text(t, good), rights(1)},
		"no directory":    {unix.SOCK_SEQPACKET, text(t, good), self()},
		"one too many":    {unix.SOCK_SEQPACKET, text(t, good), join(self(), rights(2))},
		"far too many":    {unix.SOCK_SEQPACKET, text(t, good), join(self(), rights(100))},
		"another version": {unix.SOCK_SEQPACKET, text(t, later), join(self(), rights(1))},
		"no text":         {unix.SOCK_SEQPACKET, []byte("x"), join(self(), rights(1))},
		"two texts":       {unix.SOCK_SEQPACKET, join(text(t, good), text(t, good)), join(self(), rights(1))},
		"an unknown field": {unix.SOCK_SEQPACKET, []byte(
			`{"version":1,"key_digest":"x","uid":0,"mounts":[{"source":"/a","destination":"/workspace"}]}`,
		), join(self(), rights(1))},
		"a text too long":    {unix.SOCK_SEQPACKET, join(text(t, good), []byte(strings.Repeat(" ", 1<<17))), join(self(), rights(1))},
		"mounts of no grant": {unix.SOCK_SEQPACKET, []byte(`{"version":1,"mounts":[]}`), self()},
	} {
		t.Run(name, func(t *testing.T) {
			near, far := pair(t, x.kind)
			if err := unix.Sendmsg(near, x.text, x.oob, nil, 0); err != nil {
				t.Fatal(err)
			}
			before := open(t)
			_, _, dirs, err := mountgrant.Take(far)
			if !errdefs.IsInvalidArgument(err) || dirs != nil {
				t.Errorf("it is taken: %v", err)
			}
			if after := open(t); after != before {
				t.Errorf("%d descriptors are open, before it were %d", after, before)
			}
		})
	}
	if mountgrant.Is(d) {
		t.Error("a directory passes for a grant")
	}
	if _, _, _, err := mountgrant.Take(d); !errdefs.IsInvalidArgument(err) {
		t.Errorf("a directory is taken for a grant: %v", err)
	}
}

// asUser runs f on a thread with another user's ids.
func asUser(uid uintptr, f func() error) error {
	return thread.Throwaway(func() error {
		for _, call := range []uintptr{unix.SYS_SETRESGID, unix.SYS_SETRESUID} {
			if _, _, e := unix.RawSyscall(call, uid, uid, uid); e != 0 {
				return e
			}
		}
		return f()
	})
}

// What a compromised daemon could try to act as another user.
func TestGrantInAnothersName(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("skipped: needs root, to be two users")
	}
	const daemon = 65431
	m := message()
	m.Version, m.Mounts = mountgrant.Version, m.Mounts[:1]
	d := directory(t)
	oob := func(uid uint32) []byte {
		b := unix.UnixCredentials(&unix.Ucred{Pid: int32(os.Getpid()), Uid: uid, Gid: uid})
		var fd int
		c, _ := d.SyscallConn()
		_ = c.Control(func(f uintptr) { fd = int(f) })
		return append(b, unix.UnixRights(fd)...)
	}
	// A pair that root made and of which the daemon got both ends.
	near, far := pair(t, unix.SOCK_SEQPACKET)
	b := text(t, m)
	if err := asUser(daemon, func() error {
		return unix.Sendmsg(
			near, b, oob(0), nil, 0,
		)
	}); err != unix.EPERM { //nolint:errorlint // an Errno as it comes
		t.Errorf("the kernel lets it say that it is root: %v", err)
	}
	if err := asUser(daemon, func() error { return unix.Sendmsg(near, b, oob(daemon), nil, 0) }); err != nil {
		t.Fatal(err)
	}
	if _, _, _, err := mountgrant.Take(far); err == nil || !strings.Contains(err.Error(), "uid 0 made the grant and uid 65431 filled it") {
		t.Errorf("its packet is taken for root's: %v", err)
	}
	// A grant that the daemon makes has the daemon's id.
	var own [2]int
	if err := asUser(daemon, func() (err error) {
		own, err = unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		if err == nil {
			err = unix.Sendmsg(own[0], b, oob(daemon), nil, 0)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(own[0])
	f := os.NewFile(uintptr(own[1]), "far")
	defer f.Close()
	_, who, dirs, err := mountgrant.Take(f)
	if err != nil || who.UID != daemon {
		t.Errorf("%+v %v", who, err)
	}
	for _, d := range dirs {
		d.Close()
	}
}

func FuzzTake(f *testing.F) {
	m := message()
	m.Version, m.Mounts = mountgrant.Version, m.Mounts[:1]
	f.Add(text(f, m), uint8(1))
	f.Add([]byte(`{"version":1,"key_digest":"","mounts":[null]}`), uint8(1))
	f.Add([]byte(`[]`), uint8(0))
	null, err := os.Open(os.DevNull)
	if err != nil {
		f.Fatal(err)
	}
	defer null.Close()
	var fd int
	c, err := null.SyscallConn()
	if err != nil {
		f.Fatal(err)
	}
	if err := c.Control(func(x uintptr) { fd = int(x) }); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, b []byte, n uint8) {
		p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		far := os.NewFile(uintptr(p[1]), "far")
		defer func() { unix.Close(p[0]); far.Close() }()
		oob := self()
		if n %= 16; n > 0 {
			fds := make([]int, n)
			for i := range fds {
				fds[i] = fd
			}
			oob = append(oob, unix.UnixRights(fds...)...)
		}
		if unix.Sendmsg(p[0], b, oob, nil, 0) != nil {
			return
		}
		m, who, dirs, err := mountgrant.Take(far)
		if err != nil {
			if dirs != nil {
				t.Error("directories beside an error")
			}
			return
		}
		if who.UID != uint32(os.Geteuid()) || len(dirs) != int(n) || len(m.Mounts) != int(n) || n > workspace.MaxMounts {
			t.Errorf("%+v, %d directories", m, len(dirs))
		}
		for _, d := range dirs {
			d.Close()
		}
	})
}
