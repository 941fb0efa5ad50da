package root_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// echoes is a server that sends back what comes on each connection, and ends its side when the other has ended. It writes its port
// to a file.
const echoes = `import socket, threading, sys, os
s = socket.socket(getattr(socket, sys.argv[2])); s.bind((sys.argv[3], 0)); s.listen(256)
open(sys.argv[1] + ".new", "w").write(str(s.getsockname()[1])); os.rename(sys.argv[1] + ".new", sys.argv[1])
def serve(c):
    while b := c.recv(65536): c.sendall(b)
    c.shutdown(socket.SHUT_WR); c.close()
while True: threading.Thread(target=serve, args=(s.accept()[0],), daemon=True).start()
`

// echo starts that server and returns its port.
func (d *desk) echo(t testing.TB, family, address string) int {
	t.Helper()
	name := "port-" + rand.Text()
	d.detach(t, "python3", "-c", echoes, name, family, address)
	return d.portIn(t, name)
}

// portIn is the port that a server writes to a file.
func (d *desk) portIn(t testing.TB, name string) (port int) {
	t.Helper()
	until(t, "the port of a server", func() bool {
		b, err := os.ReadFile(filepath.Join(d.Home, name))
		if err != nil {
			return false
		}
		port, err = strconv.Atoi(string(b))
		return err == nil
	})
	return port
}

// published is a carrel port at work.
type published struct {
	cmd  *exec.Cmd
	errs *lockedBuffer
	// at are the addresses, in the order of the ports.
	at    []string
	ended chan error
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// port runs carrel port with n ports and waits until it has printed where they are.
func (h *host) port(t testing.TB, who *syscall.Credential, n int, args ...string) *published {
	t.Helper()
	p := &published{cmd: h.command(context.WithoutCancel(t.Context()), who, append([]string{"port"}, args...)...), errs: &lockedBuffer{}}
	p.cmd.Stderr, p.ended = p.errs, make(chan error, 1)
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	for len(p.at) < n && lines.Scan() {
		p.at = append(p.at, strings.Fields(lines.Text())[0])
	}
	go func() { p.ended <- p.cmd.Wait() }()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("carrel port %q says: %s", args, p.errs)
		}
		_ = p.cmd.Process.Kill()
		select {
		case <-p.ended:
		case <-time.After(patience):
			t.Error("carrel port does not end")
		}
	})
	if len(p.at) < n {
		t.Fatalf("carrel port %q: %s", args, p.errs)
	}
	return p
}

// end waits for its end and returns the exit code.
func (p *published) end(t testing.TB) int {
	t.Helper()
	select {
	case err := <-p.ended:
		p.ended <- err
	case <-time.After(patience):
		t.Fatalf("carrel port does not end: %s", p.errs)
	}
	return p.cmd.ProcessState.ExitCode()
}

// reachAt connects to where a port is published.
func reachAt(t testing.TB, at string) *net.TCPConn {
	t.Helper()
	c, err := net.DialTimeout("tcp", at, patience)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(patience))
	return c.(*net.TCPConn)
}

// through sends data and the end of it, and returns what comes back.
func through(c net.Conn, data []byte) ([]byte, error) {
	sent := make(chan error, 1)
	go func() {
		_, err := c.Write(data)
		if err == nil {
			err = c.(interface{ CloseWrite() error }).CloseWrite()
		}
		sent <- err
	}()
	got, err := io.ReadAll(c)
	if err == nil {
		err = <-sent
	}
	return got, err
}

// Everything at once that people do with a port: HTTP, both families, 10 MiB each way, a half close, 200 connections; and the record
// has one publication with all of it.
func TestPorts(t *testing.T) {
	h := newHostFor(t)
	d := h.desk(t)
	d.put(t, "page.txt", []byte("a page\n"), "644")
	d.detach(t, "python3", "-u", "-m", "http.server", "--bind", "127.0.0.1", "8000")
	four, six := d.echo(t, "AF_INET", "127.0.0.1"), d.echo(t, "AF_INET6", "::1")
	mark := h.mark(t)
	p := h.port(t, nil, 3, d.Key, "0:8000", fmt.Sprint("0:", four), fmt.Sprint("0:", six))
	until(t, "the page", func() bool {
		res, err := http.Get("http://" + p.at[0] + "/page.txt")
		if err != nil {
			return false
		}
		defer res.Body.Close()
		b, err := io.ReadAll(res.Body)
		return err == nil && string(b) == "a page\n"
	})
	large := make([]byte, 10<<20)
	rand.Read(large)
	for name, at := range map[string]string{"IPv4": p.at[1], "IPv6": p.at[2]} {
		got, err := through(reachAt(t, at), large)
		if err != nil || !bytes.Equal(got, large) {
			t.Errorf("%s: %d bytes of %d came back, equal %v (%v)", name, len(got), len(large), bytes.Equal(got, large), err)
		}
	}
	// 200 at once, all open before the first ends.
	var all sync.WaitGroup
	open := make(chan struct{})
	var ready sync.WaitGroup
	for i := range 200 {
		c := reachAt(t, p.at[1])
		ready.Add(1)
		all.Go(func() {
			text := fmt.Sprintf("connection %d", i)
			b := make([]byte, len(text))
			_, err := io.WriteString(c, text)
			if err == nil {
				_, err = io.ReadFull(c, b)
			}
			ready.Done()
			if err != nil || string(b) != text {
				t.Errorf("%s: %q (%v)", text, b, err)
				return
			}
			<-open
			if got, err := through(c, []byte(" and more")); err != nil || string(got) != " and more" {
				t.Errorf("%s: then %q (%v)", text, got, err)
			}
		})
	}
	ready.Wait()
	close(open)
	all.Wait()
	_ = p.cmd.Process.Signal(syscall.SIGINT)
	if code := p.end(t); code != 0 {
		t.Errorf("it ended with %d: %s", code, p.errs)
	}
	h.settled(t)
	intents := 0
	for _, r := range h.since(t, mark) {
		if strings.Contains(r.raw, `"port.open"`) && r.Type == "intent" {
			intents++
		}
	}
	if intents != 3 {
		t.Errorf("%d publications were recorded, not 3", intents)
	}
	h.recorded(t, mark, `"outcome"`, `"connections":201`, `"bytes_in":`)
}

// What does not listen is said, and what listens on the host's own loopback is not reached.
func TestPortsAreOfTheWorkspace(t *testing.T) {
	h := newHostFor(t)
	d := h.desk(t)
	planted, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer planted.Close()
	taken := make(chan struct{}, 1)
	go func() {
		for {
			c, err := planted.Accept()
			if err != nil {
				return
			}
			taken <- struct{}{}
			c.Close()
		}
	}()
	host := planted.Addr().(*net.TCPAddr).Port
	reachAt(t, planted.Addr().String()).Close() // it is there for whoever is on the host
	<-taken
	p := h.port(t, nil, 1, d.Key, fmt.Sprint("0:", host))
	if got, err := through(reachAt(t, p.at[0]), []byte("x")); err == nil {
		t.Errorf("%q came from port %d, where nothing listens in the workspace", got, host)
	}
	until(t, "the reason", func() bool { return strings.Contains(p.errs.String(), "nothing listens there") })
	if len(taken) > 0 {
		t.Error("the host's own service was reached")
	}
	r := h.try(nil, "", "port", "--stdio", d.Key, strconv.Itoa(host))
	if r.code != 1 || !strings.Contains(r.err, "nothing listens there") {
		t.Errorf("--stdio: %+v", r)
	}
}
