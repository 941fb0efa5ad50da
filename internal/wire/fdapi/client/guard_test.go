package client_test

import (
	"context"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/wire/fdapi"
	"github.com/carrel-dev/carrel/internal/wire/fdapi/client"
)

// listen listens on a socket that nobody serves yet.
func listen(t *testing.T) (net.Listener, string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "cg")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket := filepath.Join(dir, "s")
	l, err := new(net.ListenConfig).Listen(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l, socket
}

func open(t *testing.T, socket string, patience time.Duration) error {
	t.Helper()
	conn, err := client.Dial(t.Context(), socket)
	if err != nil {
		t.Fatal(err)
	}
	x, err := client.Open(t.Context(), conn, socket, patience)
	if err == nil {
		x.Close()
	}
	return err
}

// A daemon that was stopped takes connections, by its kernel, and answers nothing.
func TestDaemonThatAnswersNothing(t *testing.T) {
	_, socket := listen(t)
	err := open(t, socket, 200*time.Millisecond)
	if !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), "cannot get an answer from carrel at unix://"+socket+": nothing came") {
		t.Errorf("it is waited for, or the error is %v", err)
	}
}

// One that works at something long is not given up: it answers what everybody may ask.
func TestDaemonThatTakesLong(t *testing.T) {
	l, socket := listen(t)
	long := make(chan struct{})
	asked := make(chan struct{}, 100)
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	s := &http.Server{Protocols: protocols, ReadHeaderTimeout: time.Minute}
	s.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != fdapi.Path {
			t.Errorf("the daemon's own handler was asked %s %s", r.Method, r.URL)
		}
		<-long
		w.Header().Set("Connection", "close")
		http.Error(w, "not now", http.StatusServiceUnavailable)
	})
	go func() { _ = s.Serve(counted{l, asked}) }()
	t.Cleanup(func() { s.Close() })
	ended := make(chan error, 1)
	go func() { ended <- open(t, socket, 100*time.Millisecond) }()
	for range 12 { // three times the patience, and the call itself
		select {
		case <-asked:
		case err := <-ended:
			t.Fatalf("it was given up: %v", err)
		case <-time.After(30 * time.Second):
			t.Fatal("it is not asked whether it lives")
		}
	}
	close(long)
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "503") {
		t.Errorf("the answer that came late: %v", err)
	}
}

// A daemon that has ended is told by the connection of the call, and a guard that was stopped says nothing.
func TestGuardOfWhatIsOver(t *testing.T) {
	l, socket := listen(t)
	l.Close()
	lost := make(chan error, 2)
	stop := client.Guard(socket, 40*time.Millisecond, func(err error) { lost <- err })
	other, there := listen(t)
	stopped := client.Guard(there, 40*time.Millisecond, func(err error) { lost <- err })
	if _, err := other.Accept(); err != nil { // it asks
		t.Error(err)
	}
	stopped()
	select {
	case err := <-lost:
		t.Error(err)
	case <-time.After(300 * time.Millisecond):
	}
	stop()
}

// counted tells of each connection.
type counted struct {
	net.Listener

	came chan<- struct{}
}

func (c counted) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err == nil {
		select {
		case c.came <- struct{}{}:
		default:
		}
	}
	return conn, err
}

// One that is stopped after the connection has begun is given up by the call.
func TestDaemonThatAnswersNoCall(t *testing.T) {
	l, socket := listen(t)
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		t.Cleanup(func() { conn.Close() })
		_, _ = conn.Write([]byte("HTTP/1.1 101 Switching Protocols\r\n\r\n"))
	}()
	conn, err := client.Dial(t.Context(), socket)
	if err != nil {
		t.Fatal(err)
	}
	x, err := client.Open(t.Context(), conn, socket, 200*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	_, err = x.Call(ctx, fdapi.Spawn, struct{}{}, new(struct{}), 0)
	if !errdefs.IsUnavailable(err) || !strings.HasPrefix(err.Error(), "cannot get an answer from carrel") {
		t.Errorf("it is waited for, or the error is %v", err)
	}
}
