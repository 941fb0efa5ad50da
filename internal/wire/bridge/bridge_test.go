package bridge_test

import (
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/carrel-dev/carrel/internal/wire/bridge"
)

// serve serves one connection at a socket.
func serve(t *testing.T, f func(c *net.UnixConn)) (address string) {
	t.Helper()
	address = filepath.Join(t.TempDir(), "s")
	l, err := new(net.ListenConfig).Listen(t.Context(), "unix", address)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if c, err := l.Accept(); err == nil {
			f(c.(*net.UnixConn))
			c.Close()
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
	return address
}

func TestBridge(t *testing.T) {
	address := serve(t, func(c *net.UnixConn) {
		b, _ := io.ReadAll(c) // to its end
		_, _ = io.WriteString(c, "heard "+string(b))
	})
	var out strings.Builder
	long := strings.Repeat("x", 1<<20)
	if err := bridge.Run(address, strings.NewReader(long), &out); err != nil || out.String() != "heard "+long {
		t.Errorf("%v, %d bytes", err, out.Len())
	}
}

// The other side ends first: the bridge does too, though nothing ends its stdin, and says why that may be.
func TestBridgeOfWhatEnds(t *testing.T) {
	for what, x := range map[string]struct {
		serve func(c *net.UnixConn)
		says  string
	}{
		"at once":         {func(*net.UnixConn) {}, "without an answer"},
		"after an answer": {func(c *net.UnixConn) { _, _ = io.WriteString(c, "x\n") }, "has ended the session"},
	} {
		r, w := io.Pipe()
		err := bridge.Run(serve(t, x.serve), r, io.Discard)
		if err == nil || !strings.Contains(err.Error(), x.says) {
			t.Errorf("%s: %v", what, err)
		}
		w.Close()
	}
}

func TestBridgeToNobody(t *testing.T) {
	if err := bridge.Run("@carrel-test-nobody", strings.NewReader(""), io.Discard); err == nil ||
		!strings.Contains(err.Error(), "cannot reach carrel") {
		t.Errorf("%v", err)
	}
}
