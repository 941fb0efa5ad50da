package executor_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/base/id"
	"github.com/carrel-dev/carrel/internal/boundary/sandbox/launch/launchtest"
	"github.com/carrel-dev/carrel/internal/boundary/screen"
	"github.com/carrel-dev/carrel/internal/linux/pollfd"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

// open opens a session.
func (c *client) open(session, script string) id.Command {
	c.t.Helper()
	n, _ := c.start(execapi.ExecParams{
		Argv: []string{"/bin/sh", "-c", script}, Detach: true, Session: session, Rows: 10, Cols: 40,
	}, execapi.MethodSpawnTerminal)
	return n
}

// window is a client that has joined a session.
type window struct {
	t      *testing.T
	c      *client
	f      *os.File
	n      id.Command
	number int
	read   chan error
	s      chan *screen.Screen // has the screen when nobody writes to it
}

func (c *client) join(n id.Command, rows, cols uint16, readOnly bool) *window {
	c.t.Helper()
	method := execapi.MethodAttach
	if readOnly {
		method = execapi.MethodLogs
	}
	var o execapi.OutputResult
	far, err := c.Call(c.t.Context(), method, execapi.OutputParams{ID: n, Join: true, Rows: rows, Cols: cols}, &o)
	if err != nil {
		c.t.Fatal(err)
	}
	if len(far) != 1 || o.Client == 0 {
		c.t.Fatalf("%d descriptors, %+v", len(far), o)
	}
	// Under the poller: a close ends a read that waits, and does not wait for it.
	f, err := pollfd.Open(far[0])
	if err != nil {
		c.t.Fatal(err)
	}
	w := &window{t: c.t, c: c, f: f, n: n, number: o.Client, read: make(chan error, 1), s: make(chan *screen.Screen, 1)}
	c.t.Cleanup(func() { w.f.Close() })
	w.s <- screen.New(int(rows), int(cols))
	go func() {
		b := make([]byte, 4096)
		for {
			n, err := w.f.Read(b)
			s := <-w.s
			for got := b[:n]; len(got) > 0; {
				got = got[s.Write(got):]
			}
			w.s <- s
			if err != nil {
				w.read <- err
				return
			}
		}
	}()
	return w
}

// shows waits until the window shows lines.
func (w *window) shows(lines ...string) {
	w.t.Helper()
	var text string
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); <-time.After(5 * time.Millisecond) {
		s := <-w.s
		text = s.String()
		w.s <- s
		if !slices.ContainsFunc(lines, func(l string) bool { return !strings.Contains(text, l) }) {
			return
		}
	}
	w.t.Fatalf("the window does not show %q, but\n%s", lines, text)
}

func (w *window) types(text string) {
	w.t.Helper()
	if _, err := io.WriteString(w.f, text); err != nil {
		w.t.Fatal(err)
	}
}

func (w *window) resize(rows, cols uint16) error {
	_, err := w.c.Call(w.t.Context(), execapi.MethodResize, execapi.ResizeParams{ID: w.n, Client: w.number, Rows: rows, Cols: cols}, nil)
	return err
}

func (c *client) listed(n id.Command) execapi.Command {
	c.t.Helper()
	var l execapi.ListResult
	if _, err := c.Call(c.t.Context(), execapi.MethodList, nil, &l); err != nil {
		c.t.Fatal(err)
	}
	i := slices.IndexFunc(l.Commands, func(x execapi.Command) bool { return x.ID == n })
	if i < 0 {
		c.t.Fatalf("%s is not listed: %+v", n, l)
	}
	return l.Commands[i]
}

const echo = `while read x; do echo "got $x"; done`

// A session shows those who join what it showed before, takes what they type, and goes on without them.
func TestSession(t *testing.T) {
	bothRoles(t, func(t *testing.T, w *launchtest.Workspace, c *client) {
		n := c.open("main", "echo hello; "+echo)
		one := c.join(n, 10, 40, false)
		one.shows("hello")
		one.types("abc\n")
		one.shows("got abc")
		one.f.Close()
		c.Close()
		c = dial(t, w, execapi.Control)
		two := c.join(n, 10, 40, false)
		two.shows("hello", "got abc")
		looks := c.join(n, 10, 40, true)
		looks.shows("hello", "got abc")
		looks.types("never\n")
		two.types("after\n")
		looks.shows("got after")
		s := <-two.s
		if strings.Contains(s.String(), "never") {
			t.Errorf("what a client typed that only looks on arrived:\n%s", s)
		}
		two.s <- s
		for until := time.Now().Add(time.Minute); c.listed(n).Clients != 2; <-time.After(5 * time.Millisecond) {
			if time.Now().After(until) {
				t.Fatalf("after the first one left: %+v", c.listed(n))
			}
		}
		if l := c.listed(n); l.Session != "main" || l.Rows != 10 || l.Cols != 40 {
			t.Errorf("%+v", l)
		}
		_, err := c.Call(t.Context(), execapi.MethodSpawnTerminal, execapi.ExecParams{
			ID: id.NewCommand(), Argv: []string{"true"}, Detach: true, Session: "main",
		}, nil)
		if !errdefs.IsAlreadyExists(err) {
			t.Errorf("a second session with the name: %v", err)
		}
		two.types("\x04")
		for _, x := range []*window{two, looks} {
			if err := <-x.read; !errors.Is(err, io.EOF) {
				t.Errorf("at the end: %v", err)
			}
		}
		last := c.open("main", "true") // the name is free
		for until := time.Now().Add(time.Minute); c.listed(last).Status == nil; <-time.After(5 * time.Millisecond) {
			if time.Now().After(until) {
				t.Fatal("the last one does not end")
			}
		}
	})
}

