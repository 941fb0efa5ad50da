package executor

import (
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/execapi"
)

// capture collects one stream up to a limit and counts the rest.
type capture struct {
	file  *os.File
	limit int64

	mu   sync.Mutex
	data []byte
	lost int64
}

func (c *capture) fill() {
	buf := make([]byte, 4096)
	for {
		n, err := c.file.Read(buf)
		c.mu.Lock()
		keep := min(int64(n), c.limit-int64(len(c.data)))
		c.data = append(c.data, buf[:keep]...)
		c.lost += int64(n) - keep
		c.mu.Unlock()
		if err != nil {
			c.file.Close()
			return
		}
		if n == len(buf) && len(buf) < 64<<10 {
			buf = make([]byte, 4*len(buf)) // a stream that fills the buffer gets a larger one
		}
	}
}

// taken returns what was collected and how many bytes were dropped. It may be called on nil.
func (c *capture) taken() ([]byte, int64) {
	if c == nil {
		return nil, 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.data, c.lost
}

// ring keeps the newest output of a detached command.
type ring struct {
	limit int64

	mu    sync.Mutex
	grown sync.Cond
	data  []byte // the newest bytes, at most limit
	start int64  // offset of data[0] in the whole output
	ended bool
}

func newRing(limit int64) *ring {
	if limit == 0 {
		limit = execapi.DefaultOutput
	}
	r := &ring{limit: limit}
	r.grown.L = &r.mu
	return r
}

func (r *ring) write(b []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.data = append(r.data, b...)
	// Cut when twice the limit is reached, so that each byte is moved once at most.
	if over := int64(len(r.data)) - r.limit; over > 0 && (int64(len(r.data)) >= 2*r.limit || cap(r.data) > int(2*r.limit)) {
		r.data = append(r.data[:0], r.data[over:]...)
		r.start += over
	}
	r.grown.Broadcast()
}

func (r *ring) end() {
	r.mu.Lock()
	r.ended = true
	r.grown.Broadcast()
	r.mu.Unlock()
}

// oldest returns the offset of the oldest byte within the limit.
func (r *ring) oldest() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.start + max(0, int64(len(r.data))-r.limit)
}

// read copies the output from offset into b. With follow it waits for more if there is none. A
// reader that fell behind is moved to the oldest byte kept. n = 0 means the end.
func (r *ring) read(b []byte, offset int64, follow bool, gone *bool) (n int, next int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	offset = max(offset, r.start)
	for offset == r.start+int64(len(r.data)) {
		if r.ended || !follow || *gone {
			return 0, offset
		}
		r.grown.Wait()
		offset = max(offset, r.start)
	}
	n = copy(b, r.data[offset-r.start:])
	return n, offset + int64(n)
}

func (r *ring) fill(f *os.File) {
	buf := make([]byte, 32<<10)
	for {
		n, err := f.Read(buf)
		if n > 0 {
			r.write(buf[:n])
		}
		if err != nil {
			return // close ends the ring: the command may run on after it closed its output
		}
	}
}

// watchStreams starts reading captured streams, and writes stdin data.
func (c *command) watchStreams(ch *child, in *execapi.ExecParams) {
	limit := in.OutputLimit
	if limit == 0 {
		limit = execapi.MaxCapture
	}
	read := func(f *os.File) *capture {
		k := &capture{file: f, limit: limit}
		c.readers.Go(k.fill)
		return k
	}
	c.master = ch.master
	switch {
	case c.detached:
		c.buffer = newRing(in.OutputLimit)
		source := ch.near[1]
		if c.tty {
			source = c.master
		}
		c.source = source
		c.readers.Go(func() { c.buffer.fill(source) })
	default:
		if ch.near[1] != nil {
			c.stdout = read(ch.near[1])
		}
		if ch.near[2] != nil {
			c.stderr = read(ch.near[2])
		}
	}
	if w := ch.near[0]; w != nil {
		data := in.StdinData
		if len(data) == 0 {
			w.Close()
			return
		}
		go func() {
			_, _ = w.Write(data) // fails once the command closes its end
			w.Close()
		}()
	}
}

// giveUp makes pending reads of captured streams return.
func (c *command) giveUp() {
	past := time.Unix(1, 0)
	for _, k := range []*capture{c.stdout, c.stderr} {
		if k != nil {
			_ = k.file.SetReadDeadline(past)
		}
	}
	if c.source != nil {
		_ = c.source.SetReadDeadline(past)
	}
}

// openOutput returns the read end of a pipe that carries the kept output and, with follow,
// further output. A slow reader loses the oldest bytes and never blocks the command.
func (c *command) openOutput(follow bool) (*os.File, int64, error) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return nil, 0, err
	}
	unix.SetNonblock(p[1], true)
	from := c.buffer.oldest()
	ours := os.NewFile(uintptr(p[1]), "output")
	// waitGone notices that the reader closed its end, also while there is no output.
	go c.buffer.pump(ours, from, follow, func() { waitGone(ours) })
	return os.NewFile(uintptr(p[0]), "output"), from, nil
}

// openTerminal returns one end of a stream socket. Reading gives the terminal's output, kept and
// new; what is written is typed into the terminal.
func (c *command) openTerminal() (*os.File, int64, error) {
	p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, 0, err
	}
	unix.SetNonblock(p[1], true)
	ours := os.NewFile(uintptr(p[1]), "terminal")
	from := c.buffer.oldest()
	go c.buffer.pump(ours, from, true, func() { _, _ = io.Copy(c.master, ours) })
	return os.NewFile(uintptr(p[0]), "terminal"), from, nil
}

// pump writes the ring's content to f until its end, or until wait returns, which it does when
// f's reader has closed its end.
func (r *ring) pump(f *os.File, offset int64, follow bool, wait func()) {
	defer f.Close()
	gone := false
	go func() {
		wait()
		r.mu.Lock()
		gone = true
		r.grown.Broadcast()
		r.mu.Unlock()
	}()
	buf := make([]byte, 32<<10)
	for {
		n, next := r.read(buf, offset, follow, &gone)
		if n == 0 {
			return
		}
		if _, err := f.Write(buf[:n]); err != nil {
			return
		}
		offset = next
	}
}

// waitGone returns when the other end of f has been closed, or f itself has.
func waitGone(f *os.File) {
	rc, err := f.SyscallConn()
	if err != nil {
		return
	}
	_ = rc.Read(func(fd uintptr) bool {
		fds := []unix.PollFd{{Fd: int32(fd)}}
		_, err := unix.Poll(fds, 0)
		return err != nil && !errors.Is(err, unix.EINTR) || fds[0].Revents&(unix.POLLERR|unix.POLLHUP|unix.POLLNVAL) != 0
	})
}
