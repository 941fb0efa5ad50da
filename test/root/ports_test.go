package root_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
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
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+p.at[0]+"/page.txt", nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(r)
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

// Another user of the host neither publishes nor uses what is published on loopback, and who may only look does not either.
func TestPortsOfOthers(t *testing.T) {
	h := newHostFor(t)
	d := h.desk(t)
	port := d.echo(t, "AF_INET", "127.0.0.1")
	stranger := user(t, "crtports")
	r := h.try(stranger, "", "port", d.Key, fmt.Sprint("0:", port))
	if r.code != 1 || !strings.Contains(r.err, "may not") && !strings.Contains(r.err, "permission") && !strings.Contains(r.err, "cannot let") {
		t.Errorf("another's workspace: %+v", r)
	}
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(h.carrel(t, "token", "create", "--role", "approver", "--workspace", d.Key)), 0o600); err != nil {
		t.Fatal(err)
	}
	r = h.try(nil, "", "--token-file", file, "port", d.Key, fmt.Sprint("0:", port))
	if r.code != 1 || !strings.Contains(r.err, "cannot let") {
		t.Errorf("a token that only looks: %+v", r)
	}
	p := h.port(t, nil, 1, d.Key, fmt.Sprint("0:", port))
	at, number, err := net.SplitHostPort(p.at[0])
	if err != nil {
		t.Fatal(err)
	}
	// cat ends with what was sent back, or with the reset.
	knock := func(who *syscall.Credential) string {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		c := exec.CommandContext(ctx, "/bin/bash", "-c", `exec 3<>/dev/tcp/$0/$1; echo word >&3; read -r -u 3 back; echo "got $back"`, at, number)
		c.SysProcAttr = &syscall.SysProcAttr{Credential: who}
		b, _ := c.Output() // a reset is no success
		return strings.TrimSpace(string(b))
	}
	if got := knock(nil); got != "got word" {
		t.Errorf("the caller's own connection: %q", got)
	}
	if got := knock(stranger); got != "got" && got != "" {
		t.Errorf("another user's connection was carried: %q", got)
	}
	until(t, "the reason", func() bool { return strings.Contains(p.errs.String(), fmt.Sprint("uid ", stranger.Uid)) })

	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "s")
	h.port(t, nil, 1, "--unix", socket, d.Key, strconv.Itoa(port))
	if fi, err := os.Stat(socket); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("the socket: %v (%v)", fi, err)
	}
	c, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	if got, err := through(c, []byte("by a socket")); string(got) != "by a socket" || err != nil {
		t.Errorf("%q (%v)", got, err)
	}
	r = h.try(nil, "", "port", "--unix", socket, d.Key, "80")
	if r.code != 1 || !strings.Contains(r.err, "there is something with this name") {
		t.Errorf("a name that is taken: %+v", r)
	}
}

// stdio is a connection to a port on the streams of carrel port --stdio.
func (h *host) stdio(t testing.TB, args ...string) (in io.WriteCloser, out io.Reader, ended <-chan error) {
	t.Helper()
	c := h.command(context.WithoutCancel(t.Context()), nil, args...)
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	r, w := io.Pipe()
	c.Stdout, c.Stderr = w, os.Stderr
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	end := make(chan error, 1)
	go func() { end <- c.Wait(); w.Close() }()
	t.Cleanup(func() { _ = c.Process.Kill(); in.Close(); r.Close() })
	return in, r, end
}

