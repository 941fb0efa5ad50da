package executor

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/boundary/screen"
	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

// A session is a detached command whose terminal has a name. The executor keeps what the terminal shows (package screen)
// and draws it for each client that has joined, as it is when that client reads: a slow client misses states between, and
// holds nobody. What the command writes is not passed on.
const (
	// maxCells bounds the characters of the screens of all sessions, which are part of Go's share of the memory: see kept.
	maxCells = 4 << 20 / screen.CellBytes
	// leastCells is what is kept free for each further session.
	leastCells = 2 * screen.DefaultRows * screen.DefaultCols
	// framePause is between two drawings for a client, resizePause between two changes of a size, and tiredPause what a
	// command waits that had the screen do much.
	framePause  = 15 * time.Millisecond
	resizePause = 50 * time.Millisecond
	tiredPause  = 2 * time.Millisecond
	// pieceSize is about how much is drawn before it is written to the client.
	pieceSize = 8 << 10
	// lastDrawing is how long a client may take to read what was shown last.
	lastDrawing = 2 * time.Second
)

// sessionTerm is the terminal that package screen is.
const sessionTerm = "xterm-256color"

// shared is the terminal of a session.
type shared struct {
	c *command

	mu      sync.Mutex
	screen  *screen.Screen
	clients map[int]*joined
	next    int
	// resized is when the size was set last, and later set while a change waits.
	resized time.Time
	later   bool
	ended   bool
	record  *recording
}

// joined is one client of a session.
type joined struct {
	t  *shared
	id int
	f  *os.File
	// types: what it sends is typed, and the size of its window counts.
	types bool
	// changed has an element if there may be something to draw.
	changed chan struct{}
	done    chan struct{} // closed at its end

	// The lock of shared guards the rest.
	view screen.View
}

// share makes the terminal of a session, and says in the request which size it has.
func (c *command) share(in *execapi.ExecParams) error {
	t := &shared{c: c, clients: map[int]*joined{}}
	name := in.Session
	r, k := screen.Clip(int(in.Rows), int(in.Cols))
	e := c.e
	e.mu.Lock()
	defer e.mu.Unlock()
	n := 0
	for _, o := range e.commands {
		if o.shared == nil || o == c {
			continue
		}
		if n++; o.session == name {
			return fmt.Errorf("cannot open session %s: it is open already; join it (carrel shell): %w", name, errdefs.ErrAlreadyExists)
		}
	}
	if n >= execapi.MaxSessions {
		return fmt.Errorf("cannot open session %s: the workspace has %d, the most there may be; end some (carrel shell --ls, carrel shell "+
			"--kill): %w", name, n, errdefs.ErrResourceExhausted)
	}
	c.session = name
	if !e.mayTake(0, 2*r*k, n+1) {
		r, k = screen.Clip(0, 0)
	}
	e.cells += 2 * r * k
	t.screen, c.shared = screen.New(r, k), t
	in.Rows, in.Cols = uint16(r), uint16(k)
	return nil
}

// startRecording makes the file of a recording. It runs with the command's file system ids.
func (t *shared) startRecording(in *execapi.ExecParams, began time.Time) error {
	rows, cols := t.screen.Size()
	r, err := openRecording(in, rows, cols, began)
	t.mu.Lock()
	t.record = r
	t.mu.Unlock()
	return err
}

// mayTake reports whether one of n sessions may have cells for those that it has. The lock is held.
func (e *Executor) mayTake(has, wants, n int) bool {
	return e.cells-has+wants+(execapi.MaxSessions-n)*leastCells <= maxCells
}

// unshare gives the name of an ended session back, and the memory of its screen.
func (c *command) unshare() {
	e := c.e
	e.mu.Lock()
	t := c.shared
	if t != nil {
		rows, cols := t.screen.Size()
		e.cells -= 2 * rows * cols
		c.shared = nil
	}
	e.mu.Unlock()
	if t == nil {
		return
	}
	t.record.close()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended = true
	// Also for a client that has not read for long: until all have gone the screen is there, and is not counted any more.
	late := time.Now().Add(lastDrawing)
	for _, j := range t.clients {
		_ = j.f.SetWriteDeadline(late) // one that has gone needs none
		j.wake()
	}
}

