package root_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// wire is a raw connection that speaks lines.
type wire struct {
	*net.UnixConn
	r *bufio.Reader
}

// The first thread of a process cannot end, so it must not be the one that takes
// another user's ids: the main goroutine keeps it.
func init() { runtime.LockOSThread() }

// dialAs connects to a Unix socket as another user. Only the thread that connects takes
// that user's ids, and it ends afterwards: the kernel keeps the peer's credentials from
// the moment of connecting.
func dialAs(path string, uid uint32, groups ...uint32) (*wire, error) {
	type answer struct {
		fd  int
		err error
	}
	got := make(chan answer)
	go func() {
		runtime.LockOSThread()
		got <- func() answer {
			fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return answer{-1, err}
			}
			for _, call := range []func() unix.Errno{
				func() unix.Errno { _, _, e := unix.RawSyscall(unix.SYS_SETGROUPS, 0, 0, 0); return e },
				func() unix.Errno {
					gid := uintptr(uid)
					if len(groups) > 0 {
						gid = uintptr(groups[0])
					}
					_, _, e := unix.RawSyscall(unix.SYS_SETRESGID, gid, gid, gid)
					return e
				},
				func() unix.Errno {
					_, _, e := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid))
					return e
				},
			} {
				if e := call(); e != 0 {
					_ = unix.Close(fd)
					return answer{-1, e}
				}
			}
			if err := unix.Connect(fd, &unix.SockaddrUnix{Name: path}); err != nil {
				_ = unix.Close(fd)
				return answer{-1, err}
			}
			return answer{fd, nil}
		}()
	}()
	a := <-got
	if a.err != nil {
		return nil, a.err
	}
	f := os.NewFile(uintptr(a.fd), path)
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	u := c.(*net.UnixConn)
	return &wire{u, bufio.NewReader(u)}, nil
}

// dial is dialAs that must succeed, closed with the test.
func dial(t testing.TB, path string, uid uint32) *wire {
	t.Helper()
	var w *wire
	var err error
	// A listener whose queue is full says so, and has room a moment later.
	until(t, "a place in the queue of "+path, func() bool {
		w, err = dialAs(path, uid)
		return !errors.Is(err, unix.EAGAIN)
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Close() })
	return w
}

// say writes; a peer that has ended the connection already is no error.
func (w *wire) say(text string) {
	_ = w.SetWriteDeadline(time.Now().Add(patience))
	_, _ = io.WriteString(w, text)
}

// line reads one line, or returns "" at the end of the connection.
func (w *wire) line(t testing.TB) string {
	t.Helper()
	_ = w.SetReadDeadline(time.Now().Add(patience))
	s, err := w.r.ReadString('\n')
	if errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal("neither an answer nor the end of the connection comes")
	}
	return s
}

// ended sees that the connection ends; what still comes is returned.
func (w *wire) ended(t testing.TB) string {
	t.Helper()
	_ = w.SetReadDeadline(time.Now().Add(patience))
	b, err := io.ReadAll(w.r)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the connection does not end; it said %q", b)
	}
	return string(b)
}

// request is one JSON-RPC request.
func request(id int, method, params string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":%q,"params":%s}`+"\n", id, method, params)
}

// sayWithSocket sends a message with one end of a socket beside it. The other end is closed.
func (w *wire) sayWithSocket(t testing.TB, text string) {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pair[0])
	defer unix.Close(pair[1])
	text = strings.TrimSuffix(text, "}\n") + `,"fds":1}` + "\n"
	if _, _, err := w.WriteMsgUnix([]byte(text), unix.UnixRights(pair[1]), nil); err != nil {
		t.Fatal(err)
	}
}

// flood sends a message with n descriptors beside it.
func (w *wire) flood(t testing.TB, text string, n int) {
	t.Helper()
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	control(t, null, func(fd int) error {
		fds := make([]int, n)
		for i := range fds {
			fds[i] = fd
		}
		_, _, err := w.WriteMsgUnix([]byte(text), unix.UnixRights(fds...), nil)
		if errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) {
			return nil
		}
		return err
	})
}

