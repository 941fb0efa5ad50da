package peercred_test

import (
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/linux/peercred"
)

func TestOfTCP(t *testing.T) {
	for _, at := range []string{"127.0.0.1:0", "[::1]:0"} {
		l, err := net.Listen("tcp", at)
		if err != nil && strings.HasPrefix(at, "[") {
			t.Logf("this host has no ::1: %v", err)
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		a, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer a.Close()
		if uid, err := of(a); err != nil || uid != uint32(os.Getuid()) {
			t.Errorf("%s: uid %d (%v)", at, uid, err)
		}
		// One that has ended its side and is still open is known; one that is closed is nobody's, and not root's, as the kernel prints.
		c.(*net.TCPConn).CloseWrite()
		if uid, err := of(a); err != nil || uid != uint32(os.Getuid()) {
			t.Errorf("%s, half closed: uid %d (%v)", at, uid, err)
		}
		c.Close()
		if uid, err := of(a); !errdefs.IsNotFound(err) {
			t.Errorf("%s, closed: uid %d (%v)", at, uid, err)
		}
	}
}

func of(c net.Conn) (uint32, error) {
	from, to := netip.MustParseAddrPort(c.RemoteAddr().String()), netip.MustParseAddrPort(c.LocalAddr().String())
	return peercred.OfTCP(from, to)
}

// TestOfTCPOfAnother has another user connect.
func TestOfTCPOfAnother(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root, to run a program as another user")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := l.Addr().(*net.TCPAddr).Port
	cmd := exec.Command("/bin/bash", "-c", `exec 3<>/dev/tcp/127.0.0.1/$0; read -u 3`, strconv.Itoa(port))
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	a, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if uid, err := of(a); err != nil || uid != 65534 {
		t.Errorf("uid %d (%v)", uid, err)
	}
	a.Close()
	_ = cmd.Wait() // its end is not the question
}