// read reads what the command writes, until the terminal has ended.
func (t *shared) read(f *os.File) {
	buf := make([]byte, 8<<10)
	for {
		n, err := f.Read(buf)
		t.c.buffer.keep(buf[:n])
		t.show(f, buf[:n])
		if err != nil && !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// show puts output on the screen. A command that has it do much is slowed by that, and nobody else.
func (t *shared) show(f *os.File, b []byte) {
	for len(b) > 0 {
		t.mu.Lock()
		n := t.screen.Write(b)
		answers, tired := t.screen.Answers(), t.screen.Tired()
		t.wake()
		t.mu.Unlock()
		t.record.output(b[:n])
		b = b[n:]
		if len(answers) > 0 {
			typeNow(f, answers)
		}
		if tired {
			time.Sleep(tiredPause)
		}
	}
}

// typeNow types what the terminal has room for.
func typeNow(f *os.File, b []byte) {
	if rc, err := f.SyscallConn(); err == nil {
		_ = rc.Control(func(fd uintptr) { _, _ = unix.Write(int(fd), b) }) // a command that does not read has no answers
	}
}

// wake has all clients look for something to draw. The lock is held.
func (t *shared) wake() {
	for _, j := range t.clients {
		j.wake()
	}
}

func (j *joined) wake() {
	select {
	case j.changed <- struct{}{}:
	default:
	}
}

// join returns one end of a stream socket on which the terminal is drawn for a client, and the client's number.
func (t *shared) join(types bool, rows, cols uint16) (*os.File, int, error) {
	k := &t.c.e.kept
	k.mu.Lock()
	full := k.followers >= execapi.MaxFollowers
	if !full {
		k.followers++
	}
	k.mu.Unlock()
	if full {
		return nil, 0, tooMany(t.c.id)
	}
	far, j, err := t.enter(types, rows, cols)
	if err != nil {
		k.mu.Lock()
		k.followers--
		k.mu.Unlock()
		return nil, 0, err
	}
	go j.typed()
	go func() {
		j.run()
		k.mu.Lock()
		k.followers--
		k.mu.Unlock()
	}()
	return far, j.id, nil
}

func (t *shared) enter(types bool, rows, cols uint16) (*os.File, *joined, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended {
		return nil, nil, fmt.Errorf("cannot join session %s: it has ended: %w", t.c.session, errdefs.ErrFailedPrecondition)
	}
	if len(t.clients) >= execapi.MaxClients {
		return nil, nil, fmt.Errorf("cannot join session %s: %d clients have joined it, the most there may be; leave it in one of them: %w",
			t.c.session, len(t.clients), errdefs.ErrResourceExhausted)
	}
	p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot join session %s: %w", t.c.session, err)
	}
	for _, fd := range p {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, followerBuffer) // else it has the kernel's default
	}
	unix.SetNonblock(p[1], true)
	t.next++
	j := &joined{
		t: t, id: t.next, f: os.NewFile(uintptr(p[1]), "client"), types: types,
		changed: make(chan struct{}, 1), done: make(chan struct{}),
		view: screen.View{Rows: int(rows), Cols: int(cols)},
	}
	t.clients[j.id] = j
	j.wake()
	t.fitSoon()
	return os.NewFile(uintptr(p[0]), "session"), j, nil
}

// run draws for one client until it has gone or the session has ended.
func (j *joined) run() {
	defer j.leave()
	var b []byte
	for {
		select {
		case <-j.changed:
		case <-j.done:
			return
		}
		for more := true; more; {
			j.t.mu.Lock()
			var drawn, ended bool
			b, drawn = j.t.screen.Draw(&j.view, b[:0], pieceSize)
			ended = j.t.ended
			j.t.mu.Unlock()
			if _, err := j.f.Write(b); err != nil || drawn && ended {
				return
			}
			more = !drawn
		}
		if cap(b) > 4*pieceSize {
			b = nil
		}
		select {
		case <-time.After(framePause):
		case <-j.done:
			return
		}
	}
}

// leave gives the place back, and the size of the window.
func (j *joined) leave() {
	t := j.t
	unread(j.f)
	j.f.Close()
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.clients, j.id)
	t.fitSoon()
}