// descriptors counts what a process has open.
func descriptors(t testing.TB, pid int) int {
	t.Helper()
	all, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

// ofASubgroup is what an executor keeps open of each group for one command. It keeps as many groups as commands ran at a time.
var ofASubgroup = regexp.MustCompile(`(^|/)c\d+(/cgroup\.\w+)?$`)

// held is descriptors of an executor without those of its groups.
func held(t testing.TB, pid int) (n int) {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/fd/", pid)
	all, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range all {
		if to, err := os.Readlink(dir + e.Name()); err != nil || !ofASubgroup.MatchString(to) {
			n++
		}
	}
	return n
}

// garbage is what breaks the framing of JSON-RPC or is no message of it. Each ends in a
// state where an answer that is an error, or the end of the connection, is due.
var garbage = map[string]string{
	"no JSON":         "GET / HTTP/1.1\r\n\r\n",
	"bytes":           "\x00\x01\x02\xff\xfe\n",
	"invalid UTF-8":   "{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"list\xff\xfe\",\"params\":{}}\n",
	"an array":        `[{"jsonrpc":"2.0","id":1,"method":"list"}]` + "\n",
	"a number":        "42\n",
	"null":            "null\n",
	"an empty object": "{}\n",
	"deep nesting": `{"jsonrpc":"2.0","id":1,"method":"list","params":{"a":` +
		strings.Repeat("[", 1500) + strings.Repeat("]", 1500) + "}}\n",
	"deep objects": `{"jsonrpc":"2.0","id":1,"method":"list","params":` +
		strings.Repeat(`{"a":`, 700) + "1" + strings.Repeat("}", 700) + "}\n",
	"an id twice":         `{"jsonrpc":"2.0","id":1,"id":2,"method":"list","params":{}}` + "\n",
	"a method twice":      `{"jsonrpc":"2.0","id":1,"method":"list","method":"destroy","params":{}}` + "\n",
	"a method in capital": `{"jsonrpc":"2.0","id":1,"Method":"list","params":{}}` + "\n",
	"an object as id":     `{"jsonrpc":"2.0","id":{},"method":"list","params":{}}` + "\n",
	"a huge id":           `{"jsonrpc":"2.0","id":` + strings.Repeat("9", 400) + `,"method":"list","params":{}}` + "\n",
	"another version":     `{"jsonrpc":"1.0","id":1,"method":"list","params":{}}` + "\n",
	"params as an array":  `{"jsonrpc":"2.0","id":1,"method":"list","params":[1]}` + "\n",
	"params as a string":  `{"jsonrpc":"2.0","id":1,"method":"list","params":"x"}` + "\n",
	"result and error":    `{"jsonrpc":"2.0","id":1,"result":{},"error":{"code":1,"message":"x"}}` + "\n",
	"an answer unasked":   `{"jsonrpc":"2.0","id":77,"result":{}}` + "\n",
	"descriptors unsent":  `{"jsonrpc":"2.0","id":1,"method":"list","fds":3,"params":{}}` + "\n",
	"negative fds":        `{"jsonrpc":"2.0","id":1,"method":"list","fds":-1,"params":{}}` + "\n",
	"two on a line":       `{"jsonrpc":"2.0","id":1,"method":"list","params":{}}{"jsonrpc":"2.0","id":2,"method":"list","params":{}}` + "\n",
	"an unknown method":   `{"jsonrpc":"2.0","id":1,"method":"reboot","params":{}}` + "\n",
	"a method of control": `{"jsonrpc":"2.0","id":1,"method":"a\nb","params":{}}` + "\n",
	"no method":           `{"jsonrpc":"2.0","id":1,"params":{}}` + "\n",
}
