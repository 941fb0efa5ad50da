package executor

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/carrel-dev/carrel/internal/wire/execapi"
)

// capture collects one stream up to a limit and counts the rest. Most streams end within its first
// buffer, which is not shared; the rest goes to chunks that are lent. One goroutine fills it, and
// it may be read once that has ended.
type capture struct {
	k     *kept
	file  *os.File
	limit int64

	first  []byte
	chunks []chunk
	size   int64 // of all that is collected
	lost   int64
}

func (c *capture) fill() {
	defer c.file.Close()
	c.first = make([]byte, 0, min(c.limit, firstBuffer))
	for len(c.first) < cap(c.first) {
		n, err := c.file.Read(c.first[len(c.first):cap(c.first)])
		c.first = c.first[:len(c.first)+n]
		if err != nil {
			c.size = int64(len(c.first))
			return
		}
	}
	c.size = int64(len(c.first))
	readAll(c.file, c.readFrom)
}

// readFrom collects what the descriptor has, as read(2) returns it.
func (c *capture) readFrom(fd int) (int, error) {
	b := c.room()
	if len(b) == 0 {
		n, err := discard(fd)
		c.lost += int64(max(n, 0))
		return n, err
	}
	n, err := unix.Read(fd, b)
	c.size += int64(max(n, 0))
	return n, err
}

// room returns where more goes. Once there is none the rest is lost, so that what is collected is
// the stream's beginning.
func (c *capture) room() []byte {
	if c.lost > 0 || c.size == c.limit {
		return nil
	}
	at := c.size - int64(len(c.first))
	if at == int64(len(c.chunks))*chunkSize {
		more := c.k.lend(1)
		if more == nil {
			return nil
		}
		c.chunks = append(c.chunks, more...)
	}
	b := c.k.bytes(c.chunks[len(c.chunks)-1])[at%chunkSize:]
	return b[:min(int64(len(b)), c.limit-c.size)]
}

// large reports whether its content has to be assembled. It may be called on nil.
func (c *capture) large() bool { return c != nil && len(c.chunks) > 0 }

// taken returns what was collected and how many bytes were dropped, and gives the memory back. It
// may be called on nil.
func (c *capture) taken() ([]byte, int64) {
	if !c.large() {
		if c == nil {
			return nil, 0
		}
		return c.first, c.lost
	}
	all := make([]byte, 0, c.size)
	all = append(all, c.first...)
	for _, x := range c.chunks {
		all = append(all, c.k.bytes(x)[:min(chunkSize, c.size-int64(len(all)))]...)
	}
	c.k.giveBack(c.chunks)
	c.chunks = nil
	return all, c.lost
}

// readAll calls read, which is read(2) to a place of its choice, until the file's end or an error.
// No memory is held while nothing comes.
func readAll(f *os.File, read func(fd int) (int, error)) {
	rc, err := f.SyscallConn()
	if err != nil {
		return
	}
	for {
		var n int
		var rerr error
		err := rc.Read(func(fd uintptr) bool {
			n, rerr = read(int(fd))
			return !errors.Is(rerr, unix.EAGAIN)
		})
		if errors.Is(rerr, unix.EINTR) {
			continue
		}
		if err != nil || rerr != nil || n == 0 {
			return
		}
	}
}

var discards = sync.Pool{New: func() any { return new([64 << 10]byte) }}

// discard reads and drops.
func discard(fd int) (int, error) {
	b := discards.Get().(*[64 << 10]byte)
	defer discards.Put(b)
	return unix.Read(fd, b[:])
}

// watchStreams starts reading captured streams, and writes stdin data.
func (c *command) watchStreams(ch *child, in *execapi.ExecParams) {
	limit := in.OutputLimit
	if limit == 0 {
		limit = execapi.MaxCapture
	}
	read := func(f *os.File) *capture {
		k := &capture{k: &c.e.kept, file: f, limit: limit}
		c.readers.Go(k.fill)
		return k
	}
	c.master = ch.master
	switch {
	case c.keeps:
		c.buffer = c.e.kept.newRing(in.OutputLimit)
		source := ch.near[1]
		if c.tty {
			source = c.master
		}
		c.source = source
		// close ends the ring: the command may run on after it closed its output.
		if t := c.shared; t != nil {
			c.readers.Go(func() { t.read(source) })
			break
		}
		c.readers.Go(func() { readAll(source, c.buffer.readFrom) })
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

// reserveInput reserves room for input until the command ends: what it has not read lies here or in
// its pipe, and both count against the executor's memory.
func (c *command) reserveInput(size int) error {
	if size <= firstBuffer {
		return nil
	}
	c.input = c.e.kept.lend((size + chunkSize - 1) / chunkSize)
	if c.input == nil {
		return fmt.Errorf("cannot run the command with %d bytes of input: other commands of the workspace hold the memory for input and "+
			"output, %d MiB; wait until some have ended, or write the input to a file first: %w",
			size, keptBytes>>20, errdefs.ErrResourceExhausted)
	}
	return nil
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

// discarded drops what is kept of a command that could not be watched.
func (c *command) discarded() {
	c.e.kept.giveBack(c.input)
	c.giveUp()
	c.readers.Wait()
	c.stdout.taken()
	c.stderr.taken()
	c.buffer.forget()
}