// typed types what the client sends, until it sends no more or has gone. What a client sends that may not type is
// dropped.
func (j *joined) typed() {
	defer close(j.done)
	master := j.t.c.master
	rc, err := master.SyscallConn()
	if err != nil {
		return
	}
	buf := make([]byte, 1<<10)
	types := j.types
	for {
		n, err := j.f.Read(buf)
		if err != nil {
			return
		}
		for b := buf[:n]; types && len(b) > 0; {
			n := 0
			if cerr := rc.Control(func(fd uintptr) { n, err = unix.Write(int(fd), b) }); cerr != nil {
				return
			}
			if b = b[max(n, 0):]; err == nil || errors.Is(err, unix.EINTR) {
				continue
			}
			if !errors.Is(err, unix.EAGAIN) {
				types = false // the terminal has ended
				break
			}
			select {
			case <-j.t.c.done:
				types = false // it is shown what is there last
			case <-time.After(typingPause):
			}
			if gone(j.f) {
				return
			}
		}
	}
}

// unread drops what the other end of a socket sent and nobody read: closed with that, the other end would be told of a broken
// connection, and not of the end.
func unread(f *os.File) {
	rc, err := f.SyscallConn()
	if err != nil {
		return
	}
	_ = rc.Control(func(fd uintptr) {
		if unix.Shutdown(int(fd), unix.SHUT_RDWR) != nil {
			return
		}
		for b := make([]byte, 1<<10); ; { // no more can come
			if n, err := unix.Read(int(fd), b); n <= 0 && !errors.Is(err, unix.EINTR) {
				return
			}
		}
	})
}

// gone reports whether the other end of a socket was closed.
func gone(f *os.File) (is bool) {
	rc, err := f.SyscallConn()
	if err != nil {
		return true
	}
	err = rc.Control(func(fd uintptr) {
		fds := []unix.PollFd{{Fd: int32(fd)}}
		_, perr := unix.Poll(fds, 0)
		is = perr == nil && fds[0].Revents&(unix.POLLERR|unix.POLLHUP|unix.POLLNVAL) != 0
	})
	return is || err != nil
}

// resize says that a client's window has another size.
func (t *shared) resize(in *execapi.ResizeParams) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	j := t.clients[in.Client]
	if j == nil {
		return fmt.Errorf("cannot resize session %s: client %d has not joined it, or has left; its terminal has the size of the smallest "+
			"window that has joined: %w", t.c.session, in.Client, errdefs.ErrFailedPrecondition)
	}
	if j.view.Rows == int(in.Rows) && j.view.Cols == int(in.Cols) {
		return nil
	}
	j.view.Rows, j.view.Cols = int(in.Rows), int(in.Cols)
	j.view.Reset()
	j.wake()
	t.fitSoon()
	return nil
}

// fitSoon has the terminal fit the windows, at once or after a pause: sizes may change often, and each change has every program
// on the terminal draw anew. The lock is held.
func (t *shared) fitSoon() {
	if t.later || t.ended {
		return
	}
	wait := resizePause - time.Since(t.resized)
	if wait <= 0 {
		t.fit()
		return
	}
	t.later = true
	time.AfterFunc(wait, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.later = false; !t.ended {
			t.fit()
		}
	})
}

// fit gives the terminal the size of the smallest window, of those that count. Without any it keeps its size, and if there is
// no memory for a larger one too. The lock is held.
func (t *shared) fit() {
	rows, cols := 0, 0
	for _, j := range t.clients {
		if !j.types || j.view.Rows <= 0 || j.view.Cols <= 0 {
			continue
		}
		if rows == 0 {
			rows, cols = j.view.Rows, j.view.Cols
		}
		rows, cols = min(rows, j.view.Rows), min(cols, j.view.Cols)
	}
	hasRows, hasCols := t.screen.Size()
	if rows == 0 {
		return
	}
	if rows, cols = screen.Clip(rows, cols); rows == hasRows && cols == hasCols {
		return
	}
	e := t.c.e
	e.mu.Lock()
	n := 0
	for _, o := range e.commands {
		if o.shared != nil {
			n++
		}
	}
	has, wants := 2*hasRows*hasCols, 2*rows*cols
	may := t.c.shared == t && e.mayTake(has, wants, n)
	if may {
		e.cells += wants - has
		t.screen.Resize(rows, cols)
	}
	e.mu.Unlock()
	if !may {
		return
	}
	t.resized = time.Now()
	t.record.resized(rows, cols)
	_ = setSize(t.c.master, uint16(rows), uint16(cols)) // it ends just now if it fails
	t.wake()
}

// row adds what a list says of a session.
func (t *shared) row(r *execapi.Command) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r.Clients, r.Record = len(t.clients), t.record != nil
	r.Rows, r.Cols = t.screen.Size()
}
