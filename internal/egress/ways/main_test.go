package ways_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/egress/conf"
	"github.com/carrel-dev/carrel/internal/egress/ways"
	"github.com/carrel-dev/carrel/internal/spec/workspace"
	"github.com/carrel-dev/carrel/internal/state/audit"
	"github.com/carrel-dev/carrel/internal/state/record"
	"github.com/carrel-dev/carrel/internal/wire/egressapi"
	"github.com/carrel-dev/carrel/test/built"
	"github.com/carrel-dev/carrel/test/leaks"
)

var binary string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "carrel-ways-bin")
	if err == nil {
		err = built.Programs(context.Background(), dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	binary = filepath.Join(dir, "carrel-egress")
	leaks.Main(m, func() { os.RemoveAll(dir) })
}

const (
	one   = id.Workspace("ws-00000001")
	two   = id.Workspace("ws-00000002")
	three = id.Workspace("ws-00000003")
)

// world is a host with the ways out of some workspaces, an audit log, and an echo server to reach.
type world struct {
	*ways.Ways
	t    *testing.T
	echo string
	log  *audit.Log
	env  []string // of each carrel-egress

	mu         sync.Mutex
	workspaces map[id.Workspace]*inside
	warned     strings.Builder
}

// Open and Change are those of Ways, without secrets.
func (w *world) Open(ctx context.Context, name id.Workspace, allow, deny []string) error {
	return w.Ways.Open(ctx, name, workspace.Reach{Allow: allow, Deny: deny}, egressapi.Secrets{})
}

func (w *world) Change(ctx context.Context, name id.Workspace, allow, deny []string) error {
	return w.Ways.Change(ctx, name, workspace.Reach{Allow: allow, Deny: deny}, egressapi.Secrets{})
}

// inside is what the broker has of one: its sockets, on the host's loopback, and its carrel-egress.
type inside struct {
	sockets []*os.File
	proxy   string // where CONNECT is served

	// Under world.mu.
	refuse error         // what Open returns
	mute   bool          // nobody serves the control socket that Open returns
	wait   chan struct{} // Open waits for it, whatever its context says
	opened int
	cmd    *exec.Cmd
	ends   chan struct{} // closed when cmd has ended
	mutes  []*os.File
}

// Write takes the log. It implements io.Writer.
func (w *world) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.warned.Write(b)
}

func (w *world) warnings() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.warned.String()
}

func newWorld(t *testing.T, c ways.Config) *world {
	t.Helper()
	w := &world{t: t, workspaces: map[id.Workspace]*inside{}}
	server, f := listen(t)
	f.Close()
	w.echo = server.Addr().String()
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := server.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				defer c.Close()
				_, _ = io.Copy(c, c)
			})
		}
	})
	for _, name := range []id.Workspace{one, two, three} {
		w.workspaces[name] = newWorkspace(t)
	}
	log, err := audit.Open(t.Context(), audit.Options{Path: filepath.Join(t.TempDir(), "audit", "log")})
	if err != nil {
		t.Fatal(err)
	}
	w.log = log
	c.Open, c.Records, c.Log = w.open, record.NewWriter(log, nil), slog.New(slog.NewTextHandler(w, nil))
	w.Ways = ways.New(c)
	t.Cleanup(func() {
		w.Shutdown()
		server.Close()
		serving.Wait()
		w.mu.Lock()
		defer w.mu.Unlock()
		for name, x := range w.workspaces {
			for _, f := range append(x.sockets, x.mutes...) {
				f.Close()
			}
			if x.cmd == nil {
				continue
			}
			select {
			case <-x.ends:
			case <-time.After(10 * time.Second):
				t.Errorf("the process of %s goes on after Shutdown", name)
				x.end()
			}
		}
		if err := log.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

func listen(t *testing.T) (*net.TCPListener, *os.File) {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	tcp := l.(*net.TCPListener)
	f, err := tcp.File()
	if err != nil {
		t.Fatal(err)
	}
	return tcp, f
}

func newWorkspace(t *testing.T) *inside {
	t.Helper()
	x := &inside{}
	packets, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	udp, err := packets.File()
	packets.Close()
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		l, f := listen(t)
		x.proxy = l.Addr().String() // the last is that of the proxy
		l.Close()
		x.sockets = append(x.sockets, f)
	}
	x.sockets = []*os.File{x.sockets[0], udp, x.sockets[1], x.sockets[2]}
	return x
}

// open is Config.Open: it does what the broker does.
func (w *world) open(ctx context.Context, name id.Workspace) (*os.File, error) {
	w.mu.Lock()
	x := w.workspaces[name]
	wait := x.wait
	x.opened++
	w.mu.Unlock()
	if wait != nil {
		<-wait
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if x.refuse != nil {
		return nil, x.refuse
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	x.end()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	near, far := os.NewFile(uintptr(fds[0]), "near"), os.NewFile(uintptr(fds[1]), "far")
	if x.mute {
		x.mutes = append(x.mutes, far)
		return near, nil
	}
	defer far.Close()
	cmd := exec.CommandContext(context.WithoutCancel(ctx), binary)
	cmd.Env, cmd.Dir, cmd.ExtraFiles = append([]string{}, w.env...), "/", append([]*os.File{far}, x.sockets...)
	if err := cmd.Start(); err != nil {
		return nil, errors.Join(err, near.Close())
	}
	ends := make(chan struct{})
	go func() {
		defer close(ends)
		_ = cmd.Wait()
	}()
	x.cmd, x.ends = cmd, ends
	return near, nil
}

// end ends the process of a workspace. world.mu is held.
func (x *inside) end() {
	if x.cmd != nil {
		_ = x.cmd.Process.Kill()
		<-x.ends
		x.cmd = nil
	}
}

// set changes a workspace.
func (w *world) set(name id.Workspace, f func(*inside)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f(w.workspaces[name])
}

// signal sends a signal to the process of a workspace, and returns its pid.
func (w *world) signal(name id.Workspace, s unix.Signal) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	pid := w.workspaces[name].cmd.Process.Pid
	if err := unix.Kill(pid, s); err != nil {
		w.t.Error(err)
	}
	for s == unix.SIGSTOP { // kill returns while threads of it may still run
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WSTOPPED|unix.WNOWAIT, nil)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EINTR) {
			w.t.Error(err)
			break
		}
	}
	return pid
}

