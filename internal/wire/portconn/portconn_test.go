package portconn_test

import (
	"bytes"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/carrel-dev/carrel/internal/wire/portconn"
)

// pair returns two ends of a TCP connection.
func pair(t *testing.T) (near, far *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	a, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(); a.Close() })
	return c.(*net.TCPConn), a.(*net.TCPConn)
}

func TestBothWays(t *testing.T) {
	near, far := pair(t)
	type sums struct{ in, out int64 }
	over := make(chan sums, 2)
	c := portconn.New(near, time.Hour, func(in, out int64) { over <- sums{in, out} })
	data := make([]byte, 3<<20+7)
	rand.Read(data)
	go func() {
		b, _ := io.ReadAll(far) // after the half close, all of it goes back
		far.Write(b)
		far.Close()
	}()
	if n, err := c.Write(data); n != len(data) || err != nil {
		t.Fatalf("wrote %d (%v)", n, err)
	}
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(c)
	if !bytes.Equal(got, data) || err != nil {
		t.Fatalf("%d bytes came back of %d (%v)", len(got), len(data), err)
	}
	c.Close()
	c.End(errors.New("late"))
	want := sums{int64(len(data)), int64(len(data))}
	if s := <-over; s != want {
		t.Errorf("counted %+v, not %+v", s, want)
	}
	if len(over) != 0 {
		t.Error("it ended twice")
	}
}

func TestEndIsAReset(t *testing.T) {
	near, far := pair(t)
	c := portconn.New(near, time.Hour, nil)
	cause := errors.New("may not any more")
	read := make(chan error, 1)
	go func() {
		_, err := c.Read(make([]byte, 1))
		read <- err
	}()
	c.End(cause)
	if err := <-read; !errors.Is(err, cause) {
		t.Errorf("a read ended with %v", err)
	}
	if _, err := c.Write([]byte("x")); !errors.Is(err, cause) {
		t.Errorf("a write ended with %v", err)
	}
	far.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := far.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the other side saw %v", err)
	}
}

// TestIdle: one on which nothing moves ends, also if the other side takes nothing that is written.
func TestIdle(t *testing.T) {
	for name, use := range map[string]func(c *portconn.Conn) error{
		"a read": func(c *portconn.Conn) error { _, err := c.Read(make([]byte, 1)); return err },
		"a write": func(c *portconn.Conn) error {
			_, err := c.Write(make([]byte, 64<<20)) // more than any socket holds
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			near, _ := pair(t)
			ended := make(chan struct{})
			c := portconn.New(near, 50*time.Millisecond, func(int64, int64) { close(ended) })
			if err := use(c); !errdefs.IsAborted(err) {
				t.Errorf("ended with %v", err)
			}
			<-ended
		})
	}
}

// TestMoving: one on which something moves now and then stays longer than its idle time.
func TestMoving(t *testing.T) {
	const idle = 2 * time.Second
	for {
		near, far := pair(t)
		c := portconn.New(near, idle, nil)
		began := time.Now()
		last, gap := began, time.Duration(0)
		var err error
		for err == nil && time.Since(began) < idle+idle/2 {
			if _, err = c.Write([]byte("x")); err == nil {
				_, err = io.ReadFull(far, make([]byte, 1))
			}
			gap, last = max(gap, time.Since(last)), time.Now()
			<-time.After(50 * time.Millisecond)
		}
		c.Close()
		switch {
		case err == nil:
			return
		case gap < idle/2:
			t.Fatalf("it ended after %v, though something moved every %v: %v", time.Since(began), gap, err)
		}
		t.Logf("nothing moved for %v on this busy host: once more", gap)
	}
}