// The stop of the workspace ends what is open, and so does the end of a token.
func TestPortsEnd(t *testing.T) {
	h := newHostFor(t)
	d := h.desk(t)
	port := d.echo(t, "AF_INET", "127.0.0.1")
	said := h.carrel(t, "token", "create", "-o", "json", "--role", "agent", "--workspace", d.Key)
	var token struct {
		Token string
		About struct{ ID string }
	}
	if err := json.Unmarshal([]byte(said), &token); err != nil || token.Token == "" {
		t.Fatalf("%v: %d bytes", err, len(said))
	}
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(token.Token), 0o600); err != nil {
		t.Fatal(err)
	}
	in, out, ended := h.stdio(t, "--token-file", file, "port", "--stdio", d.Key, strconv.Itoa(port))
	b := make([]byte, 4)
	if _, err := io.WriteString(in, "word"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, b); err != nil || string(b) != "word" {
		t.Fatalf("%q (%v)", b, err)
	}
	h.carrel(t, "token", "revoke", token.About.ID)
	select {
	case err := <-ended:
		if err == nil {
			t.Error("it ended as if all had been said")
		}
	case <-time.After(patience):
		t.Error("a connection outlives its token")
	}

	p := h.port(t, nil, 1, d.Key, fmt.Sprint("0:", port))
	c := reachAt(t, p.at[0])
	if _, err := io.WriteString(c, "word"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, b); err != nil {
		t.Fatal(err)
	}
	h.carrel(t, "stop", d.Key)
	_, _ = io.Copy(io.Discard, c) // it ends, one way or the other
	if code := p.end(t); code != 1 || !strings.Contains(p.errs.String(), "was stopped") {
		t.Errorf("it ended with %d: %s", code, p.errs)
	}
	h.settled(t)
	if r := h.try(nil, "", "port", d.Key, fmt.Sprint("0:", port)); r.code != 1 || !strings.Contains(r.err, "does not run") {
		t.Errorf("of a stopped workspace: %+v", r)
	}
	if now := h.look(t, d.Key); now.State != "stopped" {
		t.Errorf("it is %s", now.State)
	}
}

// What answers never, or faster than anybody reads, holds nobody else.
func TestPortsHoldNobody(t *testing.T) {
	h := newHostFor(t)
	d := h.desk(t)
	port := d.echo(t, "AF_INET", "127.0.0.1")
	d.detach(t, "python3", "-c", `import socket, time, os
s = socket.socket(); s.bind(("127.0.0.1", 0)); s.listen(16)
open("silent.new", "w").write(str(s.getsockname()[1])); os.rename("silent.new", "silent")
kept = []
while True: kept.append(s.accept())
`)
	d.detach(t, "python3", "-c", `import socket, threading, os
s = socket.socket(); s.bind(("127.0.0.1", 0)); s.listen(16)
open("flood.new", "w").write(str(s.getsockname()[1])); os.rename("flood.new", "flood")
def serve(c):
    while True: c.sendall(b"x" * 65536)
while True: threading.Thread(target=serve, args=(s.accept()[0],), daemon=True).start()
`)
	silent, flood := d.portIn(t, "silent"), d.portIn(t, "flood")
	p := h.port(t, nil, 3, d.Key, fmt.Sprint("0:", port), fmt.Sprint("0:", silent), fmt.Sprint("0:", flood))
	for range 10 {
		if _, err := io.WriteString(reachAt(t, p.at[1]), "hello?"); err != nil {
			t.Fatal(err)
		}
		slow := reachAt(t, p.at[2])
		if _, err := io.ReadFull(slow, make([]byte, 100)); err != nil { // and reads no more
			t.Fatal(err)
		}
	}
	daemon := rss(t, h.part(t, "daemon"))
	large := bytes.Repeat([]byte("abc"), 1<<20)
	for range 3 {
		if got, err := through(reachAt(t, p.at[0]), large); err != nil || !bytes.Equal(got, large) {
			t.Errorf("beside them: %d bytes of %d (%v)", len(got), len(large), err)
		}
	}
	d.well(t)
	if now := rss(t, h.part(t, "daemon")); now > daemon+64<<20 {
		t.Errorf("the daemon has grown from %d to %d bytes", daemon, now)
	}
}

// rss is what a process has in memory, in bytes.
func rss(t testing.TB, pid int) int64 {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		t.Fatal(err)
	}
	var size, resident int64
	if _, err := fmt.Sscan(string(b), &size, &resident); err != nil {
		t.Fatal(err)
	}
	return resident * int64(os.Getpagesize())
}