func (w *world) opened(name id.Workspace) (n int) {
	w.set(name, func(x *inside) { n = x.opened })
	return n
}

// connect opens a tunnel out of a workspace to the echo server, and returns what the proxy says if that refuses.
func (w *world) connect(name id.Workspace) (net.Conn, string) {
	w.t.Helper()
	return w.connectTo(name, w.echo)
}

func (w *world) connectTo(name id.Workspace, to string) (net.Conn, string) {
	w.t.Helper()
	c, err := (&net.Dialer{Timeout: 10 * time.Second}).DialContext(w.t.Context(), "tcp", w.workspaces[name].proxy)
	if err != nil {
		return nil, err.Error()
	}
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\nHost: %[1]s\r\n\r\n", to)
	in := bufio.NewReader(c)
	head, err := in.ReadString('\n')
	if err != nil || !strings.Contains(head, " 200 ") {
		rest, _ := io.ReadAll(in)
		c.Close()
		return nil, fmt.Sprint(head, string(rest), err)
	}
	for line := head; line != "\r\n"; {
		if line, err = in.ReadString('\n'); err != nil {
			c.Close()
			return nil, err.Error()
		}
	}
	w.t.Cleanup(func() { c.Close() })
	return c, ""
}

// reaches fails the test unless a workspace reaches the echo server.
func (w *world) reaches(name id.Workspace) net.Conn {
	w.t.Helper()
	c, no := w.connect(name)
	if no != "" {
		w.t.Fatalf("%s reaches nothing: %s", name, no)
	}
	if err := echo(c); err != nil {
		w.t.Fatalf("%s: %v", name, err)
	}
	return c
}

// refused fails the test unless the workspace's own carrel-egress refuses the echo server.
func (w *world) refused(name id.Workspace) string {
	w.t.Helper()
	c, no := w.connect(name)
	if c != nil || !strings.Contains(no, " 403 ") {
		w.t.Fatalf("%s is not refused: %q", name, no)
	}
	return no
}

func echo(c net.Conn) error {
	if _, err := io.WriteString(c, "hello\n"); err != nil {
		return err
	}
	_, err := io.ReadFull(c, make([]byte, 6))
	return err
}

// must fails the test on an error.
func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// until waits for a condition.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); <-tick.C {
		if ok() {
			return
		}
	}
	t.Fatalf("never: %s", what)
}

// parse returns the configuration of a host.
func parse(t *testing.T, text string) *conf.Config {
	t.Helper()
	c, err := conf.Parse("egress.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return c
}
