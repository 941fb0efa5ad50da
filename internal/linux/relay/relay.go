// Package relay copies between the streams of a local process and the streams of a command in a
// workspace, until the command and its output have ended.
//
// It must not know how the command is reached.
package relay

import (
	"errors"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/carrel-dev/carrel/internal/linux/pollfd"
)

// silence is how long after its command's end an output may stay silent and open
// before Run gives up on it: another process holds it.
const silence = 2 * time.Second

// Far are the far ends of the command's pipes, or its terminal's master side. Streams that the
// command does not have are nil.
type Far struct{ Stdin, Stdout, Stderr, Terminal *os.File }

// Close closes them.
func (f Far) Close() {
	for _, f := range []*os.File{f.Stdin, f.Stdout, f.Stderr, f.Terminal} {
		if f != nil {
			f.Close() // nobody reads or writes any more
		}
	}
}

// Near are the near ends. A nil Writer discards.
type Near struct {
	// Stdin is copied to the command's stdin or terminal until it ends. Run does not wait for
	// a pending Read of it.
	Stdin          io.Reader
	Stdout, Stderr io.Writer
}

// Run copies until wait has returned, which it does at the command's end, and the output has ended.
// If a Writer fails, the command gets SIGPIPE or EPIPE at its next write to that stream. Run returns
// the error of wait, or else of a Writer unless it is EPIPE.
func Run(far Far, near Near, wait func() error) error {
	out, in := far.Stdout, far.Stdin
	if far.Terminal != nil {
		out, in = far.Terminal, far.Terminal
	}
	if in != nil && near.Stdin != nil {
		go func() {
			_, _ = io.Copy(in, near.Stdin) // a command need not read all of it
			if far.Stdin != nil {
				far.Stdin.Close()
			}
		}()
	}
	var (
		wg    sync.WaitGroup
		ended atomic.Bool
		errs  [2]error
	)
	for i, p := range []struct {
		src *os.File
		dst io.Writer
	}{{out, near.Stdout}, {far.Stderr, near.Stderr}} {
		if p.src == nil {
			continue
		}
		wg.Go(func() {
			errs[i] = copyOut(p.dst, p.src, &ended)
			if p.src != far.Terminal {
				p.src.Close() // or the command would block on a pipe that nobody reads
			}
		})
	}
	err := wait()
	// In this order: a copy that sees ended extends the deadline itself.
	ended.Store(true)
	for _, f := range []*os.File{out, far.Stderr} {
		if f != nil {
			_ = f.SetReadDeadline(time.Now().Add(silence)) // it may be closed
		}
	}
	wg.Wait()
	if err == nil {
		err = errors.Join(errs[:]...)
	}
	return err
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
