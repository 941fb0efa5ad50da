package executor_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/boundary/sandbox/launch/launchtest"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

// server is a program that listens on a port of a loopback address and echoes one connection after the other; it prints the port.
func server(family, port string) string {
	address := map[string]string{
		"4": `pack_sockaddr_in(PORT, inet_aton("127.0.0.1"))`, "6": `pack_sockaddr_in6(PORT, inet_pton(AF_INET6, "::1"))`,
	}
	name := map[string]string{"4": "AF_INET", "6": "AF_INET6"}[family]
	return strings.ReplaceAll(`$| = 1; use Socket qw(:all);
socket(S, `+name+`, SOCK_STREAM, 0) or die; bind(S, `+address[family]+`) or die "bind: $!"; listen(S, 16) or die;
my @a = unpack_sockaddr_in`+map[string]string{"4": "", "6": "6"}[family]+`(getsockname(S)); print "$a[0]\n";
while (accept(C, S)) { while (sysread(C, $b, 65536)) { syswrite(C, $b) } close(C) }`, "PORT", port)
}

// listens starts a server and returns its port.
func (c *client) listens(family, port string) int {
	c.t.Helper()
	_, far := c.start(execapi.ExecParams{
		Argv: []string{"/usr/bin/perl", "-e", server(family, port)}, Stdout: execapi.Pipe,
	}, execapi.MethodExec)
	text := make([]byte, 16)
	n, err := far[0].Read(text)
	if err != nil {
		c.t.Fatalf("the server said nothing: %v", err)
	}
	p, err := strconv.Atoi(strings.TrimSpace(string(text[:n])))
	if err != nil {
		c.t.Fatal(err)
	}
	return p
}

func (c *client) port(port int) (net.Conn, error) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), 30*time.Second)
	defer cancel()
	files, err := c.Call(ctx, execapi.MethodDial, execapi.DialParams{Port: port}, nil)
	if err != nil {
		return nil, err
	}
	defer files[0].Close()
	conn, err := net.FileConn(files[0])
	if err == nil {
		c.t.Cleanup(func() { conn.Close() })
	}
	return conn, err
}

func TestDial(t *testing.T) {
	bothRoles(t, func(t *testing.T, _ *launchtest.Workspace, c *client) {
		for _, family := range []string{"4", "6"} {
			conn, err := c.port(c.listens(family, "0"))
			if err != nil {
				t.Fatalf("IPv%s: %v", family, err)
			}
			conn.SetDeadline(time.Now().Add(20 * time.Second))
			io.WriteString(conn, "one and the other way")
			conn.(*net.TCPConn).CloseWrite()
			if b, err := io.ReadAll(conn); string(b) != "one and the other way" || err != nil {
				t.Errorf("IPv%s: read %q (%v)", family, b, err)
			}
		}
		for _, port := range []int{0, -1, 65536} {
			if _, err := c.port(port); !errdefs.IsInvalidArgument(err) {
				t.Errorf("port %d: %v", port, err)
			}
		}
		// Also one of those from which the kernel takes the ports of connections, where a socket could be connected to itself.
		for _, port := range []int{1, 45678} {
			if _, err := c.port(port); !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), "nothing listens there") {
				t.Errorf("port %d, where nothing listens: %v", port, err)
			}
		}
	})
}

// TestDialIsOfTheWorkspace plants a service on the loopback of the host, which nobody reaches by a workspace.
func TestDialIsOfTheWorkspace(t *testing.T) {
	for _, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		l, err := net.Listen("tcp", address)
		if err != nil {
			if strings.HasPrefix(address, "[") {
				t.Logf("this host has no ::1: %v", err)
				continue
			}
			t.Fatal(err)
		}
		defer l.Close()
		port := l.Addr().(*net.TCPAddr).Port
		if c, err := net.Dial("tcp", l.Addr().String()); err != nil {
			t.Fatalf("nobody would reach it: %v", err)
		} else {
			c.Close()
		}
		w, err := launchtest.Start(t, nil)
		if err != nil {
			t.Fatal(err)
		}
		if c, err := dial(t, w, execapi.Control).port(port); !errdefs.IsUnavailable(err) {
			t.Errorf("port %d of the host was reached: %v (%v)", port, c, err)
		}
	}
}

// TestDialEnds has a program listen that takes no connection, until the kernel takes no more for it.
func TestDialEnds(t *testing.T) {
	t.Parallel()
	w, err := launchtest.Start(t, nil)
	if err != nil {
		t.Fatal(err)
	}
	c := dial(t, w, execapi.Control)
	script := `$| = 1; use Socket; socket(S, AF_INET, SOCK_STREAM, 0) or die; bind(S, pack_sockaddr_in(0, inet_aton("127.0.0.1"))) or die;
listen(S, 1) or die; my ($p) = unpack_sockaddr_in(getsockname(S)); print "$p\n"; sleep 1000`
	_, far := c.start(execapi.ExecParams{Argv: []string{"/usr/bin/perl", "-e", script}, Stdout: execapi.Pipe}, execapi.MethodExec)
	var port int
	if _, err := fmt.Fscan(far[0], &port); err != nil {
		t.Fatal(err)
	}
	for range 8 {
		if _, err = c.port(port); err != nil {
			break
		}
	}
	if !errdefs.IsDeadlineExceeded(err) || !strings.Contains(err.Error(), "has accepted no connection") {
		t.Errorf("it ended with %v", err)
	}
	// More than may be are refused at once, and do not wait with the others.
	refused := false
	for round := 0; round < 5 && !refused; round++ { // on a busy host the first may have been given up before the last is asked for
		var all sync.WaitGroup
		var over atomic.Int32
		for range execapi.MaxDials + 50 {
			all.Go(func() {
				if _, err := c.port(port); errdefs.IsResourceExhausted(err) {
					over.Add(1)
				}
			})
		}
		all.Wait()
		refused = over.Load() > 0
	}
	if !refused {
		t.Errorf("more than %d at once were not refused", execapi.MaxDials)
	}
	// And the executor does all else meanwhile and after it.
	if got := c.sh("echo alive"); strings.TrimSpace(string(got.Stdout)) != "alive" {
		t.Errorf("after it: %+v", got)
	}
}