// What was typed and never read does not take from its client what the session shows last, nor the end.
func TestTypedAtTheEndOfASession(t *testing.T) {
	w, err := launchtest.Start(t, nil)
	if err != nil {
		t.Fatal(err)
	}
	c := dial(t, w, execapi.Control)
	n := c.open("main", "stty raw -echo; echo ready; trap 'printf last; exit' TERM; while :; do sleep 0.01; done")
	types, looks := c.join(n, 10, 40, false), c.join(n, 10, 40, true)
	types.shows("ready")
	looks.shows("ready")
	var first time.Time // of those that found no room
	for first.IsZero() || time.Since(first) < time.Second {
		_, err := unix.SendmsgN(int(types.f.Fd()), make([]byte, 4<<10), nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		switch {
		case errors.Is(err, unix.EAGAIN):
			if first.IsZero() {
				first = time.Now()
			}
			<-time.After(5 * time.Millisecond)
		case err != nil:
			t.Fatal(err)
		default:
			first = time.Time{}
		}
	}
	looks.types(strings.Repeat("never", 200<<10)) // it is taken, and dropped
	if _, err := c.Call(t.Context(), execapi.MethodStopTask, execapi.StopTaskParams{ID: n, Signal: int(unix.SIGTERM)}, nil); err != nil {
		t.Fatal(err)
	}
	for _, x := range []*window{types, looks} {
		if err := <-x.read; !errors.Is(err, io.EOF) {
			t.Errorf("at the end: %v", err)
		}
		x.shows("last")
	}
}

// The terminal has the size of the smallest window of those who type. Who leaves gives it back, and a flood of sizes is not
// passed on one by one.
func TestSessionSize(t *testing.T) {
	w, err := launchtest.Start(t, nil)
	if err != nil {
		t.Fatal(err)
	}
	c := dial(t, w, execapi.Control)
	n := c.open("main", `trap 'n=$((n+1)); stty size; echo "change $n"' WINCH; echo ready; while :; do read x; stty size; done`)
	large := c.join(n, 30, 90, false)
	large.shows("ready")
	large.types("\n")
	large.shows("30 90")
	small := c.join(n, 20, 100, false)
	small.types("\n")
	small.shows("20 90")
	c.join(n, 5, 5, true)
	small.types("\n")
	for until := time.Now().Add(time.Minute); c.listed(n).Rows != 20 || c.listed(n).Clients != 3; <-time.After(5 * time.Millisecond) {
		if time.Now().After(until) {
			t.Fatalf("with one who looks on: %+v", c.listed(n))
		}
	}
	small.f.Close()
	for until := time.Now().Add(time.Minute); c.listed(n).Rows != 30; <-time.After(5 * time.Millisecond) {
		if time.Now().After(until) {
			t.Fatalf("after the smaller one left: %+v", c.listed(n))
		}
	}
	began := time.Now()
	for i := range 2000 {
		if err := large.resize(uint16(10+i%20), 80); err != nil {
			t.Fatal(err)
		}
	}
	most := int(time.Since(began)/(50*time.Millisecond)) + 10
	if err := large.resize(25, 70); err != nil {
		t.Fatal(err)
	}
	large.types("\n")
	large.shows("25 70", "change ") // which a slow shell says later
	s := <-large.s
	var changes int
	for line := range strings.Lines(s.String()) {
		_, _ = fmt.Sscanf(strings.TrimSpace(line), "change %d", &changes)
	}
	large.s <- s
	if changes == 0 || changes > most {
		t.Errorf("%d changes came of 2001, more than %d", changes, most)
	}
	_, err = c.Call(t.Context(), execapi.MethodResize, execapi.ResizeParams{ID: n, Rows: 1, Cols: 1}, nil)
	if !errdefs.IsFailedPrecondition(err) {
		t.Errorf("without a client: %v", err)
	}
}

// A client that does not read holds neither the command nor the others, and is shown what is there when it reads.
func TestSlowClientOfASession(t *testing.T) {
	w, err := launchtest.Start(t, nil)
	if err != nil {
		t.Fatal(err)
	}
	c := dial(t, w, execapi.Control)
	n := c.open("main", `read x; i=0; while [ $i -lt 20000 ]; do i=$((i+1)); echo "line $i of many that are written"; done; echo done; read x`)
	var o execapi.OutputResult
	far, err := c.Call(t.Context(), execapi.MethodAttach, execapi.OutputParams{ID: n, Join: true, Rows: 10, Cols: 40}, &o)
	if err != nil {
		t.Fatal(err)
	}
	slow := far[0]
	defer slow.Close()
	quick := c.join(n, 10, 40, false)
	quick.types("\n")
	quick.shows("line 20000", "done")
	// What waits for the slow one is what its socket holds, and then what is there.
	s, all := screen.New(10, 40), 0
	b := make([]byte, 64<<10)
	for !strings.Contains(s.String(), "done") {
		n, err := slow.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		all += n
		s.Write(b[:n])
	}
	if all > 200<<10 {
		t.Errorf("the slow client was sent %d bytes", all)
	}
}

// Nothing of what a program writes to its terminal reaches that of a person, but characters and colours.
func TestEscapesOfASession(t *testing.T) {
	w, err := launchtest.Start(t, nil)
	if err != nil {
		t.Fatal(err)
	}
	c := dial(t, w, execapi.Control)
	n := c.open("main", `printf '\033]52;c;ZXZpbA==\007\033]0;title\007\033[21t\033P+q544e\033\\\033[?5h\033[8;1;1t'; `+
		`printf '\033[c\033[6n\377\303\200\302\233'; head -c 300000 /dev/urandom; printf '\033c'; stty sane; echo end; read x; read x`)
	far, err := c.Call(t.Context(), execapi.MethodAttach, execapi.OutputParams{ID: n, Join: true, Rows: 10, Cols: 40}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer far[0].Close()
	all := readUntil(t, far[0], "end")
	if !utf8.ValidString(all) {
		t.Error("it is not UTF-8")
	}
	for i, part := range strings.Split(all, "\x1b")[1:] {
		ok := strings.HasPrefix(part, "[") || part == "\\" || strings.HasPrefix(part, "(B") || part[0] == '>' || part[0] == '='
		if end := strings.IndexFunc(part[1:], func(r rune) bool { return r >= '@' && r <= '~' }); ok && part[0] == '[' {
			ok = end >= 0 && strings.ContainsRune("HmKhlrqJ", rune(part[1+end]))
		}
		if !ok {
			t.Errorf("sequence %d is %.20q", i, part)
		}
	}
	if strings.Contains(all, "ZXZpbA") || strings.Contains(all, "title") {
		t.Error("a text for the terminal itself was passed on")
	}
}

// There are so many sessions, and so many clients of one; another is refused with a reason, and the others go on.
func TestSessionsAreBounded(t *testing.T) {
	w, err := launchtest.Start(t, nil)
	if err != nil {
		t.Fatal(err)
	}
	c := dial(t, w, execapi.Control)
	first := c.open("s0", echo)
	for i := 1; i < execapi.MaxSessions; i++ {
		n := c.open(fmt.Sprintf("s%d", i), echo)
		far, err := c.Call(t.Context(), execapi.MethodAttach, execapi.OutputParams{ID: n, Join: true, Rows: 60000, Cols: 60000}, nil)
		if err != nil {
			t.Fatal(err)
		}
		far[0].Close()
	}
	_, err = c.Call(t.Context(), execapi.MethodSpawnTerminal, execapi.ExecParams{
		ID: id.NewCommand(), Argv: []string{"true"}, Detach: true, Session: "more",
	}, nil)
	if !errdefs.IsResourceExhausted(err) {
		t.Errorf("one session more: %v", err)
	}
	for range execapi.MaxClients {
		c.join(first, 10, 40, false)
	}
	_, err = c.Call(t.Context(), execapi.MethodAttach, execapi.OutputParams{ID: first, Join: true}, nil)
	if !errdefs.IsResourceExhausted(err) {
		t.Errorf("one client more: %v", err)
	}
	for _, bad := range []execapi.ExecParams{
		{Argv: []string{"true"}, Session: "x"},
		{Argv: []string{"true"}, Detach: true, Record: true},
		{Argv: []string{"true"}, Detach: true, Session: "../x"},
		{Argv: []string{"true"}, Detach: true, Session: strings.Repeat("x", 33)},
	} {
		bad.ID = id.NewCommand()
		if _, err := c.Call(t.Context(), execapi.MethodSpawnTerminal, bad, nil); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	plain, _ := c.start(execapi.ExecParams{Argv: []string{"/bin/sleep", "60"}, Detach: true}, execapi.MethodSpawnTerminal)
	_, err = c.Call(t.Context(), execapi.MethodAttach, execapi.OutputParams{ID: plain, Join: true}, nil)
	if !errdefs.IsFailedPrecondition(err) {
		t.Errorf("what is no session: %v", err)
	}
}

// A recording is a file of asciinema's, in UTF-8 whatever was written, that holds no more than it may.
func TestRecording(t *testing.T) {
	w, err := launchtest.Start(t, nil)
	if err != nil {
		t.Fatal(err)
	}
	c := dial(t, w, execapi.Control)
	script := `printf 'caf\303'; sleep 0.1; printf '\251 \377\033[31mred'; read x; head -c 12000000 /dev/zero; exit 3`
	n, _ := c.start(execapi.ExecParams{
		Argv: []string{"/bin/sh", "-c", script}, Detach: true, Session: "main", Record: true, Rows: 10, Cols: 40,
	}, execapi.MethodSpawnTerminal)
	x := c.join(n, 12, 44, false)
	x.shows("red")
	x.types("\n")
	<-x.read
	text := c.sh("cat .carrel/recordings/" + string(n) + ".cast | head -c 200000")
	size := c.sh("stat -c '%s %u' .carrel/recordings/*.cast; id -u")
	var bytes, owner, uid int
	_, err = fmt.Sscan(string(size.Stdout), &bytes, &owner, &uid)
	if err != nil || bytes > execapi.MaxRecording || bytes < 1<<20 || owner != uid {
		t.Errorf("size and owner: %q, %v", size.Stdout, err)
	}
	lines := strings.Split(string(text.Stdout), "\n")
	var head struct{ Version, Width, Height int }
	if err := json.Unmarshal([]byte(lines[0]), &head); err != nil || head.Version != 2 || head.Width != 40 || head.Height != 10 {
		t.Errorf("%q: %v", lines[0], err)
	}
	var out, sizes strings.Builder
	last := -1.0
	for _, line := range lines[1 : len(lines)-1] {
		var at float64
		var kind, data string
		if err := json.Unmarshal([]byte(line), &[]any{&at, &kind, &data}); err != nil || at < last {
			t.Fatalf("%.100q: %v", line, err)
		}
		last = at
		if kind == "r" {
			sizes.WriteString(data)
			continue
		}
		out.WriteString(data)
	}
	if got := out.String(); !strings.HasPrefix(got, "café \ufffd\x1b[31mred") || sizes.String() != "44x12" {
		t.Errorf("%.60q, sizes %q", got, sizes.String())
	}
	// It is the workspace's own place: what stands in the way is the workspace's to have put there.
	c.sh("rm -rf .carrel; ln -s /etc .carrel")
	_, err = c.Call(t.Context(), execapi.MethodSpawnTerminal, execapi.ExecParams{
		ID: id.NewCommand(), Argv: []string{"true"}, Detach: true, Session: "two", Record: true,
	}, nil)
	if !errdefs.IsFailedPrecondition(err) {
		t.Errorf("with a link to /etc: %v", err)
	}
}

// A client that stopped reading does not keep the memory of a session that has ended.
func TestSessionEndsWithoutItsClients(t *testing.T) {
	w, err := launchtest.Start(t, nil)
	if err != nil {
		t.Fatal(err)
	}
	c := dial(t, w, execapi.Control)
	n := c.open("main", `i=0; while [ $i -lt 3000 ]; do i=$((i+1)); echo "line $i of many that are written"; sleep 0.001; done`)
	far, err := c.Call(t.Context(), execapi.MethodAttach, execapi.OutputParams{ID: n, Join: true, Rows: 10, Cols: 40}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer far[0].Close()
	for c.listed(n).Status == nil {
		<-time.After(10 * time.Millisecond)
	}
	// Once the executor has let go of its end, what is read ends. Before, a read of what waits would let it go on.
	rc, err := far[0].SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(20 * time.Second); ; <-time.After(10 * time.Millisecond) {
		hung := false
		if err := rc.Control(func(fd uintptr) {
			fds := []unix.PollFd{{Fd: int32(fd)}}
			_, _ = unix.Poll(fds, 0)
			hung = fds[0].Revents&unix.POLLHUP != 0
		}); err != nil {
			t.Fatal(err)
		}
		if hung {
			return
		}
		if time.Now().After(end) {
			t.Fatal("the executor holds on to a client that does not read")
		}
	}
}
