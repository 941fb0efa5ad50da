package egress_test

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/carrel-dev/carrel/internal/egress"
)

// A connection is told before a byte of it passes, then what has passed, and its end once.
func TestBegun(t *testing.T) {
	got := make(chan int, 10)
	host := raw(t, func(c net.Conn) {
		n, _ := io.ReadFull(c, make([]byte, 5000))
		got <- n
		_, _ = io.WriteString(c, "answer")
		_, _ = io.Copy(io.Discard, c)
	})
	begun, moved, over := make(chan egress.Connection, 10), make(chan egress.Connection, 10), make(chan uint64, 10)
	w := start(t, rules(t, "example.com:*"), func(c *egress.Config) {
		c.Begun = func(c egress.Connection) {
			if len(got) > 0 {
				t.Error("bytes have passed")
			}
			begun <- c
		}
		c.Moved = func(all []egress.Connection) {
			for _, c := range all {
				moved <- c
			}
		}
		c.Over = func(id uint64) { over <- id }
	})
	w.leads("example.com", public, 22, host)
	c := w.open(w.proxy.Addr())
	_, _ = io.WriteString(c, "CONNECT example.com:22 HTTP/1.1\r\nHost: example.com:22\r\n\r\n")
	first := wait(t, begun)
	if first.ID == 0 || first.Target.String() != "example.com:22" || first.Way != egress.WayConnect || first.Address.String() != public+":22" {
		t.Errorf("begun %+v", first)
	}
	_, _ = c.Write(make([]byte, 5000))
	<-got
	for m := (egress.Connection{}); m.Sent < 5000 || m.Received < 6; {
		if m = wait(t, moved); m.ID != first.ID {
			t.Errorf("moved %+v", m)
		}
	}
	_ = c.Close()
	if end := w.recorded(func(c egress.Connection) bool { return c.Sent > 0 }); end.ID != first.ID {
		t.Errorf("recorded %+v", end)
	}
	// One that is refused when it has got through is counted with others, so its end is told apart.
	w.leads("example.com", public, 443, host)
	c = w.open(w.proxy.Addr())
	_, _ = io.WriteString(c, "CONNECT example.com:443 HTTP/1.1\r\nHost: example.com:443\r\n\r\nGET / HTTP/1.1\r\nHost: other.example\r\n\r\n")
	second := wait(t, begun)
	if id := wait(t, over); id != second.ID || id == first.ID {
		t.Errorf("the end of %d was told, not of %+v", id, second)
	}
	if r := w.refused(egress.WayConnect, "its field Host is that of other.example"); r.ID != 0 {
		t.Errorf("recorded %+v", r)
	}
	if len(begun)+len(over) > 0 {
		t.Error("more was told")
	}
}

// wait takes from a channel what must come.
func wait[T any](t *testing.T, from <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-from:
	case <-time.After(patience):
		t.Fatal("nothing was told")
	}
	return v
}
