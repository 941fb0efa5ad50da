package jsonrpc_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/wire/jsonrpc"
)

// openFDs counts the descriptors of this process.
func openFDs(t testing.TB) int {
	t.Helper()
	e, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(e)
}

func pipe(t testing.TB) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = r.Close()
		_ = w.Close()
	})
	return r, w
}

// swap takes the fds it is sent and returns them in reverse order.
func swap(_ context.Context, _ *jsonrpc.Conn, r *jsonrpc.Request) (any, []*os.File, error) {
	var out []*os.File
	for i := len(r.FDs) - 1; i >= 0; i-- {
		out = append(out, r.FDs[i])
		r.FDs[i] = nil
	}
	return len(out), out, nil
}

func TestFDsBothWays(t *testing.T) {
	c, _ := pair(t, jsonrpc.Config{MaxFDs: 3}, jsonrpc.Config{MaxFDs: 3, Handler: swap})
	r1, w1 := pipe(t)
	r2, w2 := pipe(t)
	var n int
	got, err := c.Call(t.Context(), "swap", nil, &n, w1, w2, r1)
	if err != nil || n != 3 || len(got) != 3 {
		t.Fatalf("got %d fds, %v", len(got), err)
	}
	for _, f := range got {
		flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFD, 0)
		if err != nil || flags&unix.FD_CLOEXEC == 0 {
			t.Errorf("a received fd lacks FD_CLOEXEC")
		}
		defer f.Close()
	}
	if _, err := got[1].WriteString("second"); err != nil {
		t.Fatal(err)
	}
	_ = got[1].Close()
	_ = w2.Close()
	if b, err := io.ReadAll(r2); err != nil || string(b) != "second" {
		t.Errorf("got %q, %v: the order changed", b, err)
	}
	if _, err := w1.WriteString("x"); err != nil {
		t.Errorf("Call closed the caller's fd: %v", err)
	}
}

// TestFDsFindTheirMessage mixes calls with and without fds, so that reads of
// several frames at once occur.
func TestFDsFindTheirMessage(t *testing.T) {
	var files [5]*os.File
	for i := range files {
		f, err := os.CreateTemp(t.TempDir(), "")
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		files[i] = f
	}
	inode := func(f *os.File) uint64 {
		var st unix.Stat_t
		if err := unix.Fstat(int(f.Fd()), &st); err != nil {
			t.Error(err)
		}
		return st.Ino
	}
	var want [5]uint64
	for i, f := range files {
		want[i] = inode(f)
	}
	c, _ := pair(t, jsonrpc.Config{}, jsonrpc.Config{MaxFDs: 1, Handler: func(
		_ context.Context, _ *jsonrpc.Conn, r *jsonrpc.Request,
	) (any, []*os.File, error) {
		var a args
		if err := r.Decode(&a); err != nil {
			return nil, nil, err
		}
		got := "none"
		if len(r.FDs) == 1 {
			got = fmt.Sprint(inode(r.FDs[0]))
		}
		if !strings.HasPrefix(a.Text, got+" ") {
			return nil, nil, fmt.Errorf("fd of inode %s came with %q", got, a.Text)
		}
		return nil, nil, nil
	}})
	before := openFDs(t)
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			for j := range 200 {
				var err error
				if n := (i + j) % 7; n < len(files) {
					err = c.Notify(t.Context(), "n", args{"none "})
					if err == nil {
						_, err = c.Call(t.Context(), "n", args{fmt.Sprint(want[n], " ", strings.Repeat("x", j*i*10))}, nil, files[n])
					}
				} else {
					_, err = c.Call(t.Context(), "n", args{"none "}, nil)
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	if after := openFDs(t); after > before {
		t.Errorf("%d fds were open before and %d after", before, after)
	}
}

func TestLeftFDsAreClosed(t *testing.T) {
	for _, notify := range []bool{false, true} {
		c, _ := pair(t, jsonrpc.Config{MaxFDs: 1}, jsonrpc.Config{MaxFDs: 1, Handler: func(
			context.Context, *jsonrpc.Conn, *jsonrpc.Request,
		) (any, []*os.File, error) {
			f, err := os.Open(os.DevNull)
			return nil, []*os.File{f}, errors.Join(err, errors.New("no"))
		}})
		r, w := pipe(t)
		if notify {
			if err := c.Notify(t.Context(), "n", nil, w); err != nil {
				t.Fatal(err)
			}
		} else if fds, err := c.Call(t.Context(), "n", nil, nil, w); err == nil || fds != nil {
			t.Fatalf("got %v, %v", fds, err)
		}
		_ = w.Close()
		if _, err := io.ReadAll(r); err != nil { // EOF: no copy of w is left
			t.Fatal(err)
		}
	}
}

func TestClosedFileIsRefusedBeforeAnythingIsSent(t *testing.T) {
	c, _ := pair(t, jsonrpc.Config{}, jsonrpc.Config{MaxFDs: 1, Handler: echo})
	_, w := pipe(t)
	_ = w.Close()
	if _, err := c.Call(t.Context(), "echo", nil, nil, w); err == nil {
		t.Error("a closed file was sent")
	}
	if _, err := c.Call(t.Context(), "echo", nil, nil); err != nil {
		t.Errorf("the connection did not survive: %v", err)
	}
}

// TestFDViolations: each ends the connection, and the read end of the pipe whose
// write end was sent sees EOF, so that no descriptor stayed open.
func TestFDViolations(t *testing.T) {
	const one = `{"jsonrpc":"2.0","id":1,"method":"echo","fds":1}` + "\n"
	for _, v := range []struct {
		name   string
		maxFDs int
		frames []string // w is sent with each that begins with "+", once per "+"
	}{
		{"undeclared", 2, []string{"+" + good + "\n"}},
		{"one declared, two sent", 2, []string{"++" + one}},
		{"none accepted", 0, []string{"+" + one}},
		{"truncated", 1, []string{"++" + one}},
		{"three where two fit", 2, []string{"+++" + strings.Replace(one, `"fds":1`, `"fds":2`, 1)}},
		{"in the middle of a frame", 2, []string{one[:10], "+" + one[10:]}},
		{"with the frame before", 2, []string{"+" + good + "\n" + one}},
		{"on an unreadable frame", 2, []string{"+nonsense\n"}},
		{"on an unfinished frame", 2, []string{"+" + one[:10]}},
		{"on a reply to nothing", 2, []string{`+{"jsonrpc":"2.0","id":9,"fds":1,"result":1}` + "\n"}},
		{"on an error", 2, []string{`+{"jsonrpc":"2.0","id":9,"fds":1,"error":{}}` + "\n"}},
		{"on a request with bad params", 2, []string{`+{"jsonrpc":"2.0","id":9,"fds":1,"method":"echo","params":5}` + "\n"}},
	} {
		t.Run(v.name, func(t *testing.T) {
			c, s := rawPeer(t, jsonrpc.Config{MaxFDs: v.maxFDs})
			r, w := pipe(t)
			for _, f := range v.frames {
				body := strings.TrimLeft(f, "+")
				var files []*os.File
				for range len(f) - len(body) {
					files = append(files, w)
				}
				send(t, c, body, files...)
			}
			_ = w.Close()
			if err := c.CloseWrite(); err != nil && !errors.Is(err, net.ErrClosed) && !errors.Is(err, unix.ENOTCONN) {
				t.Fatal(err)
			}
			if _, err := io.ReadAll(r); err != nil {
				t.Fatal(err)
			}
			<-s.Done()
			if s.Err() == nil {
				t.Error("the connection ended without a reason")
			}
		})
	}
}
