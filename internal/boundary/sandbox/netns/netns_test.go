package netns_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/boundary/sandbox/netns"
)

// inside says to the test's own program that it runs in namespaces of its own.
const inside = "CARREL_TEST_NETNS"

// inNamespaces runs the test again in a network and a user namespace of its own, and reports whether
// this is that run.
func inNamespaces(t *testing.T) bool {
	t.Helper()
	if os.Getenv(inside) == t.Name() {
		return true
	}
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run", "^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), inside+"="+t.Name())
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	out, err := cmd.CombinedOutput()
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSPC) {
		t.Skipf("this host makes no user namespaces: %v", err)
	}
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return false
}

func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// loopbackUp is what the first stage does before.
func loopbackUp(t *testing.T) {
	t.Helper()
	fd := must(unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0))(t)
	defer unix.Close(fd)
	ifr := must(unix.NewIfreq("lo"))(t)
	ifr.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, ifr); err != nil {
		t.Fatal(err)
	}
}

func open(t *testing.T) [netns.Count]*os.File {
	t.Helper()
	loopbackUp(t)
	var files [netns.Count]*os.File
	for i, fd := range must(netns.Open())(t) {
		files[i] = os.NewFile(uintptr(fd), "socket")
		t.Cleanup(func() { files[i].Close() })
	}
	return files
}

func dial(t *testing.T, network, to string) (net.Conn, error) {
	t.Helper()
	d := net.Dialer{Timeout: 5 * time.Second}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	return d.DialContext(ctx, network, to)
}

// Every connection to an address that stands for a name arrives at the one listener, which sees what
// was connected to.
func TestTransparent(t *testing.T) {
	if !inNamespaces(t) {
		return
	}
	files := open(t)
	l := must(net.FileListener(files[netns.Transparent]))(t)
	defer l.Close()
	for _, to := range []string{
		"198.18.0.1:1", "198.18.7.7:443", "198.19.255.255:65535", "198.18.0.53:53", "192.0.2.1:80", "169.254.169.254:80", "8.8.8.8:53",
		"240.0.0.1:443", "10.0.0.1:22",
	} {
		out := must(dial(t, "tcp", to))(t)
		in := must(l.Accept())(t)
		if in.LocalAddr().String() != to || in.RemoteAddr().String() != out.LocalAddr().String() {
			t.Errorf("%s arrives as %v from %v", to, in.LocalAddr(), in.RemoteAddr())
		}
		_ = must(io.WriteString(in, "x"))(t)
		in.Close()
		if got := must(io.ReadAll(out))(t); string(got) != "x" {
			t.Errorf("%s answers %q", to, got)
		}
		out.Close()
	}
	// What the workspace serves itself on such an address does not get the connection.
	own, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "198.18.7.7:443")
	if err == nil {
		defer own.Close()
	}
	out := must(dial(t, "tcp", "198.18.7.7:443"))(t)
	defer out.Close()
	must(l.Accept())(t).Close()
}

// Loopback stays the workspace's own, IPv6 has no route, and datagrams do not leave.
func TestNothingElse(t *testing.T) {
	if !inNamespaces(t) {
		return
	}
	open(t)
	own := must((&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:443"))(t)
	defer own.Close()
	out := must(dial(t, "tcp", "127.0.0.1:443"))(t)
	defer out.Close()
	must(own.Accept())(t).Close()
	if c, err := dial(t, "tcp", "127.0.0.2:443"); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("loopback: %v, %v", c, err)
	}
	if c, err := dial(t, "tcp", "[2001:db8::1]:443"); err == nil {
		c.Close()
		t.Error("IPv6 answers")
	} else if !errors.Is(err, unix.ENETUNREACH) && !errors.Is(err, unix.EADDRNOTAVAIL) {
		t.Errorf("IPv6: %v", err)
	}
	// A datagram has no socket: QUIC falls back to TCP.
	for _, to := range []string{"198.18.7.7:443", "8.8.8.8:53", "192.0.2.1:443", "240.0.0.1:443"} {
		u := must(dial(t, "udp", to))(t)
		defer u.Close()
		_ = must(u.Write([]byte("x")))(t)
		_ = u.SetReadDeadline(time.Now().Add(5 * time.Second))
		if _, err := u.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("a datagram to %s meets %v", to, err)
		}
	}
}

// Without its capabilities nothing of it can be changed.
func TestNothingChangesIt(t *testing.T) {
	if !inNamespaces(t) {
		return
	}
	open(t)
	if _, err := netns.Open(); !errors.Is(err, unix.EEXIST) {
		t.Errorf("a second time: %v", err)
	}
	// Capabilities are those of a thread.
	runtime.LockOSThread()
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	if err := unix.Capset(&hdr, &none[0]); err != nil {
		t.Fatal(err)
	}
	if err := netns.Redirect(); !errors.Is(err, unix.EPERM) {
		t.Errorf("a rule: %v", err)
	}
	if err := netns.Route(); !errors.Is(err, unix.EPERM) {
		t.Errorf("a route: %v", err)
	}
	fd := must(unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0))(t)
	defer unix.Close(fd)
	if err := unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_TRANSPARENT, 1); !errors.Is(err, unix.EPERM) {
		t.Errorf("a transparent socket: %v", err)
	}
	for _, at := range []netip.AddrPort{netns.DNS, netns.Proxy} {
		sa := &unix.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().As4()}
		if err := unix.Bind(fd, sa); !errors.Is(err, unix.EADDRINUSE) && !errors.Is(err, unix.EACCES) {
			t.Errorf("%v can be taken: %v", at, err)
		}
	}
}
