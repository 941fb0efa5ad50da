package carrel

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/carrel-dev/carrel/internal/pollfd"
)

// silence is how long after its command's end an output may stay silent and open
// before Run gives up on it: another process holds it.
const silence = 2 * time.Second

// Streams are the near ends for Run. A nil Writer discards.
type Streams struct {
	// Stdin is copied to the command's stdin or terminal until it ends. Run does not
	// wait for a Read of it that has not returned.
	Stdin          io.Reader
	Stdout, Stderr io.Writer
}

// Run copies between the command and s until the command and its output have
// ended, closes it, and returns its status. If a Writer fails, the command gets
// SIGPIPE or EPIPE at its next write there; the error is returned unless it is EPIPE
// itself. When ctx ends the command is hung up.
//
// Copies to an *os.File are done by the kernel where it can.
func (c *Command) Run(ctx context.Context, s Streams) (Status, error) {
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	out := c.Stdout
	if in := c.stdin(); in != nil && s.Stdin != nil {
		go func() {
			_, _ = io.Copy(in, s.Stdin) // a command need not read all of it
			if c.Stdin != nil {
				c.Stdin.Close()
			}
		}()
	}
	if c.Terminal != nil {
		out = c.Terminal
	}
	var (
		wg    sync.WaitGroup
		ended atomic.Bool
		errs  [2]error
	)
	for i, p := range []struct {
		src *os.File
		dst io.Writer
	}{{out, s.Stdout}, {c.Stderr, s.Stderr}} {
		if p.src == nil {
			continue
		}
		wg.Go(func() {
			errs[i] = copyOut(p.dst, p.src, &ended)
			if p.src != c.Terminal {
				p.src.Close() // or a command would block on what nobody reads
			}
		})
	}
	status, err := c.Wait(ctx)
	// The order counts: a copy that sees ended extends the deadline itself.
	ended.Store(true)
	for _, f := range []*os.File{out, c.Stderr} {
		if f != nil {
			_ = f.SetReadDeadline(time.Now().Add(silence)) // it may be closed
		}
	}
	wg.Wait()
	if err == nil {
		err = errors.Join(errs[:]...)
	}
	return status, err
}

// stdin is where input goes.
func (c *Command) stdin() *os.File {
	if c.Terminal != nil {
		return c.Terminal
	}
	return c.Stdin
}

func copyOut(dst io.Writer, src *os.File, ended *atomic.Bool) (err error) {
	moved := func() {
		if ended.Load() {
			_ = src.SetReadDeadline(time.Now().Add(silence))
		}
	}
	switch w := dst.(type) {
	case nil:
		_, err = io.Copy(io.Discard, src)
	case *os.File:
		_, err = pollfd.Copy(w, src, moved)
	default:
		_, err = io.Copy(writerFunc(func(p []byte) (int, error) {
			defer moved()
			return w.Write(p)
		}), src)
	}
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, os.ErrClosed), errors.Is(err, syscall.EIO), errors.Is(err, syscall.EPIPE):
		return nil // held open elsewhere; hung up; a terminal's end; a reader that went
	default:
		return err
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }
