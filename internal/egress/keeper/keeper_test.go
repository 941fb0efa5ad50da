package keeper_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/egress/keeper"
	"github.com/carrel-dev/carrel/internal/spec/netrule"
	"github.com/carrel-dev/carrel/internal/wire/egressapi"
	"github.com/carrel-dev/carrel/test/built"
)

var binary string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "carrel-keeper-bin")
	if err == nil {
		err = built.Programs(context.Background(), dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	binary = filepath.Join(dir, "carrel-egress")
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// way is a keeper whose sockets are on the host's loopback, with an echo server that it may reach.
type way struct {
	*keeper.Keeper
	proxy string // where it serves CONNECT
	echo  string

	mu      sync.Mutex
	told    []egressapi.Connection
	trouble chan error
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

func start(t *testing.T, binary string) (*way, error) {
	t.Helper()
	return startWith(t, binary, func(*keeper.Config) {})
}

// startWith is start with a Config that is changed.
func startWith(t *testing.T, binary string, change func(*keeper.Config)) (*way, error) {
	t.Helper()
	w := &way{trouble: make(chan error, 100)}
	server, f := listen(t)
	f.Close()
	t.Cleanup(func() { server.Close() })
	w.echo = server.Addr().String()
	go func() {
		for {
			c, err := server.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = io.Copy(c, c)
			}()
		}
	}()
	packets, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	udp, err := packets.File()
	packets.Close()
	if err != nil {
		t.Fatal(err)
	}
	var files []*os.File
	for range 3 {
		l, f := listen(t)
		w.proxy = l.Addr().String() // the last is that of the proxy
		l.Close()
		files = append(files, f)
	}
	c := keeper.Config{
		Starter: &keeper.Child{Binary: binary, Sockets: []*os.File{files[0], udp, files[1], files[2]}},
		Setup:   egressapi.Setup{Rules: w.allow(t)},
		Connection: func(c egressapi.Connection) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.told = append(w.told, c)
		},
		Trouble: func(err error) { w.trouble <- err },
	}
	change(&c)
	w.Keeper, err = keeper.Start(t.Context(), c)
	if err == nil {
		t.Cleanup(w.Close)
	}
	return w, err
}

// rulesOf reads rules; those that begin with ! deny.
func rulesOf(t *testing.T, texts ...string) (all []netrule.Rule) {
	t.Helper()
	for _, text := range texts {
		action := netrule.Allow
		text, deny := strings.CutPrefix(text, "!")
		if deny {
			action = netrule.Deny
		}
		r, err := netrule.ParseRule(action, text)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, r)
	}
	return all
}

func (w *way) allow(t *testing.T) []netrule.Rule {
	t.Helper()
	r, err := netrule.ParseRule(netrule.Allow, w.echo)
	if err != nil {
		t.Fatal(err)
	}
	return []netrule.Rule{r}
}

// connect opens a tunnel to the echo server, and returns the answer of the proxy if that refuses.
func (w *way) connect(t *testing.T) (net.Conn, string) {
	t.Helper()
	c, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", w.proxy)
	if err != nil {
		return nil, err.Error()
	}
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\nHost: %[1]s\r\n\r\n", w.echo)
	in := bufio.NewReader(c)
	line, err := in.ReadString('\n')
	if err != nil || !strings.Contains(line, " 200 ") {
		c.Close()
		return nil, fmt.Sprint(line, err)
	}
	for line != "\r\n" {
		if line, err = in.ReadString('\n'); err != nil {
			c.Close()
			return nil, err.Error()
		}
	}
	return c, ""
}

func echo(c net.Conn) error {
	if _, err := io.WriteString(c, "hello\n"); err != nil {
		return err
	}
	b := make([]byte, 6)
	_, err := io.ReadFull(c, b)
	return err
}

// await waits until so many connections have been told.
func (w *way) await(t *testing.T, n int) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); <-tick.C {
		w.mu.Lock()
		told := len(w.told)
		w.mu.Unlock()
		if told >= n {
			return
		}
	}
	t.Fatalf("no %d connections are told", n)
}

// Rules that change cut what they no longer allow, and the process that replaces one that ended serves by
// the newest.
func TestRulesOutliveTheProcess(t *testing.T) {
	w, err := start(t, binary)
	if err != nil {
		t.Fatal(err)
	}
	c, no := w.connect(t)
	if no != "" {
		t.Fatal(no)
	}
	defer c.Close()
	if err := echo(c); err != nil {
		t.Fatal(err)
	}
	if err := w.SetRules(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if err := echo(c); err == nil {
		t.Error("a connection that no rule allows any more goes on")
	}
	if _, no := w.connect(t); !strings.Contains(no, "403") {
		t.Errorf("without rules: %s", no)
	}
	w.await(t, 2) // what a process that is killed has not told yet is lost
	before := w.PID()
	if err := unix.Kill(before, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := <-w.trouble; !strings.Contains(err.Error(), "ended by itself") {
		t.Error(err)
	}
	if _, no := w.connect(t); !strings.Contains(no, "403") { // it waits in the socket for the successor
		t.Errorf("the successor: %s", no)
	}
	if err := w.SetRules(t.Context(), w.allow(t)); err != nil {
		t.Fatal(err)
	}
	c, no = w.connect(t)
	if no != "" {
		t.Fatal(no)
	}
	defer c.Close()
	if err := echo(c); err != nil {
		t.Error(err)
	}
	w.Close()
	w.mu.Lock()
	defer w.mu.Unlock()
	var refused, cut, ended, ends int
	for _, c := range w.told {
		switch {
		case c.Way == keeper.WayEnd:
			ends++
		case c.Refused == "":
			ended++
		case c.ReceivedBytes > 0:
			cut++
		default:
			refused += int(c.Count)
		}
	}
	if refused != 2 || cut != 2 || ended != 0 || ends != 1 { // the second tunnel was cut by the end
		t.Errorf("%d refused, %d cut, %d ended: %+v", refused, cut, ended, w.told)
	}
}

// A process that ends again and again is given up, and then nobody waits in the sockets.
func TestGivenUp(t *testing.T) {
	w, err := start(t, binary)
	if err != nil {
		t.Fatal(err)
	}
	last := 0
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); {
		select {
		case err := <-w.trouble:
			if strings.Contains(err.Error(), "reaches nothing any more") {
				if _, no := w.connect(t); !strings.Contains(no, "refused") {
					t.Errorf("after that: %s", no)
				}
				if err := w.SetRules(t.Context(), nil); !errdefs.IsUnavailable(err) {
					t.Errorf("rules after that: %v", err)
				}
				return
			}
		default:
			if pid := w.PID(); pid != 0 && pid != last {
				last = pid
				_ = unix.Kill(pid, unix.SIGKILL)
			}
		}
	}
	t.Error("it is never given up")
}

// A program that cannot serve is an error of the start, with its own words.
func TestStartFails(t *testing.T) {
	for path, want := range map[string]string{
		filepath.Join(t.TempDir(), "missing"): "no such file", "/bin/false": "exit status 1", "/bin/echo": "without a word",
	} {
		if _, err := start(t, path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", path, err)
		}
	}
	if _, err := start(t, "/bin/cat"); err == nil { // it says nothing to the control socket
		t.Error("a program that does not serve is taken for one that does")
	} else if errors.Is(err, context.DeadlineExceeded) {
		t.Error("its end is not noticed")
	}
}
