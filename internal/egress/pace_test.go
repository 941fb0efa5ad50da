package egress_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/carrel-dev/carrel/internal/egress"
)

// A workspace makes connections to hosts at a pace: those beyond it wait, and are refused where that would take too long.
func TestPaceOfConnections(t *testing.T) {
	host := raw(t, func(net.Conn) {})
	w := start(t, rules(t, "example.com:*"), func(c *egress.Config) {
		c.Limits.DialBurst, c.Limits.DialEvery, c.Limits.Dial = 5, 100*time.Millisecond, time.Second
	})
	w.leads("example.com", public, 22, host)
	began := time.Now()
	var all sync.WaitGroup
	var through, refused atomic.Int64
	for range 30 {
		all.Go(func() {
			c, err := net.Dial("tcp", w.proxy.Addr().String())
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(patience))
			_, _ = io.WriteString(c, "CONNECT example.com:22 HTTP/1.1\r\nHost: example.com:22\r\n\r\n")
			b, _ := io.ReadAll(c)
			switch text := string(b); {
			case strings.HasPrefix(text, "HTTP/1.1 200"):
				through.Add(1)
			case strings.Contains(text, "too many connections are made in this workspace"):
				refused.Add(1)
			default:
				t.Errorf("%q", text)
			}
		})
	}
	all.Wait()
	if through.Load() < 10 || refused.Load() < 10 || time.Since(began) < 900*time.Millisecond {
		t.Errorf("%d got through and %d were refused in %v", through.Load(), refused.Load(), time.Since(began))
	}
	if _, dialled := w.seen(); len(dialled) != int(through.Load()) {
		t.Errorf("%d were dialled", len(dialled))
	}
	time.Sleep(1500 * time.Millisecond) //nolint:forbidigo // the pace is one of time
	w.server.Slow(500 * time.Millisecond)
	began = time.Now()
	if text, err := w.exchange(w.open(w.proxy.Addr()), "CONNECT example.com:22 HTTP/1.1\r\nHost: example.com:22\r\n\r\n"); err != nil ||
		!strings.HasPrefix(text, "HTTP/1.1 200") || time.Since(began) < 400*time.Millisecond {
		t.Errorf("%q, %v after %v", text, err, time.Since(began))
	}
}

// A connection that says nothing takes no port of the host, where the program speaks first.
func TestNothingSaid(t *testing.T) {
	spoke := make(chan string, 10)
	host := raw(t, func(c net.Conn) {
		_, _ = io.WriteString(c, "220 hello\r\n")
		b, _ := io.ReadAll(c)
		spoke <- string(b)
	})
	w := start(t, rules(t, "example.com:*"), func(c *egress.Config) { c.Limits.First = 300 * time.Millisecond })
	for _, port := range []uint16{80, 443, 25} {
		w.leads("example.com", public, port, host)
	}
	at := w.lookup("example.com")
	for range 20 {
		c := w.transparent(netip.AddrPortFrom(at, 443))
		_ = c.Close()
		w.recorded(func(c egress.Connection) bool {
			return c.Way == egress.WayTransparent && c.Refused == "" && c.Sent == 0
		})
	}
	w.untouched()
	// A protocol in which the host speaks first goes on: at once on other ports, and after a while on these.
	for _, port := range []uint16{25, 80} {
		c := w.transparent(netip.AddrPortFrom(at, port))
		b := make([]byte, 3)
		if _, err := io.ReadFull(c, b); err != nil || string(b) != "220" {
			t.Errorf("port %d: %q, %v", port, b, err)
		}
		_ = c.Close()
		<-spoke
	}
	// The first byte is not lost.
	c := w.transparent(netip.AddrPortFrom(at, 443))
	_, _ = io.WriteString(c, "QUIT\r\n")
	_ = c.(*net.TCPConn).CloseWrite()
	if got := <-spoke; got != "QUIT\r\n" {
		t.Errorf("the host got %q", got)
	}
}

// A connection on which nothing has moved is reset, so that it keeps no port of the host.
func TestResetWhereNothingMoved(t *testing.T) {
	ended := make(chan error, 1)
	host := raw(t, func(c net.Conn) {
		_, err := c.Read(make([]byte, 1))
		ended <- err
	})
	w := start(t, rules(t, "example.com:*"), nil)
	for _, port := range []uint16{443, 22} {
		w.leads("example.com", public, port, host)
		c := w.open(w.proxy.Addr())
		_, _ = fmt.Fprintf(c, "CONNECT example.com:%d HTTP/1.1\r\nHost: example.com:%[1]d\r\n\r\n", port)
		_, _ = io.ReadFull(c, make([]byte, len("HTTP/1.1 200 Connection established\r\n\r\n")))
		if port == 22 { // there a host may still answer who has ended
			_ = c.(*net.TCPConn).SetLinger(0)
		}
		_ = c.Close()
		if err := wait(t, ended); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("port %d: the host saw %v", port, err)
		}
	}
}
